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
import contextlib
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.runs.checkpoints import SEAL, all_of, newest, step_of  # noqa: E402

STEPS, SAVE_EVERY = 36, 4  # in three epochs
SETTINGS = {
    "use_cpu": "true",
    "model_name_or_path": ROOT / "assets" / "demo" / "model",
    "dataset_name": ROOT / "assets" / "demo" / "train.jsonl",
    "max_samples": 53,  # of which 5 are held out: 48 are 12 rollouts
    "max_completion_length": 24,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 3,
    "learning_rate": "1e-4",
    "adaptive_rewards": "all",
    "report_to": "none",
    "logging_steps": 3,
    "save_steps": SAVE_EVERY,
}
CLOCK = ("time/", "step_time", "runtime", "per_second")
KINDS = ("starting", "training", "saving")


@dataclass
class Tally:
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    finished: int = 0
    again: int = 0  # steps that were done twice
    unsealed: int = 0  # checkpoints that were being written
    failures: list[str] = field(default_factory=list)


def command(output: Path, seed: int, arguments: argparse.Namespace) -> list[str]:
    settings = dict(SETTINGS)
    if arguments.processes > 1:
        settings["per_device_train_batch_size"] = 16 // 2 // arguments.processes
    if arguments.lora:
        settings |= {"use_peft": "true", "learning_rate": "1e-3"}
    flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    launch = [sys.executable]
    if arguments.processes > 1:
        launch += ["-m", "torch.distributed.run", f"--nproc_per_node={arguments.processes}", "--rdzv-backend=c10d"]
        launch += ["--rdzv-endpoint=localhost:0"]
    resume = ["--resume_from_checkpoint", "auto"] if (output / "run.json").exists() else []
    return [*launch, str(ROOT / "train_grpo.py"), *flags, "--seed", str(seed), "--output_dir", str(output), *resume]


def steps_done(output: Path) -> int:
    """The step of the last whole line of the metrics, 0 before there is one."""
    try:
        lines = (output / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["step"]
    except (OSError, IndexError, ValueError):
        return 0


def kill(process: subprocess.Popen) -> None:
    """All of a run's processes: torchrun gives each a session of its own, so that they would outlive it."""
    found = psutil.Process(process.pid)
    for one in [found, *found.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def until_moment(kind: str, process: subprocess.Popen, output: Path, dice: random.Random) -> bool:
    """Wait for a random moment of this kind; whether the run was still going on when it came."""
    deadline = time.monotonic() + dice.uniform(0.5, 12) if kind == "starting" else None
    known = {path for path in all_of(output)}
    target = steps_done(output) + dice.randint(1, 9)
    while process.poll() is None:
        if deadline and time.monotonic() > deadline:
            return True
        if kind == "training" and steps_done(output) >= target:
            time.sleep(dice.uniform(0, 0.3))
            return process.poll() is None
        if kind == "saving":
            fresh = [path for path in all_of(output) if path not in known and not (path / SEAL).exists()]
            if fresh:
                time.sleep(dice.uniform(0, 0.1))
                return process.poll() is None
        time.sleep(0.005)
    return False


def said(log: Path) -> str:
    """What a log says of an error; its end where it says nothing."""
    lines = log.read_text(errors="replace").splitlines()
    places = [number for number, line in enumerate(lines) if re.search(r"[Ee]rror", line)]
    return "\n".join(lines[places[0] - 15 : places[-1] + 3][-60:] if places else lines[-20:])


def without_clock(output: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not any(c in key for c in CLOCK)} for line in lines]


def digest(output: Path) -> dict[str, str]:
    """Of the final weights and of the state that the last checkpoint holds; archives by their members' contents."""
    last, _ = newest(output)
    found = {}
    for path in [*sorted(output.glob("*.safetensors")), *sorted((last or output).glob("*.pt"))]:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                parts = [archive.read(name) for name in sorted(archive.namelist())]
        else:
            parts = [path.read_bytes()]
        found[path.name] = hashlib.sha256(b"".join(parts)).hexdigest()
    return found


def compare(output: Path, whole: Path) -> list[str]:
    found, wanted = digest(output), digest(whole)
    differences = [f"{name} differs" for name in wanted if found.get(name) != wanted[name]]
    if without_clock(output) != without_clock(whole):
        differences.append("metrics.jsonl differs")
    return differences


def run_rounds(arguments: argparse.Namespace, base: Path, console: Console) -> Tally:
    dice, tally, number = random.Random(arguments.seed), Tally(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}

    def start(output: Path, seed: int, log: Any) -> subprocess.Popen:
        line = command(output, seed, arguments)
        return subprocess.Popen(line, env=environment, stdout=log, stderr=log)

    def finish(output: Path, seed: int) -> str | None:
        with (base / "log.txt").open("wb") as log:
            status = start(output, seed, log).wait()
        return None if status == 0 else f"status {status}: {said(base / 'log.txt')}"

    while True:
        output, seed, turn = base / f"run-{number}", number + 1, sum(tally.kills.values())
        last = turn == arguments.rounds
        before, alive = steps_done(output), False
        if not last:
            kind = KINDS[turn % 3]
            with (base / "log.txt").open("wb") as log:
                process = start(output, seed, log)
                alive = until_moment(kind, process, output, dice)
                if alive:
                    kill(process)
                status = process.wait()
            if alive:
                tally.kills[kind] += 1
                reached, (good, skipped) = steps_done(output), newest(output)
                tally.again += max(0, reached - (step_of(good) if good else 0))
                tally.unsealed += kind == "saving" and bool(skipped)
                place = good.name if good else "the beginning"
                console.print(f"round {turn + 1}: {kind}, steps {before} to {reached}; resumes from {place}")
                continue
            if status != 0:
                tally.failures.append(f"round {turn + 1}: {said(base / 'log.txt')}")
                break
        elif problem := finish(output, seed):
            tally.failures.append(problem)
            break
        whole = base / f"whole-{number}"
        if problem := finish(whole, seed):
            tally.failures.append(problem)
            break
        differences = compare(output, whole)
        tally.failures += [f"run {number}: {difference}" for difference in differences]
        tally.finished += 1
        console.print(f"run {number} came to its end: {', '.join(differences) or 'bit by bit the uninterrupted run'}")
        number += 1
        if last:
            break
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="times that a run is to be killed")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2, 4), help="processes of a run (torchrun)")
    parser.add_argument("--lora", action="store_true", help="train an adapter")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args(argv)
    console = Console(width=max(Console().width, 110))
    with tempfile.TemporaryDirectory() as name:
        tally = run_rounds(arguments, Path(name), console)
    table = Table(title="Killed and resumed")
    for column in ("kills", *KINDS, "half-written saves", "steps done again", "runs compared", "failures"):
        table.add_column(column, justify="right")
    counts = [sum(tally.kills.values()), *tally.kills.values(), tally.unsealed, tally.again, tally.finished]
    table.add_row(*map(str, counts), str(len(tally.failures)))
    console.print(table)
    for failure in tally.failures:
        console.print(failure, markup=False)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
