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

from grpo.scoring.calling import LARGEST, Rollout, call, call_all, call_async
from grpo.scoring.sample import Fault, Sample

ROWS = [{"prompt": "1 + 1?", "question": "1 + 1?", "level": 1}, {"prompt": "2?", "question": "2?", "level": 2}]
SAMPLES = [Sample(ROWS[0], "a", [1]), Sample(ROWS[1], "b", [2, 3])]


def two(chat=False):
    return Rollout(SAMPLES, chat)


# --- Rows and columns


@pytest.mark.parametrize("chat", [True, False])
def test_rewards_get_columns_of_the_samples(chat):
    columns = two(chat).arguments()
    assert columns["prompts"] == ["1 + 1?", "2?"] and columns["level"] == [1, 2] and "prompt" not in columns
    assert columns["completions"][1] == ([{"role": "assistant", "content": "b"}] if chat else "b")
    assert columns["completion_ids"] == [[1], [2, 3]]
    (second,) = list(two(chat).each())[1:]
    assert second.samples == SAMPLES[1:] and second.shared.keys() == two().shared.keys()


def test_rewards_get_in_evaluations_what_trl_gives_them(tiny_model, tmp_path):
    """The same names and kinds of values, whatever stock TRL passes."""
    passed = {}

    def curious(**arguments):
        passed.update(arguments)
        return [float(sum(ids)) for ids in arguments["completion_ids"]]

    chats = [[{"role": "user", "content": f"{n} + 1?"}] for n in range(8)]
    trained(GRPOTrainer, tiny_model, tmp_path, reward=curious, prompts=chats, columns={"level": list(range(8))})
    shared = {"trainer_state", "log_extra", "log_metric"}
    columns = [passed[key] for key in ("prompts", "completions", "completion_ids", "level")]
    samples = [
        Sample({"prompt": prompt, "level": level}, completion[0]["content"], ids)
        for prompt, completion, ids, level in zip(*columns, strict=True)
    ]
    given = Rollout(samples, chat=True).arguments()
    assert {key: given[key] for key in given.keys() - shared} == {key: passed[key] for key in passed.keys() - shared}
    assert shared <= given.keys()


# --- Failures


def leaves(completions, **kwargs):
    sys.exit("no\nkey")


def returns(result):
    return lambda completions, **kwargs: result


def line_of(function):
    return function.__code__.co_firstlineno + 1


