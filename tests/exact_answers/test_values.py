"""The lenient rule judges as exact_answers/cases.txt says, numbers by their values, and any text in bounded time."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from helpers_runs import LONG, ROOT, SHARED, examples
from helpers_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from exact_answers.verdict import ANSWER_PATTERNS, check_pattern
from grpo.task import extract_answer, is_right
from rewards import extract_hash_answer

XML = "<reasoning>\nr\n</reasoning>\n<answer>\n{}\n</answer>\n"


def table():
    """The pairs of the file: by gold answer, texts and whether they are right."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for line in (ROOT / "exact_answers/cases.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("="):
            pairs = found.setdefault(line[2:], [])
        elif line.startswith(("+", "-")):
            pairs.append((line[2:], line[0] == "+"))
    return found


TABLE = table()


@pytest.mark.parametrize("gold", TABLE)
def test_the_table(gold):
    """Each text as it is, as the answer in its tags, and after "Answer:"."""
    wrong = [
        (text, form, right)
        for text, right in [*TABLE[gold], (gold, True), ("", False)]
        for form in ("{}", XML, "The boxes.\nAnswer: {}")
        if is_right(form.replace("{}", text), gold) != right
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "gold", "pattern", "right"),
    [
        (r"\boxed{6} <answer>7</answer>", "7", "xml", True),  # the pattern's own mark comes first
        (r"\boxed{6} <answer>7</answer>", "7", "boxed", False),
        ("Answer: 7\n#### 6", "7", "xml", False),  # without it, the last mark of any kind
        ("#### 6\nNo. Answer: 7", "7", "boxed", True),
        (r"Answer: 6, so \boxed{7}", "7", "hash", True),
        (r"So \boxed{6}. No. Answer: 7", "7", "xml", True),
        ("Answer: 6\nCorrection:\n#### 7", "7", "xml", True),
        (r"<answer>6</answer> Wait: \boxed{7}", "7", "hash", True),
        (r"\boxed{7}. The final answer is simplified.", "7", "xml", True),
        (r"\boxed{6} or \boxed{7}", "7", "xml", False),  # two answers
        (r"\boxed{7} and \boxed{-9}", "7, -9", "boxed", True),
        ("Final: 7\n8", "7", "Final: {answer}", True),
        ("Final: 7\nNo, that is wrong.", "7", "Final: {answer}", False),  # denied
        ("6 is not correct\n\\boxed{7}", "7", "boxed", True),
        ("7 passed, and 28 did not\n#### 7", "7", "hash", True),  # no word of the mark's line
        ("It is not\n\\[ \\boxed{7} \\]", "7", "boxed", False),
        ("It is 7, not <answer>6</answer>", "7", "xml", False),
        (r"<answer>The answer is \boxed{7} of 8</answer>", "7", "xml", True),
        (r"First $x = 3$. So the answer is $\frac{1}{2}$. I hope this helps!", r"\frac{1}{2}", "xml", True),
        ("<answer>I cannot say</answer> but 7", "7", "xml", True),  # no number in the answer: the text's last
        ("They had 8.\nColin skips six times as fast, (2/3*6=4 miles per hour).\n", "4", "xml", True),
        ("Let $(1, 2)$ be $A$.\nHence the point is $(3, 4)$.", "(3,4)", "xml", True),
        ("Let $(3, 4)$ be $A$.\nHence the point is $(1, 2)$.", "(3,4)", "xml", False),
    ],
)
def test_where_the_answer_is(text, gold, pattern, right):
    assert is_right(text, gold, pattern) is right


def test_different_formulas_are_never_the_same():
    formulas = ["(1,2)", "(2,1)", r"\{1,2\}", "[1,2]", "1", "2", "x", r"\sqrt{2}", r"\pi", "x+1", "x+2", "(1,2,3)"]
    for gold in formulas:
        assert [text for text in formulas if is_right(text, gold)] == [gold]


