"""Gold answers that no completion can meet are found by giving them back to the judge."""

import time

import pytest

from grpo.task import given_back
from grpo.task.given_back import Refused, try_golds
from grpo.task.prompts import THINK, XML
from grpo.task.task import Task

SOUND = [
    *(
        "6",
        "6 pens",
        "-1.50",
        "1/2",
        r"\frac{1}{2}",
        "(1, 200)",
        "[1, 2]",
        "x = 5",
        "x=2, y=3",
        "10^5",
        "12:30",
        "50 %",
    ),
    *("A", "yes", "No.", "billing", "Paris, France", "Dr. Martin Luther King, Jr.", "12 March 2024", "2007-04-12"),
    *("World War 2", "Apollo 11", "Not enough information", "unknown", "none of the above", "John, Paul and Ringo"),
    *('{"shop": "Ada", "total": 5.70}', '["Ann", "Ben"]', "SELECT name FROM t WHERE id = 3", "H2O", "print('hi')"),
    *("(f'(1), f'(2))", "|x| + 1", "We add.\nAnswer: 6", '{\n  "a": 1}'),
    *("The Lord of the Rings: The Return of the King", "3 hours and 20 minutes", "6 or 7", "50 %"),
]
UNSOUND = {  # gold answers, and what is wrong when a completion gives it
    "['6', '6 pens']": "6",
    '["6", "6 pens"]': "6",
    "('6', '6 pens')": "6",
    "6|6 pens": "6",
    "{'value': 6}": given_back.WORD_FOR_WORD,
    "#### Step 1\nWe add.\n#### Step 2\nSo it is 6.": given_back.WORD_FOR_WORD,
    "['Ann' 'Ben']": "Ann",  # as NumPy writes them
    "There are 2 boxes. Therefore, she has 6 pens.": "6 pens",
    "The answer is 42": "42",
    "equals: 6": "6",
    '="006"': "006",
    "The capital is Paris.": "Paris",
    "6<|im_end|>": "6<|im_end|>",
    "def f(x):\n    return x + 1": given_back.WORD_FOR_WORD,
}


def of(*golds):
    return [{"answer": gold} for gold in golds]


@pytest.mark.parametrize("prompt", [XML, THINK])
@pytest.mark.parametrize("gold", SOUND)
def test_a_sound_gold_answer_is_accepted(gold, prompt):
    assert try_golds(Task(prompt), of(gold, ["no", gold])).rows == 0


@pytest.mark.parametrize("gold", UNSOUND)
def test_a_gold_answer_that_completions_cannot_meet_is_named(gold):
    refused = try_golds(Task(XML), of(gold, "7", ["7", gold], gold))
    assert refused == Refused(2, 4, {gold: UNSOUND[gold]})


def test_letters_with_their_choices_are_named_if_they_are_that():
    rows = of("A. 1", "B. 2", "C) x", "7")
    assert try_golds(Task(XML), rows).examples == {"A. 1": "A", "B. 2": "B", "C) x": "C"}
    names = of("A. Lincoln", "Paris", "J. Smith", "Rome")
    assert try_golds(Task(XML), names).rows == 0


def test_the_users_judge_gets_the_row_and_must_accept_its_own_gold_answer():
    def is_right(text, row):
        return row["unit"] in text and row["answer"] in text

    rows = [{"answer": "6", "unit": "6"}, {"answer": "6", "unit": "km"}, {"answer": None, "unit": ""}]
    refused = try_golds(Task(XML, judge=is_right), rows)
    assert (refused.rows, refused.tried) == (1, 2)
    # what reads badly to the lenient rule is its own matter
    assert try_golds(Task(XML, judge=lambda text, row: row["answer"] in text), of(*UNSOUND)).rows == 0


def test_a_judge_that_raises_or_is_slow_is_no_finding(monkeypatch):
    assert try_golds(Task(XML, judge=lambda text, row: 1 / 0), of("6")).rows == 0
    monkeypatch.setattr(given_back, "SECONDS", 0.02)
    slow = Task(XML, judge=lambda text, row: time.sleep(0.01) or False)
    refused = try_golds(slow, of(*map(str, range(100))))
    assert refused.rows == refused.tried < 10


def test_exact_rewards_must_read_it_in_the_format():
    odd = "6</answer>7"
    assert try_golds(Task(XML), of(odd), exact=True).examples == {odd: odd}


def test_each_different_gold_answer_is_tried_once(monkeypatch):
    asked = []
    monkeypatch.setattr(given_back, "_refused", lambda task, row, *rest: asked.append(row["answer"]))
    monkeypatch.setattr(given_back, "MOST", 3)
    refused = try_golds(Task(XML), of(*"1121334456"))
    assert asked == ["1", "2", "3"] and refused.tried == 6
