"""grpo/evaluation/before_after.py: an evaluation replaces a run only once it has something to write."""

from pathlib import Path

import pytest

import train_grpo
from grpo.policy import loading


def test_an_evaluation_that_fails_leaves_the_earlier_run(tiny_run, tiny_model, monkeypatch, capsys):
    earlier = {name: Path("run") / name for name in ("run.json", "model.safetensors", "checkpoint-1/optimizer.pt")}
    for path in earlier.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")

    def fails(config):
        raise MemoryError("while loading")

    monkeypatch.setattr(loading, "load", fails)
    words = tiny_run(eval_only="true", eval_samples="2", overwrite_run="true", max_steps=None)
    with pytest.raises(MemoryError):
        train_grpo.main(words)
    assert all(path.read_text() == "{}" for path in earlier.values())
