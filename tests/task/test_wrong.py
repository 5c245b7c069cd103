"""A wrong answer is another row's gold answer, or JSON with one other field; never right, never nonsense."""

import json

import pytest

from exact_answers import same_answer
from grpo.task.gold import alternatives
from grpo.task.wrong import rewritten_json, wrong_answer

RECEIPT = '{"shop": "Ada", "day": 3, "total": 5.70}'
CASES = [  # gold answer, other rows', a wrong one
    ("billing", ["billing", "Billing.", "account", "delivery", "a longer label"], "account"),
    ("Paris", ["12", "London"], "London"),  # of the same kind
    ("72", ["72", "7200", "48", None], "48"),
    ("72", ["48 + 24", "60 + 11"], "60 + 11"),  # the same value is never a wrong answer
    ("99.59", [], "98.59"),
    ("99.59", ["100.00"], "100.00"),
    ("1/2", [], "1/3"),
    (r"3\sqrt{2}", [], r"3\sqrt{3}"),
    ("2007-04-13", ["2007-04-13"], "2007-04-14"),
    ("billing", ["billing"], "another answer"),
    (["4", "four"], ["four", "4.0", "6"], "6"),
    (RECEIPT, ['{"shop": "Ben", "day": 4, "total": 9.05}'], '{"shop": "Ada", "day": 3, "total": 9.05}'),
    (RECEIPT, ['{"shop": "Ben", "day": 3, "total": 5.70}'], '{"shop": "Ben", "day": 3, "total": 5.70}'),
    (RECEIPT, [], '{"shop": "Ada", "day": 3, "total": 6.70}'),
    (RECEIPT, ["no JSON", "[1]"], '{"shop": "Ada", "day": 3, "total": 6.70}'),
    ('{"a":true}', [], '{"a":false}'),
    ('{"a": {"b": "x"}}', [], '{"a": {"b": "another answer"}}'),
    ('{"a": null}', [], '{"a": "another answer"}'),
    ('["x", "y"]', ['["x", "z"]'], '["x", "z"]'),
    ("[1, 2]", [], "[1, 3]"),
]


@pytest.mark.parametrize(("gold", "others", "wrong"), CASES)
def test_a_wrong_answer_looks_like_a_right_one(gold, others, wrong):
    found = wrong_answer(gold, others)
    assert found == wrong and not any(same_answer(found, one) for one in alternatives(gold))


@pytest.mark.parametrize("text", [RECEIPT, '{"a":[1,{"b":2.50}]}', '["x, y", "z"]'])
def test_json_is_rewritten_with_the_same_values(text):
    other = rewritten_json(text)
    assert other != text and json.loads(other) == json.loads(text)


@pytest.mark.parametrize("text", ["12", '"a"', "{}", "[", "billing", "[" * 100_000])
def test_what_is_no_json_object_or_list_is_not_rewritten(text):
    assert rewritten_json(text) is None
