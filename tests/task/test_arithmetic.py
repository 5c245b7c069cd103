"""The step-verified reward pays each true line of arithmetic once, computes exactly, and reads any text."""

import json
import operator
import re
from fractions import Fraction

import pytest
from helpers_runs import SHARED, examples
from hypothesis import assume, given
from hypothesis import strategies as st

from examples.more_rewards import extract_reasoning, step_verified_reward_func
from grpo.task.arithmetic import is_verified, value, verified_lines
from rewards import THINK_FORMAT, XML_COT_FORMAT

GSM8K = SHARED / "gsm8k" / "train.jsonl"


def score(*lines, answer="<answer>7</answer>", tag="think", **parameters):
    text = "\n".join([f"<{tag}>", *lines, f"</{tag}>"]) + answer
    return step_verified_reward_func([text], answer=["7"], **parameters)[0]


@pytest.mark.parametrize(
    "line",
    [
        "48 / 2 = 24",
        "48/2 = <<48/2=24>>24 clips",
        "Step 1: 3 + 4 = 7",
        "(since 3 + 4 = 7)",
        "Total = 3 + 4 + 5 - 6 * 2 / 4 = 9",
        "3 \u2212 4 = \u22121",
        "15 × 2 ÷ 3 · 1 = 10",
        r"48 \times 2 = 96, and 48 x 2 = 96",
        "1,000,000 / 4 = <<1000000/4=250000>>250,000 people",
        "$48 + $24.50 = $72.50",
        "3 * (4 + 1) = 12 + 3 = 15",
        "0.1 + 0.2 = 0.3",  # no binary fractions
    ],
)
def test_right_arithmetic(line):
    assert is_verified(line)


@pytest.mark.parametrize(
    "line",
    [
        "3 + 4 = 7, 2 * 7 = 15",  # one wrong equation spoils its line
        "48/2 = <<48/2=25>>24",  # the annotation
        "49/2 = <<48/2=24>>24",  # the text
        "10 / 3 = 3.33",  # exactly
        "6 // 4 = 1",
        "2x + 3 = 9",  # algebra is not read
        "5^2 + 4 = 6",
        "3 + 4 =",
        "1+" * 60 + "1 = 61",  # over 100 characters
        "1+1=2 " + "and so on " * 60,  # over 500 characters
        "٣ + 4 = 7",  # ASCII digits only
        "10 - 5 = 5 = 3",  # all neighbours in a chain
        "12 000 / 2 = 0",  # what stands before a blank belongs to the number
        "3 + 4 = 7x",
    ],
)
def test_wrong_or_no_arithmetic(line):
    assert not is_verified(line)


def test_lines_pay_once_and_up_to_the_cap():
    assert score("3 + 4 = 7") == pytest.approx(0.6)
    assert score("3 + 4 = 7", answer="<answer>8</answer>") == pytest.approx(0.2)
    assert score("no arithmetic") == pytest.approx(0.4)
    assert score("3 + 4 = 7", "3 +4 = 7.0", "03+4 = 7") == pytest.approx(0.6)  # the same equation
    assert score(*(f"{n} + 1 = {n + 1}" for n in range(50))) == pytest.approx(1.0)  # for three
    assert score("1+1=2", "1+2=4", "1+3=4", tag="reasoning") == pytest.approx(0.8)
    assert score(*(f"{n}+1={n + 1}" for n in range(5)), max_lines=5, line_value=1, answer_value=2) == 7.0
    assert score("3 + 4 = 7", "3 + 4 = <<3+4=7>>7") == pytest.approx(0.6)
    assert score("1+1=2", "1+2=3", "1+3=4", answer="") == 0.6  # not 0.6000000000000001


def test_only_closed_reasoning_counts():
    for text in ("<think>\n3 + 4 = 7", "3 + 4 = 7", "<reasoning>\n3 + 4 = 7\n</think>"):
        assert extract_reasoning(text) == ""
    assert extract_reasoning("<think>\n1+1=3\n</think>\n3 + 4 = 7") == "\n1+1=3\n"
    assert extract_reasoning("so <think>3 + 4 = 7</think>") == "3 + 4 = 7"


