"""Gold answers that no completion can meet are found by giving them back to the judge."""

import itertools

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
    *("May 1, 2024", "3. Oktober", "1. FC Köln", "Symphony No. 5 in C minor", "Mambo No. 5", "No. 5", "50 Cent"),
    *("['a', 'b']", '["aa", "a"]', "('a', 'b')", "P(A|B)", "E. coli", "Washington, D.C.", "at 10 p.m.", "3 - 2"),
    *("The Lord of the Rings: The Return of the King", "3 hours and 20 minutes", "6 or 7", "50 %"),
]
UNSOUND = {  # gold answers, and what is wrong when a completion gives it
    "['6', '6 pens']": "6",
    '["6", "6 pens"]': "6",
    "('6', '6 pens')": "6",
    "6|6 pens": "6",
    "{'value': 6}": given_back.WORD_FOR_WORD,
    "#### Step 1\nWe add.\n#### Step 2\nSo it is 6.": "#### Step 1\nWe add.\n#### Step 2\nSo it is 6.",
    "['Ann' 'Ben']": "Ann",  # as NumPy writes them
    "There are 2 boxes. Therefore, she has 6 pens.": "6 pens",
    "The answer is 42": "42",
    "She has 3 pens.": "3 pens",
    "Lea has 3 pens": "3 pens",
    "She has three pens.": "three pens",
    "about 3": "3",
    "approximately 5 km": "5 km",
    "3|3 pens": "3",
    "Yes, it is.": "Yes",
    "No, it is a weed.": "No",
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


CHOICES = {  # gold answers, and what completions say for them; none if they are none
    "points": ({"A. 1": None, "B. 2": None, "C) x": None, "7": None}, ""),  # the letter is right, too
    "dashes": ({"A - iron": "A", "B - wood": "B"}, ""),
    "brackets": ({"[A] 3": "A", "[B] 4": "B"}, ""),
    "small letters": ({"a) iron": "a", "b) wood": "b"}, ""),
    "numbers": ({"1. iron": "1", "2. wood": "2", "3. wool": "3"}, ""),
    "words": ({"option A": "A", "option B": "B"}, ""),
    "offered": ({"A. iron": None, "B. wood": None}, "Which is it?\nA. iron\nB. wood"),
    "names": ({"A. Lincoln": None, "Paris": None, "J. Smith": None, "Rome": None}, ""),
    "bacteria": ({"A. baumannii": None, "B. subtilis": None, "C. elegans": None}, "Which is it?"),
    "dates": ({"1. Mai": None, "3. Oktober": None, "24. Dezember": None}, ""),
    "clubs": ({"1. FC Köln": None, "1. FC Nürnberg": None}, ""),
    "scores": ({"1 - 0": None, "2 - 1": None, "3 - 0": None}, ""),
}


@pytest.mark.parametrize("name", CHOICES)
def test_letters_with_their_choices_are_named_if_they_are_that(name):
    said, question = CHOICES[name]
    refused = try_golds(Task(XML), [row | {"question": question} for row in of(*said)])
    assert refused.examples == {gold: sign for gold, sign in said.items() if sign}


def test_what_programs_print_is_sound_though_objects_alone_are_not():
    mixed = of("{'a': 1}", "['xx', 'y']", "[('x', 1)]", "'xx'", "7", "True")
    assert try_golds(Task(XML), mixed).rows == 0


def test_the_users_judge_gets_the_row_and_must_accept_its_own_gold_answer():
    def is_right(text, row):
        return row["unit"] in text and row["answer"] in text

    rows = [{"answer": "6", "unit": "6"}, {"answer": "6", "unit": "km"}, {"answer": None, "unit": ""}]
    refused = try_golds(Task(XML, judge=is_right), rows)
    assert (refused.rows, refused.tried) == (1, 2)
    # it may read another column
    assert try_golds(Task(XML, judge=lambda text, row: row["unit"] in text), rows[1:2] * 9).rows == 0
    # what reads badly to the lenient rule is its own matter
    assert try_golds(Task(XML, judge=lambda text, row: row["answer"] in text), of(*UNSOUND)).rows == 0


def test_a_judge_that_raises_or_is_slow_is_no_finding(monkeypatch):
    assert try_golds(Task(XML, judge=lambda text, row: 1 / 0), of("6")).rows == 0
    clock = itertools.count()
    monkeypatch.setattr(given_back.time, "monotonic", lambda: float(next(clock)))  # a second a row
    slow = Task(XML, judge=lambda text, row: False)
    assert try_golds(slow, of(*map(str, range(100)))).tried == given_back.SECONDS


def test_exact_rewards_must_read_it_in_the_format():
    odd = "6</answer>7"
    assert try_golds(Task(XML), of(odd), exact=True).examples == {odd: odd}


def test_each_different_gold_answer_is_tried_once(monkeypatch):
    asked = []
    monkeypatch.setattr(given_back, "_refused", lambda task, row, *rest: asked.append(row["answer"]))
    monkeypatch.setattr(given_back, "MOST", 3)
    refused = try_golds(Task(XML), of(*"1121334456"))
    assert asked == ["1", "2", "3"] and refused.tried == 6