FAILS = [  # what a reward or a judge does, and what is said of it
    (lambda *_, **__: 1 / 0, "ZeroDivisionError: division by zero (test_calling.py:"),
    (leaves, f"SystemExit: no key (test_calling.py:{line_of(leaves)})"),
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
    given.append(call_all({"mine": later}, two())["mine"])
    assert is_async_callable(later)
    for scores in given:
        assert [(fault.function, fault.row, fault.question, fault.completion) for fault in scores] == [
            ("mine", 0, "1 + 1?", "a"),
            ("mine", 1, "2?", "b"),
        ]
        assert all(str(fault).startswith(f"mine: {said}") for fault in scores)


def test_async_rewards_share_a_loop_and_run_at_once():
    """Clients keep connections on the loop of their first call, and a slow server is waited for once."""
    loops, running, most = set(), 0, 0

    async def slow(completions, **kwargs):
        nonlocal running, most
        loops.add(asyncio.get_running_loop())
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return [1.0] * len(completions)

    for _ in range(2):
        scores = call_all({"first": slow, "plain": returns([0.0, 0.5]), "second": slow}, two())
    assert scores == {"first": [1.0, 1.0], "plain": [0.0, 0.5], "second": [1.0, 1.0]}
    assert list(scores) == ["first", "plain", "second"] and len(loops) == 1 and most == 2


# --- A single reward's values


def many(count, chat=False, **columns):
    """A rollout of this many samples, with these columns."""
    rows = [
        {"prompt": f"question {index}", **{key: column[index] for key, column in columns.items()}}
        for index in range(count)
    ]
    return Rollout([Sample(row, f"answer {index}", [index]) for index, row in enumerate(rows)], chat)


def numbers(scores):
    """The scores, "fault" for a fault."""
    return ["fault" if isinstance(score, Fault) else score for score in scores]


def test_rows_at_fault_are_found_the_others_scored_alone():
    seen = []

    def reward(prompts, answer, trainer_state, **kwargs):
        seen.append((prompts, answer, trainer_state))
        if "question 2" in prompts:
            raise KeyError("two")
        return [float(len(text)) for text in answer]

    rollout = many(4, answer=["a", "bb", "ccc", "dddd"])
    scores = call("reward", reward, rollout)
    assert numbers(scores) == [1.0, 2.0, "fault", 4.0]
    fault = scores[2]
    assert (fault.row, fault.question, fault.completion) == (2, "question 2", "answer 2")
    assert str(fault).startswith("reward: KeyError: 'two' (test_calling.py:") and "raise KeyError" in fault.traceback
    assert [len(prompts) for prompts, *_ in seen] == [4, 1, 1, 1, 1] and seen[2][:2] == (["question 1"], ["bb"])
    assert all(state is rollout.shared["trainer_state"] for *_, state in seen)


def test_one_value_for_many_completions_is_a_fault_of_all_of_them():
    """Alone, each row would have it, and a reward that forgets all completions but the first would never show."""

    async def later(prompts, **kwargs):
        return [1.0]

    first = call("first", lambda prompts, **kwargs: [1.0], many(3))
    assert numbers(first) == numbers(asyncio.run(call_async("later", later, many(3)))) == ["fault"] * 3
    assert str(first[0]).startswith("first: it returned [1.0]; return a list of numbers")
    some = call("some", lambda prompts, **kwargs: [1.0 for prompt in prompts if prompt != "question 1"], many(3))
    assert numbers(some) == [1.0, "fault", 1.0]  # the row without a value is known


def test_rows_of_an_async_reward_are_tried_again_all_at_once():
    """A server that is down costs a rollout one more timeout, not one for each row."""
    waiting, most = 0, 0

    async def down(prompts, **kwargs):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        if "question 2" not in prompts or len(prompts) > 1:
            raise ConnectionError("refused")
        return [1.0]

    assert numbers(asyncio.run(call_async("down", down, many(64)))) == ["fault"] * 2 + [1.0] + ["fault"] * 61
    assert most == 64


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError("CUDA out of memory")])
def test_interruptions_and_full_devices_are_no_fault(raised):
    def reward(**kwargs):
        raise raised

    with pytest.raises(raised if isinstance(raised, type) else RuntimeError):
        call("reward", reward, many(2))


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, 2 * LARGEST])
def test_values_that_are_not_finite_are_faults_of_their_row(value):
    assert numbers(call("mine", lambda **kwargs: [1.0, value, None, 2.0], many(4))) == [1.0, "fault", None, 2.0]


@pytest.mark.parametrize("result", [[1.0, 2.0], "abc", ["1", "2", "3"], None])
def test_a_result_that_is_no_list_of_numbers_is_a_fault_of_all_rows(result):
    assert numbers(call("odd", lambda **kwargs: result, many(3))) == ["fault"] * 3


def vandal(prompts, completions, completion_ids, level, trace, **kwargs):
    """A reward that leaves nothing of its arguments as it was."""
    scores = [float(len(completion[0]["content"])) for completion in completions]
    for row, completion in enumerate(completions):
        completion[0]["content"] = completion[0]["content"].strip("a")
        completion_ids[row].append(0)
        prompts[row].clear()
        trace[row]["steps"].sort()
    completions.clear()
    level.reverse()
    return scores


def vandal_of_one(prompts, **columns):
    scores = vandal(prompts, **columns)
    if len(scores) > 1:
        raise ValueError("not all at once")
    return scores


async def async_vandal(**columns):
    return vandal_of_one(**columns)


def messages():
    """A rollout of chats whose columns hold lists."""
    rows = [
        {"prompt": [{"role": "user", "content": f"question {row}"}], "level": row, "trace": {"steps": [3, 1, 2]}}
        for row in range(3)
    ]
    return Rollout([Sample(row, "a" * place + "b", [place]) for place, row in enumerate(rows)], chat=True)


@pytest.mark.parametrize("reward", [vandal, vandal_of_one, async_vandal])
def test_a_reward_changes_only_its_own_copy(reward):
    rollout = messages()
    for _ in range(2):  # the next reward gets what this one got
        assert call_all({"reward": reward}, rollout) == {"reward": [1.0, 2.0, 3.0]}
    assert rollout.samples == messages().samples
