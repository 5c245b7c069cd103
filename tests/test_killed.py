"""A run that is killed loses nothing. benchmarks/kill_loop.py kills real commands at random moments."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from helpers_commands import command, start
from helpers_programs import PROGRAMS, run_on_two
from helpers_report import page_of
from helpers_resume import EPOCHS, assert_same, in_order, state_of
from helpers_runs import LEARNS, ROOT

import train_grpo
from grpo.runs import checkpoints


@pytest.mark.slow
def test_a_run_killed_thrice_ends_bit_by_bit_as_any(tiny_run):
    flags = tiny_run(**{**LEARNS, "max_steps": "4", "save_steps": "1", "save_total_limit": "9"})
    assert train_grpo.main([*flags, "--output_dir", "whole"]) == 0
    resume = []
    for moment, left in [("starting", 0), ("2", 2), ("saving", 3)]:
        done = command(PROGRAMS / "ended.py", [int(signal.SIGKILL), moment, ROOT / "train_grpo.py", *flags, *resume])
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        assert len(list(Path("run").glob("checkpoint-*"))) == left
        resume = ["--resume_from_checkpoint", "auto"]
    assert train_grpo.main([*flags, *resume]) == 0
    assert_same(state_of(Path("run")), state_of(Path("whole")))
    assert not any(path.name.startswith(".") for path in Path("run").iterdir() if os.path.isdir(path))


# Each process draws rewards of its own. A rollout is three groups of 4, of which both processes share the second, and
# serves two optimizer steps
CHANCE = """
import random

def chance(completions, trainer_state, **kwargs):
    return [random.random() if trainer_state.max_steps else 0.5 for _ in completions]  # 0.5 in preflight's trial
"""
BY_CHANCE = {"reward_funcs": "chance.chance", "allow_custom_rewards": "true"}
SPLIT = {"max_samples": "10", "max_completion_length": "12", "per_device_train_batch_size": "6", "num_iterations": "2"}
# What ends the second process, amid a rollout's steps or where it saves; the line that says so; the last checkpoint
FAILURES = [
    (signal.SIGKILL, 5, "another process of this run has ended", 4),
    (signal.SIGXFSZ, 6, "[process 1] output_dir: the disk of 'run' is full", 6),
]


@pytest.mark.slow
def test_two_processes_of_which_one_fails_end_bit_by_bit_as_any(tiny_run, capfd):
    Path("chance.py").write_text(CHANCE)
    flags = tiny_run(**EPOCHS | SPLIT | BY_CHANCE)
    run_on_two(ROOT / "train_grpo.py", *flags, "--output_dir", "whole")
    for number, moment, line, last in FAILURES:
        done = command(PROGRAMS / "ended.py", [int(number), moment, ROOT / "train_grpo.py", *flags], processes=2)
        assert done.returncode == 1 and "[rank" not in done.stderr  # torch's mark of a traceback
        (named,) = [one for one in done.stderr.splitlines() if one.startswith("error:")]
        assert named.startswith(f"error: {line}") and "To resume: torchrun --nproc_per_node=2" in named
        assert json.loads(Path("run/run.json").read_text())["status"].startswith(f"failed: {line}")
        assert f"failed: {line}" in page_of(Path("run")).text
        assert "then saving" not in done.stderr.replace("then saving, unless another process has ended", "")
        newest = Path(f"run/checkpoint-{last}")
        assert checkpoints.list_all(Path("run"))[0] == newest and (newest / "rng_state_1.pth").exists()
        flags = [*flags, "--resume_from_checkpoint", "auto"]
    run_on_two(ROOT / "train_grpo.py", *flags)
    assert_same(state_of(Path("run")), state_of(Path("whole")))
    assert train_grpo.main([*flags, "--per_device_train_batch_size", "12", "--max_steps", "14"]) == 2
    assert "was written by 2 processes, and this run has 1" in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes_interrupted_in_an_evaluation_keep_the_best(tiny_run):
    Path("chance.py").write_text(CHANCE)
    best = {"load_best_model_at_end": "true", "metric_for_best_model": "reward", "eval_every": "1"}
    sizes = {"max_steps": "3", "save_steps": "1", "eval_samples": "5", "logging_steps": "1", "learning_rate": "3e-2"}
    sizes |= {"per_device_train_batch_size": "8", "save_total_limit": "9"}
    flags = tiny_run(**LEARNS | BY_CHANCE | best | sizes, use_peft="true", lora_r="4")
    run_on_two(ROOT / "train_grpo.py", *flags)
    whole = Path("run").rename("whole")
    argv = [int(signal.SIGTERM), "evaluating", ROOT / "train_grpo.py", *flags]
    command(PROGRAMS / "ended.py", argv, processes=2)
    record = json.loads(Path("run/run.json").read_text())
    assert (record["status"], record["step"]) == ("interrupted by SIGTERM", 2)
    run_on_two(ROOT / "train_grpo.py", *flags, "--resume_from_checkpoint", "auto")
    assert_same(in_order(state_of(Path("run"))), in_order(state_of(whole)))
    adapters = [(run / "adapter_model.safetensors").read_bytes() for run in (Path("run"), whole)]
    assert adapters[0] == adapters[1]


STOPPED = "by the launcher's SIGTERM: you stopped the run, or another process has ended"
# What the two processes do (programs/ending.py), whether torchrun then gets SIGTERM, their one line, and the record
ENDINGS = {
    "one is killed while loading": ("loading sleep killed", False, f"Interrupted {STOPPED}", f"interrupted {STOPPED}"),
    "the first is killed": ("loading killed sleep", False, f"Interrupted {STOPPED}", "running"),
    "the first waits amid a signal": ("loading wait sleep", True, f"Interrupted {STOPPED}", f"interrupted {STOPPED}"),
    "one fails while training": (
        "training wait full",
        False,
        "error: [process 1] out of mem",
        "failed: [process 1] out",
    ),
    "one waits too long": (
        "loading sleep wait_little",
        False,
        "error: [process 1] waited 4 sec",
        "failed: [process 1] w",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDINGS)
def test_two_processes_say_once_why_they_end(tmp_path, case):
    words, signalled, line, recorded = ENDINGS[case]
    started = start(PROGRAMS / "ending.py", words.split(), processes=2)
    while signalled and started.poll() is None:
        time.sleep(1)
        if Path("ready").exists():
            started.terminate()
            break
    _, err = started.communicate(timeout=200)
    said = [one for one in err.splitlines() if one.startswith(("error:", "Interrupted", "SIGTERM:"))]
    assert len(said) == 1 and said[0].startswith(line) and "[rank" not in err and started.returncode == 1, err
    assert json.loads(Path("run/run.json").read_text())["status"].startswith(recorded)
