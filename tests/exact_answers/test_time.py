"""Any text is graded in time that is linear in it, and no size is computed that nobody bounded."""

import itertools
import string
import sys
import time

import pytest
from helpers_runs import examples
from helpers_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from exact_answers import extract_answer, grade, is_right
from exact_answers.marks import ANSWER_PATTERNS
from exact_answers.verdict import MAX_TEXT
from exact_answers.writing import normalize, tokenize

MILLION = [unit * (1_000_000 // len(unit)) for unit in ("1,", "(", "71 or ", r"\boxed{", "$x$ is ", "Answer: ", "\n")]
HOSTILE = [
    *("9^9^9^9", "9^{9^{9^9}}", "(9^{999})^{999}", "((x+1)^{99})^{99}", "99999!", "9!!!", r"\binom{10^9}{5}"),
    *("9" * 4000, "(" * 500 + "1" + ")" * 500, r"\sqrt{" * 90 + "2" + "}" * 90, "-" * 190 + "1", "1+" * 95 + "1"),
    *(r"\sum_{i=1}^{10^9} i", r"\int_0^\infty e^{-x^2} dx", "x^{x^{x^x}}", "i^" * 45 + "1", r"\sin" * 20 + "1"),
    *(r"\frac{1}{" * 40 + "1" + "}" * 40, "0^{-1}", "1/0", r"\log 0", r"\infty-\infty", "1,000," * 30, "1e999999999"),
    *("\ud800\0", "=" * 150, "x=" * 90 + "1", r"\pm" * 60, "<" * 190, "(1,(1,(1,(1,1))))", "|x|" * 30, "f(f(f(x)))"),
    *(r"\gcd(2^{300000},3^{300000})", r"\gcd(100000!,7)", r"\gcd(10^{10^9},6)", r"\lcm(2^{10^7},3^{10^7})"),
]


def test_hostile_mathematics_is_wrong_unless_it_is_the_same_text():
    for text in [*HOSTILE, *MILLION]:
        for gold in ("72", r"3\sqrt{2}"):
            assert not is_right(f"<answer>{text}</answer>", gold) and not is_right(gold, text)
        assert is_right(text, text)


UNITS = [
    *("The answer is 5 ", "5 of ", "71 or ", "71 and ", "if 5 then 6, ", "not ", "that is ", "a, ", "5 per ", "1=1 "),
    *(
        "$",
        "*",
        "{",
        "}",
        "(",
        "|x|",
        "^",
        "-",
        "1,",
        "1/",
        "x=",
        "x<",
        r"\sqrt{",
        r"\frac",
        r"\text{",
        r"\pm",
        "一",
        "七",
    ),
    *(
        "B ",
        "B. ",
        "A) ",
        "yes or ",
        "Wait, no. 5. ",
        "Is it 5? ",
        "\n",
        "\nQuestion: 5",
        "#### 5\n",
        "Answer: 5\n",
        ".",
    ),
    *(
        "<answer>",
        "<think>",
        r"\boxed{",
        "\\",
        "_",
        "?",
        "!",
        "?!}",
        "`",
        "'",
        "9",
        "x",
        "0\u0305",
        "²",
        "𝟕",
        "½",
        "1\u0307",
        "\u202e",
        "0.120",
        "0.1212...",
        "1,20",
        "&lt;",
        "~~a",
        "~~a~~ ",
        "<del>",
        r"\cancel{",
        r"\textcolor{red}{",
        r"{\large ",
        r"\begin{align}",
        r"\begin{array}{l} = & \\",
        "July 4, ",
        "5 degrees ",
        "_a_ ",
        "1 000 ",
        "5 km/h*",
        "<!--",
        "|a|b|\n",
        "\n# a",
    ),
]


GOLD_KINDS = ["72", "B", r"3\sqrt{2}", "Yes", "72", "Paris", "12:30"]


@pytest.mark.parametrize(("unit", "gold"), list(zip(UNITS, itertools.cycle(GOLD_KINDS), strict=False)))
def test_a_repeated_piece_takes_a_tenth_of_a_second(unit, gold):
    text = unit * (100_000 // len(unit))
    grade("1", "2")
    start = time.process_time()
    grade(f"<answer>{text}</answer>", gold)
    grade(text, gold)
    assert time.process_time() - start < 2  # 0.1 on a quiet machine; quadratic code takes minutes


@pytest.mark.parametrize("sign", [*string.punctuation, *"？。…一"])
def test_a_run_of_any_sign_is_read_in_linear_time(sign):
    start = time.process_time()
    tokenize(normalize(sign * 10_000 + "}"))
    assert time.process_time() - start < 1.5  # 0.05 on a quiet machine; quadratic code takes 2


@pytest.mark.parametrize("unit", UNITS)
def test_a_text_has_at_most_two_tokens_for_a_character(unit):
    """What a sign is written as is bounded, so that 8,000 characters are no 80,000."""
    text = unit * (8_000 // len(unit))
    assert len(tokenize(normalize(text))) < 2 * len(text)


class Steps:
    """Counts the lines of exact_answers that run."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.call)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def call(self, frame, event, argument):
        return self.line if "exact_answers" in frame.f_code.co_filename else None

    def line(self, frame, event, argument):
        self.count += 1
        return self.line


def steps(text, gold="72"):
    with Steps() as counted:
        grade(text, gold)
    return counted.count


WORDS = ["the answer is", "not", "5", "71", "or", "and", "of", "=", "+", "(", ")", "$", ",", ".", "if", "because", "B"]
LONG_TEXT = st.lists(st.sampled_from([*WORDS, *UNITS]), min_size=1, max_size=6).map(" ".join)


@examples(10)
@given(LONG_TEXT)
def test_the_steps_for_a_text_are_linear_in_it(piece):
    """Twice the text takes at most about twice the steps; beyond MAX_TEXT only the end of a text is read."""
    text = f"{piece} " * (MAX_TEXT // 4 // (len(piece) + 1) + 1)
    once, twice = steps(text), steps(text * 2)
    assert twice < 2.5 * once + 20_000
    assert once < 150 * len(text) + 20_000


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_8000_characters_take_at_most_200_lines_of_code_each(unit):
    """Less than a tenth of a second, whatever machine."""
    text = unit * (8_000 // len(unit))
    assert max(steps(text), steps(f"<answer>{text}</answer>")) < 200 * len(text) + 20_000


def test_the_steps_for_an_endless_text_are_those_of_its_end():
    text = "She has 5 apples and 3 pears. "
    assert steps(text * 5000) < 1.5 * steps(text * (MAX_TEXT // len(text))) + 5000


@pytest.mark.parametrize("unit", ["1,", "Answer: ", "Final is **", "#### ", "\n", "{}", r"\boxed{"])
def test_an_answer_is_found_in_linear_time(unit):
    text = "<reasoning>\n" + unit * (500_000 // len(unit))
    start = time.process_time()
    for pattern in (*ANSWER_PATTERNS, "Final: {answer}", "## {answer} ##"):
        extract_answer(text, pattern)
    assert time.process_time() - start < 10  # quadratic code takes minutes


MARKS = [r"\frac{", r"\sqrt{", r"\text{", r"\boxed{", r"\{", r"\pm ", r"\cup ", "\\\\", "{,}", "^{", "√", "½"]
PIECES = [
    "? ",
    "\\delta",
    "how ",
    "x",
    " or ",
    " not ",
    " is ",
    "Answer:",
    "####",
    "<answer>",
    "</answer>",
    "**",
    ". ",
    "% ",
    "\n",
    " ",
    "9,",
    "1/",
]
PIECES_OF = st.lists(st.sampled_from([*MARKS, *PIECES, *"()[]{}|$^_9!x+-=<,;"]), max_size=20).map("".join)
GOLDS = st.sampled_from(["72", "B", "yes", "Paris", "(1,2)", "3:4", "5 km", r"3\sqrt{2}", "July 4, 1776", "1, -2"])


@examples(200)
@given(PIECES_OF | ANY_TEXT, PIECES_OF | ANY_TEXT | GOLDS, st.sampled_from(ANSWER_PATTERNS))
def test_no_two_texts_raise(text, gold, pattern):
    assert is_right(text, gold, pattern) in (True, False) and is_right(text, text, pattern)
