"""assets/countdown, examples/countdown.py, recipes/countdown.yaml: fair rows, an exact judge, a recipe."""

import json
import sys
import time
from pathlib import Path

import pytest
from helpers_runs import COUNTDOWN

sys.path.insert(0, str(COUNTDOWN))
import make_countdown

import train_grpo
from examples.countdown import is_right
from rewards import XML_COT_FORMAT

ROW = {"question": "…", "numbers": [3, 7, 2], "target": 20}


def answered(expression):
    return XML_COT_FORMAT.format(reasoning="(3+7)*1 = 10", answer=expression)


# --- The data


def test_the_committed_rows_are_what_the_script_makes():
    for name, rows in make_countdown.make_rows().items():
        lines = (COUNTDOWN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows
        assert len({row["question"] for row in rows}) == len(rows)


def test_held_out_problems_are_in_no_training_set():
    rows = make_countdown.make_rows()
    train, test = (
        {(tuple(sorted(row["numbers"])), row["target"]) for row in rows[name]} for name in ("train", "test")
    )
    held_out, others = map(set, make_countdown.split())
    assert test == held_out and train == others and not train & test  # demonstrations draw from `others`
    assert len(test) == 200 and len(train) > 500


# --- The judge


RIGHT = ["(3 + 7) * 2", "2*(7+3)", "2 * (3 + 7) = 20", "(3 + 7) × 2"]
WRONG = [
    "20",  # no number used
    "(3 + 7) + 2",  # another value
    "10 * 2",  # a number that was not given
    "7 * 2 + 3 + 3",  # one twice
    "7 * 3 - 1",  # one never
    "(3 + 7) * 2 = 21",  # right, and then wrong
    "(3 + 7 * 2",
]


@pytest.mark.parametrize("expression", [*RIGHT, *WRONG])
def test_an_expression_is_right_if_it_reaches_the_target_with_each_number_once(expression):
    assert is_right(answered(expression), ROW) is (expression in RIGHT)


def test_values_are_exact_fractions():
    row = {"numbers": [3, 3, 8, 8], "target": 24}
    assert is_right(answered("8 / (3 - 8 / 3)"), row)  # in floats it is 23.999999999999989
    assert not is_right(answered("1 / (7 - 3 - 4)"), {"numbers": [1, 3, 4, 7], "target": 0})  # by zero
    assert not is_right(answered("7 / 2"), {"numbers": [2, 7], "target": 3})
    assert not is_right(answered("2.5 * 4"), {"numbers": [2, 4, 5], "target": 10})  # two numbers in one


def test_the_last_answer_counts_and_reasoning_does_not():
    assert is_right("<answer>20</answer> no: <answer>2*(3+7)</answer>", ROW)
    assert not is_right("<reasoning>2*(3+7)</reasoning><answer>3*7-1</answer>", ROW)
    assert is_right("2*(3+7)", ROW) and not is_right("It is 2*(3+7)", ROW)


HOSTILE = ["9**9**9**9", "__import__('os').system('true')", "٣+٧", "(" * 10**6, "9" * 10**6, "1+" * 10**6]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_expressions_are_wrong_at_once(text):
    start = time.process_time()
    assert not is_right(text, ROW) and not is_right(answered(text), ROW)
    assert time.process_time() - start < 5


# --- The recipe


@pytest.mark.slow
def test_the_recipe_trains_from_any_directory(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    argv = ["--config", "countdown", "--max_steps", "2", "--eval_samples", "20", "--output_dir", "run"]
    assert train_grpo.main([*argv, "--per_device_train_batch_size", "16", "--logging_steps", "1"]) == 0
    assert "judge" in capfd.readouterr().out
    rows = {row["question"]: row for row in make_countdown.make_rows()["test"]}
    for line in Path("run/completions_before.jsonl").read_text(encoding="utf-8").splitlines():
        completion = json.loads(line)
        assert completion["lenient"] == is_right(completion["completion"], rows[completion["question"]])
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert 0 < metrics[0]["rewards/judge_reward_func/mean"] < 2
