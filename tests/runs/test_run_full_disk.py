"""grpo/runs/run.py: a full disk costs the step that was being saved, and nothing else."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers_runs import LEARNS, ROOT

import train_grpo
from grpo.runs import checkpoints
from grpo.runs import record as records
from grpo.training import callbacks

SAVING = {**LEARNS, "max_steps": "4", "save_steps": "1"}


def full_from(monkeypatch, write, number):
    """Let the disk be full from this call of a function that writes on."""
    module, name = write
    own, calls = getattr(module, name), []

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) >= number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return own(*args, **kwargs)

    monkeypatch.setattr(module, name, fail)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "number", "left"),
    [
        pytest.param((torch, "save"), 6, 1, id="amid a checkpoint"),
        pytest.param((checkpoints, "write_whole"), 2, 1, id="at its seal"),
        pytest.param((records, "append_line"), 3, 2, id="at a log"),
    ],
)
def test_a_full_disk_keeps_the_last_checkpoint_to_resume(tiny_run, monkeypatch, capfd, write, number, left):
    flags = tiny_run(**SAVING)
    with monkeypatch.context() as patched:
        if write[0] is records:  # where the callback looks it up
            write = (callbacks, "append_line")
        full_from(patched, write, number)
        assert train_grpo.main(flags) == 2
    err = capfd.readouterr().err
    line = next(line for line in err.splitlines() if line.startswith("error:"))
    assert "is full" in line and f"run/checkpoint-{left};" in line and "Traceback" not in err
    assert json.loads(Path("run/run.json").read_text())["status"].startswith("failed: output_dir: the disk of")
    assert [path.name for path in checkpoints.all_of(Path("run"))][:1] == [f"checkpoint-{left}"]
    assert checkpoints.problem_with(Path(f"run/checkpoint-{left}")) is None
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    assert train_grpo.main([*flags, "--output_dir", "whole"]) == 0
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_disk_that_is_really_full(tiny_run):
    """50 MB for checkpoints of 19 MB, of which three are there while one is written."""
    mounting = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    mount = "mkdir -p small && mount -t tmpfs -o size=50m tmpfs small"
    if shutil.which("unshare") is None or subprocess.run([*mounting, mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    run = [sys.executable, str(ROOT / "train_grpo.py"), *tiny_run(**SAVING)]
    argv = " ".join(f"'{word}'" for word in run)
    script = f"""
{mount}
status=0; {argv} --output_dir small/run > first.txt 2> first.err || status=$?
echo $status > status; ls small/run > first.ls
mount -o remount,size=200m small
{argv} --output_dir small/run --resume_from_checkpoint auto > second.txt 2>&1
cp small/run/model.safetensors small/run/metrics.jsonl .
"""
    done = subprocess.run([*mounting, script], capture_output=True, text=True, timeout=280, env=os.environ)
    assert done.returncode == 0, done.stderr + Path("second.txt").read_text()[-2000:]
    assert Path("status").read_text() == "2\n"
    line = next(line for line in Path("first.err").read_text().splitlines() if line.startswith("error:"))
    assert (
        "the disk of 'small/run' is full" in line
        and "the newest complete checkpoint is small/run/checkpoint-2" in line
    )
    listed = Path("first.ls").read_text().split()
    assert "checkpoint-2" in listed and "checkpoint-3" not in listed
    warned = " ".join(Path("first.txt").read_text().split())
    assert "3 checkpoints of" in warned and "lower save_total_limit" in warned  # preflight
    assert train_grpo.main(tiny_run(**SAVING, output_dir="whole")) == 0
    assert Path("model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    steps = [json.loads(text)["step"] for text in Path("metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 4]
