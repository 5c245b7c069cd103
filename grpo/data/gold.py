"""Gold answers as data sets write them → the text that a completion's answer is compared with."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from rewards import extract_hash_answer

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


def gold_answers(values: Iterable[Any]) -> list[str | None]:
    """The gold answers of a column; if any of its values has `####`, those without it are not gold answers.

    >>> gold_answers(["2 + 2 = 4\\n#### 4", "5"]), gold_answers(["4", "$5"])
    (['4', None], ['4', '5'])
    """
    values = list(values)
    marked = any(isinstance(value, str) and "####" in value for value in values)
    return [
        gold_answer(value) if not marked or (isinstance(value, str) and "####" in value) else None for value in values
    ]
