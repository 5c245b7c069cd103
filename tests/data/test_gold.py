"""grpo/data/gold.py: which mark a column has, and what it marks."""

import json

import pytest
from helpers_runs import SHARED

from grpo.data.gold import gold_answer, gold_answers, gold_mark, gold_solution
from rewards import extract_hash_answer

MATH = [
    r"We have $x = \frac{3}{6} = \boxed{\frac{1}{2}}$.",
    r"The points are $(1,2)$ and $(3,4)$, so the distance is $\sqrt{8} = \boxed{2\sqrt{2}}.$",
    r"First $\boxed{1}$? No: the answer is $\boxed{10,\!000}$",
    r"It is \fbox{\text{Evelyn}}.",
    r"Hence $\boxed{\left\{1, \frac{2}{3}\right\}}$",
]
IN_BOXES = [r"\frac{1}{2}", r"2\sqrt{2}", r"10,\!000", r"\text{Evelyn}", r"\left\{1, \frac{2}{3}\right\}"]


@pytest.mark.parametrize(
    ("values", "pattern", "mark", "golds"),
    [
        (MATH, "xml", "boxed", IN_BOXES),
        ([r"\boxed{7}", "8", "9", "10"], "xml", None, [r"\boxed{7}", "8", "9", "10"]),  # of one row in four
        (["a\n#### 4", r"\boxed{5}"], "xml", "hash", ["4", None]),  # as ever: one #### is enough
        (["2 + 2.\nAnswer: 4", "**Final answer:** $1,000.", "Answer: B"], "xml", "final", ["4", "1000", "B"]),
        (["So.\nResult: 4", "Result: (1, 2)"], "Result: {answer}", "Result: {answer}", ["4", "(1, 2)"]),
        (["<think>a</think><answer>4</answer>", "<answer> 5 </answer>"], "boxed", "xml", ["4", "5"]),
        ([r"Answer: 3 \boxed{4}", r"Answer: 3 \boxed{4}"], "final", "final", [r"3 \boxed{4}"] * 2),  # the run's own
        ([72, 0.5, None], "boxed", None, ["72", "0.5", None]),
        ([r"$\frac{1}{2}$", r"\(x+1\)", r"\[ (1,2) \]", "$5$", "$5", "$", "$x$ or $y$"], "xml", None,
         [r"\frac{1}{2}", "x+1", "(1,2)", "5", "5", "$", "$x$ or $y$"]),
        (["#### (1, 200)", r"#### $\frac{1}{2}$", "#### 1, 2", "#### 12,345 apples"], "xml", "hash",
         ["(1, 200)", r"\frac{1}{2}", "1, 2", "12345 apples"]),
        (["", None, " "], "xml", None, [None, None, None]),
    ],
)  # fmt: skip
def test_gold_answers_by_the_mark_of_their_column(values, pattern, mark, golds):
    assert (gold_mark(values, pattern), gold_answers(values, pattern)) == (mark, golds)


@pytest.mark.parametrize("name", ["train", "test_dev"])
def test_gsm8k_has_the_answers_it_had(name):
    path = SHARED / "gsm8k" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not beside this checkout")
    values = [json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()]
    assert gold_answers(values) == list(map(extract_hash_answer, values))


def test_solutions_are_what_comes_before_the_answer():
    assert gold_solution("2 + 2 = 4\n#### 4", "hash") == ("2 + 2 = 4", "4")
    assert gold_solution(MATH[0], "boxed") == (MATH[0], r"\frac{1}{2}")
    assert gold_solution("2 + 2 = 4\nAnswer: 4", "final") == ("2 + 2 = 4", "4")
    assert gold_solution("why <answer>4</answer>", "xml") == ("why", "4")
    assert gold_solution("4", None) is None and gold_solution(4, "hash") is None
    assert gold_solution("no", "boxed") is None
    assert gold_answer(True) is None and gold_answer(float("inf")) is None
