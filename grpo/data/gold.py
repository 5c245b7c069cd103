"""Gold answers as data sets write them → the text that a completion's answer is compared with."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from rewards import extract_hash_answer, find_answer

_NUMBER = re.compile(
    r"(?=.*[0-9])\+?(?P<minus>\$?[-\u2212]|[-\u2212]\$)?\$?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)"
    r"(?:\.(?P<decimals>[0-9]*))?"
)


def gold_answer(value: Any) -> str | None:
    """The gold answer that a cell holds: what follows `####`, else the whole value; None if it holds none.

    Numbers become text, and those that are text lose `$`, `+` and their thousands separators.

    >>> [gold_answer(value) for value in ("2 + 2 = 4\\n#### 4", "$1,000", " Paris, France", 72.0, 1e-7, True, "")]
    ['4', '1000', 'Paris, France', '72', '0.0000001', None, None]
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        value = f"{Decimal(str(value)):f}"  # no exponents
    if not isinstance(value, str):
        return None
    if "####" in value:
        return extract_hash_answer(value) or None
    number = _NUMBER.fullmatch(value.strip())
    if number is None:
        return value.strip() or None
    whole, decimals = number["whole"].replace(",", "") or "0", (number["decimals"] or "").rstrip("0")
    # 72.0 is how pandas writes 72; other zeros stay, as in 1.50
    decimals = f".{number['decimals']}" if decimals else ""
    return ("-" if number["minus"] else "") + whole + decimals


def gold_answers(values: Iterable[Any], pattern: str = "xml") -> list[str | None]:
    r"""The gold answers of a column. Where any value marks its answer, those that do not are not gold answers.

    The marks are the run's answer pattern, `####` and `\boxed{}`; the first that occurs counts.

    >>> gold_answers(["2 + 2 = 4\n#### 4", "5"]), gold_answers([r"so \boxed{\frac{1}{2}}.", r"\boxed{1,000}"])
    (['4', None], ['\\frac{1}{2}', '1000'])
    >>> gold_answers(["4", "$5"]), gold_answers(["It is red. Answer: red"], "final")
    (['4', '5'], ['red'])
    """
    cells = list(values)
    texts = [cell if isinstance(cell, str) else "" for cell in cells]
    marks = dict.fromkeys((pattern, "hash", "boxed"))
    mark = next((mark for mark in marks if any(find_answer(text, mark) is not None for text in texts)), None)
    if mark == "hash":
        return [gold_answer(text) if "####" in text else None for text in texts]
    if mark:
        return [gold_answer(find_answer(text, mark)) for text in texts]
    return [gold_answer(cell) for cell in cells]
