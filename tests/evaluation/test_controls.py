"""benchmarks/controls.py: what its three controls train on, and what its table says of them."""

import importlib
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
import random_reward

SETTINGS = {
    "dataset_name": str(DEMO / "train.jsonl"),
    "dataset_config": None,
    "dataset_split": "train[:300]",
    "eval_dataset_name": str(DEMO / "test.jsonl"),
    "answer_column": "answer",
    "reward_funcs": rewards.GIST_REWARDS,
    "reward_weights": [1.0, 2.0, 3.0, 4.0, 5.0],
}

NOTHING = dict.fromkeys(controls.BY_RIGHT_ANSWERS)


def gold(row):
    return rewards.extract_hash_answer(row["answer"])


def test_shuffled_rows_have_the_answers_of_others():
    flags = controls.shuffled(SETTINGS, Path("shuffled.jsonl"))
    rows = list(map(json.loads, Path("shuffled.jsonl").read_text().splitlines()))
    original = sources.load_source(SETTINGS["dataset_name"])["train"].to_list()[:300]
    assert [row["question"] for row in rows] == [row["question"] for row in original]
    assert sorted(row["answer"] for row in rows) == sorted(row["answer"] for row in original)
    right = sum(gold(row) == gold(old) for row, old in zip(rows, original, strict=True))
    assert right < 30  # by chance: the demo's answers are small numbers
    assert controls.permuted(original, "answer") == rows  # always alike
    assert flags == ["--dataset_name", "shuffled.jsonl", "--dataset_split", "train", *HELD_OUT]


DEMO_RECIPE = ["--", "--config", "demo"]
HELD_OUT = ["--eval_dataset_name", SETTINGS["eval_dataset_name"]]


@pytest.mark.parametrize("changed", [{"eval_dataset_name": None}, {"dataset_name": ["a.csv", "b.csv"]}])
def test_without_held_out_questions_nothing_is_shuffled(changed):
    """They would be cut from the shuffled rows."""
    with pytest.raises(UserError, match="whose answers stay right"):
        controls.shuffled(SETTINGS | changed, Path("shuffled.jsonl"))


def test_rows_without_gold_answers_are_not_shuffled():
    with pytest.raises(UserError, match="has no column 'solution' whose values could be shuffled"):
        controls.shuffled(SETTINGS | {"answer_column": "solution"}, Path("shuffled.jsonl"))


@pytest.mark.parametrize("key", controls.BY_RIGHT_ANSWERS)
def test_what_chooses_by_right_answers_is_refused(key, monkeypatch, capsys):
    settings = NOTHING | {key: True}
    monkeypatch.setattr(controls.compare, "resolve", lambda flags: settings)
    monkeypatch.setattr(sys, "argv", ["controls.py"])
    assert controls.bench_runs.start(controls.bench_runs.parser(""), controls.run) == 2
    assert capsys.readouterr().err.startswith(f"error: {key}: it chooses by right answers")


def test_format_only_keeps_the_rewards_without_gold_answers():
    kept = {"xmlcount": 1.0, "soft_format": 2.0, "strict_format": 3.0, "int": 4.0}
    names, _, weights = " ".join(controls.format_only(SETTINGS)[1:]).partition(" --reward_weights ")
    found = dict(zip(names.split(), map(float, weights.split()), strict=True))
    assert {rewards.short_name(name): weight for name, weight in found.items()} == kept
    only = {"reward_funcs": ["correctness_reward_func", "judge_reward_func", "my.own"], "reward_weights": None}
    with pytest.raises(UserError, match="all of these rewards need a gold answer"):
        controls.format_only(SETTINGS | only)


def test_the_chance_reward_knows_nothing_and_is_seeded():
    def drawn():
        module = importlib.reload(random_reward)
        return [module.chance_reward(["the same text"] * 8) for _ in range(2)]

    first, second = drawn()
    assert len(set(first)) == 8 and first != second and all(0 <= value < 1 for value in first)
    assert drawn() == [first, second]


def test_each_side_is_trained_with_its_own_flags(monkeypatch):
    sides = {side: make(SETTINGS, Path()) for side, make in controls.SIDES.items()}
    assert list(sides) == ["real", "random", "shuffled", "format"] and sides["real"] == []
    assert sides["random"][:2] == ["--reward_funcs", "benchmarks.random_reward.chance_reward"]
    assert "shuffled.jsonl" in sides["shuffled"] and "correctness_reward_func" not in sides["format"]


def test_the_table_has_each_side_and_what_it_lacks(monkeypatch, capsys):
    def train(seeds, flags):
        side = Path(flags[-1])
        write_learner(Path(f"{side}-seed3"), gains[side.name])
        return [], 0

    gains = {"real": 5, "random": 1, "shuffled": 0, "format": 2}
    monkeypatch.setattr(controls, "SIDES", {side: lambda *_: [] for side in gains})
    monkeypatch.setattr(controls.bench_runs.compare, "train", train)
    monkeypatch.setattr(controls.bench_runs.compare, "resolve_all", lambda commands: [NOTHING] * len(commands))
    monkeypatch.setattr(sys, "argv", ["controls.py", "--seeds", "3", "--", "--config", "demo"])
    assert controls.bench_runs.start(controls.bench_runs.parser(""), controls.run) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "8 held-out questions, 1 seed" in shown and "real (3) 50.0 (44-56) 62.5 (56-69) +62.5 (" in shown
    assert "random (3) 50.0 (44-56) 62.5 (56-69) +12.5 (" in shown and "real less random (3) +50.0 (" in shown
    assert "real less format (3) +37.5 (" in shown


def test_some_sides_can_be_trained_alone(monkeypatch, capsys, tmp_path):
    """No other side is prepared, so nothing is asked for it and no file of it is written anew."""
    trained, made = [], []

    def train(seeds, flags):
        trained.append(Path(flags[-1]).name)
        write_learner(Path(f"{flags[-1]}-seed42"), 1)
        return [], 0

    monkeypatch.setattr(
        controls, "SIDES", {side: lambda *_, side=side: made.append(side) or [] for side in ("real", "shuffled")}
    )
    monkeypatch.setattr(controls.bench_runs.compare, "train", train)
    monkeypatch.setattr(controls.bench_runs.compare, "resolve_all", lambda commands: [NOTHING] * len(commands))
    for words, status in ((["shuffled"], 0), ([], 0), (["nope"], 2)):
        monkeypatch.setattr(
            sys, "argv", ["controls.py", "--output", str(tmp_path / "runs"), "--arms", *words, *DEMO_RECIPE]
        )
        assert controls.bench_runs.start(controls.bench_runs.parser(""), controls.run) == status
    assert trained == made == ["shuffled"]
    said = capsys.readouterr()
    assert "shuffled (42)" in said.out and "there is no 'nope'; choose from real, shuffled" in said.err
    monkeypatch.setattr(sys, "argv", ["controls.py", "--output", "nothing", "--arms", *DEMO_RECIPE])
    assert controls.bench_runs.start(controls.bench_runs.parser(""), controls.run) == 2
    assert "no arm with seed 42 is finished in 'nothing'; train some, or set --seeds" in capsys.readouterr().err
