"""Read amounts as people write them into exact Fractions: separators, fractions, words, percent signs, units, money.

They are read from tokens (writing.py). An amount of two units is one value: 2 hours and 30 minutes are 5/2 hours.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from exact_answers import units
from exact_answers.formulas import Node, NotRead, numeral
from exact_answers.units import Unit
from exact_answers.writing import Token, get

_EXACT_DIGITS = 15  # decimal digits that a double always keeps


class Number(NamedTuple):
    value: Fraction
    percent: bool = False
    digits: int = 0  # significant ones of a number with a decimal point, else 0
    decimals: int = 0  # after the point
    unit: Unit = ()
    parts: int = 1  # units that were added
    comma: bool = False  # with a decimal comma, which may separate two numbers
    formula: Node | None = None  # which was computed

    def is_rounded_to(self, value: Fraction) -> bool:
        """True if this is the printed double of `value`: 33.333333333333336 is 100/3."""
        if self.digits <= _EXACT_DIGITS or max(abs(self.value), abs(value)) > 2**1000:
            return False
        return float(value) == float(self.value) or value == Fraction(f"{float(self.value):.{_EXACT_DIGITS}g}")


Read = tuple[Number, int]  # and the place after it


def read_amount(tokens: Sequence[Token], place: int = 0) -> Read | None:
    """Read the amount at a place: sign, currency, number, scale, percent, unit, and smaller units after it.

    Words that count (72 clips) are not read; what comes after it may make it another number.
    """
    try:
        read = _single(tokens, place)
    except NotRead:
        return None
    if read is None:
        return None
    number, end = read
    if number.unit and (half := _and_a_half(tokens, end)):
        number, end = number._replace(value=number.value + (half[0] if number.value > 0 else -half[0])), half[1]
    while size := units.size_of(number.unit):  # 5 feet 6 inches
        start = end + (end < len(tokens) and tokens[end].low in ("and", ",", "und", "et", "y"))
        more = _single(tokens, start) if start < len(tokens) and tokens[start].kind in ("number", "word") else None
        if more and (number.unit, more[0].unit) == ((("h", 1),), (("m", 1),)):  # 3 h 20 m
            more = more[0]._replace(unit=(("min", 1),)), more[1]
        smaller = units.size_of(more[0].unit) if more else None
        if more is None or smaller is None or smaller[0] != size[0] or not smaller[1] < size[1] or more[0].value < 0:
            break
        if more[0].value * smaller[1] >= size[1]:
            break
        added = more[0].value * smaller[1] / size[1]
        value = number.value - added if number.value < 0 else number.value + added
        number, end = number._replace(value=value, parts=number.parts + 1, digits=0), more[1]
    return number, end


def _of_a_unit(number: Number, tokens: Sequence[Token], place: int) -> int:
    """Skip the words between a part and its unit: half an hour, three quarters of a mile."""
    lows = [token.low for token in tokens[place : place + 3]]
    start = place + (lows[:1] == ["of"])
    article, unit = get(tokens, start), get(tokens, start + 1)
    if number.value >= 1 or article is None or article.low not in ("a", "an") or unit is None:
        return place
    return start + 1 if units.size_of(((units.symbol_of(unit.text), 1),)) else place


def _and_a_half(tokens: Sequence[Token], place: int) -> tuple[Fraction, int] | None:
    """Read what is added to an amount with a unit: an hour and a half, but not 3 hours and a half marathon."""
    if [token.low for token in tokens[place : place + 2]] != ["and", "a"]:
        return None
    part = _part(tokens, place + 1)
    after = get(tokens, part[1]) if part else None
    return part if after is None or after.kind not in ("word", "han", "number") else None


_LATEX_CURRENCIES = {"\\$": "$", "\\pounds": "£", "\\euro": "€", "\\yen": "¥"}


def _single(tokens: Sequence[Token], place: int) -> Read | None:
    """Read an amount with one unit."""
    sign, place = _sign(tokens, place)
    currency, place = _currency(tokens, place)
    if currency and sign > 0:
        sign, place = _sign(tokens, place)
    read = _magnitude(tokens, place)
    if read is None:
        return None
    number, place = _scale(*read, tokens)
    place = _of_a_unit(number, tokens, place)
    number, place = _percent(number, tokens, place)
    unit, place = read_unit(tokens, place, currency)
    if currency and not any(symbol in units.CURRENCIES.values() for symbol, _ in unit):
        unit = tuple(sorted([(units.CURRENCIES[currency], 1), *unit]))
    return number._replace(value=sign * number.value, unit=unit), place


def _sign(tokens: Sequence[Token], place: int) -> tuple[int, int]:
    token = get(tokens, place)
    if token is not None and (token.text in ("-", "+") or token.low in ("minus", "negative")):
        return (1 if token.text == "+" else -1), place + 1
    return 1, place


def _currency(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    """Read the sign of a currency before a number, "" without one."""
    token, after = get(tokens, place), get(tokens, place + 1)
    if token is not None and after is not None and token.low in units.COUNTRIES:
        if after.kind == "currency" and after.glued:
            return after.text, place + 2
        if token.low in ("usd", "eur") and after.kind == "number":
            return {"usd": "$", "eur": "€"}[token.low], place + 1
    if token is not None and token.kind == "currency":
        return token.text, place + 1
    if token is not None and token.text in _LATEX_CURRENCIES:
        return _LATEX_CURRENCIES[token.text], place + 1
    return "", place


def _percent(number: Number, tokens: Sequence[Token], place: int) -> Read:
    token, after = get(tokens, place), get(tokens, place + 1)
    if token is not None and (token.text in ("%", "\\%") or token.low in ("percent", "prozent")):
        return number._replace(percent=True), place + 1
    if token is not None and token.low == "per" and after is not None and after.low == "cent":
        return number._replace(percent=True), place + 2
    return number, place


def _magnitude(tokens: Sequence[Token], place: int) -> Read | None:
    """Read digits, a fraction or words."""
    token = get(tokens, place)
    if token is None:
        return None
    if token.kind == "number":
        return _digits(tokens, place)
    if token.text == "\\frac" and (fraction := _fraction(tokens, place)):
        return Number(fraction[0]), fraction[1]
    if token.kind == "word":
        return _words(tokens, place)
    if token.kind == "han" and (read := _han(tokens, place)):
        return Number(read[0]), read[1]
    return None


def _digits(tokens: Sequence[Token], place: int) -> Read | None:
    """Read digits with what belongs to them: 7,50; 3 1/2; 1/2; 3 and a half; 5 twelfths."""
    text, end = tokens[place].text, place + 1
    number = _decimal(text)
    if text.isdigit():
        if read := _decimal_comma(tokens, place):
            return read
        if fraction := _after_whole(tokens, end):
            return Number(number.value + fraction[0]), fraction[1]
    if text.isdigit() and (divided := _divided(number.value, tokens, end)):
        return divided
    slash, below, last = (get(tokens, end + step) for step in range(3))
    ends = last is None or not ((last.glued and last.kind in ("word", "power")) or last.text in ("/", "^"))
    if slash is not None and slash.text == "/" and below is not None and below.text.isdigit() and ends:
        value = numeral(below.text)
        return (Number(number.value / value), end + 2) if value and slash.glued == below.glued else None
    if (part := _ordinal(tokens, end)) and (number.value == 1 or tokens[end].low.endswith("s")):
        return Number(number.value / part), end + 1  # 5 twelfths, but not 76 sixth graders
    return number, end


def _decimal(text: str) -> Number:
    """Read a numeral, with its digits and decimals if it has a point."""
    whole, point, decimals = text.replace(",", "").partition(".")
    if not point or not decimals.isdigit() or not decimals.strip("0") or text.find(",") > text.find("."):
        return Number(numeral(text))
    return Number(numeral(text), digits=len((whole + decimals).lstrip("0")), decimals=len(decimals))


def _decimal_comma(tokens: Sequence[Token], place: int) -> Read | None:
    """Read 7,50; three digits after a comma are thousands, and 4,75,1 is a list."""
    comma, decimals, last, more = (get(tokens, place + step) for step in range(1, 5))
    if comma is None or comma.text != "," or not comma.glued or decimals is None or not decimals.glued:
        return None
    listed = last is not None and last.text == "," and last.glued and (more is None or more.glued)
    if not decimals.text.isdigit() or len(decimals.text) == 3 or listed:
        return None
    digits = len((tokens[place].text + decimals.text).lstrip("0"))
    value = numeral(f"{tokens[place].text}.{decimals.text}")
    return Number(value, digits=digits, decimals=len(decimals.text), comma=True), place + 3


def _after_whole(tokens: Sequence[Token], place: int) -> tuple[Fraction, int] | None:
    r"""Read the fraction below 1 that makes a mixed number of a whole one: 3 1/2, 3\frac{1}{2}, 3 and a half."""
    token = get(tokens, place)
    if token is None or (token.glued and token.text != "\\frac"):
        return None
    joined = token.low in ("and", "&")
    fraction = _fraction(tokens, place + joined) or (_part(tokens, place + 1) if joined else None)
    return fraction if fraction and fraction[0] < 1 else None  # 48 24/1 is a sum


def _fraction(tokens: Sequence[Token], place: int) -> tuple[Fraction, int] | None:
    r"""Read 1/2, \frac{1}{2} or \frac12; None for other tokens."""
    token = get(tokens, place)
    if token is None:
        return None
    texts = [each.text for each in tokens[place : place + 7]]
    if token.text == "\\frac":
        if len(texts) > 1 and len(texts[1]) == 2 and texts[1].isdigit():
            above, below, end = texts[1][0], texts[1][1], place + 2
        elif len(texts) == 7 and [texts[k] for k in (1, 3, 4, 6)] == ["{", "}", "{", "}"]:
            above, below, end = texts[2], texts[5], place + 7
        elif len(texts) > 4 and texts[1] == "{" and texts[3] == "}" and len(texts[4]) == 1:
            above, below, end = texts[2], texts[4], place + 5
        else:
            return None
    elif len(texts) > 2 and texts[1] == "/" and token.kind == "number" and tokens[place + 1].glued:
        above, below, end = texts[0], texts[2], place + 3
    else:
        return None
    if not (above.isdigit() and below.isdigit() and len(above + below) < 100) or int(below) == 0:
        return None
    after = get(tokens, end)
    return None if after and after.text in ("^", "!") else (Fraction(int(above), int(below)), end)


def _divided(value: Fraction, tokens: Sequence[Token], place: int) -> Read | None:
    """Divide a whole number by the one at the end of its tokens: 4 over 9, four out of nine, 4 in 9."""
    sign = tokens[place].low if place < len(tokens) else ""
    start = place + len(units.OVER.get(sign, ()))
    if start == place or start >= len(tokens) or [token.low for token in tokens[place:start]] != units.OVER[sign]:
        return None
    digits = tokens[start].text.isdigit()
    below, end = (numeral(tokens[start].text), start + 1) if digits else _cardinal(tokens, start) or (0, start)
    year = sign == "in" and digits and len(tokens[start].text) == 4
    ends = end == len(tokens) and not year and below and (sign == "over" or value <= below)
    return (Number(value / below), end) if ends else None


def _ordinal(tokens: Sequence[Token], place: int) -> int:
    """Return the denominator in a word such as twelfths, after a number."""
    token = get(tokens, place)
    return units.PARTS.get(token.low, 0) if token and token.kind == "word" else 0


def _part(tokens: Sequence[Token], place: int) -> tuple[Fraction, int] | None:
    """Read a half, three quarters, half, one third."""
    token = get(tokens, place)
    if token is None:
        return None
    if token.low in ("half", "quarter"):
        return Fraction(1, units.PARTS[token.low]), place + 1
    above = 1 if token.low in ("a", "an") else units.CARDINALS.get(token.low) if token.kind == "word" else None
    if token.kind == "number" and token.text.isdigit() and len(token.text) < 4:
        above = int(token.text)
    place += 1
    if (hyphen := get(tokens, place)) and hyphen.text == "-" and hyphen.glued:
        place += 1
    below = _ordinal(tokens, place) if above else 0
    return (Fraction(above or 0, below), place + 1) if below else None


def _words(tokens: Sequence[Token], place: int) -> Read | None:
    """Read a number in English words: one hundred and twenty, three quarters, half a dozen, seven point five."""
    lows = [token.low for token in tokens[place : place + 3]]
    if lows[0] == "half":
        scale = units.SCALES.get(lows[2]) if lows[1:2] in (["a"], ["an"]) and len(lows) > 2 else None
        return (Number(scale / 2), place + 3) if scale else (Number(Fraction(1, 2)), place + 1)
    if part := _part(tokens, place):
        return Number(part[0]), part[1]
    whole = _cardinal(tokens, place)
    if whole is None:
        return None
    value, end = whole
    if divided := _divided(value, tokens, end):
        return divided
    token, after = get(tokens, end), get(tokens, end + 1)
    if token is not None and token.low == "and" and (part := _part(tokens, end + 1)) and part[0] < 1:
        return Number(value + part[0]), part[1]
    if token is not None and token.low == "point":
        return _points(value, tokens, end + 1)
    hyphen = token is not None and token.text == "-" and after is not None
    below = _ordinal(tokens, end + hyphen)
    return (Number(value / below), end + hyphen + 1) if below else (Number(value), end)


def _cardinal(tokens: Sequence[Token], place: int) -> tuple[Fraction, int] | None:
    """Read a whole number in words, whose tens and ones a hyphen or a space joins."""
    total, group, last, end = Fraction(0), Fraction(0), 0, place  # last: the last word's value, 0 before the first
    while token := get(tokens, end):
        word, after = token.low, get(tokens, end + 1)
        follows = units.CARDINALS.get(after.low, -1) if after is not None else -1
        if not last and word in ("a", "an") and after is not None and after.low in units.LARGE:
            group, last = Fraction(1), 1
        elif last and ((word == "and" and 0 < follows < last and last >= 100) or (word == "-" and 20 <= last < 100)):
            if follows < 0:
                break
        elif word in units.CARDINALS and (not last or last >= 100 or (last >= 20 and 0 < units.CARDINALS[word] < 10)):
            group, last = group + units.CARDINALS[word], units.CARDINALS[word] or 1
        elif word == "hundred" and 0 < last < 100:
            group, last = group * 100, 100
        elif word in units.MULTIPLES and last and group:
            total, group, last = total + group * units.SCALES[word], Fraction(0), int(units.SCALES[word])
        else:
            break
        end += 1
    return (total + group, end) if last else None


def _points(whole: Fraction, tokens: Sequence[Token], place: int) -> Read | None:
    """Read the digits after "point": seven point five."""
    digits = ""
    while (digit := get(tokens, place)) and units.CARDINALS.get(digit.low, 10) < 10 and len(digits) < 20:
        digits, place = f"{digits}{units.CARDINALS[digit.low]}", place + 1
    return (Number(whole + Fraction(f"0.{digits}")), place) if digits else None


def _han(tokens: Sequence[Token], place: int) -> tuple[Fraction, int] | None:
    """Read a number in Chinese signs: 七十二, 三百零五, 两万."""
    total, group, digit, end = 0, 0, -1, place
    while (token := get(tokens, end)) and token.text in units.HAN:
        if (value := units.HAN[token.text]) < 10:
            if digit > 0:
                return None
            digit = value
        elif value >= 10**4:
            total, group, digit = (total + group + max(digit, 0)) * value, 0, -1
        else:
            group, digit = group + (1 if digit < 0 else digit) * value, -1
        end += 1
    return (Fraction(total + group + max(digit, 0)), end) if end > place else None


def _scale(number: Number, place: int, tokens: Sequence[Token]) -> Read:
    """Multiply by the words after a number: 1.5 million, 70k, 5 hundred thousand, 3亿."""
    token = get(tokens, place)
    if token and token.glued and token.text in units.LETTER_SCALES and token.kind == "word":
        value, place = number.value * units.LETTER_SCALES[token.text], place + 1
        return number._replace(value=value, digits=0), place
    for _ in range(3):
        if not (token := get(tokens, place)) or token.kind not in ("word", "han"):
            break
        word = token.text if token.text in units.SCALES or len(token.text) < 3 else token.low
        scale = units.SCALES.get(word) or units.SCALES.get(word.removesuffix("s") if len(word) > 3 else word)
        if not scale or (len(word) < 2 and token.kind == "word") or word in ("grand", "score", "cent"):
            break
        number, place = number._replace(value=number.value * scale, digits=0), place + 1
    return number, place


_JOINS = {"per", "/", "*", "pro", "par", "por", "a", "an"}


def read_unit(tokens: Sequence[Token], place: int, currency: str = "") -> tuple[Unit, int]:
    """Read the known unit at a place: `km/h`, `square feet`, `dollars per hour`; () if the next word is no unit.

    Args:
        currency: the sign before the number, which a unit may divide: $5/day.
    """
    rate = bool(currency) and place < len(tokens) and tokens[place].text in ("/", "per", "a", "an")
    spelled = [currency] if rate else []
    end, known = place, rate
    while end < len(tokens) and len(spelled) < 12:
        words, taken = _unit_word(tokens, end, spelled if known else [])
        if not taken:
            break
        known = known or words[0] not in units.POWERS
        spelled += words
        end += taken
    return (units.read_unit(" ".join(spelled)), end) if known else ((), place)


def _unit_word(tokens: Sequence[Token], place: int, before: list[str]) -> tuple[list[str], int]:
    """Return the next words of a unit, and how many tokens they are.

    Args:
        before: the words of the unit so far.
    """
    token, after = tokens[place], get(tokens, place + 1)
    if token.kind == "power":
        return _exponent(tokens, place, bool(before))
    if token.text in ("\\degree", "\\circ"):
        return ["degree"], 1
    if token.kind == "currency":
        number = after is not None and after.kind == "number"
        return ([token.text], int(not before and not number and token.text != "$"))
    if token.low in units.POWERS:
        return [token.low], int(bool(before) or (after is not None and bool(units.symbol_of(after.text))))
    if token.text in _JOINS and before:
        unit = after is not None and bool(units.symbol_of(after.text))
        word = after is not None and after.kind == "word" and token.text not in ("*", "a", "an")
        return ([token.text, after.text], 2) if after is not None and (unit or word) else ([], 0)
    if (before and before[-1] not in units.POWERS) or token.kind not in ("word", "han"):
        return [], 0
    if not (units.symbol_of(token.text) or token.low in units.RATES):
        return [], 0
    inside = token.text == "in" and after is not None and after.kind in ("word", "number", "currency")
    inside = inside and not (after is not None and after.low in ("per", *units.POWERS))
    return [token.text], int(not inside and (len(token.text) > 1 or token.kind == "han" or _short(tokens, place)))


def _exponent(tokens: Sequence[Token], place: int, known: bool) -> tuple[list[str], int]:
    r"""Read the power of a unit, ^2 or ^{-1}, or the degrees of ^\circ."""
    texts = [token.text for token in tokens[place + 1 : place + 5]]
    taken = texts.index("}") + 1 if texts[:1] == ["{"] and "}" in texts else 1 + (texts[:1] == ["-"])
    power = "".join(text for text in texts[:taken] if text not in "{}")
    if power == "\\circ":
        return ["degree"], taken + 1
    return [f"^{power}"], taken + 1 if known and power.lstrip("-").isdigit() and len(power) < 3 else 0


def _short(tokens: Sequence[Token], place: int) -> bool:
    """True if a single letter is a unit: 5 m, 5 km/h, but not 5m + 3 or 5 x."""
    token = tokens[place]
    before, after = get(tokens, place - 1), get(tokens, place + 1)
    if token.text not in units.SHORT or (before is not None and before.kind not in ("number", "operator", "word")):
        return False
    if after is None or after.text in ("^", "/"):
        return True
    if after.kind == "number":  # 2 h 30 min
        return (not after.glued and not token.glued) or token.text in "hms"
    return after.kind not in ("operator", "open", "command") or (not after.glued and after.text in ("-", "+"))
