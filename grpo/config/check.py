"""`python -m grpo check`: what this machine can do, measured in minutes, and a recipe that follows from it.

    python -m grpo check                                     8 minutes with a random Qwen2 of 1.5B parameters
    python -m grpo check --minutes 20 --model DIRECTORY --output outputs/check.json

Without a GPU it runs the same at toy size, in two minutes. Cases run in the order of their worth until the minutes are
over; those that were not reached are listed. A worker process runs them and is started anew after a crash, a hang or a
lost device, so that a case that fails is a row that says why. Beside the JSON are the recipe (.yaml) and what the
worker printed (.log).

tokens/s   training: completion tokens, and each distinct prompt once, a second of forward and backward: the same count
           for stock TRL and lean. Generation: completion tokens a second of the rollout
peak       bytes that torch allocated on the GPU; on a CPU, what the process took more than before
limit      share of what the machine could do at most: 6 × parameters operations a token (8 with checkpointing) at the
           rate of a matrix product; in generation, one reading of the weights and of the rows' caches a step
gradient   distance of the first step's gradient from stock TRL's in float32, relative. bfloat16 is off by a percent
           with any implementation: lean may be 1.5 times as far as stock, a mistake would be a multiple of that
seconds    on a CPU processor time, which other programs do not change
"""

import argparse
import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.config import check_cases
from grpo.core import out_of_memory
from grpo.core.errors import OutOfMemory, UserError
from grpo.core.parsing import ArgumentParser

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 150.0  # seconds of a case; the first compilations take up to that
MAX_DISTANCE = 1.5, 1e-4  # of lean's gradient: times stock's distance, or absolute (in float32)
ROOM = 0.8  # share of the memory for the peak: longer completions, fragments and the CUDA context take the rest
VLLM_SHARE = 0.3  # of the memory, where vLLM samples on the same device
SIMILAR = 0.97  # of the fastest pack's rate is enough for a smaller one, which leaves memory

Case = dict[str, Any]  # `kind` and `name`; `group`: those of one group share a process; `needs`: seconds; `options`
Row = dict[str, Any]

KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "machine": check_cases.machine,
    "training": lambda **options: check_cases.train_and_compare(check_cases.Run(**options)),
    "packs": lambda **options: check_cases.train(check_cases.Run(**options)),
    "generation": check_cases.sample,
}


# --- The worker ---------------------------------------------------------------------------------------------------


