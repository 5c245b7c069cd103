r"""Read gold answers from cells of data sets.

A column contains plain answers, or solutions that mark the answer: `#### 72`, `\boxed{72}`, `Answer: 72`, or the run's
`answer_pattern`. The most frequent mark is used for the whole column.
"""

import datetime
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Self

from exact_answers.marks import find_answer
from grpo.core.text import visible
from rewards import Gold, extract_hash_answer

_SIGN = r"(\$?[-+\u2212]?\$?)"
_NUMBER = re.compile(_SIGN + r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:['\u2019][0-9]{3})+|[0-9]+)(\.[0-9]*)?")
_SPACED = re.compile(_SIGN + r"([0-9]{1,3}(?: [0-9]{3})+)([.,][0-9]+)?")  # 7 404
_SPACES = re.compile(r"[-+\u2212]?[0-9]+(?: [0-9]+)+(?:[.,][0-9]+)?")  # 1 2, too
_POINTED = re.compile(_SIGN + r"([0-9]{1,3}(?:\.[0-9]{3})*)(,[0-9]+)?")  # 7.404,50; in a column of these 7.404 and 7,5
_POINTS = re.compile(
    r"[^0-9]*[0-9]{1,3}(?:(?:\.[0-9]{3})+,[0-9]+|(?:\.[0-9]{3}){2,})"
)  # a number of no other notation
_NO_POINTS = re.compile(r"[^0-9]*(?:[0-9]+(?:,[0-9]{3})*\.(?![0-9]{3}$)[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]+)")
# Delimiters of a formula, and bold or italic type of Markdown
_WRAPPED = re.compile(
    r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]|\*\*\*([^*]+)\*\*\*|\*\*([^*]+)\*\*"
    r"|\*(?![\s.])([^*]*[^*\s])\*|__([^_]*[0-9][^_]*)__|<(?:b|strong)>([^<]+)</(?:b|strong)>",
    re.DOTALL,
)
MARK_NAMES = {"hash": "####", "boxed": r"\boxed{}", "final": "'Answer:'", "xml": "<answer>"}  # as people know them
_THIN = re.compile("(?<=[0-9])[\u2009\u202f\u00a0](?=[0-9]{3}(?![0-9]))")  # a space that separates thousands
_LIST = re.compile(r"[(\[{\n]|,(?![0-9]{3})")  # after ####: commas that do not separate thousands, or further lines
_ANSWER = re.compile(r"[#* ]*(?:final )?answer[:* ]*\n(.*)", re.IGNORECASE | re.DOTALL)  # after ####: a heading of it
_HEADING = re.compile(r"\s*[^\W\d_][^\n]*\n\s*\S")  # after ####: a line that begins with a word, above a text
_CALCULATED = re.compile("<<[^<>\n]*>>")  # GSM8K's calculator: 48/2 = <<48/2=24>>24
_NAMED = re.compile(r"\W*(?:steps?|(?:final )?answer|solution|explanation|reasoning|proof|notes?)\b", re.IGNORECASE)


class Written(float):
    """A float with its text in the data, such as `0.10` or `1e-7`."""

    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


class Label(int):
    """An int with the name of its class."""

    name: str

    def __new__(cls, number: int, name: str = "") -> Self:  # pickle calls it without the name
        label = super().__new__(cls, number)
        label.name = name
        return label

    def __str__(self) -> str:
        return self.name


def alternatives(gold: Gold | None) -> list[str]:
    """Return the texts of a gold answer, any of which is right; [] without a gold answer."""
    return [] if gold is None else [gold] if isinstance(gold, str) else list(gold)


def readable(gold: Gold | None) -> str:
    """Format a gold answer for people.

    >>> readable("4"), readable(["4", "four"]), readable(None)
    ('4', '4 or four', 'none')
    """
    return " or ".join(alternatives(gold)) or "none"


def read_column(values: Sequence[Any], pattern: str = "xml") -> tuple[str | None, list[Gold | None]]:
    """Return the answer pattern that marks the answers in a column, or None for plain ones, and each gold answer.

    The mark is the most frequent one, in at least half of the texts; `pattern` is preferred. Numbers are read in the
    notation of their column: 7.404 beside 1.234,50 is 7404.

    >>> read_column(["2 + 2 = 4\\n#### 4", "#### 5"]), read_column([4, "5", None])
    (('hash', ['4', '5']), (None, ['4', '5', None]))
    """
    items = [item for value in values for item in _items(value)]
    texts = list(map(_written, items))
    those = [at for at, item in enumerate(items) if isinstance(item, str) and item.strip()]
    answers: dict[str | None, list[str | None]] = {}
    for mark in dict.fromkeys((pattern, "boxed", "hash", "xml", "final")) if those else ():
        if mark != "text":  # which is in every value
            answers[mark] = [None if text is None else _marked(text, mark) for text in texts]
            if all(answers[mark][at] is not None for at in those):
                break  # no other is more frequent
    counts = {mark: sum(column[at] is not None for at in those) for mark, column in answers.items()}
    best = max(counts, key=lambda mark: counts[mark], default=None)
    best = best if best and 2 * counts[best] >= len(those) else None
    column = answers[best] if best else texts
    notation = _notation(column)
    golds = iter(_cleaned(text, best, notation) for text in column)
    return best, [_gold([next(golds) for _ in _items(value)]) for value in values]


def has_mark(text: str) -> bool:
    r"""True if a text marks its answer with any of the known marks.

    >>> has_mark("Sum. Answer: 27"), has_mark("27")
    (True, False)
    """
    return any(find_answer(text, mark) is not None for mark in MARK_NAMES)


def lacks_mark(value: Any, mark: str | None) -> bool:
    """True if a value lacks the column's mark but would otherwise be a gold answer.

    >>> lacks_mark("4", "hash"), lacks_mark("####", "hash"), lacks_mark("", "hash"), lacks_mark("4", None)
    (True, False, False, False)
    """
    texts = (visible(str(item)) for item in _items(value))
    return bool(mark and gold_answer(value)) and all(find_answer(text, mark or "") is None for text in texts)


def mark_name(mark: str) -> str:
    """Name a mark for people: `####` for hash; a template is its own name."""
    return MARK_NAMES.get(mark, repr(mark))


def where_marked(mark: str | None) -> str:
    """Describe where a column has its gold answers.

    >>> where_marked("hash"), where_marked("Final: {answer}"), where_marked(None)
    ('after ####', "in 'Final: {answer}'", 'the whole value')
    """
    if mark is None:
        return "the whole value"
    return f"{'after' if mark in ('hash', 'final') else 'in'} {mark_name(mark)}"


def gold_answer(value: Any, mark: str | None = None) -> Gold | None:
    r"""Extract the gold answer from a cell: the text at the mark, else the whole value; None without one.

    Numbers and dates stay as they are written, but numbers lose `$`, `+`, thousands separators and a final `.0`;
    formulas lose their delimiters, and answers bold type. Invisible characters are dropped. A list contains
    alternatives, any of which is right.

    >>> [gold_answer(value) for value in ("$1,000", " Paris, France", 72.0, 1e-7, True, "", r"$\frac{1}{2}$")]
    ['1000', 'Paris, France', '72', '0.0000001', 'true', None, '\\frac{1}{2}']
    >>> gold_answer("2 + 2 = 4\n#### 4", "hash"), gold_answer(r"So $x = \boxed{10}$.", "boxed")
    ('4', '10')
    >>> gold_answer([4, "four", None]), gold_answer(["4"]), gold_answer([])
    (['4', 'four'], '4', None)
    """
    texts = map(_written, _items(value))
    marked = [text and _marked(text, mark) if mark else text for text in texts]
    return _gold([_cleaned(text, mark, _notation(marked)) for text in marked])


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _gold(texts: Iterable[str | None]) -> Gold | None:
    several = list(filter(None, dict.fromkeys(texts)))
    return several if len(several) > 1 else next(iter(several), None)


def _written(value: Any) -> str | None:
    """Return the text of a cell without invisible characters; None if it is no text, number or date."""
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, Written | int | datetime.time | datetime.timedelta):
        value = str(value)
    elif isinstance(value, float | Decimal) and math.isfinite(value):
        value = f"{Decimal(str(value + 0)):f}"  # without exponents, and 0 for -0.0
    elif isinstance(value, datetime.date):
        value = str(value).removesuffix(" 00:00:00")
    return visible(_THIN.sub("", value)) if isinstance(value, str) else None


