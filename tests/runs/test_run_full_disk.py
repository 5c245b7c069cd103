"""grpo/runs/run.py: a full disk costs the step that was being saved, and nothing else."""

import errno
import json
import resource
from pathlib import Path

import pytest
from helpers_runs import LEARNS

import train_grpo
from grpo.runs import checkpoints
from grpo.training import callbacks


def after_a_checkpoint(monkeypatch):
    """No file can grow any more, as far as the system is concerned."""
    seal = checkpoints.seal

    def seal_and_fill(*args, **facts):
        seal(*args, **facts)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    monkeypatch.setattr(checkpoints, "seal", seal_and_fill)


def at_the_second_log(monkeypatch):
    own, calls = callbacks.append_line, []

    def write(*args):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return own(*args)

    monkeypatch.setattr(callbacks, "append_line", write)


@pytest.mark.slow
@pytest.mark.parametrize("fill", [after_a_checkpoint, at_the_second_log])
def test_a_full_disk_keeps_the_last_checkpoint_to_resume(tiny_run, learned, monkeypatch, capfd, fill):
    flags = tiny_run(**LEARNS, save_steps="1")
    with monkeypatch.context() as patched:
        fill(patched)
        try:
            assert train_grpo.main(flags) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    err = capfd.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert "is full" in line and "--resume_from_checkpoint auto" in line and "Traceback" not in err
    assert json.loads(Path("run/run.json").read_text())["status"].startswith("failed: output_dir: the disk of")
    assert [path.name for path in checkpoints.list_all(Path("run"))] == ["checkpoint-1"]
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    assert Path("run/model.safetensors").read_bytes() == (learned.path / "model.safetensors").read_bytes()
