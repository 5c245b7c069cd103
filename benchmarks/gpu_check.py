"""One command that checks a GPU machine: what works there, how fast, how near its limits, and which settings follow.

    python benchmarks/gpu_check.py                     a random Qwen2 of 1.5B parameters; 8 minutes
    python benchmarks/gpu_check.py --model DIRECTORY --minutes 20 --output outputs/gpu_check.json

It needs what is installed and nothing else. Without a GPU it runs the same at toy size. Cases run in the order of
their worth until the minutes are over; what was left out is listed. They share a worker process, which is started
anew after a crash or a hang, so that a case that fails is a row that says why. Beside the JSON stand a recipe
(`.yaml`) and what the worker printed (`.log`).

tokens/s    training: completion tokens and each distinct prompt once, over the seconds of forward and backward; the
            same count for stock and lean. Generation: completion tokens over the seconds of a rollout
limit       training: the rate of a bfloat16 (or float32) matrix product / (6 × parameters) FLOP for a token, 8 × with
            activation checkpointing. Generation: rows / the time in which the weights, and the rows' caches when they
            are at their mean length, are read at the copy's bandwidth
peak        bytes that torch allocated on the GPU; on a CPU, what the process took more than before
agreement   distance of the bfloat16 gradient from the float32 gradient of the same weights and rollout, relative
"""

import argparse
import datetime
import functools
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import gpu_machine, measured_run
from benchmarks.gpu_recipe import recipe
from benchmarks.gpu_rows import (
    TOLERANCE,
    WHY,
    agreement_row,
    generation_row,
    last_lines,
    machine_lines,
    table,
    training_row,
)  # fmt: skip
from benchmarks.worker import Case, Worker, serve
from grpo.core.errors import UserError

MOST = 150  # seconds of a case


def cases(toy: bool, attention: list[str], engines: list[str], settings: dict[str, Any]) -> list[Case]:
    """What is measured, in the order of its worth; `needs` are seconds without which a case is not begun.

    Cases of the same `group` share a worker; compiled code and vLLM keep memory as long as their process lives.

    Args:
        settings: of every Run.
    """
    size: dict[str, Any] = settings | dict(steps=3)
    base, needs, counts = dict(dtype="bfloat16", autocast=True), 20, (64, 256)
    rollout = dict(mean_length=100.0, limit=256, prompt=160, dtype="bfloat16")
    if toy:
        size |= dict(accumulation=2, steps=2, median_length=40.0, max_completion_length=120, prompt_words=(10, 40))
        base, needs, counts = dict(dtype="float32", autocast=False), 4, (64, 128)
        rollout = dict(mean_length=20.0, limit=48, prompt=32, dtype="float32")
    rollout |= {key: settings[key] for key in ("model", "device")}
    small = size | (dict() if toy else dict(accumulation=2, median_length=100.0, max_completion_length=256))

    def train(side: str, attention: str = "sdpa", checkpointing: bool = False, full: bool = False) -> Case:
        types = dict(dtype="float32", autocast=True) if full else base
        run = size | types | dict(side=side, attention=attention, checkpointing=checkpointing)
        dtype = "float32 with autocast" if full else base["dtype"]
        name = ", ".join([side, dtype, attention, *["checkpointing"] * checkpointing])
        return {"kind": "training", "name": name, "run": run, "group": "main", "needs": needs}

    def sample(engine: str, rows: int) -> Case:
        alone = {"compiled": "compiled", "vllm": f"vllm {rows}"}
        case = {"kind": "generation", "name": f"{engine}, {rows} rows", "engine": engine, "rows": rows, **rollout}
        return case | {"group": alone.get(engine, "main"), "needs": 3 * needs if engine in alone else needs}

    def agree(attention: str) -> Case:
        run = small | dict(dtype="bfloat16", autocast=True, side="lean", attention=attention)
        return {"kind": "agreement", "name": attention, "run": run, "group": "main", "needs": needs}

    few, many = counts
    plain = [engine for engine in engines if engine in ("hf", "lean")]
    late = [engine for engine in engines if engine == "continuous"]
    own = [engine for engine in ("vllm", "compiled") if engine in engines]  # those with a process of their own
    others = [name for name in attention if name != "sdpa"]
    return [
        train("lean"),
        train("stock"),
        *(sample(engine, few) for engine in plain),
        agree("sdpa"),
        *(train("lean", name) for name in others),
        train("lean", full=True),
        train("stock", full=True),
        {"kind": "pack", "name": "the largest that fits", "run": size | base, "group": "main", "needs": needs},
        train("lean", checkpointing=True),
        train("stock", checkpointing=True),
        *(sample(engine, many) for engine in plain),
        *(agree(name) for name in others),
        *(sample(engine, few) for engine in late),
        *(train("stock", name) for name in others),
        *(sample(engine, many) for engine in late),
        *(sample(engine, few) for engine in own),
        *(sample(engine, many) for engine in reversed(own)),
    ]