def _marked(text: str, mark: str) -> str | None:
    """Return the answer at the last mark, behind what a model thought first; None without the mark."""
    text = text.rpartition("</think>")[2]
    return _after_hashes(text) if mark == "hash" else find_answer(text, mark)


def _notation(texts: Iterable[str | None]) -> str:
    """Return the separators of thousands, other than `,` and `'`, that the numbers of a column have: `.`, a space."""
    written = [text.strip() for text in texts if text]
    spaced = [text for text in written if _SPACES.fullmatch(text)]
    points = any(map(_POINTS.fullmatch, written)) and not any(map(_NO_POINTS.fullmatch, written))
    # 101 110, 012 345 and 255 128 000 may be digits, or several numbers
    are_numbers = all(_SPACED.fullmatch(text) and text.lstrip("-+\u2212")[0] != "0" for text in spaced)
    are_thousands = are_numbers and any(re.match("[^0-9]*[0-9]{1,2} ", text) for text in spaced)
    return "." * points + " " * are_thousands


def _cleaned(text: str | None, mark: str | None, notation: str = "") -> str | None:
    """Return an answer without delimiters of formulas, bold type and thousands separators; None if nothing is left."""
    value = (text or "").strip()
    while wrapped := _WRAPPED.fullmatch(value):
        value = next(filter(None, wrapped.groups())).strip()
    if number := (_POINTED.fullmatch(value) if "." in notation else None) or (
        _SPACED.fullmatch(value) if " " in notation else None
    ):
        sign, whole, decimals = number.groups(default="")
        value = sign + re.sub("[. ]", "", whole) + decimals.replace(",", ".")
    number = _NUMBER.fullmatch(value) if mark != "hash" else None  # GSM8K's rule leaves 18.0 as it is
    if number:
        sign, whole, decimals = number.groups(default="")
        # pandas writes 72 as 72.0; other zeros stay, as in 1.50
        value = (
            "-" * ("-" in sign or "\u2212" in sign)
            + re.sub("[,'\u2019]", "", whole)
            + decimals * bool(decimals.strip(".0"))
        )
    return value or None