WAYS = [  # to write a fraction n/d, and its decimals where it has any
    r"\frac{{{n}}}{{{d}}}",
    "{n}/{d}",
    "({n})/({d})",
    "x = {n}/{d}",
    r"\boxed{{\dfrac{{{n}}}{{{d}}}}}",
    "$\\frac{{{n}}}{{{d}}}$",
    "The answer is {n}/{d}.",
    r"{n} \div {d}",
    "{n}*{k}/({d}*{k})",
    r"\frac{{{n}}}{{{d}}} \text{{ apples}}",
]
WHOLE = [
    "{n}",
    "{n:,}",
    "{n}.0",
    "${n}",
    "{n} apples",
    "**{n}**",
    "1*{n}",
    "{n} + {k} - {k}",
    "So it is {n}.",
    "n = {n}",
]
SCRIPTS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"]


@st.composite
def rewrites(draw):
    """A fraction's value, and two of the ways to write it: one as a gold answer."""
    n = draw(st.integers(1, 2000) | st.integers(1, 10**18))
    d = draw(st.just(1) | st.integers(1, 999))
    k = draw(st.integers(2, 9))
    value = Fraction(n, d)
    ways = WHOLE if value.denominator == 1 else WAYS
    n, d = (value.numerator, 1) if value.denominator == 1 else (n, d)
    text = draw(st.sampled_from(ways)).format(n=n, d=d, k=k)
    digits = draw(st.sampled_from(SCRIPTS))
    gold = draw(st.sampled_from([str(value), rf"\frac{{{n}}}{{{d}}}"]))
    return value, text.translate(str.maketrans(SCRIPTS[0], digits)), gold


@examples(150)
@given(rewrites(), rewrites(), st.integers(-2, 2))
def test_numbers_are_right_if_and_only_if_their_values_are_equal(one, other, shift):
    (value, text, gold), (second, _, second_gold) = one, other
    assert is_right(text, gold)
    assert is_right(text, second_gold) == (value == second)
    assert is_right(text, str(value + shift)) == (shift == 0)  # a neighbour, however large
    assert is_right(text, str(value * (1 + Fraction(shift, 10**12)))) == (shift == 0)


ATOMS = ["x", "y", "2", "3", r"\pi", r"\sqrt{2}", r"\sqrt{x}", "10^{12}", r"\frac{1}{3}", "ab", "h", "0.1", r"\sin(x)"]
SUMS = ["{a}+{b}", "{b}+{a}", "{a}*({b})", "({b})*{a}", "{a}-({b})", r"\frac{{{a}}}{{{b}}}", "({a})^2+{b}"]
SAME = {0: [1], 1: [0], 2: [3], 3: [2]}  # of SUMS: the same written the other way round


@examples(60)
@given(st.sampled_from(ATOMS), st.sampled_from(ATOMS), st.integers(0, len(SUMS) - 1), st.data())
def test_formulas_are_right_if_their_values_are_equal_and_wrong_if_one_part_differs(a, b, which, data):
    gold = SUMS[which].format(a=a, b=b)
    assert all(is_right(SUMS[way].format(a=a, b=b), gold) for way in [which, *SAME.get(which, [])])
    changed = data.draw(st.sampled_from(["z", "5", r"\pi^2", "10^{12}+1", "0.1000001", "bc", "t"]))
    assert not is_right(SUMS[which].format(a=changed, b=b), gold)
    assert not is_right(f"{gold}+10^{{-30}}", gold) and not is_right(f"{gold}t", gold)
    assert not is_right(f"not equal to ${gold}$", gold)


def test_no_tolerance_hides_a_difference():
    for one, other in (
        ("1000000008", "10^9+7"),
        (r"9.1\times10^{-31}", r"1.6\times10^{-19}"),
        (r"\sqrt{2}\cdot 10^{-40}", r"\sqrt{3}\cdot 10^{-40}"),
        (r"\sqrt{2}+10^{-50}", r"\sqrt{2}"),
        ("e^{-200}", "0"),
        ("1.9999999", "2.000000"),
        ("0.3000000001", "0.30000000000000004"),
    ):
        assert not is_right(one, other) and not is_right(other, one)


