"""grpo/rewarding/expressions.py and calculator.py: what texts mean, held against math-verify's reading of them."""

import itertools
import logging
from fractions import Fraction

import pytest

from grpo.rewarding.calculator import close, compute
from grpo.rewarding.expressions import Group, Relation, Scalar, clean, read, same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("2^{-1}", Fraction(1, 2)),
        ("6/2(1+2)", 9),  # from left to right
        (r"\frac{1}{2}\cdot 4", 2),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"\frac{2}{3}^2", Fraction(4, 9)),
        (r"\sqrt{2}^2", 2),
        ("3!+1", 7),
        ("|3-5|", 2),
        (r"\sqrt[3]{-8}", -2),
        ("(-8)^{1/3}", -2),
        ("i^2", -1),
        (r"\sin 90^\circ", 1),
        (r"\sin^2 30^\circ", Fraction(1, 4)),
        (r"\sin(\pi)^2", 0),
        (r"\log_2 8", 3),
        ("log 100", 2),
        (r"\ln e^3", 3),
        (r"\tan^{-1}(1)", 0.7853981633974483),
        (r"\binom{5}{2}", 10),
        (r"\lfloor -2.5 \rfloor", -3),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("2 million", 2_000_000),
        ("1.5e3", 1500),
        ("2^{200}", 2**200),
    ],
)
def test_values(text, value):
    meaning = read(text)
    assert isinstance(meaning, Scalar) and len(meaning.values) == 1 and close(meaning.values[0], Fraction(value))


@pytest.mark.parametrize(
    "text",
    [
        *("", "pi day", "Paris", "yes", "5 cm", "72 apples", "2 3", "x2", "12:30", "B: 5", "(1", "1)", "(1]2", "1/0"),
        *("1+", "*2", "1..2", "5!!!!!!", "9^9^9^9", r"\sqrt{", r"\frac{1}", "a_", "٣", "__import__", r"\int x", "||"),
        *("{1}{", "1" * 301, "(" * 22 + "1" + ")" * 22, "1+" * 140 + "1", "\0", "\ud800"),
    ],
)
def test_what_is_not_read(text):
    assert read(text) is None


def test_shapes():
    assert isinstance(read("x < 3"), Relation) and isinstance(read("x+1"), Scalar)
    shapes = {
        "(1,2)": "()",
        "[0,1)": "[)",
        r"\{1\}": "set",
        "1, 2": "list",
        r"(0,1)\cup(2,3)": "union",
        "52_8": "base",
    }
    for text, kind in shapes.items():
        meaning = read(text)
        assert isinstance(meaning, Group) and meaning.kind == kind, text
    assert clean(r"$\left(\tfrac{1}{2},\;2\,\right]$") == clean(r"(\frac{1}{2}, 2 ]")


EXPRESSIONS = [
    *("1/2", "0.5", r"\frac{3}{2}", "3/4", "2", "-2", "1,000", "10^3", r"50\%", r"\sqrt{2}", r"\frac{1}{\sqrt{2}}"),
    *(r"\sqrt{2}/2", r"3\sqrt{2}", r"\sqrt{18}", r"5\sqrt{2}", r"\pi", r"2\pi", r"\frac{\pi}{2}", "2^{10}", "1024"),
    *("x+1", "1+x", "x-1", "x^2-1", "(x-1)(x+1)", "2x", "x", r"\frac{x}{2}", r"\frac12 x", "x^2+2x+1", "(x+1)^2"),
    *(r"\{1,2\}", r"\{2,1\}", r"\{1,2,3\}", "[0,1)", "[0,1]", r"(-\infty,3)", r"(-\infty,3]", "(1,2,3)", "(3,2,1)"),
    *("y=2x+1", "y=1+2x", "y=2x-1", "x<3", "3>x", "x>3", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "5!", "120", "8"),
    *(
        r"\begin{pmatrix}1&2\\4&3\end{pmatrix}",
        r"\sqrt[3]{8}",
        r"\log_2 8",
        "3",
        "-1",
        r"\frac{-1}{2}",
        r"-\frac{1}{2}",
    ),
]


STRICTER = {
    (r"\{1,2,3\}", "(1,2,3)"),
    ("(1,2,3)", r"\{1,2,3\}"),
    ("(3,2,1)", r"\{1,2,3\}"),
}  # order counts in tuples only
MORE = {("x<3", r"(-\infty,3)"), ("3>x", r"(-\infty,3)")}


def test_comparisons_agree_with_those_of_math_verify():
    """The library has no bound for hostile input but a clock, so it is no more than the oracle here."""
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    config = [LatexExtractionConfig()]
    parsed = {text: parse(f"${text}$", config, parsing_timeout=None) for text in EXPRESSIONS}
    for (place, answer), (other, gold) in itertools.product(enumerate(EXPRESSIONS), repeat=2):
        ours = same(read(answer), read(gold))
        if (ours or abs(place - other) <= 2) and (answer, gold) not in STRICTER | MORE:
            assert verify(parsed[gold], parsed[answer], timeout_seconds=None) == ours, (answer, gold)


def test_variables_are_compared_at_points_where_both_are_real():
    assert len(compute("x")) == 4 and len({value > 0 for value in compute("x")}) == 2
    assert same(read(r"x\sqrt{x}"), read("x^{3/2}")) and not same(read(r"\sqrt{x^2}"), read("x"))
    assert (
        not same(read("2AB"), read("2AC")) and not same(read("x_1"), read("x_2")) and same(read("2ab"), read("b*a*2"))
    )
