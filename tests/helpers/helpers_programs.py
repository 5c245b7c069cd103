"""Programs on two processes, with whole weights or with sharded ones; those of the tests are in tests/programs."""

import os

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from helpers_commands import command
from helpers_runs import ROOT

PROGRAMS = ROOT / "tests" / "programs"
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "helpers", PROGRAMS)))


def run_on_two(script, *argv, **environment):
    """Run a program that has to end well, and return its output."""
    done = command(script, argv, processes=2, PYTHONPATH=PATHS, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_sharded_on_two(script, *argv):
    """Run it with the variables that Accelerate's launcher makes of our file for FSDP2."""
    words = ["--config_file", str(ROOT / "launch" / "fsdp2.yaml"), "--num_processes", "2", str(script)]
    given, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    return run_on_two(PROGRAMS / "sharded_on_cpu.py", script, *argv, **prepare_multi_gpu_env(given))
