"""grpo/report.py reads a run's files and draws them."""

import json

import pytest

from grpo import report
from grpo.evaluation import summarize


@pytest.fixture
def run(tmp_path):
    lines = [
        {"step": 1, "reward": 1.0, "rewards/int_reward_func/mean": 0.2},
        {"step": 2, "reward": 1.5, "rewards/int_reward_func/mean": None},
        {"step": 2, "reward": 1.6, "rewards/int_reward_func/mean": 0.4},
        {"step": 2, "train_loss": 0.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = {
        "strict": True,
        "lenient": True,
        "format_strict": False,
        "format_soft": False,
        "truncated": False,
        "length": 3,
    }
    for when in ("before", "after"):
        (tmp_path / f"eval_{when}.json").write_text(json.dumps(summarize([flags])))
    return tmp_path


def test_a_step_that_was_logged_twice_counts_once_and_summaries_do_not(run):
    assert [(line["step"], line["reward"]) for line in report.read_metrics(run)] == [(1, 1.0), (2, 1.6)]


def test_curves_are_a_picture(run, capsys):
    assert report.main([str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG") and "curves.png" in capsys.readouterr().out


def test_a_run_that_still_trains_is_drawn_without_its_evaluation(run):
    (run / "eval_after.json").unlink()
    assert report.draw_curves(run).stat().st_size > 10_000


def test_another_directory_is_one_line_and_status_2(tmp_path, capsys):
    assert report.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: usage: python -m grpo.report")
