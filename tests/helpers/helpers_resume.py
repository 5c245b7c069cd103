"""A finished run's results, and the run as it was when it was killed: to compare a resumed run with a whole one."""

import json
import shutil
from pathlib import Path

import pandas as pd
import torch
from helpers_runs import LEARNS

from grpo.core.jsonfiles import read_lines
from grpo.core.processes import LOCK
from grpo.runs import checkpoints

# train_loss: transformers divides the sum since the start of a session by all steps
CLOCK = ("time/", "step_time", "runtime", "per_second", "train_loss")
# 22 rows, 2 of them held out: 20 prompts are 5 rollouts of 4; in three epochs 15 steps
EPOCHS = {**LEARNS, "max_samples": "22", "num_generations": "4", "num_train_epochs": "3", "max_steps": None}
EPOCHS |= {
    "save_steps": "1",
    "save_total_limit": "99",
    "logging_steps": "2",
    "max_completion_length": "16",
    "eval_samples": "2",
}


def without_clock(value):
    """At any depth, what does not depend on how fast the machine is."""
    if isinstance(value, list):
        return list(map(without_clock, value))
    if not isinstance(value, dict):
        return value
    return {key: without_clock(inner) for key, inner in value.items() if not any(name in key for name in CLOCK)}


def state_of(run):
    """All that a finished run has come to: its last checkpoint, its logs and its samples."""
    last, skipped = checkpoints.newest(run)
    assert not skipped
    result = {"model": (run / "model.safetensors").read_bytes()} if (run / "model.safetensors").exists() else {}
    for path in sorted(last.glob("*.safetensors")):
        result[path.name] = path.read_bytes()
    for path in sorted([*last.rglob("*.pt"), *last.glob("*.pth"), *last.glob("*[!s].bin")]):  # no training_args.bin
        result[path.relative_to(last).as_posix()] = torch.load(path, weights_only=False)
    result["state"] = without_clock(json.loads((last / "trainer_state.json").read_text()))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    result["metrics"] = [without_clock(json.loads(line)) for line in lines]
    alarms = run / "alarms.jsonl"
    result["alarms"] = alarms.read_text() if alarms.exists() else ""
    result["watched"] = read_lines(run / "completions_during.jsonl")
    result["samples"] = {p.name: pd.read_parquet(p).to_json() for p in sorted(run.glob("completions/*.parquet"))}
    return result


def in_order(state):
    """The state of a run, whose evaluation at a step may be logged before or after the step itself."""
    for lines in (state["metrics"], state["state"]["log_history"]):
        lines.sort(key=lambda line: (line["step"], "eval/n" in line, "train_loss" in line))
    return state


def assert_same(actual, expected, at=""):
    """Equal at every depth; tensors and arrays bit by bit."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), at
        for key in expected:
            assert_same(actual[key], expected[key], f"{at}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), at
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, f"{at}/{index}")
    elif hasattr(expected, "__tensor_flatten__"):  # torchao's, which know no equality
        for name in expected.__tensor_flatten__()[0]:
            assert_same(getattr(actual, name), getattr(expected, name), f"{at}/{name}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected), at
    elif hasattr(expected, "tobytes"):
        assert actual.tobytes() == expected.tobytes(), at
    elif type(expected).__module__.startswith("deepspeed."):  # such objects know no equality
        assert_same(vars(actual), vars(expected), at)
    else:
        assert actual == expected, at


def interrupted(whole, step, name="again"):
    """The run as it was when it was killed after the checkpoint of this step."""
    run = Path(shutil.copytree(whole, name))
    for path in checkpoints.list_all(run):
        if checkpoints.step_of(path) > step:
            shutil.rmtree(path)
    for path in [*run.glob("*.safetensors"), *run.glob("completions/*.parquet"), run / LOCK]:
        if path.parent == run or int(path.stem.rpartition("_")[2]) > step:
            path.unlink()
    return run
