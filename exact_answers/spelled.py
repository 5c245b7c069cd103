"""Read values that are spelled: dates, times of day, ordinals, numbers in another base, residues, ratios, ranges.

Each has one spelling, so that equal values are equal texts: `4 July 1976` and `July 4, 1976` are `date 1976-07-04`,
`2:30 in the afternoon` is `14:30`, `third` is `3rd`, and `0b1011` is `1011_2`. A number in another base is no number
in base ten: `FF_{16}` is not 255, since a question that asks for a base asks for its digits.
"""

import datetime
import re
from collections.abc import Sequence
from typing import NamedTuple

from exact_answers import units
from exact_answers.writing import Token

MAX_TOKENS = 16


class Text(NamedTuple):
    """A date, a time, an ordinal, a number in another base, a residue, a ratio or a range, in one spelling."""

    text: str


def read_spelled(tokens: Sequence[Token]) -> Text | None:
    """Read tokens that are one spelled value; None for any other."""
    if not 0 < len(tokens) <= MAX_TOKENS:
        return None
    written = "".join(("" if token.glued else " ") + token.text for token in tokens).strip()
    low = written.lower()
    return _ordinal(low) or _date(low) or _time(low) or _in_base(written) or _residue(low) or _pair(tokens)


# --- Dates --------------------------------------------------------------------------------------------------------

_MONTHS = "january february march april may june july august september october november december"
_MONTH_OF = {spelling: place for place, name in enumerate(_MONTHS.split(), start=1) for spelling in (name, name[:3])}
_MONTH_OF["sept"] = 9
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday"
_MONTH = rf"(?P<month>{'|'.join(_MONTH_OF)})\b\.?"
_DAY = r"(?:the )?(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?\b"
_YEAR = r"(?P<year>[0-9]{4})"
_WEEKDAY = rf"(?P<{{}}>{'|'.join(f'{name}|{name[:3]}' for name in _WEEKDAYS.split())})"
_DATES = [
    rf"{_MONTH} ?{_DAY}(?:,? {_YEAR}|, ?{_YEAR.replace('year', 'year_')})?",
    rf"{_DAY}(?: of)?[ -]?{_MONTH}(?:(?:, ?| |-| of ){_YEAR})?",
    rf"{_MONTH},? {_YEAR}",
    rf"{_YEAR}[ -]{_MONTH}[ -]{_DAY}",
    rf"{_YEAR} ?年 ?(?P<month>[0-9]{{1,2}}) ?月 ?(?P<day>[0-9]{{1,2}}) ?[日号號]",
]
_DATE = [
    re.compile(f"(?:{_WEEKDAY.format('before')}\\.?,? )?{date}(?:,? \\(?{_WEEKDAY.format('after')}\\)?)?")
    for date in _DATES
]
_NUMERIC = re.compile(r"([0-9]{1,4})([-/.])([0-9]{1,2})\2([0-9]{1,4})")


def _date(low: str) -> Text | None:
    """Read a date; a weekday beside it must be right. 7/4/1976 is a date where one of both is no month.

    >>> _date("july 4th, 1976"), _date("sunday, 4 july 1976"), _date("monday, 4 july 1976"), _date("5/13/1998")
    (Text(text='date 1976-07-04'), Text(text='date 1976-07-04'), None, Text(text='date 1998-05-13'))
    >>> _date("29.02.2024"), _date("7/4/1976"), _date("2023-02-29"), _date("july 4")
    (Text(text='date 2024-02-29'), Text(text='7-4-1976'), Text(text='2023-2-29'), Text(text='date 07-04'))
    """
    if (numeric := _NUMERIC.fullmatch(low)) is not None:
        return _numeric_date(int(numeric[1]), numeric[2], int(numeric[3]), int(numeric[4]), low)
    found = next((match for pattern in _DATE if (match := pattern.fullmatch(low))), None)
    if found is None:
        return None
    parts = found.groupdict()
    year, day = parts["year"] or parts.get("year_"), parts.get("day")
    month = _MONTH_OF.get(parts["month"]) or (int(parts["month"]) if parts["month"].isdigit() else 0)
    weekday = parts["before"] or parts["after"]
    try:
        date = datetime.date(int(year or 2000), month, int(day or 1))  # 2000 has a 29 February
    except ValueError:
        return None
    if weekday and not (year and day and _WEEKDAYS.split()[date.weekday()].startswith(weekday)):
        return None
    return Text(f"date {date.isoformat()[0 if year else 5 : 10 if day else 7]}")


def _numeric_date(first: int, sign: str, second: int, third: int, low: str) -> Text | None:
    """Read 1976-07-04, 4.7.1976, 13/5/1998; Text as written if day and month may be each other, or are none."""
    written = re.split(r"[-/.]", low)
    if max(map(len, written)) != 4 or len(written[0]) == len(written[2]):
        return None
    if len(written[0]) == 4:
        year, month, day = first, second, third
    elif sign == "." or first > 12:
        year, month, day = third, second, first
    elif second > 12 or first == second:
        year, month, day = third, first, second
    else:
        return Text(f"{first}-{second}-{third}")
    try:
        return Text(f"date {datetime.date(year, month, day).isoformat()}")
    except ValueError:
        return Text(f"{first}-{second}-{third}") if sign != "." else None


