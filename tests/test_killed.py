"""A run that is killed loses nothing. benchmarks/kill_loop.py kills real commands at random moments."""

import os
import signal
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_resume import assert_same, state_of
from helpers_runs import LEARNS, ROOT

import train_grpo

KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from grpo.runs import checkpoints
from grpo.training import callbacks
from grpo.training.trainer import LeanGRPOTrainer
import train_grpo

def kill(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at_step_2(self, args, state, control, **kwargs):
    if state.global_step == 2:
        kill()

if os.environ["MOMENT"] == "starting":
    LeanGRPOTrainer.train = kill
elif os.environ["MOMENT"] == "training":
    callbacks.MetricsFile.on_step_begin = kill_at_step_2
else:
    checkpoints.seal = kill  # every file of the checkpoint is written, but not that it is complete
sys.exit(train_grpo.main())
"""


@pytest.mark.slow
def test_a_run_killed_thrice_ends_bit_by_bit_as_any(tiny_run):
    flags = tiny_run(**{**LEARNS, "max_steps": "4", "save_steps": "1", "save_total_limit": "9"})
    assert train_grpo.main([*flags, "--output_dir", "whole"]) == 0
    Path("killed.py").write_text(KILLED.format(root=str(ROOT)))
    resume = []
    for moment, left in [("starting", 0), ("training", 2), ("saving", 3)]:
        done = command("killed.py", [*flags, *resume], MOMENT=moment)
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        assert len(list(Path("run").glob("checkpoint-*"))) == left
        resume = ["--resume_from_checkpoint", "auto"]
    assert train_grpo.main([*flags, *resume]) == 0
    assert_same(state_of(Path("run")), state_of(Path("whole")))
    assert not any(path.name.startswith(".") for path in Path("run").iterdir() if os.path.isdir(path))