@pytest.mark.parametrize(
    ("template", "text", "lines"),
    [
        ("<work>{reasoning}</work><answer>{answer}</answer>", "<work>3 + 4 = 7</work>", ["3 + 4 = 7"]),
        ("<work>{reasoning}</work><answer>{answer}</answer>", "<work>3 + 4 = 7", []),
        ("<work>{reasoning}</work><answer>{answer}</answer>", "<think>3 + 4 = 7</think><answer>7</answer>", []),
        ("{reasoning}\n<answer>{answer}</answer>", "3 + 4 = 7\n<answer>7</answer>1 + 1 = 2", ["3 + 4 = 7"]),
        (THINK_FORMAT, "<think>3 + 4 = 7</think>", ["3 + 4 = 7"]),
        (XML_COT_FORMAT, "<think>3 + 4 = 7</think>", ["3 + 4 = 7"]),  # these two read either, as None does
    ],
)
def test_reasoning_is_where_the_template_has_it(template, text, lines):
    assert list(verified_lines(extract_reasoning(text, template))) == lines
    assert step_verified_reward_func([text], answer=["-"], template=template) == [0.2 * len(lines)]


HOSTILE = [  # a million characters each: quadratic code would not come to an end
    "\n".join(f"{n}+{n}*2-{n}={n}" for n in range(1, 50_000)),
    "<think>" * 150_000,
    "1" + ",000" * 250_000 + " = 1",
    "(" * 500_000 + "1" + ")" * 500_000 + " = 1",
    "\n".join(["-" * 97 + "1+1=1"] * 9_000),
]


def test_hostile_reasoning_earns_nothing():
    assert step_verified_reward_func([f"<think>{text}</think>" for text in HOSTILE], answer=["7"] * 5) == [0.0] * 5


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not beside this checkout")
def test_gold_solutions_lose_their_credit_with_a_digit_changed():
    """Of GSM8K's own annotated lines nearly all are verified, and none with another digit in its result."""
    rows = GSM8K.read_text(encoding="utf-8").splitlines()[:300]
    lines = [line for row in rows for line in json.loads(row)["answer"].splitlines() if "<<" in line]
    changed = [
        re.sub(r"=([^=<>]*)(\d)>>", lambda m: f"={m[1]}{(int(m[2]) + 1) % 10}>>", line, count=1) for line in lines
    ]
    assert sum(map(is_verified, lines)) >= 0.97 * len(lines) and sum(map(is_verified, changed)) == 0


QUESTION = "A baker sold 48 cakes on Monday and half as many on Tuesday. How many in 2 days?"
PADDED = [  # lines, and what they earn where the question is known, and where it is not
    ("48 / 2 = 24\n48 + 24 = 72", 0.4, 0.4),  # honest
    ("1 + 1 = 2\n3 + 3 = 6\n5 + 5 = 10", 0.0, 0.6),  # they take up nothing
    ("48 / 2 = 24\n48 + 24 = 72\n1 + 1 = 3 - 1", 0.4, 0.6),  # one of them
    ("7 + 7 = 14\n14 + 1 = 15\n48 + 24 = 72", 0.2, 0.6),  # nor a result that was not earned
    ("48 + 7 = 55\n55 + 1 = 56\n1 + 56 = 57", 0.6, 0.6),  # but one that was
]


@pytest.mark.parametrize(("lines", "known", "unknown"), PADDED)
def test_padding_unrelated_to_the_question_earns_nothing(lines, known, unknown):
    for prompt in (QUESTION, [{"role": "system", "content": "9 10"}, {"role": "user", "content": QUESTION}]):
        assert score(lines, answer="<answer>0</answer>", prompts=[prompt]) == pytest.approx(known)
    assert score(lines, answer="<answer>0</answer>") == pytest.approx(unknown)


# --- Any arithmetic

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@st.composite
def expressions(draw, depth=3):
    """An expression of numbers, fully bracketed, and its value; None where it divides by zero."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.sampled_from(["0", "7", "60", "0.1", ".5", "007", "1.25"]))
        return number, Fraction(number)
    (left, a), (right, b) = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    sign = draw(st.sampled_from("+-*/"))
    if a is None or b is None or (sign == "/" and b == 0):
        return f"({left}{sign}{right})", None
    return f"({left}{sign}{right})", OPERATORS[sign](a, b)


@examples(60)
@given(expressions())
def test_values_are_exact(case):
    expression, expected = case
    assume(len(expression) <= 100)
    assert value(expression) == expected


@pytest.mark.parametrize("text", ["", "2 ** 9", "1 2", "1..2", "()", "1(2)", "1,2", "x", "1e9", "(" * 99])
def test_other_texts_have_no_value(text):
    assert value(text) is None
