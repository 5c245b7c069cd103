"""A task of one's own with answers in JSON: read the fields of a receipt.

    python train_grpo.py --config examples/json_fields.yaml

Rows have the columns `receipt` and `fields`, the gold answer as JSON text. A tiny model that often takes the cash for
the total learns to read it, on a CPU in a minute (assets/short_answers/make_short_answers.py).
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

SYSTEM = 'Reply with JSON: {"day": number, "total": amount, "currency": name}'  # the recipe's system_prompt


def read_receipt(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the question and the gold answer of a row: `prepare`."""
    return {"question": row["receipt"], "answer": row["fields"]}


def fields_of(text: str) -> dict[str, Any]:
    """Read a completion's JSON object; {} if it is none. Numbers are exact.

    >>> fields_of('{"total": 10.50}') == fields_of('{"total": 10.5}'), fields_of("It is 10.50.")
    (True, {})
    """
    try:
        fields = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    except (ValueError, RecursionError, ArithmeticError):
        return {}
    return fields if isinstance(fields, dict) else {}


def is_right(text: str, row: Mapping[str, Any]) -> bool:
    """Whether a completion has exactly the row's fields, in any order and however it is spaced: `judge`."""
    return fields_of(text) == fields_of(row["answer"])


def fields_reward(completions: Sequence[Any], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """0 … 1: the share of the gold answer's fields that are right, less 0.25 for each field too many."""
    scores = []
    for completion, gold in zip(completions, map(fields_of, answer), strict=True):
        said = fields_of(completion[0]["content"])
        right = sum(said.get(name) == value for name, value in gold.items())
        scores.append(max(0.0, right / len(gold) - 0.25 * len(said.keys() - gold.keys())))
    return scores
