"""`python -m grpo check`: what this machine can do, measured in minutes, and a recipe that follows from it.

    python -m grpo check                                     8 minutes with a random Qwen2 of 1.5B parameters
    python -m grpo check --minutes 20 --model DIRECTORY --output outputs/check.json

Without a GPU it runs the same at toy size, in two minutes. Cases run in the order of their worth until the minutes are
over; those that were not reached are listed. Beside the JSON are the recipe (.yaml) and what was printed (.log).

tokens/s   training: completion tokens, and each distinct prompt once, a second of forward and backward: the same count
           for stock TRL and lean. Generation: completion tokens a second of the rollout
gradient   distance of the first step's gradient from stock TRL's in float32, relative. bfloat16 is off by a percent
           with any implementation: lean may be 1.5 times as far as stock, a mistake would be a multiple of that
"""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from grpo.config import check_cases
from grpo.core import out_of_memory
from grpo.core.errors import OutOfMemory, UserError
from grpo.core.parsing import ArgumentParser

LONGEST = 150.0  # seconds of a case; the first compilations take up to that
MAX_DISTANCE = 1.5, 1e-4  # of lean's gradient: times stock's distance, or absolute (in float32)
ROOM = 0.8  # share of the memory for the peak: longer completions, fragments and the CUDA context take the rest
VLLM_SHARE = 0.3  # of the memory, TRL's default, where vLLM samples on the same device

Case = dict[str, Any]  # `kind` and `name`; `group`: those of one group share a process; `needs`: seconds; `options`
Row = dict[str, Any]  # a case's name, options and figures; `error` is None where it succeeded

KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "machine": check_cases.machine,
    "training": lambda **options: check_cases.train_and_compare(check_cases.Run(**options)),
    "packs": lambda **options: check_cases.train(check_cases.Run(**options)),
    "generation": check_cases.sample,
}


# --- The worker ---------------------------------------------------------------------------------------------------


def respond(case: Case) -> dict[str, Any]:
    """What the case found, or {"error": one line}; a traceback goes to stderr."""
    try:
        return KINDS[case["kind"]](**case["options"])
    except Exception as error:  # a case may fail in any way, and the others are measured nevertheless
        traceback.print_exc()
        if out_of_memory.is_one(error):
            return {"error": str(OutOfMemory("this case", str(error), None))}
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return {"error": f"{name}{' '.join(str(error).split())}"[:300]}


def serve(log: Path, pipe: Connection) -> None:
    """The worker's process: answer each case, `lost` after an error that has left the device unusable."""
    enter(log)
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    while True:
        answer = respond(pipe.recv())
        try:
            check_cases.clean(device)
        except RuntimeError:  # after some errors of a kernel nothing works in this process any more
            answer["lost"] = True
        pipe.send(answer)


def enter(log: Path) -> None:
    """Print to the log from here on, and lead a group of processes that `Worker.stop` ends as one."""
    os.setsid()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


