"""benchmarks/controls.py: what its controls train on, and what its tables say of them."""

import json
import sys
from pathlib import Path

import pytest
from helpers_report import write_learner
from helpers_runs import DEMO, ROOT

import rewards
from grpo.core.errors import UserError
from grpo.data import sources

sys.path.insert(0, str(ROOT / "benchmarks"))
import controls

SETTINGS = {
    "dataset_name": str(DEMO / "train.jsonl"),
    "dataset_config": None,
    "dataset_split": "train[:300]",
    "eval_dataset_name": str(DEMO / "test.jsonl"),
    "answer_column": "answer",
    "reward_funcs": rewards.GIST_REWARDS,
    "reward_weights": [1.0, 2.0, 3.0, 4.0, 5.0],
}


def test_each_arm_has_its_own_flags():
    flags = {arm: make(SETTINGS, Path()) for arm, make in controls.ARMS.items()}
    assert flags["real"] == [] and flags["random"][1] == "benchmarks.random_reward.chance_reward"
    names, _, weights = " ".join(flags["format"][1:]).partition(" --reward_weights ")
    assert names.split() == rewards.GIST_REWARDS[:4] and weights.split() == ["1.0", "2.0", "3.0", "4.0"]
    with pytest.raises(UserError, match="all of these rewards need a gold answer"):
        controls.format_only({"reward_funcs": ["judge_reward_func"], "reward_weights": None})


def test_shuffled_rows_have_the_answers_of_others():
    controls.shuffled(SETTINGS, Path("shuffled.jsonl"))
    rows = list(map(json.loads, Path("shuffled.jsonl").read_text().splitlines()))
    original = sources.load_source(SETTINGS["dataset_name"])["train"].to_list()[:300]
    assert [row["question"] for row in rows] == [row["question"] for row in original]
    assert sorted(row["answer"] for row in rows) == sorted(row["answer"] for row in original)
    assert sum(row["answer"] == old["answer"] for row, old in zip(rows, original, strict=True)) < 30
    assert controls.permuted(original, "answer") == rows  # always alike
    with pytest.raises(UserError, match="whose answers stay right"):
        controls.shuffled(SETTINGS | {"eval_dataset_name": None}, Path("shuffled.jsonl"))


def test_the_tables_have_each_arm_and_what_it_lacks(monkeypatch, capsys):
    gains = {"real": 5, "random": 1, "shuffled": 0, "format": 2}
    monkeypatch.setattr(
        controls, "train", lambda flags, run, seed: write_learner(run, gains[run.name.split("-")[0]] + (seed == 2))
    )
    words = ["--", "--config", "demo", "--report_to", "none"]
    assert controls.main(["--seeds", "1", "--output", "one", *words]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "real (1), lenient 50.0 62.5 +62.5 (" in shown and "random (1), lenient 50.0 62.5 +12.5 (" in shown
    assert "real less random +50.0 (" in shown and "real less format +37.5 (" in shown
    gains["real"] = 4
    assert controls.main(["--seeds", "1", "3", "--output", "two", "--arms", "real", "random", *words]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "real (1, 3), lenient" in shown and "real less shuffled -" in shown
    assert controls.main(["--arms", "nope", *words]) == 2
