"""grpo/evaluation/compare.py: several runs in one table, the mean gain, what differs, and what to beware of."""

import json
from pathlib import Path

import pytest
import scipy
from helpers_report import write_learner

from grpo.__main__ import main as tool
from grpo.evaluation import compare, comparison


@pytest.fixture
def runs():
    """Three finished runs of one experiment, whose gains differ."""
    return [write_learner(Path(f"seed{seed}"), gain, seed=seed) for seed, gain in ((1, 2), (2, 4), (3, 5))]


def shown(capsys, *words):
    assert tool(["compare", *map(str, words)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_gains_are_those_of_the_runs_and_the_mean_has_students_interval(runs, capsys):
    assert compare.gains([compare.read(run) for run in runs], "lenient") == [25.0, 50.0, 62.5]
    low, high = scipy.stats.ttest_1samp([25.0, 50.0, 62.5], 0).confidence_interval(0.95)
    assert f"mean gain +{137.5 / 3:.1f}" in (text := shown(capsys, *runs))
    assert f"({low:+.1f} to {high:+.1f})".replace("-", "−") in text
    low, high = comparison.tango(2, 0, 8)
    assert f"({100 * low:+.1f} to {100 * high:+.1f})".replace("-", "−") in text.replace(" to ", " to ")


def test_the_table_has_runs_mean_and_what_differs(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, *runs)
    assert "seed1 50.0 -> 62.5" in text and "+25.0" in text and "mean gain +45.8" in text
    assert "seed: 1 | 2 | 3" in text and "note:" not in text


def test_other_experiments_are_named_beside_their_mean(runs, capsys):
    other = write_learner(Path("other"), 3, seed=4, learning_rate=1e-4, eval_every=5)
    text = shown(capsys, runs[0], other)
    assert "learning_rate: - | 0.0001" in text and "eval_every" not in text
    assert "note: the mean is over different experiments: the runs differ in learning_rate" in text
    again = write_learner(Path("again"), 2, seed=1)
    assert "note: the runs have the same settings and the same seed" in shown(capsys, runs[0], again)


def test_an_unfinished_run_is_shown_without_a_gain(runs, capsys):
    for name in ("eval_after.json", "completions_after.jsonl", "comparison.json"):
        (runs[2] / name).unlink()
    record = json.loads((runs[2] / "run.json").read_text())
    (runs[2] / "run.json").write_text(json.dumps(record | {"status": "interrupted by SIGTERM"}))
    text = shown(capsys, *runs)
    assert "note: seed3: interrupted by SIGTERM" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("seed1", "name at least two runs, each once"),
        ("seed1 ./seed1", "name at least two runs, each once"),
        ("seed1 nothing", "'nothing' holds no run"),
        ("seed1 empty", "'empty' holds no evaluation"),
        ("seed1 seed2 --fast", "unrecognized arguments: --fast"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words, reason, runs, capsys):
    empty = write_learner(Path("empty"), 1)
    for path in empty.glob("eval_*.json"):
        path.unlink()
    assert tool(["compare", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and reason in captured.err
    assert captured.out == ""