class Worker:
    """A process that runs one case after another, and is started anew after a crash, a hang or a lost device."""

    def __init__(self, log: Path, target: Callable[[Path, Connection], None] = serve) -> None:
        self.log = log
        self.target = target
        self.process: BaseProcess | None = None
        self.group: str | None = None

    def ask(self, case: Case, seconds: float) -> dict[str, Any]:
        """What the case found, or {"error": one line}."""
        if self.process is None or case["group"] != self.group:
            self._start()
        assert self.process is not None
        self.group, begin = case["group"], self.log.stat().st_size
        try:
            self.pipe.send(case)
            if not self.pipe.poll(max(seconds, 0.1)):
                self.stop()
                return {"error": f"not done after {seconds:.0f} s"}
            found: dict[str, Any] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode or 0
            self.stop()
            if status < 0:
                return {"error": f"its process was killed by {signal.Signals(-status).name}"}
            said = self.log.read_bytes()[begin:].decode(errors="replace").strip().split("\n")[-1]
            return {"error": f"its process ended with status {status}: {said.strip()[:200]}"}
        if found.pop("lost", False):
            self.stop()
        return found

    def _start(self) -> None:
        self.stop()
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # GRPOTrainer refuses several in one process
        os.environ |= {"CUDA_VISIBLE_DEVICES": gpu, "HF_HUB_OFFLINE": "1"}
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self.target, args=(self.log, theirs))
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def stop(self) -> None:
        """End it, and what it has started."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has not got as far as `enter`
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join()
        self.process = None


# --- The cases ----------------------------------------------------------------------------------------------------


def cases(found: dict[str, Any]) -> list[Case]:
    """What is measured, in the order of its worth."""
    toy = found["toy"]
    needs, rows, dtype = (4, 32, "float32") if toy else (20, 64, "bfloat16")
    base = {"model": found["model"]["given"], "device": found["device"]["type"], "dtype": dtype}
    optim = "stable_adamw" if "torch-optimi" in found["versions"] and not toy else "adamw_torch"
    step = base | {"optim": optim, "steps": 3, "checkpointing": False}
    rollout = base | {"rows": rows, "mean_length": 100.0, "limit": 256, "prompt": 160}
    if toy:
        step |= {"accumulation": 2, "steps": 2, "median_length": 40.0}
        step |= {"max_completion_length": 120, "prompt_words": (10, 40)}
        rollout |= {"mean_length": 20.0, "limit": 48, "prompt": 32}

    def train(trainer: str, attention: str = "sdpa", checkpointing: bool = False) -> Case:
        options = step | {"trainer": trainer, "attention": attention, "checkpointing": checkpointing}
        name = f"{trainer}, {dtype}, {attention}" + ", checkpointing" * checkpointing
        return {"kind": "training", "name": name, "group": "main", "needs": needs, "options": options}

    def sample(engine: str) -> Case:
        case = {"kind": "generation", "name": engine, "options": rollout | {"engine": engine}}
        apart = engine in ("compiled", "vllm")  # they keep memory as long as their process lives
        return case | ({"group": engine, "needs": 3 * needs} if apart else {"group": "main", "needs": needs})

    engines = [] if toy else ["continuous", *(["vllm"] if "vllm" in found["versions"] else []), "compiled"]
    return [
        *(train("lean"), train("stock"), sample("hf"), sample("lean")),
        *(train("lean", attention) for attention in found["attention"] if attention != "sdpa"),
        *(sample(engine) for engine in engines),
        {"kind": "packs", "name": "the largest that fits", "group": "main", "needs": needs, "options": step},
        train("lean", checkpointing=True),
    ]


def run(found: dict[str, Any], worker: Worker, deadline: float, show: Callable[[str], None]) -> None:
    """Run the cases that there is time for, and add their rows to `found`.

    Args:
        found: what the machine is, as `check_cases.machine` returns it, with `toy` and empty results.
        deadline: on time.monotonic's clock.
        show: gets a line before each case.
    """
    for case in cases(found):
        left = deadline - time.monotonic()
        if left < case["needs"]:
            found["not_run"].append(f"{case['kind']}, {case['name']}")
            continue
        show(f"{left:4.0f} s left: {case['kind']}, {case['name']}")
        if case["kind"] == "packs":
            found["largest_pack"] = search_packs(found, case, worker, deadline)
        else:
            found[case["kind"]].append(measure(case, worker, deadline))
    judge_gradients(found["training"])


def measure(case: Case, worker: Worker, deadline: float) -> Row:
    """Its first step or rollout warms up, and is left out of the figures."""
    answer = worker.ask(case, min(deadline - time.monotonic(), LONGEST))
    row = {"name": case["name"], **case["options"], "error": None, **answer}
    if row["error"] is None:
        seconds, tokens = row["seconds"][1:], row["tokens"][1:]
        row |= {"tokens_per_second": sum(tokens) / sum(seconds), "seconds": sum(seconds) / len(seconds)}
    return row


def search_packs(found: dict[str, Any], case: Case, worker: Worker, deadline: float) -> dict[str, Any]:
    """Double pack_tokens until the device is full, with the fastest attention so far; on a CPU up to 2,048."""
    rows = [row for row in found["training"] if row["trainer"] == "lean" and row["error"] is None]
    best = max(rows, key=lambda row: row["tokens_per_second"], default={"attention": "sdpa"})
    options = case["options"] | {"trainer": "lean", "attention": best["attention"], "accumulation": 1, "steps": 2}
    tokens, last = (512, 2048) if found["toy"] else (4096, 2**19)
    result: dict[str, Any] = {"pack_tokens": None, "tried": []}
    while tokens <= last:
        if deadline - time.monotonic() < case["needs"]:
            return result | {"ended_by": "no time left"}
        # a rollout of about two packs, so that the first is nearly full
        groups = max(1, round(2 * tokens / (8 * 1.3 * options.get("median_length", 200.0))))
        own = {"pack_tokens": tokens, "batch_size": 8 * groups}
        row = measure(case | {"name": f"{tokens:,} tokens", "options": options | own}, worker, deadline)
        result["tried"].append(row)
        if row["error"]:
            return result | {"ended_by": f"{tokens:,}: {row['error']}"}
        result["pack_tokens"] = tokens
        tokens *= 2
    return result | {"ended_by": f"{last:,} is the largest that is tried"}


def judge_gradients(rows: list[Row]) -> None:
    """Say of each lean row whether its gradient is as near to float32's as stock's is."""
    stock = [row["distance"] for row in rows if row["trainer"] == "stock" and row["error"] is None]
    times, absolute = MAX_DISTANCE
    for row in rows:
        if stock and row["trainer"] == "lean" and row["error"] is None:
            row["agrees"] = row["distance"] <= max(times * stock[0], absolute)


# --- The recipe ---------------------------------------------------------------------------------------------------


def recipe(found: dict[str, Any]) -> str:
    """YAML for `train_grpo.py --config`: the fastest of what fits, with the measured reason beside each value."""
    lines = [f"# Suggested by python -m grpo check on {found['date']} for {found['device']['name']}."]
    lines.append(f"# Measured with {found['model']['name']}; use --model_name_or_path for another of about its size.")
    settings: list[tuple[str, Any, str]] = []
    if found["toy"]:
        settings.append(("use_cpu", True, "there is no GPU: a toy run on a CPU says nothing about one"))
    step, engine, room = choose(found)
    if step is None:
        lines.append("# No step in packs succeeded, fitted and had stock's gradient; packed: false is TRL's own step.")
    else:
        peak = f"{step['peak_bytes'] / 2**30:.1f} of {found['device']['memory'] / 2**30:.1f} GiB at the peak"
        settings += [
            ("dtype", step["dtype"], step["name"]),
            ("attn_implementation", step["attention"], f"{step['tokens_per_second']:,.0f} tokens/s"),
            ("gradient_checkpointing", step["checkpointing"], peak),
            ("pack_tokens", *choose_pack(found["largest_pack"], step, room)),
            ("per_device_train_batch_size", 64, "packs bound the memory, so the step is one micro-batch"),
            ("gradient_accumulation_steps", 1, "in which all completions of a prompt share it"),
        ]
    if engine is not None:
        why = f"{engine['seconds']:.2f} s for {engine['rows']} rows, {engine['tokens_per_second']:,.0f} tokens/s"
        settings.append(("generation", engine["engine"], why))
    for key, value, why in settings:
        lines.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value}  # {why}")
    return "\n".join(lines) + "\n"


def choose(found: dict[str, Any]) -> tuple[Row | None, Row | None, float]:
    """The fastest training step in packs that fits beside the fastest engine, that engine, and the room in bytes."""
    steps = [row for row in found["training"] if row["trainer"] == "lean" and row["error"] is None]
    steps = [row for row in steps if row.get("agrees", True)]
    steps.sort(key=lambda row: row["tokens_per_second"], reverse=True)
    engines = [row for row in found["generation"] if row["error"] is None]
    room = ROOM * found["device"]["memory"]
    for engine in sorted(engines, key=lambda row: row["tokens_per_second"], reverse=True):
        left = room - VLLM_SHARE * found["device"]["memory"] * (engine["engine"] == "vllm")
        for step in steps:
            if step["peak_bytes"] <= left and (engine["engine"] != "compiled" or step["attention"] == "sdpa"):
                return step, engine, left
    return next((step for step in steps if step["peak_bytes"] <= room), None), None, room


def choose_pack(search: dict[str, Any], step: Row, room: float) -> tuple[int, str]:
    """The fastest pack that fits, and the reason; the step's own where packs were tried with other settings."""
    rows = [row for row in search.get("tried", []) if row["error"] is None and row["peak_bytes"] <= room]
    if not rows or any(rows[0][key] != step[key] for key in ("attention", "checkpointing")):
        return step["pack_tokens"], "as measured"
    best = max(rows, key=lambda row: row["tokens_per_second"])
    return best["pack_tokens"], f"{best['peak_bytes'] / 2**30:.1f} GiB at the peak; {search['pack_tokens']:,} ran, too"


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
    for heading in ("run", "tokens/s", "seconds", "peak, GiB", "gradient"):
        shown.add_column(heading, justify="left" if heading == "run" else "right")
    parts = {"training": found["training"], "packs": found["largest_pack"].get("tried", [])}
    for title, rows in (parts | {"generation": found["generation"]}).items():
        shown.add_section()
        shown.add_row(f"[bold]{title}[/bold]")
        for row in rows:
            if row["error"]:
                shown.add_row(f"{row['name']}\n  failed: {escape(row['error'])}")
                continue
            gradient = f"{row['distance']:.1e}" if "distance" in row else ""
            gradient += "" if row.get("agrees", True) else " OFF"
            cells = [f"{row['tokens_per_second']:,.0f}", f"{row['seconds']:.2f}", f"{row['peak_bytes'] / 2**30:.2f}"]
            shown.add_row(row["name"], *cells, gradient)
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
    from rich.console import Console

    console = Console(width=100, highlight=False, soft_wrap=True)
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "training": [], "generation": []}
    found |= {"largest_pack": {}, "not_run": []}
    worker = Worker(given.output.with_suffix(".log"))

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        save(found, given.output)

    try:
        look = {"kind": "machine", "group": "main", "options": {"model": given.model}}
        answer = worker.ask(look, LONGEST)
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
    console.print(table(found))
    if found["largest_pack"]:
        print("largest pack: {pack_tokens}; ended by {ended_by}".format(**found["largest_pack"]))
    for case in found["not_run"]:
        print(f"not run, no time left: {case}")
    print(f"\n{found['recipe']}\nWritten: {given.output}, {given.output.with_suffix('.yaml')}, {worker.log}")
    return 0
