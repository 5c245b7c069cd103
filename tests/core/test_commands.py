"""Commands to copy do what the line around them says: they launch, resume, ask, report and publish."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_report import Page, page_of
from helpers_runs import ROOT

from grpo.core import commands

IN_PATH = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
LAUNCHED = {"TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "python"),
        ({"LOCAL_WORLD_SIZE": "2", **LAUNCHED}, "torchrun --nproc_per_node=2"),
        (
            {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT", **LAUNCHED},
            "torchrun --nproc_per_node=2",
        ),
        (
            {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGUSR1", **LAUNCHED},
            "torchrun --nproc_per_node=2 --signals-to-handle=SIGTERM,SIGUSR1",
        ),
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
    assert commands.launcher() == words


AUTO = ["--resume_from_checkpoint", "auto"]


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        ("--config recipes/demo.yaml", "--config recipes/demo.yaml"),
        ("--output_dir old --seed 3", "--seed 3"),
        ("--seed 3 --output-dir=old --output_dir older", "--seed 3"),
        ("--resume_from_checkpoint=auto --seed 3 --resume-from-checkpoint x/checkpoint-3", "--seed 3"),
        ("--run_name --output_dir=", "--run_name"),
        ("--output_dir", ""),
    ],
)
def test_a_run_is_resumed_where_it_is_now(argv, kept):
    started = {"launcher": "torchrun --nproc_per_node=4", "program": "my_dates.py", "argv": argv.split()}
    end = ["--output_dir", "my run", *AUTO]
    line = commands.resume(started, Path("my run"))
    assert line == f"torchrun --nproc_per_node=4 my_dates.py {shlex.join([*kept.split(), *end])}"
    words = shlex.split(line)[3:]
    assert commands.resume(started | {"argv": words}, Path("my run")) == line  # it does not grow
    assert commands.resume(started | {"launcher": None}, Path("my run")) == (
        f"my_dates.main({[*kept.split(), *end]}, dataset=...)"
    )


def test_a_tools_command_depends_on_where_it_is_printed(monkeypatch, tmp_path):
    elsewhere = f"python {shlex.quote(str(ROOT / 'grpo'))} ask 'my run' 'Why?'"
    assert commands.tool("ask", "my run", "Why?") == elsewhere
    assert commands.file("requirements-cuda.txt") == str(ROOT / "requirements-cuda.txt")
    monkeypatch.chdir(ROOT)
    assert commands.tool("ask", "my run", "Why?") == "python -m grpo ask 'my run' 'Why?'"
    assert commands.file("requirements-cuda.txt") == "requirements-cuda.txt"


def run_as_printed(command, directory="."):
    done = subprocess.run(command, shell=True, cwd=directory, env=IN_PATH, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


@pytest.mark.slow
def test_the_reports_command_runs_from_anywhere(learned, tmp_path):
    run = learned.copy("a run")
    page = page_of(run)
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
