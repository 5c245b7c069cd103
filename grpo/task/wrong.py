"""Make a wrong answer that looks like a right one, to try rewards and judges on it."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from exact_answers.verdict import kind_of, same_answer
from grpo.task.gold import Written, alternatives
from rewards import Gold

ANOTHER = "another answer"
NUMERAL = re.compile(r"[0-9]+(?:\.[0-9]+)?(?!.*[0-9])", re.DOTALL)  # the last one of a text


def wrong_answer(gold: Gold, others: Iterable[Gold | None] = ()) -> str:
    """Choose another row's gold answer that is wrong here, of the same kind and a similar length.

    A reward for the length shall not tell it from the right one. JSON gets another row's value in one of its fields or
    elements. If no other row has one, the last number changes.

    >>> wrong_answer("billing", ["billing", "account", "delivery"]), wrong_answer("12.59"), wrong_answer(["9", "8"])
    ('account', '13.59', '7')
    >>> wrong_answer('{"shop": "Ada", "total": 5.70}', ['{"shop": "Ben", "total": 9.00}'])
    '{"shop": "Ada", "total": 9.00}'
    """
    right = alternatives(gold)
    unlike = dict.fromkeys(
        alternative for other in others for alternative in alternatives(other) if alternative not in right
    )
    for candidate in _candidates(right[0], list(unlike), len(right)):
        if candidate not in right and not any(same_answer(candidate, one, computed=False) for one in right):
            return candidate
    return ANOTHER


def rewritten_json(text: str) -> str | None:
    """Write a JSON object or list with other spaces; None if it is neither.

    >>> rewritten_json('{"a": 1.50}'), rewritten_json("[1,2]"), rewritten_json("12")
    ('{"a":1.50}', '[1, 2]', None)
    """
    value = _read(text)
    return None if value is None else _write(value, *((",", ":") if re.search(r"[,:] ", text) else (", ", ": ")))


def _candidates(answer: str, others: Sequence[str], count: int) -> Iterator[str]:
    if (value := _read(answer)) is not None:
        separators = (", ", ": ") if re.search(r"[,:] ", answer) else (",", ":")
        yield _write(
            _changed(value, [other for other in map(_read, others) if type(other) is type(value)]), *separators
        )
    kind = kind_of(answer)
    yield from sorted(others, key=lambda other: (kind_of(other) != kind, abs(len(other) - len(answer))))
    if numeral := NUMERAL.search(answer):
        number = Decimal(numeral[0])
        near = [number + sign * distance for distance in range(1, count + 1) for sign in (1, -1)]
        texts = [str(other) for other in near if other >= 0]
        for text in sorted(texts, key=lambda text: abs(len(text) - len(numeral[0]))):
            yield f"{answer[: numeral.start()]}{text}{answer[numeral.end() :]}"


def _read(text: str) -> Any:
    """Read a JSON object or list with its numbers as they are written; None if it is neither, or empty."""
    try:
        value = json.loads(text, parse_float=Written)
    except (ValueError, RecursionError):
        return None
    return value if value and isinstance(value, dict | list) else None


def _write(value: Any, comma: str, colon: str) -> str:
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key, ensure_ascii=False)}{colon}{_write(item, comma, colon)}" for key, item in value.items()
        ]
        return f"{{{comma.join(items)}}}"
    if isinstance(value, list):
        return f"[{comma.join(_write(item, comma, colon) for item in value)}]"
    return str(value) if isinstance(value, Written) else json.dumps(value, ensure_ascii=False)


def _changed(value: Any, others: Sequence[Any] = ()) -> Any:
    """Change one field of an object, or the last element of a list, to another row's if there is one."""
    if isinstance(value, dict) and value:
        for key in reversed(value):
            if values := [other[key] for other in others if key in other and other[key] != value[key]]:
                return value | {key: values[0]}
        key = list(value)[-1]
        return value | {key: _changed(value[key])}
    if isinstance(value, list) and value:
        values = [item for other in others for item in other if item not in value]
        return [*value[:-1], values[0] if values else _changed(value[-1])]
    if isinstance(value, bool):
        return not value
    if isinstance(value, Written):
        return Written(wrong_answer(str(value)))
    return value + 1 if isinstance(value, int) else ANOTHER
