"""`python -m grpo check`: what this machine can do, measured in minutes, and a recipe that follows from it.

    python -m grpo check                                     8 minutes with a random Qwen2 of 1.5B parameters
    python -m grpo check --minutes 20 --model DIRECTORY --output outputs/check.json

Without a GPU it runs the same at toy size, in two minutes. Cases run in the order of their worth until the minutes are
over; those that were not reached are listed. Beside the JSON are the recipe (.yaml) and what was printed (.log).

tokens/s   training: completion tokens, and each distinct prompt once, a second of forward and backward: the same count
           for stock TRL and lean. Attention: tokens of one pack. Generation: completion tokens a second of the rollout
off by     training: distance of the first step's gradient from stock TRL's in float32, relative. bfloat16 is off by a
           percent with any implementation: lean may be 1.5 times as far as stock, a mistake would be a multiple of
           that. Attention and generation: as a run's own self-check judges them (training/selfcheck.py)
"""

import argparse
import contextlib
import datetime
import faulthandler
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.core import out_of_memory
from grpo.core.errors import OutOfMemory, UserError
from grpo.core.parsing import ArgumentParser

LONGEST = 150.0  # seconds of a case; the first compilations take up to that
MAX_DISTANCE = 1.5, 1e-4  # of lean's gradient: times stock's distance, or absolute (in float32)
ROOM = 0.8  # share of the memory for the peak: longer completions, fragments and the CUDA context take the rest
VLLM_SHARE = 0.3  # of the memory, TRL's default, where vLLM samples on the same device

CASES = "grpo.config.check_cases"  # imported by the process that measures; it takes seconds
KINDS = ("attention", "training", "packs", "generation")
Row = dict[str, Any]  # a case's kind, name, options and figures; `error` is None where it succeeded


@dataclass(frozen=True)
class Case:
    """What is measured, by a function of check_cases, by its name, that takes these options.

    `alone`: it keeps memory as long as its process lives, so it gets one of its own.
    """

    kind: str  # attention, generation, training or packs
    name: str
    function: str
    options: dict[str, Any]
    alone: bool = False


# --- The process that measures ------------------------------------------------------------------------------------


def begin(log: Path) -> None:
    """Print to the log from here on, and lead a group of processes that `Worker.stop` ends as one."""
    os.setsid()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()


def attempt(function: str, options: dict[str, Any]) -> Row:
    """What the function (module:name) returns, or {"error": one line}; a traceback goes to the log."""
    try:
        found: Row = pkgutil.resolve_name(function)(**options)
        return found
    except Exception as error:  # a case may fail in any way, and the others are measured nevertheless
        traceback.print_exc()
        if out_of_memory.is_one(error):
            return {"error": str(OutOfMemory("this case", str(error), None))}
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return {"error": f"{name}{' '.join(str(error).split())}"[:300]}


