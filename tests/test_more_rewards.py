"""Rewards beyond the five are found by name, have their values, and score each completion by itself, like the five."""

import copy
import math
import operator
import pickle
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_runs import examples
from helpers_texts import ANY_TEXT, GOOD
from hypothesis import given
from hypothesis import strategies as st

from examples.more_rewards import debug_reward_func
from grpo.scoring.registry import shipped
from rewards import REWARD_FUNCS, THINK_FORMAT

SHIPPED = shipped()
THINK = THINK_FORMAT.format(reasoning="3 + 4 = 7", answer="7")

# --- One input a line


def value(name, text="", answer="7", tokens=0, **parameters):
    reward = SHIPPED[f"{name}_reward_func"]
    return reward([text], answer=[answer], completion_ids=[[1] * tokens], **parameters)[0]


def test_signed_correctness():
    texts = {GOOD: 1, "<answer>$7</answer>": -1, "<answer>8</answer>": -1, "": -1}
    assert {text: value("signed_correctness", text) for text in texts} == texts


@pytest.mark.parametrize(
    ("text", "parameters", "expected"),
    [
        (GOOD, {}, 1.0),
        (GOOD[:-1], {}, 1.0),  # the newline is free, not due
        (GOOD + "x" * 10, {}, 0.989),  # what follows: the newline and ten
        (THINK, {}, 1.0),
        (GOOD, {"template": THINK_FORMAT}, 0.5),
        ("<answer>7", {}, 0.25),
        ("<answer>7</answer></answer>", {}, 0.25),  # twice is not once
        ("<answer>7</answer>" + "x" * 1000, {}, -0.5),
        ("", {}, 0.0),
    ],
)
def test_incremental_format(text, parameters, expected):
    assert value("incremental_format", text, **parameters) == pytest.approx(expected)
    with pytest.raises(ValueError, match="holds no tags"):
        value("incremental_format", text, template="{answer}")


def test_length_window():
    lengths = {0: 0.5, 25: 0.75, 50: 1, 400: 1, 450: 0.5, 500: 0, 9000: 0}
    assert {tokens: value("length", tokens=tokens) for tokens in lengths} == lengths
    assert [value("length", tokens=n, low=10, high=20, margin=0) for n in (9, 10, 20, 21)] == [0, 1, 1, 0]


def test_style():
    texts = {"It is 7.": 0, "CERTAINLY! It is 7.": -0.1, "certainly! " * 9: -0.5}
    assert {text: value("style", text) for text in texts} == texts
    assert value("style", "well well", phrases=["Well"]) == -0.2 and value("style", "certainly!", phrases=[""]) == 0


def test_debug_prints_samples_every_so_many_steps(capsys, monkeypatch):
    def printed(step, **parameters):
        chats = [[{"role": "user", "content": "3 + 4?"}]] * 3
        columns = {"answer": ["7"] * 3, "prompts": chats, "trainer_state": SimpleNamespace(global_step=step)}
        assert debug_reward_func([GOOD] * 3, **columns, **parameters) == [1.0] * 3
        return capsys.readouterr().out

    assert printed(10) == f"--- step 10\nQuestion: 3 + 4?\nGold: 7\nResponse: {GOOD}\nExtracted: 7\n" * 2
    assert printed(11) == ""
    assert printed(12, every=4, count=1).count("--- step 12") == 1
    monkeypatch.setenv("RANK", "1")
    assert printed(20) == ""


# --- All of them, and the five


def test_all_names_of_the_write_ups_are_known():
    """From any directory, also one with examples of its own."""
    Path("examples").mkdir()
    Path("examples/more_rewards.py").write_text("1 / 0")
    names = [f"{name}_reward_func" for name in RANGES]
    assert set(SHIPPED) == set(shipped()) == set(names) and list(REWARD_FUNCS) == names[:5]


HOSTILE = ["<reasoning></reasoning> ", "</reasoning>\n<answer>\n", "1,", "#### ", "\n"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_of_half_a_million_characters_costs_linear_time(unit):
    text = "<reasoning>\n" + unit * (500_000 // len(unit))
    start = time.process_time()
    for reward in SHIPPED.values():
        reward([text], answer=["7"], completion_ids=[[1]])
    assert time.process_time() - start < 10  # quadratic code takes minutes


RANGES = {  # lowest and highest value, and what is between them if not everything
    "xmlcount": (-math.inf, 0.5021),
    "soft_format": (0, 0.5, {0, 0.5}),
    "strict_format": (0, 0.5, {0, 0.5}),
    "int": (0, 0.5, {0, 0.5}),
    "correctness": (0, 2, {0, 2}),
    "signed_correctness": (-1, 1, {-1, 1}),
    "judge": (0, 2, {0, 2}),
    "step_verified": (0, 1, {0, 0.2, 0.4, 0.6, 0.8, 1}),
    "incremental_format": (-math.inf, 1),
    "length": (0, 1),
    "style": (-0.5, 0),
    "debug": (1, 1),
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@st.composite
def thoughts(draw):
    """One line of arithmetic, wrong every third time."""
    a, b, sign = draw(st.integers(0, 99)), draw(st.integers(0, 9)), draw(st.sampled_from("+-*"))
    return f"<think>\n{a} {sign} {b} = {OPERATORS[sign](a, b) + draw(st.sampled_from([0, 0, 1]))}\n</think>\n"


ROLLOUTS = st.lists(
    st.tuples(st.one_of(ANY_TEXT, thoughts()), st.sampled_from(["7", "", "-3", "x", "1200"]), st.integers(0, 900)),
    min_size=1,
    max_size=5,
)


def chat(text):
    return [{"role": "assistant", "content": text}]


@examples(60)
@given(ROLLOUTS, st.randoms(use_true_random=False))
def test_every_reward_judges_each_completion_by_itself(rollout, random):
    """In its range, alone as in a batch, in any order, as text or chat, again the same, and its input left alone."""
    texts, golds, lengths = map(list, zip(*rollout, strict=True))
    columns = {
        "answer": golds,
        "completion_ids": [[1] * length for length in lengths],
        "prompts": ["3 + 40?"] * len(texts),
    }
    before = copy.deepcopy((texts, columns))
    order = list(range(len(texts)))
    random.shuffle(order)
    shuffled = {key: [column[index] for index in order] for key, column in columns.items()}
    for name, reward in SHIPPED.items():
        values = reward(texts, **columns)
        low, high, *steps = RANGES[name.removesuffix("_reward_func")]
        assert len(values) == len(texts) and all(type(value) is float and math.isfinite(value) for value in values)
        assert all(low <= value <= high and value in (steps or [values])[0] for value in values), (name, values)
        assert reward([texts[index] for index in order], **shuffled) == [values[index] for index in order], name
        assert reward(list(map(chat, texts)), **columns) == values, name
        assert pickle.loads(pickle.dumps(reward))(texts, **columns) == values, name
        first = reward(texts[:1], **{key: column[:1] for key, column in columns.items()})
        assert first == values[:1], name
    assert (texts, columns) == before
    assert {f"{name}_reward_func" for name in RANGES} == set(SHIPPED)