class Worker:
    """A process that runs one case after another, and is started anew after it has died."""

    def __init__(self, log: Path, command: list[str] | None = None) -> None:
        self.log = log
        self.command = command or [sys.executable, "-c", "from grpo.config.check import serve; serve()"]
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str | None] = queue.Queue()
        self.group: str | None = None

    def ask(self, case: Case, seconds: float) -> dict[str, Any]:
        """What the case found, or {"error": one line}."""
        if self.process is None or case["group"] != self.group:
            self._start()
        self.group, begin, process = case["group"], self.log.stat().st_size, self.process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            answer = self.answers.get(timeout=max(seconds, 0.1))
        except BrokenPipeError:
            answer = None
        except queue.Empty:
            self.stop()
            return {"error": f"not done after {seconds:.0f} s"}
        if answer is not None:
            found = json.loads(answer)
            if found.pop("lost", False):
                self.stop()
            return found
        status = process.wait()
        self.stop()
        if status < 0:
            return {"error": f"its process was killed by {signal.Signals(-status).name}"}
        lines = self.log.read_bytes()[begin:].decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return {"error": f"its process ended with status {status}: {said[:200]}"}

    def _start(self) -> None:
        self.stop()
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # GRPOTrainer refuses several in one process
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self.answers = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process, self.answers), daemon=True).start()

    @staticmethod
    def _listen(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put(None)

    def stop(self) -> None:
        """End it, and what it has started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None


def serve() -> None:
    """The worker's side: answer each case on stdin, until its end or until the device is lost."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to the log
    for line in sys.stdin:
        answer = respond(json.loads(line))
        try:
            check_cases.clean(device)
        except RuntimeError:  # after some errors of a kernel nothing works in this process any more
            answer["lost"] = True
        print(json.dumps(answer), file=answers, flush=True)


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


# --- The cases ----------------------------------------------------------------------------------------------------


def cases(found: dict[str, Any], model: str) -> list[Case]:
    """What is measured, in the order of its worth."""
    device, toy = found["device"]["type"], found["toy"]
    optim = "stable_adamw" if "torch-optimi" in found["versions"] and not toy else "adamw_torch"
    base = {"model": model, "device": device, "optim": optim, "steps": 3, "dtype": "bfloat16", "autocast": True}
    rollout = {"model": model, "device": device, "mean_length": 100.0, "limit": 256, "prompt": 160}
    rollout["dtype"] = "float32" if toy else "bfloat16"
    needs, few, many = (4, 32, 64) if toy else (20, 64, 256)
    if toy:
        base |= {"dtype": "float32", "autocast": False, "accumulation": 2, "steps": 2, "median_length": 40.0}
        base |= {"max_completion_length": 120, "prompt_words": (10, 40)}
        rollout |= {"mean_length": 20.0, "limit": 48, "prompt": 32}

    def train(trainer: str, attention: str = "sdpa", **options: Any) -> Case:
        options = base | {"trainer": trainer, "attention": attention} | options
        name = [trainer, options["dtype"], attention]
        name += ["autocast"] * (options["autocast"] and options["dtype"] == "float32")
        name += ["checkpointing"] * options.get("checkpointing", False)
        return {"kind": "training", "name": ", ".join(name), "group": "main", "needs": needs, "options": options}

    def sample(engine: str, rows: int) -> Case:
        apart = engine in ("compiled", "vllm")  # they keep memory as long as their process lives
        name, options = f"{engine}, {rows} rows", rollout | {"engine": engine, "rows": rows}
        case = {"kind": "generation", "name": name, "needs": 3 * needs if apart else needs, "options": options}
        return case | {"group": name if apart else "main"}

    packs = {"kind": "packs", "name": "the largest that fits", "group": "main", "needs": needs, "options": base}
    plain = [train("lean"), train("stock"), sample("hf", few), sample("lean", few)]
    full = train("lean", dtype="float32", autocast=True)
    late = [packs, train("lean", checkpointing=True), full, sample("hf", many), sample("lean", many)]
    if toy:
        return plain + late
    engines = ["continuous", *(["vllm"] if "vllm" in found["versions"] else []), "compiled"]
    others = [train("lean", attention) for attention in found["attention"] if attention != "sdpa"]
    return [*plain, *others, *(sample(engine, few) for engine in engines), *late]


def run(
    found: dict[str, Any], model: str, worker: Worker, deadline: float, show: Callable[[str], None] = print
) -> None:
    """Run the cases that there is time for, and add their rows to `found`.

    Args:
        found: what the machine is, as `check_cases.machine` returns it, with `toy` and empty results.
        deadline: on time.monotonic's clock.
        show: gets a line before each case.
    """
    for case in cases(found, model):
        left = deadline - time.monotonic()
        if left < case["needs"]:
            found["not_run"].append({"kind": case["kind"], "name": case["name"], "reason": "no time left"})
            continue
        show(f"{left:4.0f} s left: {case['kind']}, {case['name']}")
        if case["kind"] == "packs":
            found["largest_pack"] = search_packs(found, case, worker, deadline)
        else:
            row = training_row if case["kind"] == "training" else generation_row
            found[case["kind"]].append(row(case, worker.ask(case, min(left, LONGEST)), found))
    judge_gradients(found["training"])


def search_packs(found: dict[str, Any], case: Case, worker: Worker, deadline: float) -> dict[str, Any]:
    """Double pack_tokens until the device is full, with the fastest attention so far; on a CPU up to 2,048."""
    rows = [row for row in found["training"] if row["trainer"] == "lean" and row["error"] is None]
    best = max(rows, key=lambda row: row["tokens_per_second"], default={"attention": "sdpa"})
    options = case["options"] | {"trainer": "lean", "attention": best["attention"], "accumulation": 1, "steps": 2}
    tokens, last = (512, 2048) if found["toy"] else (4096, 2**19)
    result = {"attention": best["attention"], "dtype": options["dtype"], "pack_tokens": None, "tried": []}
    result["ended_by"] = f"{last:,} is the largest that is tried"
    while tokens <= last:
        left = deadline - time.monotonic()
        if left < case["needs"]:
            return result | {"ended_by": "no time left"}
        # a rollout of about two packs, so that the first is nearly full
        groups = max(1, round(2 * tokens / (8 * 1.3 * options.get("median_length", 200.0))))
        one = case | {"options": options | {"pack_tokens": tokens, "batch_size": 8 * groups}}
        row = training_row(one, worker.ask(one, min(left, LONGEST)), found)
        result["tried"].append(row | {"name": f"{tokens:,} tokens"})
        if row["error"]:
            return result | {"ended_by": f"{tokens:,}: {row['error']}"}
        result["pack_tokens"] = tokens
        tokens *= 2
    return result


def training_row(case: Case, answer: dict[str, Any], found: dict[str, Any]) -> Row:
    """A case's figures, without its first step, which warms up; `error` is None where it succeeded."""
    options = case["options"]
    row = {"name": case["name"], "checkpointing": options.get("checkpointing", False)}
    row |= {key: options[key] for key in ("trainer", "dtype", "autocast", "attention")}
    if "error" in answer:
        return row | {"error": answer["error"]}
    speed = sum(answer["tokens"][1:]) / sum(answer["seconds"][1:])
    sixteen = options["autocast"] or options["dtype"] == "bfloat16"
    rate = found["limits"]["matrix_flops_per_second"]["bfloat16" if sixteen else "float32"]
    limit = rate / ((8 if row["checkpointing"] else 6) * found["model"]["parameters"])
    row |= {key: answer.get(key) for key in ("pack_tokens", "backend", "peak_bytes", "distance")}
    seconds = sum(answer["seconds"][1:]) / len(answer["seconds"][1:])
    return row | {"tokens_per_second": speed, "seconds": seconds, "share_of_limit": speed / limit, "error": None}


def generation_row(case: Case, answer: dict[str, Any], found: dict[str, Any]) -> Row:
    options, model = case["options"], found["model"]
    row = {"name": case["name"], "engine": options["engine"], "rows": options["rows"]}
    if "error" in answer:
        return row | {"error": answer["error"]}
    size = 4 if options["dtype"] == "float32" else 2
    mean, speed = answer["tokens"] / row["rows"], answer["tokens"] / answer["seconds"]
    cache = (options["prompt"] + mean / 2) * 2 * model["layers"] * model["key_value"] * size  # of a row, at its mean
    read = model["parameters"] * size + row["rows"] * cache
    limit = row["rows"] * found["limits"]["copy_bytes_per_second"] / read
    row |= answer | {"mean_length": mean, "tokens_per_second": speed, "share_of_limit": speed / limit}
    return row | {"error": None}


def judge_gradients(rows: list[Row]) -> None:
    """Say of each lean row whether its gradient is as near to float32's as stock's of the same number formats."""
    sound = [row for row in rows if row["error"] is None]
    for row in sound:
        same = [one["distance"] for one in sound if one["trainer"] == "stock" and one["autocast"] == row["autocast"]]
        if row["trainer"] == "lean" and (same or not row["autocast"]):
            times, absolute = MAX_DISTANCE
            row["agrees"] = bool(row["distance"] <= max(times * min(same, default=0.0), absolute))


# --- The recipe ---------------------------------------------------------------------------------------------------


def recipe(found: dict[str, Any]) -> str:
    """YAML for `train_grpo.py --config`: the fastest of what fits, with the measured reason beside each value."""
    device = found["device"]
    lines = [f"# Suggested by python -m grpo check on {found['date']} for {device['name']}."]
    lines.append(f"# Measured with {found['model']['name']}; use --model_name_or_path for another of about its size.")
    settings: list[tuple[str, Any, str]] = []
    if found["toy"]:
        lines.append("# From a toy run on a CPU: it says nothing about a GPU, and little about this machine.")
        settings.append(("use_cpu", True, "there is no GPU"))
    chosen = engine = None
    for engine in [*_engines(found), None]:
        room = (ROOM - VLLM_SHARE if engine and engine["engine"] == "vllm" else ROOM) * device["memory"]
        chosen = _step(found, room)
        if engine is None or chosen is None or _goes_with(engine, chosen):
            break
    if chosen is None:
        lines.append("# No training step that was measured succeeded and fitted: these settings say nothing of it.")
    else:
        peak = f"{chosen['peak_bytes'] / 2**30:.1f} of {device['memory'] / 2**30:.1f} GiB at the peak"
        settings += [
            ("dtype", chosen["dtype"], chosen["name"]),
            ("attn_implementation", chosen["attention"], f"{chosen['tokens_per_second']:,.0f} tokens/s"),
            ("gradient_checkpointing", chosen["checkpointing"], peak),
        ]
        if chosen["trainer"] == "lean":
            settings += [
                ("pack_tokens", *_pack(found["largest_pack"], chosen, room)),
                ("per_device_train_batch_size", 64, "packs bound the memory, so the step is one micro-batch"),
                ("gradient_accumulation_steps", 1, "in which all completions of a prompt share it"),
            ]
        else:
            settings += [
                ("packed", False, "no lean row was faster, fitted and had stock's gradient"),
                ("per_device_train_batch_size", 8, "as measured"),
                ("gradient_accumulation_steps", 8, "64 completions an optimizer step"),
            ]
    if engine:
        why = f"{engine['seconds']:.2f} s for {engine['rows']} rows, {engine['tokens_per_second']:,.0f} tokens/s"
        settings.append(("generation", engine["engine"], why))
        if engine["engine"] == "vllm":
            settings.append(("vllm_mode", "colocate", "on the same GPU"))
            settings.append(("vllm_gpu_memory_utilization", VLLM_SHARE, "the rest is for training"))
    values = [
        (f"{key}: {str(value).lower() if isinstance(value, bool) else value}", why) for key, value, why in settings
    ]
    width = max((len(value) for value, _ in values), default=0)
    return "\n".join([*lines, *(f"{value:<{width}}  # {why}" for value, why in values)]) + "\n"


def _engines(found: dict[str, Any]) -> list[Row]:
    """At the smallest number of rows, which is what a default run samples at once, the fastest first."""
    sound = [row for row in found["generation"] if row["error"] is None]
    least = min((row["rows"] for row in sound), default=0)
    return sorted((row for row in sound if row["rows"] == least), key=lambda row: row["seconds"])


def _step(found: dict[str, Any], room: float) -> Row | None:
    """The fastest training row that fits and whose gradient was not found to be off."""
    rows = [row for row in found["training"] if row["error"] is None and row["peak_bytes"] <= room]
    rows = [row for row in rows if row.get("agrees", True) and not (found["toy"] and row["autocast"])]
    return max(rows, key=lambda row: row["tokens_per_second"], default=None)


def _goes_with(engine: Row, chosen: Row) -> bool:
    """Compiled decoding needs sdpa; continuous batching would turn float32 weights into bfloat16 for good."""
    if engine["engine"] == "compiled":
        return chosen["attention"] == "sdpa"
    return not (engine["engine"] == "continuous" and chosen["autocast"] and chosen["dtype"] == "float32")


def _pack(search: dict[str, Any], chosen: Row, room: float) -> tuple[int, str]:
    """The smallest pack that is about as fast as the fastest one that fits, and the reason."""
    alike = not chosen["checkpointing"] and all(search.get(key) == chosen[key] for key in ("attention", "dtype"))
    rows = [row for row in search.get("tried", []) if row["error"] is None and row["peak_bytes"] <= room]
    if not (alike and rows):
        return chosen["pack_tokens"], "as measured"
    fastest = max(row["tokens_per_second"] for row in rows)
    best = next(row for row in rows if row["tokens_per_second"] >= SIMILAR * fastest)
    return best["pack_tokens"], f"{best['peak_bytes'] / 2**30:.1f} GiB at the peak; {search['pack_tokens']:,} ran, too"


# --- The command --------------------------------------------------------------------------------------------------


def machine_lines(found: dict[str, Any]) -> list[str]:
    device, limits = found["device"], found["limits"]
    about = [f"{device['memory'] / 2**30:.1f} GiB", *(f"{key} {device[key]}" for key in device if key in (
        "capability", "cuda", "bf16"))]  # fmt: skip
    rates = ", ".join(f"{name} {rate / 1e12:,.2f}" for name, rate in limits["matrix_flops_per_second"].items())
    return [
        f"{device['name']}: {', '.join(about)}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        f"model: {found['model']['name']}, {found['model']['parameters']:,} weights",
        f"limits: copy {limits['copy_bytes_per_second'] / 1e9:,.1f} GB/s, matrix product {rates} TFLOP/s",
    ]


def table(found: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title="Toy size, on a CPU" if found["toy"] else None)
    for heading in ("run", "tokens/s", "seconds", "peak, GiB", "limit", "gradient"):
        shown.add_column(heading, justify="left" if heading == "run" else "right")
    packs = found["largest_pack"]
    for title, rows in (
        ("training", found["training"]),
        (f"packs, {packs.get('attention')}", packs.get("tried", [])),
        ("generation", found["generation"]),
    ):
        if rows:
            shown.add_section()
            shown.add_row(f"[bold]{title}[/bold]")
        for row in rows:
            if row["error"]:
                shown.add_row(f"{row['name']}\n  failed: {escape(row['error'])}")
                continue
            gradient = "" if row.get("distance") is None else f"{row['distance']:.1e}"
            gradient += "" if row.get("agrees", True) else " OFF"
            cells = [f"{row['tokens_per_second']:,.0f}", f"{row['seconds']:.2f}", f"{row['peak_bytes'] / 2**30:.2f}"]
            shown.add_row(row["name"], *cells, f"{row['share_of_limit']:.1%}", gradient)
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
    return given


def main(argv: list[str] | None = None) -> int:
    start = time.monotonic()
    try:
        given = arguments(argv)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        log = given.output.with_suffix(".log")
        log.write_bytes(b"")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: output: {given.output} cannot be written ({error.strerror}); use another", file=sys.stderr)
        return 2
    from rich.console import Console

    console = Console(width=100, highlight=False, soft_wrap=True)
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "training": [], "generation": []}
    found |= {"largest_pack": {}, "not_run": []}
    worker = Worker(log)

    def show(line: str) -> None:
        progress.print(line, markup=False)
        save(found, given.output)

    try:
        look = {"kind": "machine", "group": "main", "options": {"model": given.model}}
        answer = worker.ask(look, max(60 * (given.minutes or 0), LONGEST))
        if "error" in answer:
            print(f"error: this machine could not be measured: {answer['error']} (see {log})", file=sys.stderr)
            return 1
        model = answer.pop("path")
        found |= answer | {"toy": answer["device"]["type"] == "cpu"}
        if found["toy"]:
            console.print("No GPU: this is a toy-size run on a CPU, and says nothing of a GPU.")
        for line in machine_lines(found):
            console.print(line, markup=False)
        run(found, model, worker, start + 60 * (given.minutes or (2 if found["toy"] else 8)), show)
    except KeyboardInterrupt:
        print("Interrupted; what was measured is saved", file=sys.stderr)
        return 130
    finally:
        worker.stop()
    save(found, given.output)
    console.print(table(found))
    if found["largest_pack"]:
        packs = found["largest_pack"]
        console.print(f"largest pack: {packs['pack_tokens'] or 'none'}; ended by {packs['ended_by']}", markup=False)
    for one in found["not_run"]:
        console.print(f"not run: {one['kind']}, {one['name']}: {one['reason']}", markup=False)
    console.print(f"\n{found['recipe']}", markup=False)
    console.print(f"Written: {given.output}, {given.output.with_suffix('.yaml')}, {log}", markup=False)
    return 0