class Worker:
    """A process that runs one case after another, until one fails, for whatever reason: the next gets a new one."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.pool: ProcessPoolExecutor | None = None

    def ask(self, function: str, options: dict[str, Any], seconds: float) -> Row:
        """What the function (module:name) returns, or {"error": one line}."""
        if self.pool is None:
            gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # GRPOTrainer refuses several
            os.environ |= {"CUDA_VISIBLE_DEVICES": gpu, "HF_HUB_OFFLINE": "1"}
            self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, (self.log,))
        try:
            found = self.pool.submit(attempt, function, options).result(max(seconds, 0.1))
        except TimeoutError:
            found = {"error": f"not done after {seconds:.0f} s"}
        except BrokenExecutor:
            found = {"error": f"its process ended; {self.log} may say why"}
        if "error" in found:
            self.stop()
        return found

    def stop(self) -> None:
        """End the process, and what it has started."""
        for process in multiprocessing.active_children():
            assert process.pid is not None
            process.kill()
            with contextlib.suppress(ProcessLookupError):  # it had not got as far as `begin`
                os.killpg(process.pid, signal.SIGKILL)
        if self.pool is not None:
            self.pool.shutdown()
        self.pool = None


# --- The cases ----------------------------------------------------------------------------------------------------


def cases(found: dict[str, Any]) -> Iterator[Case]:
    """What is measured, in the order of its worth; what comes later may depend on the rows that are there by then."""
    toy, rows = found["toy"], found["rows"]
    dtype = "float32" if toy else "bfloat16"
    base = {"model": found["model"]["given"], "device": found["device"]["type"], "dtype": dtype}
    step = base | {"optim": "adamw_torch", "steps": 3}
    rollout = base | {"rows": 64, "mean_length": 100.0, "limit": 256, "prompt": 160}
    if "torch-optimi" in found["versions"]:
        step["optim"] = "stable_adamw"
    if toy:
        step |= {"accumulation": 2, "steps": 2, "median_length": 40.0}
        step |= {"max_completion_length": 120, "prompt_words": (10, 40)}
        rollout |= {"rows": 32, "mean_length": 20.0, "limit": 48, "prompt": 32}

    def train(trainer: str, attention: str = "sdpa", checkpointing: bool = False, cudnn: bool = False) -> Case:
        options = step | {"trainer": trainer, "attention": attention, "checkpointing": checkpointing, "cudnn": cudnn}
        name = f"{trainer}, {dtype}, {attention}" + ", checkpointing" * checkpointing + ", cuDNN" * cudnn
        return Case("training", name, "train_and_compare", options)

    def sample(engine: str, alone: bool = False) -> Case:
        return Case("generation", engine, "sample", rollout | {"engine": engine}, alone)

    for attention, backend in found["attention"]:
        options = base | {"attention": attention, "backend": backend, "prompt": rollout["prompt"]}
        name = backend if attention in backend else f"{attention}, {backend}"
        yield Case("attention", name, "attend", options)
    best = max(succeeded(rows, "attention"), key=speed, default={"attention": "sdpa"})["attention"]
    yield from (sample("continuous"), train("lean", best), train("stock"), sample("hf"), sample("lean"))
    if not toy and "vllm" in found["versions"]:
        yield sample("vllm", alone=True)
    # Packs of twice the tokens until the device is full
    tokens, last = (1024, 2048) if toy else (4096, 2**19)
    while tokens <= last:
        # a rollout of about two packs, so that the first is nearly full
        groups = max(1, round(2 * tokens / (8 * 1.3 * step.get("median_length", 200.0))))
        options = step | {"trainer": "lean", "attention": best, "checkpointing": False}
        options |= {"accumulation": 1, "steps": 2, "pack_tokens": tokens, "batch_size": 8 * groups, "compare": False}
        name = f"{tokens:,} tokens"
        yield Case("packs", name, "train_and_compare", options)
        if not any(row["name"] == name for row in succeeded(rows, "packs")):
            break
        tokens *= 2
    yield train("lean", best, checkpointing=True)
    if not toy:
        yield train("stock", cudnn=True)  # which a run keeps off


def run(found: dict[str, Any], worker: Worker, deadline: float, show: Callable[[str], None]) -> None:
    """Run the cases that there is time for, and add their rows to `found`.

    Args:
        found: what the machine is, as check_cases' `machine` returns it, with `toy` and empty results.
        deadline: on time.monotonic's clock.
        show: gets a line before each case.
    """
    for case in cases(found):
        left = deadline - time.monotonic()
        if left < (4 if found["toy"] else 20):
            found["not_run"].append(f"{case.kind}, {case.name}")
            continue
        show(f"{left:4.0f} s left: {case.kind}, {case.name}")
        if case.alone:
            worker.stop()
        answer = worker.ask(f"{CASES}:{case.function}", case.options, min(left, LONGEST))
        if case.alone:
            worker.stop()
        row = {"kind": case.kind, "name": case.name, **case.options, "error": None, **answer}
        if row["error"] is None and "tokens" in row:  # the first step or rollout warms up
            seconds, tokens = row["seconds"][1:], row["tokens"][1:]
            row |= {"tokens_per_second": sum(tokens) / sum(seconds), "seconds": sum(seconds) / len(seconds)}
        found["rows"].append(row)
        judge_gradients(found["rows"])


def judge_gradients(rows: list[Row]) -> None:
    """Say of each row besides stock's whether its gradient is as near to float32's as stock's is."""
    times, absolute = MAX_DISTANCE
    for stock in succeeded(rows, "training", trainer="stock", cudnn=False):
        for row in (row for row in succeeded(rows, "training") if row is not stock):
            row["agrees"] = row["distance"] <= max(times * stock["distance"], absolute)