def test_formulas_are_read_in_any_thread():
    """mpmath's precision belongs to a thread; math-verify's own verdict needs the main one."""
    pairs = [(r"\sqrt{8}", r"2\sqrt{2}", True), (r"\sqrt{8}", r"2\sqrt{3}", False), ("x+x", "2x", True)] * 8
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pair: is_right(*pair[:2]), pairs)) == [right for *_, right in pairs]


@st.composite
def numbers(draw):
    """A number's value, and one of the ways to write it."""
    whole = draw(st.one_of(st.integers(0, 2000), st.integers(0, 10**15)))
    sign = draw(st.sampled_from(["", "", "-", "\u2212"]))
    decimals = draw(st.just("") | st.from_regex(r"\.[0-9]{1,6}", fullmatch=True))
    below = draw(st.integers(1, 999)) if not decimals and draw(st.booleans()) else 1
    digits = draw(st.sampled_from(["{}", "{:,}"])).format(whole) + decimals + (f"/{below}" if below > 1 else "")
    before = draw(st.sampled_from(["", "+", "x = ", "about ", "**", "(", "so: ", "7-3 is "]))
    after = draw(st.sampled_from(["", ".", " apples", " km^2", "**", ")", ", I think", " m^{-3}"]))
    value = Fraction(f"{whole}{decimals}") / below
    return (-value if sign else value), before + sign + draw(st.sampled_from(["", "$"])) + digits + after


@examples(60)
@given(numbers(), numbers(), ANY_TEXT)
def test_numbers_are_right_if_they_are_equal(one, other, reasoning):
    (value, text), (second, _) = one, other
    answer = f"{reasoning}<answer>{text}</answer>"
    assert is_right(answer, str(second)) == (value == second) and is_right(answer, str(value))


@pytest.mark.skipif(not (SHARED / "gsm8k" / "train.jsonl").exists(), reason="GSM8K is not beside this checkout")
def test_solutions_of_gsm8k_have_their_own_answer_and_no_other():
    """Of every tenth; of all of them in the long profile."""
    lines = [(SHARED / "gsm8k" / name).read_text("utf-8").splitlines() for name in ("train.jsonl", "test_dev.jsonl")]
    solutions = [json.loads(line)["answer"] for file in lines for line in file[:: 1 if LONG else 10]]
    golds = [extract_hash_answer(solution) for solution in solutions]
    for text, gold, other in zip(solutions, golds, golds[1:] + golds[:1], strict=True):
        for said in (text, XML.replace("{}", gold)):
            assert is_right(said, gold) and is_right(said, other) == (float(gold) == float(other))


def test_numbers_need_no_algebra(monkeypatch):
    """To import the parser and sympy takes seconds."""
    monkeypatch.setitem(sys.modules, "latex2sympy2_extended", None)  # its import fails
    assert is_right("9 * 8 = $72.00", "72") and not is_right("<answer>71</answer>", "72")


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        ("xml", "<answer>6</answer> no: <answer>\n7\n</answer>", "7"),
        ("xml", r" \boxed{7} ", r"\boxed{7}"),  # without the mark: the whole text, stripped
        ("boxed", r"$\boxed{6}$, no: $\boxed{7}$ \boxed{8", "7"),  # the last one that is closed
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"\fbox{x = \boxed{7}}", "7"),
        ("boxed", r"so $\boxed 5$", "5"),  # as some of MATH's rows
        ("boxed", "<answer>7</answer> ", "<answer>7</answer>"),
        ("hash", "2 + 2 = 4\n#### 6\n#### $1,234,567\nWell.", "1234567"),
        ("hash", r"#### $\frac{1}{2}$", r"$\frac{1}{2}$"),
        ("hash", " 7", "7"),
        ("final", "Answer: 6\nFinal answer: 7 apples.\nDone", "7 apples"),
        ("final", "**Final Answer**: **$7$**.", "7"),
        ("final", "The answer is:\n\n7\n", "7"),
        ("final", "The answer is 7, reanswer: 8 ", "The answer is 7, reanswer: 8"),
        ("text", " 7 \n", "7"),
        ("Final: {answer}", "Final: 6 Final: 7 apples.\nDone", "7 apples."),
        ("[[{answer}]]", "[[6]] [[7]], of\ncourse [", "7"),
        ("<a>\n{answer}\n</a>", "<a>7\n8</a>", "7\n8"),
    ],
)
def test_answers_where_a_pattern_puts_them(pattern, text, answer):
    assert extract_answer(text, pattern) == answer