def _after_hashes(text: str) -> str | None:
    """Extract the answer after the last `####` that is no heading by GSM8K's rule; commas in `1, 2`, `(1, 200)` stay.

    A heading of Markdown is a line of words above a text, one of several or with a usual name: `#### yes` above an
    explanation is an answer.
    """
    _, *parts = text.split("####")
    parts = [heading[1] if (heading := _ANSWER.fullmatch(part)) else part.lstrip("#") for part in parts]
    if not any(map(str.strip, parts)):
        return "" if parts else None
    above = [part for part in parts if part.strip() and not (_HEADING.match(part) and _NAMED.match(part))]
    answers = above if len(above) == 1 else [part for part in above if not _HEADING.match(part)]
    if not answers:
        return None
    answer = answers[-1].strip()
    return find_answer(f"####{answer}", "hash") if _LIST.search(answer) else extract_hash_answer(f"####{answers[-1]}")


def reasoning_before(solution: Any) -> str:
    """Return a gold solution up to its answer; all of it if the answer is in a box, "" if it is not text.

    GSM8K's calculator marks are dropped: they are not part of a completion.
    """
    if not isinstance(solution, str):
        return ""
    solution = _CALCULATED.sub("", solution)
    *before, _ = re.split(r"####|<answer>", solution.replace("<think>", "").replace("</think>", ""))
    return "".join(before).strip() if before else solution.strip()
