"""grpo/evaluation/before_after.py: what a resumed run takes over, and when an evaluation replaces a run."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import train_grpo
from grpo.evaluation import before_after
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


def test_only_a_whole_evaluation_of_the_same_questions_is_reused(tmp_path):
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "eval_before.json").write_text('{"n": 2}')

    def saved(text, answers=("2", "3"), samples=1):
        (tmp_path / "completions_before.jsonl").write_text(text)
        data = SimpleNamespace(held_out={"question": ["1 + 1?", "1 + 2?"], "answer": list(answers)})
        return before_after._saved(tmp_path, data, samples)

    assert saved("".join(lines)) == ({"n": 2}, rows)
    assert saved(lines[0]) is None and saved("".join(lines)[:-9]) is None  # killed while it was written
    assert saved("".join(lines), answers=("2", "4")) is None and saved("".join(lines), samples=4) is None