# --- Times of day -------------------------------------------------------------------------------------------------

_HOUR = rf"(?P<hour>[0-9]{{1,2}}|{'|'.join(list(units.CARDINALS)[1:13])})"
_CLOCK = re.compile(
    rf"{_HOUR}(?::(?P<minute>[0-5][0-9])(?::00)?)?(?P<clock> o'clock)?,? ?"
    r"(?P<half>a\.? ?m\.?|p\.? ?m\.?|in the morning|in the afternoon|in the evening|at night"
    r"|noon|midnight|hours|hrs|h|uhr)?"
)
_NAMED_TIMES = {"noon": "12:00", "midday": "12:00", "midnight": "0:00"}
_PAST = re.compile(rf"(?:a )?(half|quarter) (past|to) {_HOUR}")
_LATER = {"in the afternoon": range(1, 7), "in the evening": range(4, 12), "at night": range(6, 12)}


def _time(low: str) -> Text | None:
    """Read a time as one of 24 hours: 4:20 PM is 16:20, noon is 12:00; without a half of the day as it is written.

    >>> [_time(low) and _time(low).text for low in ("2:30 pm", "2:30 in the afternoon", "noon", "12 noon", "14:30 h")]
    ['14:30', '14:30', '12:00', '12:00', '14:30']
    >>> [_time(low) for low in ("25:00 pm", "7 h", "12:00 midday", "13 in the afternoon")]
    [None, None, None, None]
    """
    if low in _NAMED_TIMES:
        return Text(_NAMED_TIMES[low])
    if past := _PAST.fullmatch(low):
        hour, minutes = _hour(past["hour"]), 30 if past[1] == "half" else 15
        hour, minutes = (hour, minutes) if past[2] == "past" else ((hour - 2) % 12 + 1, 60 - minutes)
        return Text(f"{hour}:{minutes}") if 0 < hour < 13 else None
    clock = _CLOCK.fullmatch(low)
    if clock is None or not (clock["clock"] or clock["half"]):
        return None
    hour, half = _hour(clock["hour"]), "".join(filter(str.isalpha, clock["half"] or ""))
    if half in ("h", "hours", "hrs", "uhr"):
        return Text(f"{hour}:{clock['minute']}") if clock["minute"] and hour < 24 else None
    if not 0 < hour < 13:
        return None
    minute = clock["minute"] or "00"
    if half in _NAMED_TIMES:
        return Text(_NAMED_TIMES[half]) if (hour, minute) == (12, "00") else None
    if half in ("", "am", "pm", "inthemorning"):
        return Text(f"{hour % 12 + 12 * (half == 'pm') if half else hour}:{minute}")
    if hour == 12:
        return None if half == "intheevening" else Text(f"{12 * (half == 'intheafternoon')}:{minute}")
    if hour in _LATER[clock["half"]]:
        return Text(f"{hour + 12}:{minute}")
    return Text(f"{hour}:{minute}") if half == "atnight" and hour < 5 else None


def _hour(word: str) -> int:
    return int(word) if word.isdigit() else units.CARDINALS[word]


# --- Ordinals -----------------------------------------------------------------------------------------------------

_TENS = "|".join(word for word, value in units.CARDINALS.items() if value >= 20)
_ORDINAL = re.compile(rf"(?:the )?(?:([0-9]{{1,9}})(st|nd|rd|th)|(?:({_TENS})[- ])?([a-z]+))(?: (?:place|position))?")


def _ordinal(low: str) -> Text | None:
    """Read an ordinal, which is neither the number nor its part.

    >>> _ordinal("3rd"), _ordinal("the twenty-first"), _ordinal("third place"), _ordinal("11st"), _ordinal("one third")
    (Text(text='3rd'), Text(text='21st'), Text(text='3rd'), None, None)
    """
    found = _ORDINAL.fullmatch(low)
    if found is None:
        return None
    digits, suffix, tens, word = found.groups()
    if digits:
        return Text(ordinal) if (ordinal := _ordinal_of(int(digits))).endswith(suffix) else None
    value, more = units.ORDINALS.get(word, 0), units.CARDINALS[tens] if tens else 0
    if not value or (tens and value >= 10):
        return None
    return Text(_ordinal_of(value + more))


def _ordinal_of(value: int) -> str:
    return f"{value}{'th' if value // 10 % 10 == 1 else {1: 'st', 2: 'nd', 3: 'rd'}.get(value % 10, 'th')}"


# --- Bases --------------------------------------------------------------------------------------------------------

