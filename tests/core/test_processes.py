"""grpo/core/processes.py: how processes are started, and that two machines train as one."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_commands import start
from helpers_report import Page
from helpers_runs import LEARNS, ROOT

from grpo.core import processes
from grpo.report import report

IN_PATH = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
LAUNCHED = {"TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "python"),
        ({"LOCAL_WORLD_SIZE": "2", **LAUNCHED}, "torchrun --nproc_per_node=2"),
        ({"LOCAL_WORLD_SIZE": "1"}, "python"),  # vLLM sets it, too
        ({"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", **LAUNCHED}, "torchrun [its options as before]"),
        # without its options, a sharded checkpoint would be read as if it were whole
        ({"ACCELERATE_DYNAMO_USE_FULLGRAPH": "False"}, "accelerate launch [its options as before]"),
        ({"ACCELERATE_USE_DEEPSPEED": "true", **LAUNCHED}, "accelerate launch [its options as before]"),
    ],
)
def test_the_command_starts_as_many_processes(variables, words, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processes.launch() == words


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("NCCL error, ncclRemoteError: A call failed possibly due to a remote process exiting prematurely.", True),
        ("NCCL error, ncclInvalidUsage: Duplicate GPU detected", False),
    ],
)
def test_nccl_says_whether_another_process_has_ended(words, lost):
    """gloo's words: tests/test_killed.py."""
    assert processes.is_process_lost(RuntimeError(words)) is lost


def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_two_machines_make_one_run(tiny_run):
    flags = tiny_run(**{**LEARNS, "per_device_train_batch_size": "8", "save_steps": "2", "eval_samples": "2"})
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--master_addr=127.0.0.1",
        f"--master_port={unused_port()}",
    ]
    machines = [start(ROOT / "train_grpo.py", flags, launcher=[*launcher, f"--node_rank={rank}"]) for rank in (0, 1)]
    (shown, errors), (nothing, _) = (machine.communicate(timeout=280) for machine in machines)
    assert [machine.returncode for machine in machines] == [0, 0], errors
    assert shown.count("Run: ") == shown.count("Saved in ") == shown.count("Training (a loss near 0") == 1
    assert not nothing.strip()
    assert (Path("run/checkpoint-2") / "rng_state_1.pth").exists()


# --- Commands to copy


def test_a_tools_command_depends_on_where_it_is_printed(monkeypatch, tmp_path):
    elsewhere = f"python {shlex.quote(str(ROOT / 'grpo'))} ask 'my run' 'Why?'"
    assert processes.tool("ask", "my run", "Why?") == elsewhere
    assert processes.file("requirements-cuda.txt") == str(ROOT / "requirements-cuda.txt")
    monkeypatch.chdir(ROOT)
    assert processes.tool("ask", "my run", "Why?") == "python -m grpo ask 'my run' 'Why?'"
    assert processes.file("requirements-cuda.txt") == "requirements-cuda.txt"


def run_as_printed(command, directory="."):
    done = subprocess.run(command, shell=True, cwd=directory, env=IN_PATH, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def test_the_reports_command_runs_from_anywhere(learned, tmp_path):
    run = learned.copy("a run")
    page = Page(report.write(run))
    (run / "report.html").unlink()
    command = page.text.rpartition("Made from the files in this directory by ")[2].rstrip(".").strip()
    for directory in (run, "/"):
        assert str(run.resolve() / "report.html") in run_as_printed(command, directory)
        assert Page(run / "report.html").text == page.text


@pytest.mark.slow
def test_the_next_steps_run_as_they_are_printed(learned):
    learned.copy()
    steps = re.search(r"ask the model (python .*?) publish it (python .*? your-name/[\w.-]+)", learned.shown)
    assert "run answers" in run_as_printed(steps[1])
    nowhere = IN_PATH | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(steps[2], shell=True, env=nowhere, capture_output=True, text=True)
    assert done.returncode == 2 and f"to upload it: {steps[2]}" in done.stderr
