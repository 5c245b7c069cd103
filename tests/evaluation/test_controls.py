"""benchmarks/controls.py: what its three controls train on, and how the real rewards' gain is held against theirs."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import scipy
from helpers_report import write_run
from helpers_runs import DEMO, ROOT

import rewards
from grpo.core.errors import UserError
from grpo.data import sources
from grpo.evaluation import comparison
from grpo.evaluation.side_by_side import Estimate, read

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


HELD_OUT = ["--eval_dataset_name", SETTINGS["eval_dataset_name"]]


@pytest.mark.parametrize("changed", [{"eval_dataset_name": None}, {"dataset_name": ["a.csv", "b.csv"]}])
def test_without_held_out_questions_nothing_is_shuffled(changed):
    """They would be cut from the shuffled rows."""
    with pytest.raises(UserError, match="whose answers stay right"):
        controls.shuffled(SETTINGS | changed, Path("shuffled.jsonl"))


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


def finished(side, *gains):
    """A run per seed that gains so many of its eight questions; the first ones are right at the start."""
    runs = []
    for seed, gain in enumerate(gains):
        path = write_run(Path(f"{side}-seed{seed}"))
        answered = {
            when: [{"question": str(place), **dict.fromkeys(comparison.MEASURES, place < count)} for place in range(8)]
            for when, count in (("before", 2), ("after", 2 + gain))
        }
        (path / "completions_after.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answered["after"]))
        (path / "comparison.json").write_text(json.dumps(comparison.compare(*answered.values())))
        runs.append(path)
    return runs


def test_the_advantage_of_one_seed_is_paired():
    real, control = read([*finished("real", 5), *finished("random", 1)])
    low, high = comparison.tango(4, 0, 8)
    assert controls.advantage([real], [control]) == Estimate(50.0, 100 * low, 100 * high)


def test_the_advantage_of_several_seeds_is_paired_by_seed():
    runs = read([*finished("real", 5, 6, 4), *finished("random", 1, 0, 1)])
    found = controls.advantage(runs[:3], runs[3:])
    reference = scipy.stats.ttest_1samp([50.0, 75.0, 37.5], 0).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((54.16666667, *reference))


def test_each_side_is_trained_with_its_own_flags(monkeypatch):
    lines = {}

    def train(seeds, flags):
        side = Path(flags[-1]).name
        lines[side] = flags
        return finished(side, *[1 for _ in seeds]), 0

    monkeypatch.setattr(controls.compare, "resolve", lambda flags: SETTINGS)
    monkeypatch.setattr(controls.compare, "train", train)
    found = controls.train(["--config", "demo"], [1, 2], Path())
    assert {side: [run.name for run in runs] for side, runs in found.items()} == {
        side: [f"{side}-seed0", f"{side}-seed1"] for side in ("real", "random", "shuffled", "format")
    }
    assert lines["real"] == ["--config", "demo", "--output_dir", "real"]
    assert lines["random"][2:4] == ["--reward_funcs", "benchmarks.random_reward.chance_reward"]
    assert "shuffled.jsonl" in lines["shuffled"] and "correctness_reward_func" not in lines["format"]
    monkeypatch.setattr(controls.compare, "train", lambda *_: ([], 130))
    with pytest.raises(SystemExit) as end:
        controls.train([], [1], Path())
    assert end.value.code == 130


def test_the_table_has_each_side_and_what_it_lacks(monkeypatch, capsys):
    runs = iter(read([*finished("real", 5), *finished("random", 1), *finished("shuffled", 0), *finished("format", 2)]))
    sides = {side: [next(runs)] for side in ("real", "random", "shuffled", "format")}
    monkeypatch.setattr(controls, "train", lambda flags, seeds, output: sides)
    monkeypatch.setattr(sys, "argv", ["controls.py", "--seeds", "3", "--", "--config", "demo"])
    assert controls.main() == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "8 held-out questions, 1 seed" in shown and "real 50.0 (44-56) 62.5 (56-69) +62.5 (" in shown
    assert "random 50.0 (44-56) 62.5 (56-69) +12.5 (" in shown and "real less random +50.0 (" in shown
    assert "real less format +37.5 (" in shown
