"""Shared by tests of runs: paths, rows, command lines of seconds, and a finished run's directory."""

import contextlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent.parent
SHARED = ROOT.parent / "shared"
DEMO = ROOT / "assets" / "demo"
COUNTDOWN = ROOT / "assets" / "countdown"
SHORT_ANSWERS = ROOT / "assets" / "short_answers"
ROWS = [
    {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
    for a in range(2, 10)
    for b in range(2, 7)
]
# Flags for `tiny_run` of a model that earns something: without rewards that differ no weight moves
LEARNS = {
    "model_name_or_path": str(DEMO / "model"),
    "dataset_name": str(DEMO / "train.jsonl"),
    "max_samples": "40",
    "max_completion_length": "24",
    "num_generations": "8",
    "per_device_train_batch_size": "16",
}

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"  # see README.md of the tests


def examples(count):
    """Hypothesis' settings for so many examples by default, and for twenty times as many in the long profile."""
    return settings(max_examples=count * (20 if LONG else 1))


# Flags of a training run of seconds
TINY = {
    "use_cpu": "true",
    "max_prompt_length": "400",
    "max_completion_length": "8",
    "num_generations": "2",
    "per_device_train_batch_size": "4",
    "gradient_accumulation_steps": "1",
    "max_steps": "2",
    "warmup_steps": "0",
    "learning_rate": "1e-3",
    "report_to": "none",
    "output_dir": "run",
}


def flags(**given):
    return [word for key, value in given.items() if value is not None for word in (f"--{key}", str(value))]


@dataclass(frozen=True)
class Finished:
    """A finished run: its directory, which nobody may write to, and what it printed (spaces as one)."""

    path: Path
    shown: str

    def copy(self, name="run"):
        """The run, in the test's own directory."""
        return Path(shutil.copytree(self.path, name))


# In the environment of `learned`: none of them may stand in any file that it wrote
SECRETS = {
    name: f"planted-{index}-0123456789abcdef"
    for index, name in enumerate(("HF_TOKEN", "WANDB_API_KEY", "MY_SECRET", "SMTP_PASSWORD", "AWS_SECRET_ACCESS_KEY"))
} | {"DATASET_URL": "https://host.invalid/d?token=planted-9-0123456789abcdef"}


def finish(directory, **overrides):
    """Train in this directory, with LEARNS."""
    import train_grpo

    shown = io.StringIO()
    with contextlib.chdir(directory), contextlib.redirect_stdout(shown):
        assert train_grpo.main(flags(**{**TINY, **LEARNS, **overrides})) == 0
    return Finished(directory / "run", " ".join(shown.getvalue().split()))


def run_in(directory):
    """A run of the defaults that begins in this directory."""
    import train_grpo
    from grpo.config.configure import configure
    from grpo.runs.directory import Claim
    from grpo.runs.run import Run
    from grpo.runs.source import Source

    config = configure(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none"])
    return Run(config, Claim(str(directory)), Source({}, {}, {}))


def alarms(run):
    """The alarms of a run, by name."""
    path = Path(run) / "alarms.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert all(set(line) == {"step", "name", "message", "remedy"} for line in lines)
    return {line["name"]: line for line in lines}
