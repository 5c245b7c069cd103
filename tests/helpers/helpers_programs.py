"""Programs on two processes, with whole weights or with sharded ones; those of the tests are in tests/programs."""

import os
from pathlib import Path

import trl
from helpers_commands import command
from helpers_runs import ROOT

PROGRAMS = ROOT / "tests" / "programs"
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "helpers", PROGRAMS)))
FSDP2 = ROOT / "launch" / "fsdp2.yaml"
ZERO1, ZERO2, ZERO3 = (Path(trl.__file__).parent / "accelerate_configs" / f"zero{stage}.yaml" for stage in (1, 2, 3))


def run_on_two(script, *argv, **environment):
    """Run a program that has to end well, and return its output."""
    done = command(script, argv, processes=2, PYTHONPATH=PATHS, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def sharded_on_two(script, *argv, file=FSDP2):
    """The CompletedProcess of a program by Accelerate's launcher and this file of its."""
    launcher = ["-m", "accelerate.commands.launch", "--num_processes", "2", "--main_process_port", "0"]
    launcher += ["--config_file", str(file)]
    return command(PROGRAMS / "sharded_on_cpu.py", [script, *argv], launcher=launcher, PYTHONPATH=PATHS)


def run_sharded_on_two(script, *argv, file=FSDP2):
    """Run it so, to its good end, and return its output."""
    done = sharded_on_two(script, *argv, file=file)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
