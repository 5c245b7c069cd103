"""An answer is where its mark is, however many marks there are."""

import pytest

from exact_answers import exact_reward, extract_answer, is_right
from exact_answers.marks import check_pattern


@pytest.mark.parametrize(
    ("text", "gold", "pattern", "right"),
    [
        (r"\boxed{6} <answer>7</answer>", "7", "xml", True),  # the last mark of any kind
        (r"\boxed{6} <answer>7</answer>", "7", "boxed", True),
        ("Answer: 7\n#### 6", "7", "xml", False),
        ("#### 6\nNo. Answer: 7", "7", "boxed", True),
        (r"Answer: 6, so \boxed{7}", "7", "hash", True),
        (r"So \boxed{6}. No. Answer: 7", "7", "xml", True),
        ("Answer: 6\nCorrection:\n#### 7", "7", "xml", True),
        (r"<answer>6</answer> Wait: \boxed{7}", "7", "hash", True),
        (r"\boxed{7}. The final answer is simplified.", "7", "xml", True),
        (r"\boxed{6} or \boxed{7}", "7", "xml", False),  # two answers
        (r"\boxed{7} and \boxed{-9}", "7, -9", "boxed", True),
        ("Final: 7\n8", "7", "Final: {answer}", False),  # another value
        ("Final: 7\nNo, that is wrong.", "7", "Final: {answer}", False),  # denied
        ("6 is not correct\n\\boxed{7}", "7", "boxed", True),
        ("7 passed, and 28 did not\n#### 7", "7", "hash", True),  # no word of the mark's line
        ("It is not\n\\[ \\boxed{7} \\]", "7", "boxed", False),
        ("It is 7, not <answer>6</answer>", "7", "xml", False),
        (r"<answer>The answer is \boxed{7} of 8</answer>", "7", "xml", False),
        (r"<answer>The answer is \boxed{7}</answer>", "7", "xml", True),
        (r"First $x = 3$. So the answer is $\frac{1}{2}$. I hope this helps!", r"\frac{1}{2}", "xml", True),
        ("<answer>I cannot say</answer> but 7", "7", "xml", False),  # the mark says what it says
        ("They had 8.\nColin skips six times as fast, (2/3*6=4 miles per hour).\n", "4", "xml", True),
        ("Let $(1, 2)$ be $A$.\nHence the point is $(3, 4)$.", "(3,4)", "xml", True),
        ("Let $(3, 4)$ be $A$.\nHence the point is $(1, 2)$.", "(3,4)", "xml", False),
    ],
)
def test_where_the_answer_is(text, gold, pattern, right):
    assert is_right(text, gold, pattern) is right


@pytest.mark.parametrize(
    ("solution", "pattern"),
    [
        ("He pays 2 * 36 = 72.\n#### 72", "xml"),
        (r"So $x = \boxed{72}$.", "hash"),
        ("<reasoning>70 + 2</reasoning>\n<answer>72</answer>", "boxed"),
        ("70 + 2 is it.\n**Answer:** 72", "xml"),
        ("70 + 2: [[72]]", "[[{answer}]]"),
        (f"{'Then 70 + 2. ' * 1_000}\n#### 72", "xml"),
    ],
)
def test_a_gold_answer_may_be_a_solution(solution, pattern):
    assert is_right("It is 72.", solution, pattern) and not is_right("It is 70.", solution, pattern)
    assert exact_reward(["#### 72", "#### 2"], [solution] * 2, pattern=pattern) == [1.0, 0.0]


def test_an_empty_gold_answer_is_none():
    assert exact_reward(["", "7", "7", "7"], ["", " ", [], [None, "", "7"]]) == [None, None, None, 1.0]


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