@pytest.mark.parametrize("pattern", ["", "latex", "{answer}", "A: {answer} {answer}"])
def test_an_unknown_pattern_is_an_error(pattern):
    for use in (check_pattern, lambda pattern: extract_answer("7", pattern)):
        with pytest.raises(ValueError, match="use xml, boxed, hash, final or text, or a template"):
            use(pattern)


# --- Hostile texts: without bounds one of them would take hours

MILLION = [unit * (1_000_000 // len(unit)) for unit in ("1,", "(", "71 or ", r"\boxed{", "$x$ is ", "Answer: ", "\n")]
HOSTILE = [
    *("9^9^9^9", "9^{9^{9^9}}", "(9^{999})^{999}", "((x+1)^{99})^{99}", "99999!", "9!!!", r"\binom{10^9}{5}"),
    *("9" * 4000, "(" * 500 + "1" + ")" * 500, r"\sqrt{" * 90 + "2" + "}" * 90, "-" * 190 + "1", "1+" * 95 + "1"),
    *(r"\sum_{i=1}^{10^9} i", r"\int_0^\infty e^{-x^2} dx", "x^{x^{x^x}}", "i^" * 45 + "1", r"\sin" * 20 + "1"),
    *(r"\frac{1}{" * 40 + "1" + "}" * 40, "0^{-1}", "1/0", r"\log 0", r"\infty-\infty", "1,000," * 30, "1e999999999"),
    *("\ud800\0", "=" * 150, "x=" * 90 + "1", r"\pm" * 60, "<" * 190, "(1,(1,(1,(1,1))))", "|x|" * 30, "f(f(f(x)))"),
]


def test_hostile_mathematics_is_wrong_unless_it_is_the_same_text():
    for text in [*HOSTILE, *MILLION]:
        for gold in ("72", r"3\sqrt{2}"):
            assert not is_right(f"<answer>{text}</answer>", gold) and not is_right(gold, text)
        assert is_right(text, text)


@pytest.mark.parametrize("unit", ["1,", "Answer: ", "Final is **", "#### ", "\n", "{}", r"\boxed{"])
def test_an_answer_is_found_in_linear_time(unit):
    text = "<reasoning>\n" + unit * (500_000 // len(unit))
    start = time.process_time()
    for pattern in (*ANSWER_PATTERNS, "Final: {answer}", "## {answer} ##"):
        extract_answer(text, pattern)
    assert time.process_time() - start < 10  # quadratic code takes minutes


MARKS = [r"\frac{", r"\sqrt{", r"\text{", r"\boxed{", r"\{", r"\pm ", r"\cup ", "\\\\", "{,}", "^{", "√", "½"]
WORDS = [" or ", " not ", " is ", "Answer:", "####", "<answer>", "</answer>", "**", ". ", "% ", "\n", " ", "9,", "1/"]
PIECES = st.lists(st.sampled_from([*MARKS, *WORDS, *"()[]{}|$^_9!x+-=<,;"]), max_size=20).map("".join)


@examples(150)
@given(PIECES | ANY_TEXT, PIECES | ANY_TEXT | st.sampled_from(list(TABLE)), st.sampled_from(ANSWER_PATTERNS))
def test_no_two_texts_raise(text, gold, pattern):
    assert is_right(text, gold, pattern) in (True, False) and is_right(text, text, pattern)