def kernels(worker: Any, device: str) -> dict[str, Any]:
    """The `attention` that gives a gradient on this device, and of what is `missing` the reason, in one line each.

    One case for each: a kernel that loses the device, or whose compiler hangs, is not to cost the others.
    """
    found: dict[str, Any] = {"attention": [], "missing": {}}
    for name in gpu_machine.KERNELS:
        answer = worker.ask({"kind": "kernel", "group": "main", "name": name, "device": device}, 90)
        if "error" in answer:
            found["missing"][name] = answer["error"][:200]
        else:
            found["attention"].append(name)
    return found


def check(
    found: dict[str, Any], model: str, worker: Any, deadline: float, show: Callable[[str], None] = print
) -> None:
    """Run the cases that there is time for, and write into `found` what came of them.

    Args:
        model: a directory, or a name in measured_run.RANDOM.
        worker: something with `ask(case, seconds)`, as a Worker.
        deadline: on time.monotonic's clock.
    """
    device, given = found["device"], found["versions"]
    # what attn_implementation can name, and has worked; 3 is like 2, and tried where 2 is not there
    attention = ["sdpa", *(one for one in device["attention"] if "/" not in one)]
    attention = [one for one in attention if one != "flash_attention_3" or "flash_attention_2" not in attention]
    engines = ["hf", "lean", "continuous", "compiled", *(["vllm"] if given["vllm"] else [])]
    settings = {"optim": "stable_adamw" if given["torch-optimi"] else "adamw_torch", "model": model}
    settings |= {"device": device["type"], "tf32": device["tf32"] or None}
    for case in cases(found["toy"], attention, engines, settings):
        left = deadline - time.monotonic()
        if left < case["needs"]:
            found["not_run"].append({"kind": case["kind"], "name": case["name"], "reason": "no time left"})
            continue
        show(f"{left:4.0f} s left: {case['kind']}, {case['name']}")
        if case["kind"] == "pack":
            found["largest_pack"] = search_packs(found, case, worker, deadline)
        elif case["kind"] == "agreement":
            found["agreement"]["rows"].append(agreement_row(case, worker.ask(case, min(left, MOST))))
        else:
            row = training_row if case["kind"] == "training" else generation_row
            found[case["kind"]].append(row(case, worker.ask(case, min(left, MOST)), found))
    judged = [row["passes"] for row in found["agreement"]["rows"] if row["passes"] is not None]
    found["agreement"]["passes"] = all(judged) if judged else None


def search_packs(found: dict[str, Any], case: Case, worker: Any, deadline: float) -> dict[str, Any]:
    """Double pack_tokens until the device is full, with whatever attention was the fastest; on a CPU, twice."""
    best = {"tokens_per_second": 0.0, "attention": "sdpa"}
    for row in found["training"]:
        same = row["trainer"] == "lean" and row["dtype"] == case["run"]["dtype"] and not row["checkpointing"]
        if same and row["error"] is None and row["tokens_per_second"] > best["tokens_per_second"]:
            best = row
    run = case["run"] | {"side": "lean", "attention": best["attention"], "accumulation": 1, "steps": 2}
    run["checkpointing"] = False
    result = {key: run[key] for key in ("attention", "dtype", "autocast", "checkpointing")}
    tokens, last = (512, 2048) if found["toy"] else (4096, 2**19)
    result |= {"pack_tokens": None, "ended_by": f"{last:,} is the largest that is tried", "tried": []}
    while tokens <= last:
        left = deadline - time.monotonic()
        if left < case["needs"]:
            result["ended_by"] = "no time left"
            break
        # a rollout of about two packs, so that the first is nearly full
        groups = max(1, round(2 * tokens / (8 * 1.3 * run.get("median_length", 200.0))))
        one = case | {"kind": "training", "run": run | {"pack_tokens": tokens, "batch_size": 8 * groups}}
        row = training_row(one, worker.ask(one, min(left, MOST)), found)
        left_out = ("name", "trainer", "dtype", "autocast", "attention", "checkpointing")
        result["tried"].append({key: value for key, value in row.items() if key not in left_out})
        if row["error"]:
            result["ended_by"] = f"{tokens:,}: {row['error']}"
            break
        result["pack_tokens"] = tokens
        if found["device"]["type"] == "cpu" and 4 * row["peak_bytes"] > found["device"]["memory"]:
            result["ended_by"] = "more would take more than half of the memory"
            break
        tokens *= 2
    return result


