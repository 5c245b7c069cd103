"""Gold answers are what the mark of their column marks, in GSM8K those of the recipe."""

import copy
import datetime
import json
import pickle
from decimal import Decimal

import pytest
from helpers_runs import SHARED

from grpo.task import gold
from grpo.task.gold import Label, Written, gold_answer, lacks_mark, read_column, reasoning_before
from rewards import extract_hash_answer

find = gold._marked
GSM8K = SHARED / "gsm8k" / "train.jsonl"
MATH = [
    r"We have $x = \frac{3}{6} = \boxed{\frac{1}{2}}$.",
    r"First $\boxed{1}$? No: the answer is $\boxed{10,\!000}$",
    r"Hence $\boxed{\left\{1, \frac{2}{3}\right\}}$",
]
IN_BOXES = [r"\frac{1}{2}", r"10,\!000", r"\left\{1, \frac{2}{3}\right\}"]


def gold_answers(values, pattern="xml"):
    mark, golds = read_column(values, pattern)
    assert golds == [gold_answer(value, mark) for value in values]
    return golds


@pytest.mark.parametrize(
    ("values", "looked"),
    [
        (["1", "2", "3"], ["boxed", "final", "hash", "xml"]),
        (["<answer>1</answer>"] * 3, ["xml"]),  # no other mark is more frequent
        (["#### 1", "#### 2", "3"], ["boxed", "final", "hash", "xml"]),
        ([1, 2.5, True], []),
    ],
)
def test_a_cell_is_searched_once_for_each_mark(values, looked, monkeypatch):
    searched = []
    monkeypatch.setattr(gold, "_marked", lambda text, mark: searched.append((text, mark)) or find(text, mark))
    read_column(values)
    texts = [value for value in values if isinstance(value, str)]
    assert sorted(searched) == sorted((text, mark) for text in texts for mark in looked)


@pytest.mark.parametrize(
    ("values", "pattern", "golds"),
    [
        (MATH, "xml", IN_BOXES),
        ([*MATH, "#### Step 1\nWe add.", "#### Step 1\nSo \\boxed{3}"], "xml", [*IN_BOXES, None, "3"]),  # a heading
        ([r"\boxed{7}", "8", "9", "10"], "xml", [r"\boxed{7}", "8", "9", "10"]),  # of one row in four
        (["6 * 7 = 42\n#### 42", "#### $1,000 ", "no mark", "####", None], "xml", ["42", "1000", None, None, None]),
        (["#### (1, 200)", r"#### $\frac{1}{2}$", "#### 1, 2", "#### 12,345 apples", "#### 7\nRight?"], "xml",
         ["(1, 200)", r"\frac{1}{2}", "1, 2", "12345 apples", "7"]),
        (["2 + 2.\nAnswer: 4", "**Final answer:** $1,000.", "Answer: B"], "xml", ["4", "1000", "B"]),
        (["So.\nResult: 4", "Result: (1, 2)"], "Result: {answer}", ["4", "(1, 2)"]),
        (["<think>a</think><answer>4</answer>", "<answer> 5 </answer>"], "boxed", ["4", "5"]),
        ([r"Answer: 3 \boxed{4}", r"Answer: 3 \boxed{4}"], "final", [r"3 \boxed{4}"] * 2),  # the run's own
        (["18.0", "$18.00", "7.", "-$1,234", "+5", "\u22125"], "xml", ["18", "18", "7", "-1234", "5", "-5"]),
        (["1.50", "0", "-", ".", "1,00", "5 apples", ""], "xml", ["1.50", "0", "-", ".", "1,00", "5 apples", None]),
        ([72.0, 0.5, 1e16, float("nan"), None, True], "xml", ["72", "0.5", "10000000000000000", None, None, "true"]),
        ([["#### 4", "#### 5"], "#### 6", ["####"]], "xml", [["4", "5"], "6", None]),
        ([["4", 4, "four"], [None, ""], [[1]], {"value": 4}], "xml", [["4", "four"], None, None, None]),
        ([Written("0.10"), Label(1, "yes"), 10**30], "xml", ["0.10", "yes", "1" + "0" * 30]),
        ([datetime.date(2024, 1, 5), datetime.time(0, 0), Decimal("1.50")], "xml", ["2024-01-05", "00:00:00", "1.50"]),
        ([0, -0.0, "-0", float("inf")], "xml", ["0", "0", "-0", None]),
        (["$$6$$", "**6**", "***6***", "*6*", "**$6$**", "<b>6</b>", "__6__", "__init__", "2**3"], "xml",
         ["6"] * 7 + ["__init__", "2**3"]),
        (["#### **6**", "#### $$7$$"], "xml", ["6", "7"]),
        (["<think>Is it 7? #### 7</think> #### 6", "#### 1\n#### 2", "##### 5 ####", "#### Step 1\nWe add.\n#### 8"],
         "xml", ["6", "2", "5", "8"]),
        (["#### Step 1\nWe add.\n\n#### Answer\n6", "#### Final answer:\n\n$7$\n"], "xml", ["6", "7"]),
        (["<think><answer>7</answer></think><answer>6</answer>"] * 2, "xml", ["6", "6"]),
        ([r"<think>\boxed{7}</think>\boxed{6}", r"\boxed{7}, no: \boxed{6}"], "xml", ["6", "6"]),
        (["#### Step 1\nWe add.", "#### Step 2\nSo 6."], "xml", ["#### Step 1\nWe add.", "#### Step 2\nSo 6."]),
        (["#### yes\nBecause it is.", "We see.\n#### Paris\n\nReason: it is"], "xml", ["yes", "Paris"]),
        (["#### Step 1\nAdd.\n#### yes\nIt is.", "#### 6\n#### Explanation\nWe add.", "#### Adding\nSo.\n#### 7"],
         "xml", ["yes", "6", "7"]),
        (["*.py*", "* x *", "*", "*-6*", "*Hi!*"], "xml", ["*.py*", "* x *", "*", "-6", "Hi!"]),
        ([r"$\frac{1}{2}$", r"\(x+1\)", "$5$", "$", "$x$ or $y$"], "xml",
         [r"\frac{1}{2}", "x+1", "5", "$", "$x$ or $y$"]),
    ],
)  # fmt: skip
def test_gold_answers_by_the_mark_of_their_column(values, pattern, golds):
    assert gold_answers(values, pattern) == golds