_PREFIX_BASES = {"x": 16, "b": 2, "o": 8}
_BASE_NAMES = {"binary": 2, "octal": 8, "hexadecimal": 16, "hex": 16}
_PREFIXED = re.compile(r"(-?)0([xXbBoO])([0-9A-Fa-f]{1,100})")
_DIGITS = r"(-? ?)\(?([0-9A-Fa-f]{1,100})\)?"
_WITH_BASE = [
    re.compile(rf"{_DIGITS} ?_ ?\{{? ?([0-9]{{1,2}}|[a-z]{{3,12}}) ?\}}?"),
    re.compile(rf"{_DIGITS},? \(?(?:in )?base[ -]\{{?([0-9]{{1,2}}|[a-z]{{3,12}})\}}?\)?"),
    re.compile(rf"{_DIGITS},? \(?(?:in )?({'|'.join(_BASE_NAMES)})\)?"),
]


def _in_base(written: str) -> Text | None:
    """Read a number in another base than ten, by its digits.

    >>> [_in_base(text) and _in_base(text).text for text in ("0xFF", "FF_{16}", "1011 in base 2", "(1011)_{two}")]
    ['FF_16', 'FF_16', '1011_2', '1011_2']
    >>> _in_base("x_{12}"), _in_base("A_1"), _in_base("FF"), _in_base("19 in base 8")
    (None, None, None, None)
    """
    if prefixed := _PREFIXED.fullmatch(written):
        return _digits(prefixed[1], prefixed[3], _PREFIX_BASES[prefixed[2].lower()])
    for pattern in _WITH_BASE:
        if found := pattern.fullmatch(written):
            sign, digits, name = found.groups()
            base = int(name) if name.isdigit() else _BASE_NAMES.get(name) or units.CARDINALS.get(name, 0)
            letters = digits.strip("0123456789")
            if digits.isalpha() and (len(digits) < 2 or not digits.isupper()):
                return None  # A_1 and ab_{16} are variables
            if digits.isdigit() and pattern is _WITH_BASE[0] and not _is_in_base(digits, base):
                return Text(f"{digits}_{base}")  # as it is written
            return None if letters and base <= 10 else _digits(sign, digits, base)
    return None


def _is_in_base(digits: str, base: int) -> bool:
    return 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits)


def _digits(sign: str, digits: str, base: int) -> Text | None:
    if not _is_in_base(digits, base):
        return None
    return Text(f"{sign.strip()}{digits.upper().lstrip('0') or '0'}_{base}")


_RESIDUE = re.compile(
    r"(?:[a-z] ?\\equiv ?)?(- ?)?([0-9]{1,30}) ?\(?(?:\\pmod|\\mod|\\bmod|mod) ?\{? ?([0-9]{1,30}) ?\}?\)?"
)


def _residue(low: str) -> Text | None:
    r"""Read a residue class: x \equiv -4 \pmod{7} is 3 mod 7; 19 \bmod 5 alone is a number.

    >>> _residue(r"x \equiv -4 \pmod{7}"), _residue("3 (mod 7)"), _residue(r"19 \bmod 5"), _residue("3 mod 0")
    (Text(text='3 mod 7'), Text(text='3 mod 7'), None, None)
    """
    found = _RESIDUE.fullmatch(low)
    if found is None or not int(found[3]) or ("bmod" in low and "equiv" not in low):
        return None
    return Text(f"{int(found[2]) * (-1 if found[1] else 1) % int(found[3])} mod {int(found[3])}")


# --- Ratios and ranges --------------------------------------------------------------------------------------------


def _pair(tokens: Sequence[Token]) -> Text | None:
    """Read a ratio, a time with colons, or a range."""
    texts, kinds = [token.text for token in tokens], [token.kind for token in tokens]
    if not (all(kind == "number" for kind in kinds[::2]) and len(texts) % 2 == 1 and len(texts) > 1):
        return None
    signs = set(texts[1::2])
    if signs == {":"} and len(texts) <= 9:
        if len(texts) == 3 and texts[0].startswith("0") and len(texts[2]) == 2 and texts[0].isdigit():
            texts[0] = str(int(texts[0]))  # 09:30
        return Text(":".join(texts[::2]))
    if len(texts) == 3 and texts[1] in ("-", "–", "~") and tokens[1].glued and tokens[2].glued:
        return Text(f"{texts[0]}-{texts[2]}") if texts[0].isdigit() and texts[2].isdigit() else None
    if len(texts) == 3 and texts[1] == "to":
        return Text(":".join(texts[::2]))
    return None


def may_begin(token: Token) -> bool:
    """True for a token with which a spelled value may begin that does not begin with a number: July, noon, third."""
    return token.low.rstrip(".") in _BEGINNING


def may_go_on(token: Token) -> bool:
    """True for a word of three letters and more that a spelled value may have."""
    return token.low.rstrip(".") in _BEGINNING | _WITHIN


_WITHIN = set(
    [
        "may",
        "mar",
        "sun",
        "sat",
        "mon",
        "afternoon",
        "morning",
        "evening",
        "night",
        "noon",
        "midnight",
        "the",
        "base",
        "binary",
        "octal",
        "decimal",
        "hex",
    ]
)
_WITHIN |= {"hexadecimal", "mod", "o'clock", "past", "a.m.", "p.m."}
_BEGINNING = {*_MONTH_OF, *_WEEKDAYS.split(), "noon", "midnight"} - {"may", "mar", "sun", "sat", "mon"}
