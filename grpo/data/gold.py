r"""Gold answers as data sets write them → the text that a completion's answer is compared with.

A column holds answers alone, or solutions that mark them: `#### 72`, `\boxed{72}`, `Answer: 72`, or as the run's own
`answer_pattern` has it. Which of these is found by looking.
"""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from rewards import find_answer

_NUMBER = re.compile(
    r"(?=.*[0-9])\+?(?P<minus>\$?[-\u2212]|[-\u2212]\$)?\$?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)"
    r"(?:\.(?P<decimals>[0-9]*))?"
)


_DELIMITERS = re.compile(r"\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)


def gold_mark(values: Iterable[Any], pattern: str = "xml") -> str | None:
    """The answer pattern by which the values of a column mark their answers; None if they are answers alone.

    One `####` is enough; anything else must be in half of the values.
    """
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if any("####" in text for text in texts):
        return "hash"
    for mark in dict.fromkeys((pattern, "boxed", "xml", "final")):
        if texts and 2 * sum(find_answer(text, mark) is not None for text in texts) >= len(texts):
            return mark
    return None


def gold_answer(value: Any, mark: str | None = None) -> str | None:
    r"""The gold answer that a cell holds, where its mark has it, else the whole value; None if it holds none.

    Numbers become text; those that are text lose `$`, `+` and thousands separators, formulas their delimiters.

    >>> [gold_answer(value) for value in ("$1,000", " Paris, France", 72.0, 1e-7, True, "", r"$\frac{1}{2}$")]
    ['1000', 'Paris, France', '72', '0.0000001', None, None, '\\frac{1}{2}']
    >>> gold_answer("2 + 2 = 4\n#### 4", "hash"), gold_answer(r"So $x = \boxed{10}$.", "boxed")
    ('4', '10')
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        value = f"{Decimal(str(value)):f}"  # no exponents
    if not isinstance(value, str):
        return None
    if mark == "hash":  # what is between the first two
        _, found, rest = value.partition("####")
        value = find_answer(found + rest.partition("####")[0], mark) or ""
    elif mark is not None:
        value = find_answer(value, mark) or ""
    value = value.strip()
    if formula := _DELIMITERS.fullmatch(value):
        value = next(filter(None, formula.groups())).strip()
    number = _NUMBER.fullmatch(value) if mark != "hash" else None  # 18.0 after #### stays
    if number is None:
        return value or None
    whole, decimals = number["whole"].replace(",", "") or "0", (number["decimals"] or "").rstrip("0")
    # 72.0 is how pandas writes 72; other zeros stay, as in 1.50
    decimals = f".{number['decimals']}" if decimals else ""
    return ("-" if number["minus"] else "") + whole + decimals


def gold_answers(values: Iterable[Any], pattern: str = "xml") -> list[str | None]:
    r"""The gold answers of a column; where its values mark them, those without the mark are not gold answers.

    Args:
        pattern: the run's answer pattern, which a column may share.

    >>> gold_answers(["2 + 2 = 4\n#### 4", "5"]), gold_answers(["4", "$5"]), gold_answers([r"So \boxed{(1, 2)}."])
    (['4', None], ['4', '5'], ['(1, 2)'])
    """
    values = list(values)
    mark = gold_mark(values, pattern)
    return [gold_answer(value, mark) for value in values]


def gold_solution(value: Any, mark: str | None) -> tuple[str, str] | None:
    """What a cell has before its marked answer, and the answer; with a box, which is part of it, the whole text."""
    if not isinstance(value, str) or mark is None or (answer := gold_answer(value, mark)) is None:
        return None
    before = {"hash": value.partition("####")[0], "boxed": value, "xml": value.partition("<answer>")[0]}
    return before.get(mark, value.strip().rpartition("\n")[0]).strip(), answer
