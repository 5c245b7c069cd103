r"""Gold answers as data sets write them → the text that a completion's answer is compared with.

A column contains answers alone, or solutions that mark them: `#### 72`, `\boxed{72}`, `Answer: 72`, or the run's own
`answer_pattern`. The mark that most of its values have decides.
"""

import datetime
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Self

from grpo.task.answers import find_answer
from rewards import Gold, extract_hash_answer

_NUMBER = re.compile(r"(\$?[-+\u2212]?\$?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(\.[0-9]*)?")
_FORMULA = re.compile(r"\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)
MARK_NAMES = {"hash": "####", "boxed": r"\boxed{}", "final": "'Answer:'", "xml": "<answer>"}  # as people know them
_LIST = re.compile(r"[(\[{\n]|,(?![0-9]{3})")  # after ####: commas that are no thousands separators, or more lines


class Written(float):
    """A number with its text in the data, `0.10` or `1e-7`; a float in all other respects."""

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str

    def __str__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)


class Label(int):
    """The number of a class with the class's name; an int in all other respects."""

    def __new__(cls, number: int, name: str) -> Self:
        label = super().__new__(cls, number)
        label.name = name
        return label

    name: str

    def __str__(self) -> str:
        return self.name

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.name


def alternatives(gold: Gold | None) -> list[str]:
    """The texts of a gold answer, any of which is right; none where there is no gold answer."""
    return [] if gold is None else [gold] if isinstance(gold, str) else list(gold)


def readable(gold: Gold | None) -> str:
    """A gold answer for people.

    >>> readable("4"), readable(["4", "four"]), readable(None)
    ('4', '4 or four', 'none')
    """
    return " or ".join(alternatives(gold)) or "none"


def gold_mark(values: Iterable[Any], pattern: str = "xml") -> str | None:
    """The answer pattern by which the values of a column mark their answers; None if they are answers alone.

    At least half of the values have it, and no other pattern is in more of them; `pattern` is preferred.
    """
    items = (item for value in values for item in (value if isinstance(value, list) else [value]))
    texts = [item for item in items if isinstance(item, str) and item.strip()]
    shares = {
        mark: sum(find_answer(text, mark) is not None for text in texts)
        for mark in dict.fromkeys((pattern, "boxed", "hash", "xml", "final"))
        if mark != "text"  # which is in every value
    }
    mark = max(shares, key=lambda mark: shares[mark])
    return mark if texts and 2 * shares[mark] >= len(texts) else None


def has_mark(text: str) -> bool:
    r"""True if a text marks its answer in one of the ways that a column can.

    >>> has_mark("Sum. Answer: 27"), has_mark("27")
    (True, False)
    """
    return any(find_answer(text, mark) is not None for mark in MARK_NAMES)


def lacks_mark(value: Any, mark: str | None) -> bool:
    """True if a value would be a gold answer, had its column no mark.

    >>> lacks_mark("4", "hash"), lacks_mark("####", "hash"), lacks_mark("", "hash"), lacks_mark("4", None)
    (True, False, False, False)
    """
    texts = map(str, value if isinstance(value, list) else [value])
    return bool(mark and gold_answer(value)) and all(find_answer(text, mark or "") is None for text in texts)


def mark_name(mark: str) -> str:
    """A mark as people know it: `####` for hash; a template is its own name."""
    return MARK_NAMES.get(mark, repr(mark))


def where_marked(mark: str | None) -> str:
    """The place of a column's gold answers, in words.

    >>> where_marked("hash"), where_marked("Final: {answer}"), where_marked(None)
    ('after ####', "in 'Final: {answer}'", 'the whole value')
    """
    if mark is None:
        return "the whole value"
    return f"{'after' if mark in ('hash', 'final') else 'in'} {mark_name(mark)}"


def gold_answer(value: Any, mark: str | None = None) -> Gold | None:
    r"""The gold answer of a cell: what its mark has, else the whole value; None without one.

    Numbers and dates are texts as they are written; numbers lose `$`, `+`, thousands separators and a final `.0`,
    formulas their delimiters. A list holds texts any of which is right.

    >>> [gold_answer(value) for value in ("$1,000", " Paris, France", 72.0, 1e-7, True, "", r"$\frac{1}{2}$")]
    ['1000', 'Paris, France', '72', '0.0000001', 'true', None, '\\frac{1}{2}']
    >>> gold_answer("2 + 2 = 4\n#### 4", "hash"), gold_answer(r"So $x = \boxed{10}$.", "boxed")
    ('4', '10')
    >>> gold_answer([4, "four", None]), gold_answer(["4"]), gold_answer([])
    (['4', 'four'], '4', None)
    """
    if not isinstance(value, list):
        return _gold_text(value, mark)
    texts = dict.fromkeys(_gold_text(item, mark) for item in value)
    several = [text for text in texts if text]
    return several if len(several) > 1 else next(iter(several), None)


def _gold_text(value: Any, mark: str | None) -> str | None:
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, Written | int | datetime.time | datetime.timedelta):
        value = str(value)
    elif isinstance(value, float | Decimal) and math.isfinite(value):
        value = f"{Decimal(str(value + 0)):f}"  # no exponents, and 0 for -0.0
    elif isinstance(value, datetime.date):
        value = str(value).removesuffix(" 00:00:00")
    if not isinstance(value, str):
        return None
    if mark is not None:
        value = (_after_hashes(value) if mark == "hash" else find_answer(value, mark)) or ""
    value = value.strip()
    if formula := _FORMULA.fullmatch(value):
        value = next(filter(None, formula.groups())).strip()
    number = _NUMBER.fullmatch(value) if mark != "hash" else None  # GSM8K's rule leaves 18.0 as it is
    if number:
        sign, whole, decimals = number.groups(default="")
        # 72.0 is how pandas writes 72; other zeros stay, as in 1.50
        value = (
            "-" * ("-" in sign or "\u2212" in sign) + whole.replace(",", "") + decimals * bool(decimals.strip(".0"))
        )
    return value or None


def _after_hashes(text: str) -> str | None:
    """The answer after `####` by GSM8K's own rule, which would join `1, 2` and `(1, 200)`: those stay."""
    answer = text.partition("####")[2].partition("####")[0].strip()
    return find_answer(f"####{answer}", "hash") if _LIST.search(answer) else extract_hash_answer(text)


def reasoning_before(solution: Any) -> str:
    """The text of a gold solution before its answer; all of it where the answer is in a box, "" if it is not text."""
    return re.split(r"####|<answer>", solution)[0].strip() if isinstance(solution, str) else ""
