"""Several runs are compared in one table: their gains, the mean gain, and the settings that differ."""

import json
from pathlib import Path

import pytest
import scipy
from helpers_report import write_learner

from grpo.__main__ import main as tool
from grpo.evaluation import comparison


@pytest.fixture
def runs():
    """Three finished runs of one experiment, whose gains differ."""
    return [write_learner(Path(f"seed{seed}"), gain, seed=seed) for seed, gain in ((1, 2), (2, 4), (3, 5))]


def shown(capsys, *words):
    assert tool(["compare", *map(str, words)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_table_has_gains_their_mean_and_what_differs(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, *runs)
    assert "seed1 50.0 -> 62.5" in text and "+25.0" in text
    gain, mean = comparison.tango(2, 0, 8), scipy.stats.ttest_1samp([25.0, 50.0, 62.5], 0).confidence_interval(0.95)
    for low, high in ([100 * end for end in gain], mean):
        assert f"({low:+.1f} to {high:+.1f})".replace("-", "−") in text
    assert "mean gain +45.8" in text and text.endswith("Settings that differ: seed: 1 | 2 | 3")
    other = write_learner(Path("other"), 3, seed=1, learning_rate=1e-4, eval_every=5)
    text = shown(capsys, runs[0], other)
    assert text.endswith("Settings that differ: learning_rate: None | 0.0001") and "mean gain" not in text
    same = write_learner(Path("again"), 3, seed=1)
    assert "Settings that differ" not in shown(capsys, runs[0], same)


def test_an_unfinished_run_is_shown_without_a_gain(runs, capsys):
    for name in ("eval_after.json", "completions_after.jsonl", "comparison.json"):
        (runs[2] / name).unlink()
    record = json.loads((runs[2] / "run.json").read_text())
    (runs[2] / "run.json").write_text(json.dumps(record | {"status": "interrupted by SIGTERM"}))
    text = shown(capsys, *runs)
    assert "seed3 50.0 37.5 (interrupted by SIGTERM)" in text and "mean gain +37.5" in text


@pytest.mark.parametrize("words", ["seed1", "seed1 ./seed1", "seed1 nothing", "seed1 empty", "seed1 seed2 --fast"])
def test_a_mistake_is_one_line_and_status_2(words, runs, capsys):
    for path in write_learner(Path("empty"), 1).glob("eval_*.json"):
        path.unlink()
    assert tool(["compare", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and not captured.out
