"""grpo/rewarding/groups.py: which groups are all right, all wrong or mixed."""

import math

import pytest
import torch
from helpers_trainer import trained

from grpo.rewarding import groups
from grpo.rewarding.judge import Judge
from grpo.training.trainer import LeanGRPOTrainer


def test_equal_texts_of_a_row_are_judged_once():
    asked = []

    def judged(text, row):
        asked.append((text, row["question"]))
        return text == row["question"]

    rows = [{"question": "a"}, {"question": "a"}, {"question": "a"}, {"question": "b"}, {"question": "b"}]
    texts = ["a", "b", "a", "b", [{"role": "assistant", "content": "a"}]]
    assert groups.verdicts(Judge(function=judged), rows, texts) == [1, 0, 1, 1, 0]
    assert asked == [("a", "a"), ("b", "a"), ("b", "b"), ("a", "b")]


def test_rows_that_nobody_can_judge_are_not_counted():
    rows = [{"answer": "7"}, {"answer": "7"}, {"answer": None}, {"answer": None}]
    right = groups.verdicts(Judge(), rows, ["<answer>7</answer>", "8", "7", "7"])
    assert right[:2] == [1, 0] and all(map(math.isnan, right[2:]))
    solved = groups.solved(torch.tensor(right), 2)
    assert groups.shares(solved) == {"groups/all_right": 0, "groups/all_wrong": 0, "groups/mixed": 1}
    assert groups.shares(solved[1:]) == {}


def test_the_three_shares_add_up():
    nan = math.nan
    solved = groups.solved(torch.tensor([1, 1, 0, 0, 1, 0, 1, nan, nan, 0, nan, nan]), 2)
    shares = {"groups/all_right": 0.4, "groups/all_wrong": 0.4, "groups/mixed": 0.2}
    assert groups.shares(solved) == pytest.approx(shares)


def is_right(text, row):
    return sum(map(ord, text)) % 4 > 0


class Judging(LeanGRPOTrainer):
    judge = Judge(function=is_right, name="is_right")


def test_the_shares_of_a_rollout_are_logged(tiny_model, tmp_path):
    _, log, _ = trained(Judging, tiny_model, tmp_path)
    shares = [log[0][f"groups/{kind}"] for kind in ("all_right", "all_wrong", "mixed")]
    assert sum(shares) == pytest.approx(1) and shares[2] > 0


def test_completions_whose_rewards_failed_are_not_in_their_group(tiny_model, tmp_path):
    """Here these are the right ones."""

    def fails_where_right(completions, **kwargs):
        for text in completions:
            if is_right(text, {}):
                raise ValueError("it fails")
        return [float(len(text)) for text in completions]

    own = {"max_faulty_rewards": 1.0}
    _, log, _ = trained(Judging, tiny_model, tmp_path, reward=fails_where_right, own=own)
    assert log[0]["rewards/left_out"] > 0.5 and log[0]["groups/all_wrong"] == 1