def succeeded(rows: list[Row], *kinds: str, **options: Any) -> list[Row]:
    """The rows of these kinds and options that have figures."""
    rows = [row for row in rows if row["kind"] in kinds and row["error"] is None]
    return [row for row in rows if all(row[key] == value for key, value in options.items())]


def sound(rows: list[Row], *kinds: str) -> list[Row]:
    """Those of lean, with stock's gradient as far as that was compared."""
    return [row for row in succeeded(rows, *kinds, trainer="lean") if row.get("agrees", True)]


def speed(row: Row) -> float:
    return float(row["tokens_per_second"])


# --- The recipe ---------------------------------------------------------------------------------------------------


def recipe(found: dict[str, Any]) -> str:
    """YAML for `train_grpo.py --config`: the fastest of what fits, with the measured reason beside each value."""
    lines = [f"# Suggested by python -m grpo check on {found['date']} for {found['device']['name']}."]
    lines.append(f"# Measured with {found['model']['name']}; use --model_name_or_path for another of about its size.")
    settings: list[tuple[str, Any, str]] = []
    if found["toy"]:
        settings.append(("use_cpu", True, "there is no GPU: a toy run on a CPU says nothing about one"))
    step, engine = choose(found)
    if step is None:
        lines.append("# No step in packs succeeded, fitted and had stock's gradient; packed: false is TRL's own step.")
    else:
        peak = f"{step['peak_bytes'] / 2**30:.1f} of {found['device']['memory'] / 2**30:.1f} GiB at the peak"
        settings += [
            ("dtype", step["dtype"], step["name"]),
            ("attn_implementation", step["attention"], f"{speed(step):,.0f} tokens/s"),
            ("gradient_checkpointing", step["checkpointing"], peak),
            ("pack_tokens", step["pack_tokens"], "as measured"),
            ("per_device_train_batch_size", 64, "packs bound the memory, so the step is one micro-batch"),
            ("gradient_accumulation_steps", 1, "in which all completions of a prompt share it"),
        ]
    if engine is not None:
        why = f"{engine['seconds']:.2f} s for {engine['rows']} rows, {speed(engine):,.0f} tokens/s"
        settings.append(("generation", engine["engine"], why))
    for key, value, why in settings:
        lines.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value}  # {why}")
    return "\n".join(lines) + "\n"


def choose(found: dict[str, Any]) -> tuple[Row | None, Row | None]:
    """The fastest training step in packs that fits beside the fastest engine, and that engine."""
    steps = sorted(sound(found["rows"], "training", "packs"), key=speed, reverse=True)
    memory = found["device"]["memory"]
    for engine in sorted(succeeded(found["rows"], "generation"), key=speed, reverse=True):
        room = (ROOM - VLLM_SHARE * (engine["engine"] == "vllm")) * memory
        for step in steps:
            if step["peak_bytes"] <= room:
                return step, engine
    return next((step for step in steps if step["peak_bytes"] <= ROOM * memory), None), None


# --- The command --------------------------------------------------------------------------------------------------


