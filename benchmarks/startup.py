"""From the command to the first optimizer step: where the seconds go.

    python benchmarks/startup.py                                    the demo, as the README starts it
    python benchmarks/startup.py --config recipes/smollm2_cpu.yaml  any other flags of train_grpo.py

Runs train_grpo.py itself, as `__main__` of a fresh interpreter, in a directory that is removed afterwards, and ends it
as soon as its first optimizer step is done. Each second belongs to one stage only: an import, whoever asks for it,
counts as an import. A dry run or an evaluation alone (`--dry_run true`) ends by itself. For the imports one by one:
`python -X importtime train_grpo.py --dry_run true`.
"""

import builtins
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEMO = ["--config", "recipes/demo.yaml"]

# What is timed, in the order of a run: (stage, module, function or method of a class)
STAGES = [
    ("settings", "grpo.config.resolve", "resolve"),
    ("model: config", "grpo.policy.loading", "read_configs"),
    ("model: tokenizer", "grpo.policy.loading", "load_tokenizer"),
    ("data: reading", "grpo.data.sources", "load_source"),
    ("data: prompts", "grpo.data.dataset", "prepare"),
    ("preflight", "grpo.config.preflight", "check"),
    ("preflight", "grpo.config.preflight", "print_checks"),
    ("model: weights", "grpo.policy.loading", "load"),
    ("trainer", "trl.trainer.grpo_trainer", "GRPOTrainer.__init__"),
    ("trainer", "grpo.runs.trackers", "start"),
    ("evaluation before", "grpo.evaluation.evaluate", "measure"),
    ("first optimizer step", "transformers.trainer", "Trainer.train"),
]
LAST = ("transformers.trainer_callback", "CallbackHandler.on_step_end")  # where it ends
ORDER = ["interpreter", "imports", *dict.fromkeys(name for name, _, _ in STAGES), "rest"]


class FirstStepDone(BaseException):
    """Leaves train_grpo.py; no Exception, so that nothing on the way catches it."""


class Clock:
    """Seconds by stage, each in one only: a stage that begins within another interrupts it.

    Args:
        start: when `first` began (time.time).
    """

    def __init__(self, start: float, first: str) -> None:
        self.seconds: Counter[str] = Counter()
        self.running, self.last = [first], start

    def turn(self) -> None:
        """What has passed goes to the stage that is running."""
        now = time.time()
        self.seconds[self.running[-1]] += now - self.last
        self.last = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.turn()
            self.running.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self.turn()
                self.running.pop()

        return run


def observe(clock: Clock) -> None:
    """Have imports timed, and the functions of STAGES as soon as their modules are there."""
    waiting = [*STAGES, ("", *LAST)]

    def wrap() -> None:
        for entry in list(waiting):
            stage, module, name = entry
            owner, _, method = name.rpartition(".")
            found = sys.modules.get(module)
            holder = getattr(found, owner, None) if owner else found
            if holder is None or not hasattr(holder, method):  # not imported yet, or not to the end
                continue
            waiting.remove(entry)
            setattr(holder, method, clock.timed(stage, getattr(holder, method)) if stage else stop)

    def stop(*args: Any, **kwargs: Any) -> None:
        raise FirstStepDone

    def importing(function: Callable[..., Any]) -> Callable[..., Any]:
        timed = clock.timed("imports", function)

        def run(*args: Any, **kwargs: Any) -> Any:
            if clock.running[-1] == "imports":
                return function(*args, **kwargs)
            known = len(sys.modules)
            result = timed(*args, **kwargs)
            if len(sys.modules) != known:
                wrap()
            return result

        return run

    builtins.__import__ = importing(builtins.__import__)
    importlib.import_module = importing(importlib.import_module)  # transformers and TRL import on first use with it


def child(start: str, result: str, *argv: str) -> None:
    """In the fresh interpreter: run, and write the seconds of each stage."""
    clock = Clock(float(start), "interpreter")
    clock.turn()
    clock.running = ["rest"]
    sys.argv = [str(ROOT / "train_grpo.py"), *argv]
    sys.path[0] = str(ROOT)  # as it is for the script
    observe(clock)
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except FirstStepDone:
        pass
    except SystemExit as error:
        status = error.code or 0
    clock.turn()
    Path(result).write_text(json.dumps(clock.seconds), encoding="utf-8")
    sys.stdout.flush()
    os._exit(int(status))  # a run that is left in its middle has nothing worth waiting for


def measure(argv: list[str]) -> dict[str, float]:
    """Seconds by stage of one run with these flags; its paths are relative to the project."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "seconds.json"
        output = [] if "--output_dir" in argv else ["--output_dir", str(Path(directory) / "run")]
        command = [sys.executable, __file__, "--child", repr(time.time()), str(result), *argv, *output]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode or not result.exists():
            sys.exit(f"train_grpo.py ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(result.read_text(encoding="utf-8"))


def table(seconds: dict[str, float]) -> str:
    """One line for each stage that took place, with its seconds and its share, and the sum."""
    total = sum(seconds.values())
    lines = [f"{'stage':24}{'seconds':>9}{'share':>8}"]
    lines += [f"{name:24}{seconds[name]:9.2f}{seconds[name] / total:8.1%}" for name in ORDER if name in seconds]
    return "\n".join([*lines, f"{'all':24}{total:9.2f}"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    print(table(measure(sys.argv[1:] or DEMO)))
