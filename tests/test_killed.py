"""A run that is killed loses nothing. benchmarks/kill_loop.py kills real commands at random moments."""

import os
import signal
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_programs import PROGRAMS
from helpers_resume import assert_same, state_of
from helpers_runs import LEARNS, ROOT

import train_grpo


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