def machine_lines(found: dict[str, Any]) -> list[str]:
    device, limits = found["device"], found["limits"]
    rates = ", ".join(f"{name} {rate / 1e12:,.2f}" for name, rate in limits["matrix_flops_per_second"].items())
    return [
        f"{device['name']}: {device['memory'] / 2**30:.1f} GiB",
        "versions: " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        f"model: {found['model']['name']}, {found['model']['parameters']:,} weights",
        f"limits: copy {limits['copy_bytes_per_second'] / 1e9:,.1f} GB/s, matrix product {rates} TFLOP/s",
    ]


def table(found: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title="Toy size, on a CPU" if found["toy"] else None)
    for heading in ("run", "tokens/s", "seconds", "peak, GiB", "off by"):
        shown.add_column(heading, justify="left" if heading == "run" else "right")
    for row in sorted(found["rows"], key=lambda row: KINDS.index(row["kind"])):
        name = f"{row['kind']}: {row['name']}"
        if row["error"]:
            shown.add_row(f"{name}\n  failed: {escape(row['error'])}")
            continue
        off = row.get("distance", row.get("off"))
        off = ("" if off is None else f"{off:.1e}") + ("" if row.get("agrees", True) else " WRONG")
        shown.add_row(name, f"{speed(row):,.0f}", f"{row['seconds']:.2f}", f"{row['peak_bytes'] / 2**30:.2f}", off)
    return shown


def save(found: dict[str, Any], path: Path) -> None:
    """The JSON, with the recipe that follows from what is known by now: a check that is killed has left both."""
    found["recipe"] = recipe(found)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".yaml").write_text(found["recipe"], encoding="utf-8")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(prog="python -m grpo check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, help="all of it; unset: 8, and 2 without a GPU")
    parser.add_argument("--model", help="a local directory; unset: a random Qwen2 of 1.5B parameters (CPU: 2M)")
    parser.add_argument("--output", type=Path, default=Path("outputs/check.json"), help="outputs/check.json")
    given = parser.parse_args(argv)
    if given.model and not (Path(given.model) / "config.json").is_file():
        raise UserError(f"model: {given.model} holds no config.json; use the directory of a model, or drop it")
    if given.minutes is not None and not 0 < given.minutes < 1e4:
        raise UserError(f"minutes: {given.minutes:g} is out of range; use a number above 0")
    if given.output.suffix != ".json":
        raise UserError(f"output: {given.output} does not end in .json; the recipe (.yaml) and the log are beside it")
    try:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.with_suffix(".log").write_bytes(b"")
    except OSError as error:
        raise UserError(f"output: {given.output} cannot be written ({error.strerror}); use another") from None
    return given


def main(argv: list[str] | None = None) -> int:
    start = time.monotonic()
    try:
        given = arguments(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the worker ends with this process
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "rows": [], "not_run": []}
    worker = Worker(given.output.with_suffix(".log"))

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        save(found, given.output)

    try:
        answer = worker.ask(f"{CASES}:machine", {"model": given.model}, LONGEST)
        if "error" in answer:
            print(f"error: this machine could not be measured: {answer['error']} (see {worker.log})", file=sys.stderr)
            return 1
        found |= answer | {"toy": answer["device"]["type"] == "cpu"}
        if found["toy"]:
            print("No GPU: this is a toy-size run on a CPU, and says nothing of a GPU.")
        print(*machine_lines(found), sep="\n", flush=True)
        run(found, worker, start + 60 * (given.minutes or (2 if found["toy"] else 8)), show)
    except KeyboardInterrupt:
        print("Interrupted; what was measured is saved", file=sys.stderr)
        return 130
    finally:
        worker.stop()
    save(found, given.output)
    from rich.console import Console

    Console(width=100, highlight=False, soft_wrap=True).print(table(found))
    for case in found["not_run"]:
        print(f"not run, no time left: {case}")
    print(f"\n{found['recipe']}\nWritten: {given.output}, {given.output.with_suffix('.yaml')}, {worker.log}")
    return 0
