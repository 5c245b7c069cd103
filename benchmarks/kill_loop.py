"""Kill a run again and again, resume it each time, and compare its end with that of a run nobody has touched.

    python benchmarks/kill_loop.py --rounds 20
    python benchmarks/kill_loop.py --rounds 20 --processes 2 --lora

Each round starts a run, or resumes it, and sends SIGKILL to all of its processes at a random moment: while it
starts, between two steps, or while a checkpoint is being written. Where a run has come to its end, the next round
begins another one with another seed. At the end of each, its weights, its optimizer's state and all that it logged
(timings aside) must be those of the uninterrupted run, bit by bit. The exit status is 1 if anything differs or a
round fails.
"""

import argparse
import collections
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import common
import psutil

from grpo.core import jsonfiles
from grpo.runs.checkpoints import is_sealed, list_all, newest, step_of

SETTINGS = {
    "use_cpu": "true",
    "model_name_or_path": common.DEMO / "model",
    "dataset_name": common.DEMO / "train.jsonl",
    "max_samples": 53,  # of which 5 are held out: 48 are 12 rollouts, and three epochs 36 steps
    "max_completion_length": 24,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 3,
    "learning_rate": "1e-4",
    "report_to": "none",
    "logging_steps": 3,
    "save_steps": 4,
}
CLOCK = ("time/", "step_time", "runtime", "per_second")
KINDS = ("starting", "training", "saving")


def start(output: Path, seed: int, options: argparse.Namespace) -> subprocess.Popen:
    """Start the run in this directory, or resume it; its output is in `log.txt` beside it."""
    settings: dict[str, Any] = {**SETTINGS, "seed": seed}
    settings["per_device_train_batch_size"] //= options.processes
    if options.lora:
        settings |= {"use_peft": "true", "learning_rate": "1e-3"}
    flags = [word for key, value in settings.items() for word in (f"--{key}", value)]
    with (output.parent / "log.txt").open("wb") as log:
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        return common.start(flags, output, options.processes, env=one_thread, stdout=log, stderr=log)


def steps_done(output: Path) -> int:
    """The step of the last whole line of the metrics, 0 before there is one."""
    lines = jsonfiles.valid_lines(output / "metrics.jsonl")
    return lines[-1]["step"] if lines else 0


def kill(process: subprocess.Popen) -> None:
    """All of a run's processes: torchrun gives each a session of its own, so that they would outlive it."""
    found = psutil.Process(process.pid)
    for one in [found, *found.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def until_moment(kind: str, process: subprocess.Popen, output: Path, dice: random.Random) -> bool:
    """Wait for a random moment of this kind; whether the run was still going on when it came."""
    deadline, target = time.monotonic() + dice.uniform(0.5, 12), steps_done(output) + dice.randint(1, 9)
    known = set(list_all(output))
    while process.poll() is None:
        if (
            (kind == "starting" and time.monotonic() > deadline)
            or (kind == "training" and steps_done(output) >= target)
            or (kind == "saving" and any(not is_sealed(path) for path in set(list_all(output)) - known))
        ):
            time.sleep(dice.uniform(0, 0.1))
            return process.poll() is None
        time.sleep(0.005)
    return False


def end_of(output: Path) -> dict[str, Any]:
    """The final weights, the state that the last checkpoint holds, and what was logged, without its timings."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in output.glob("*.safetensors")}
    last, _ = newest(output)
    for path in (last or output).glob("*.pt"):
        with zipfile.ZipFile(path) as archive:  # whose own bytes hold its name
            found[path.name] = [archive.read(name) for name in sorted(archive.namelist())]
    lines = jsonfiles.read_lines(output / "metrics.jsonl")
    found["metrics.jsonl"] = [
        {key: value for key, value in line.items() if not any(part in key for part in CLOCK)} for line in lines
    ]
    return found


def run_rounds(options: argparse.Namespace, base: Path) -> None:
    """Kill, resume and compare; RuntimeError for the first difference or failure."""
    dice, finished = random.Random(options.seed), 0
    kills: collections.Counter[str] = collections.Counter()

    def complete(process: subprocess.Popen) -> None:
        if status := process.wait():
            log = (base / "log.txt").read_text(errors="replace").splitlines()[-40:]
            raise RuntimeError("\n".join([f"a run ended with status {status}:", *log]))

    while True:
        output, seed = base / f"run-{finished}", finished + 1
        before, process = steps_done(output), start(output, seed, options)
        kind = KINDS[kills.total() % 3]
        if kills.total() < options.rounds and until_moment(kind, process, output, dice):
            kill(process)
            kills[kind] += 1
            last, _ = newest(output)
            print(
                f"round {kills.total()}: {kind}, steps {before} to {steps_done(output)}; resumes from "
                + (f"step {step_of(last)}" if last else "the beginning"),
                flush=True,
            )
            continue
        complete(process)
        whole = base / f"whole-{finished}"
        complete(start(whole, seed, options))
        found, wanted = end_of(output), end_of(whole)
        if differences := [name for name in wanted if found.get(name) != wanted[name]]:
            raise RuntimeError(f"run {finished}: {', '.join(differences)} differ")
        print(f"run {finished} came to its end: bit by bit the uninterrupted run", flush=True)
        finished += 1
        if kills.total() == options.rounds:
            print(f"{kills.total()} kills ({dict(kills)}), {finished} runs, no failure")
            return


def kill_loop(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as name:
        try:
            run_rounds(options, Path(name))
        except RuntimeError as error:
            print(error)
            return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=common.at_least(1), default=20, help="times that a run is to be killed")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2, 4), help="processes of a run (torchrun)")
    parser.add_argument("--lora", action="store_true", help="train an adapter")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    return common.main(kill_loop, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