NUMBERS = [  # columns in several countries' notation, and their numbers
    (["7.404,50", "7.404", "12,5", "1.234.567", "12"], ["7404.50", "7404", "12.5", "1234567", "12"]),
    (["7'404", "7\u2019404.50", "12"], ["7404", "7404.50", "12"]),
    (["7 404", "12 500,5", "12"], ["7404", "12500.5", "12"]),
    (["-1 234", "$7 404"], ["-1234", "7404"]),
    (["250 000", "7 404", "7 000"], ["250000", "7404", "7000"]),
    (["101 110", "100 001"], ["101 110", "100 001"]),  # binary digits
    (["255 128 000", "100 200 300"], ["255 128 000", "100 200 300"]),
    (["012 345", "7 404"], ["012 345", "7 404"]),
    (["7,404.50", "1,234,567", "12.5"], ["7404.50", "1234567", "12.5"]),
    (["7.404", "12.500"], ["7.404", "12.500"]),  # may be decimals
    (["7.404,50", "12.5"], ["7.404,50", "12.5"]),  # of two countries
    (["1 2 3", "100 200"], ["1 2 3", "100 200"]),  # several numbers
    (["192.168.1.1", "12,5"], ["192.168.1.1", "12,5"]),
]


@pytest.mark.parametrize(("written", "golds"), NUMBERS)
def test_numbers_are_read_in_the_notation_of_their_column(written, golds):
    assert read_column(written)[1] == golds


HIDDEN = {  # golds with characters that nobody sees, as text of web pages, Word and Excel has
    "72\u200b": "72", "\ufeff72": "72", "7\u00ad2": "72", "\u200e72\u200f": "72", "\u206672\u2069": "72",
    "72\u00a0": "72", "1\u00a0234": "1234", "1\u202f234\u202f567": "1234567", "72\u0000": "72", "\u306072": "\u306072",
    "San\u00a0Francisco": "San Francisco", "\u3000Paris": "Paris", "B\ufe0f": "B", "bil\u200bling": "billing",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\u2764\ufe0f": "\u2764\ufe0f", "1\ufe0f\u20e3": "1\ufe0f\u20e3",
    "a\u200db": "ab", "\u200b": None, "\u200b \ufeff": None,
}  # fmt: skip


@pytest.mark.parametrize("written", HIDDEN)
def test_golds_have_no_characters_that_nobody_sees(written):
    assert gold_answer(written) == HIDDEN[written] == gold_answer([written, written])
    if HIDDEN[written]:
        assert gold_answers([f"So\u200b.\n####\u200b {written}\u200b"]) == [HIDDEN[written]]
        assert gold_answers([f"Answer:\u200b\u00a0{written}"]) == [HIDDEN[written]]
        assert gold_answers([written, HIDDEN[written]]) == [HIDDEN[written]] * 2


@pytest.mark.parametrize("value", [Written("0.10"), Label(1, "yes")])
def test_copies_keep_their_text(value):
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (type(other), other, str(other)) == (type(value), value, str(value))


def test_an_edit_of_extract_hash_answer_changes_the_golds(monkeypatch):
    monkeypatch.setattr(gold, "extract_hash_answer", lambda text: text.partition("####")[2].strip() + " edited")
    assert gold_answers(["2 + 2 = 4\n#### 4", "#### 1,000"]) == ["4 edited", "1,000 edited"]


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not beside this checkout")
def test_gsm8k_has_the_answers_of_the_recipe():
    values = [json.loads(line)["answer"] for line in GSM8K.read_text("utf-8").splitlines()]
    assert gold_answers(values) == list(map(extract_hash_answer, values))


def test_reasoning_is_what_comes_before_the_answer():
    assert reasoning_before("2 + 2 = 4\n#### 4") == "2 + 2 = 4" == reasoning_before("2 + 2 = 4 <answer>4</answer>")
    assert reasoning_before("48 / 2 = <<48/2=24>>24 clips\n#### 24") == "48 / 2 = 24 clips"
    assert reasoning_before(MATH[0]) == MATH[0] and reasoning_before(4) == "" == reasoning_before(None)


def test_a_list_lacks_the_mark_of_its_column_if_all_its_texts_do():
    assert lacks_mark(["4", 5], "hash") and not lacks_mark(["4", "#### 5"], "hash") and not lacks_mark([], "hash")
