"""Rewards and judges get a rollout's rows as TRL passes them, and a failure is one Fault whatever is raised."""

import asyncio
import math
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from helpers_trainer import trained
from trl import GRPOTrainer
from trl.trainer.utils import is_async_callable

from grpo.rewarding import guard
from grpo.rewarding.rollout import Fault, Rollout, call, call_async, verdicts
from grpo.task import Task
from grpo.task.prompts import XML

ROWS = [{"prompt": "1 + 1?", "question": "1 + 1?", "level": 1}, {"prompt": "2?", "question": "2?", "level": 2}]


def two(chat=False):
    return Rollout.of_texts(ROWS, ["a", "b"], chat, [[1], [2, 3]])


# --- Rows and columns


@pytest.mark.parametrize("chat", [True, False])
def test_columns_and_rows_are_two_views_of_one_rollout(chat):
    columns = two(chat).columns()
    assert columns["prompts"] == ["1 + 1?", "2?"] and columns["level"] == [1, 2] and "prompt" not in columns
    assert columns["completions"][1] == ([{"role": "assistant", "content": "b"}] if chat else "b")
    assert columns["completion_ids"] == [[1], [2, 3]]
    again = Rollout.of_arguments(**columns)
    assert again == Rollout(ROWS, columns["completions"], [[1], [2, 3]], again.shared)
    assert again.shared.keys() == two().shared.keys() and again.texts == ["a", "b"]
    (second,) = list(again.each())[1:]
    assert second.rows == ROWS[1:] and second.ids == [[2, 3]] and second.texts == ["b"]


def test_rewards_get_in_evaluations_what_trl_gives_them(tiny_model, tmp_path):
    """The same names and kinds of values, whatever stock TRL passes."""
    passed = {}

    def curious(**arguments):
        passed.update(arguments)
        return [float(sum(ids)) for ids in arguments["completion_ids"]]

    chats = [[{"role": "user", "content": f"{n} + 1?"}] for n in range(8)]
    trained(GRPOTrainer, tiny_model, tmp_path, reward=curious, prompts=chats, columns={"level": list(range(8))})
    rollout = Rollout.of_arguments(**passed)
    assert rollout.rows[0].keys() == {"prompt", "level"}
    texts = Rollout.of_texts(rollout.rows, rollout.texts, chat=True, ids=rollout.ids).columns()
    shared = {"trainer_state", "log_extra", "log_metric"}
    assert {key: texts[key] for key in texts.keys() - shared} == {key: passed[key] for key in passed.keys() - shared}
    assert shared <= texts.keys()


# --- Failures


def leaves(completions, **kwargs):
    sys.exit("no\nkey")


def returns(result):
    return lambda completions, **kwargs: result


def line_of(function):
    return function.__code__.co_firstlineno + 1


FAILS = [  # what a reward or a judge does, and what is said of it
    (lambda *_, **__: 1 / 0, "ZeroDivisionError: division by zero (test_rollout.py:"),
    (leaves, f"SystemExit: no key (test_rollout.py:{line_of(leaves)})"),
    (returns(None), "it returned None; return a list of numbers (or None), one for each completion (is its return"),
    (returns(["1", "2"]), "it returned ['1', '2']; return a list of numbers"),
    (returns({0: 1.0, 1: 0.5}), "it returned {0: 1.0, 1: 0.5}; return a list of numbers"),
    (returns({"a": 1.0, "b": 0.5}), "it returned {'a': 1.0, 'b': 0.5}; return a list"),
    (returns(Counter([3, 4])), "it returned Counter"),
    (returns({0: 1.0, 1: 0.5}.keys()), "it returned dict_keys"),
    (returns({0.5, 1.0}), "it returned {"),  # a set has no order
    (returns(b"ab"), "it returned b'ab'"),
    (returns(pd.DataFrame({0: [1.0], 1: [2.0]})), "it returned"),
    (returns([math.nan, math.nan]), "it returned nan"),
]


@pytest.mark.parametrize(
    "values",
    [
        (1.0, None),
        iter([1.0, 0.5]),
        np.array([1, 0]),
        torch.tensor([True, False]),
        pd.Series([1.0, 0.5], index=[7, 8]),
        {0: 1.0, 1: 0.5}.values(),
    ],
)
def test_rewards_are_numbers_in_order_whatever_holds_them(values):
    scores = call("mine", returns(values), two())
    assert scores[0] == 1.0 and scores[1] in (None, 0.5, 0.0)


@pytest.mark.parametrize(("reward", "said"), FAILS)
def test_a_failure_is_one_fault_with_the_users_line(reward, said):
    async def later(**columns):
        return reward(**columns)

    given = [call("mine", reward, two()), asyncio.run(call_async("mine", later, two()))]
    given.append(guard.score({"mine": later}, two())["mine"])
    assert is_async_callable(later)
    for scores in given:
        assert [(fault.function, fault.row, fault.question, fault.completion) for fault in scores] == [
            ("mine", 0, "1 + 1?", "a"),
            ("mine", 1, "2?", "b"),
        ]
        assert all(str(fault).startswith(f"mine: {said}") for fault in scores)


def test_a_judges_failure_is_worded_like_a_rewards():
    def judge(text, row):
        return {"a": lambda: sys.exit("no key"), "b": lambda: 0.5}[text]()

    first, second = verdicts(Task(XML, judge=judge, judge_name="mine"), two())
    assert str(first).startswith("mine: SystemExit: no key (test_rollout.py:")
    assert str(second) == "mine: it returned 0.5; let it return True or False"


def test_the_lenient_rule_has_no_verdict_without_a_gold_answer():
    rows = [{"prompt": "?", "answer": gold} for gold in ("7", None)]
    assert list(verdicts(Task(XML), Rollout.of_texts(rows, ["It is 7."] * 2, False))) == [True, None]


def test_a_row_with_a_fault_has_no_value_from_any_reward(capsys):
    def fails(completions, **kwargs):
        return [1.0 if text == "a" else 1 / 0 for text in completions]

    async def twos(completions, **kwargs):
        return [2.0] * len(completions)

    scores = guard.score({"fails": fails, "twos": twos}, two())
    assert scores["fails"][0] == 1.0 and isinstance(scores["fails"][1], Fault) and scores["twos"] == [2.0, 2.0]
    assert guard.excluding_faults(scores) == {"fails": [1.0, None], "twos": [2.0, None]}
    assert "1 of 2 answers, which are excluded from their means (first: fails: Zero" in capsys.readouterr().out