# --- In the worker


def look(case: Case) -> dict[str, Any]:
    """The machine, its limits and the model's shape."""
    from grpo.policy import memory

    device = gpu_machine.device()
    kind = device["type"]
    path = case["path"] or ("1.5B" if kind == "cuda" else str(measured_run.DEMO))
    shape = memory.shape(measured_run.model_config(path))
    named = f"a random Qwen2 of {path} parameters" if path in measured_run.RANDOM else Path(path).resolve().name
    named = "the demo's model" if Path(path) == measured_run.DEMO else named
    sizes = {key: getattr(shape, key) for key in ("parameters", "layers", "hidden", "key_value", "vocabulary")}
    return {
        "device": device,
        "versions": gpu_machine.versions(),
        "path": path,
        "model": {"name": named, **sizes},
        "limits": gpu_machine.limits(kind, device["tf32"]),
    }


def train(case: Case) -> dict[str, Any]:
    return measured_run.train(measured_run.Run(**case["run"]))


def sample(case: Case) -> dict[str, Any]:
    keys = ("model", "device", "dtype", "engine", "rows", "mean_length", "limit", "prompt")
    return measured_run.sample(**{key: case[key] for key in keys})


KINDS: dict[str, Callable[[Case], Any]] = {
    "machine": look,
    "kernel": lambda case: gpu_machine.attend(case["name"], case["device"]),
    "training": train,
    "generation": sample,
    "agreement": lambda case: measured_run.agreement(measured_run.Run(**case["run"])),
}


def clean() -> bool:
    """Whether the device still works: after some errors of a kernel it does not."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        measured_run.clean(device)
        return bool(torch.ones(1, device=device).item())
    except RuntimeError:
        return False


# --- The command


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, help="all of it; unset: 8, and 2 without a GPU")
    parser.add_argument("--model", help="a local directory; unset: a random Qwen2 of 1.5B parameters")
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.model and not (Path(given.model) / "config.json").is_file():
        raise UserError(f"--model: {given.model} holds no config.json; give the directory of a model, or leave it out")
    if given.minutes is not None and not 0 < given.minutes < 1e4:
        raise UserError(f"--minutes: {given.minutes:g} is out of range; give a number above 0")
    if given.output.suffix != ".json":
        raise UserError(
            f"--output: {given.output} does not end in .json; the recipe (.yaml) and the log (.log) stand beside it"
        )
    return given


def save(found: dict[str, Any], path: Path) -> None:
    """The JSON, with the recipe that follows from what is known by now: a run that is killed has left both."""
    found["recipe"] = recipe(found)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".yaml").write_text(found["recipe"], encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    start = time.monotonic()
    try:
        given = arguments(argv)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if given.worker:
        return serve(KINDS, clean)
    from rich.console import Console

    console = Console(width=100, highlight=False, soft_wrap=False)
    say = functools.partial(console.print, markup=False)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    log = given.output.with_suffix(".log")
    log.write_bytes(b"")
    words = sys.argv[1:] if argv is None else argv
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "benchmarks/gpu_check.py", *words]),
        "training": [], "generation": [], "largest_pack": {}, "not_run": [],
        "agreement": {"tolerance": TOLERANCE, "why": WHY, "passes": None, "rows": []},
    }  # fmt: skip
    worker = Worker(log, [sys.executable, str(Path(__file__).resolve()), "--worker"])
    try:
        answer = worker.ask({"kind": "machine", "group": "main", "path": given.model}, 60 * (given.minutes or 8))
        if "error" in answer:
            say(f"this machine could not be looked at: {answer['error']} (see {log})")
            return 1
        model = answer["found"].pop("path")
        found |= answer["found"]
        found["toy"] = toy = found["device"]["type"] == "cpu"
        found["device"] |= kernels(worker, found["device"]["type"])
        if toy:
            say("No GPU: this is a toy-size run on a CPU, and says nothing of a GPU.")
        for line in machine_lines(found):
            say(line)
        progress = Console(stderr=True, highlight=False)

        def show(line: str) -> None:
            progress.print(line, markup=False)
            save(found, given.output)

        check(found, model, worker, start + 60 * (given.minutes or (2 if toy else 8)), show)
    finally:
        worker.stop()
    save(found, given.output)
    console.print(table(found))
    for line in last_lines(found):
        say(line)
    say(f"\n{found['recipe']}")
    say(f"Written: {given.output}, {given.output.with_suffix('.yaml')}, {log}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
