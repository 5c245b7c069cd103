r"""The lenient rule of `rewards.is_right`: whether a text's answer is the gold answer, by the gold answer's kind.

The same text is right, whatever it is, up to case, spaces and a final full stop. A gold number is also right however
it is written; a gold expression however it is written in mathematics (expressions.py); either may have a unit.
"""

import functools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from grpo.rewarding.expressions import Meaning, Scalar, clean, read, same
from rewards import NUMBER, extract_answer, find_answer, number_value, without_marks

MAX_ANSWER = 300  # characters: what is longer is prose, whose end counts
MAX_NUMBER = 80  # the same where the gold answer is a number
END = 10_000  # characters at the end of a text that are searched


class Gold(NamedTuple):
    """A gold answer: as mathematics, None for other texts, and its unit, in normal form."""

    meaning: Meaning | None
    unit: frozenset[str]

    @property
    def closed(self) -> bool:
        """Whether it is a value, without variables."""
        return isinstance(self.meaning, Scalar) and len(self.meaning.values) == 1

    @property
    def number(self) -> bool:
        """Whether that value is a fraction or a decimal number."""
        return isinstance(self.meaning, Scalar) and self.closed and isinstance(self.meaning.values[0], Fraction)


def is_same_answer(text: str, gold: str, pattern: str = "xml") -> bool:
    r"""The lenient rule. The answer is where the pattern has it, or where people put answers: boxed, after "Answer:".

    >>> is_same_answer(r"So $x = \frac{1}{2}$.", "0.5"), is_same_answer("<answer>72 or 71</answer>", "72")
    (True, False)
    """
    if len(gold) > END:
        return False
    answer = extract_answer(text, pattern)[-END:]
    for mark in ("xml", "boxed", "final", "hash"):
        found = find_answer(answer, mark) if mark != pattern else None
        if found is not None:
            answer = found
            break
    if plain(answer) == plain(gold):
        return True
    known = gold_of(gold)
    if known.meaning is None:
        return _is_same_text(answer, gold)
    if known.number and (number := NUMBER.fullmatch(answer)) and len(answer) <= 200:
        return same(_scalar(number), known.meaning) and not _other_unit(answer, "", known)
    for candidate in _candidates(answer, known):
        meaning, unit = _read_with_unit(candidate) if known.closed else (read(candidate), "")
        if meaning is not None and (candidate is answer or not _is_name(meaning)):
            return same(meaning, known.meaning) and not _other_unit(candidate, unit, known)
    return known.number and _ends_with(answer, text, known)


# --- Texts ---------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    r"""A text for comparison: without case, spaces that mean nothing, bold type, quotes and a final full stop.

    >>> plain(" **New  York**. "), plain(r"\text{(B) 5}"), plain("( 1, 2 )")
    ('new york', '(b)5', '(1,2)')
    """
    text = re.sub(r"\\(?:text(?:bf|it|rm)?|mathrm|mathbf|boxed|fbox) ?\{([^{}]*)\}", r" \1 ", text)
    text = " ".join(without_marks(text).strip("\"'“”‘’").casefold().replace("\u2212", "-").split())
    text = re.sub(r"\b([ap])\. ?m\b", r"\1m", text)  # 9 a.m.
    text = re.sub(r" (?=[^\w\s])|(?<=[^\w\s]) ", "", text)
    return text.removesuffix(".") if not re.search(r"[a-z]\.[a-z]\.$", text) else text


def _is_same_text(answer: str, gold: str) -> bool:
    end = answer[-END:]
    for said in [*re.finditer(r"(?i)\b(?:answer|option|choice) (?:is|was|must be|would be):? ([^\n]{1,300})", end)][
        -1:
    ]:
        tail = re.split(r"[.!?](?:\s|$)", said[1])[0]
        if plain(tail) == plain(gold) or _is_choice(tail, gold):
            return True
    # LaTeX that is not read here, written in another way
    latex = "\\" in gold and max(len(answer), len(gold)) <= MAX_ANSWER and plain(clean(answer)) == plain(clean(gold))
    return latex or _is_choice(answer, gold)


def _is_choice(answer: str, gold: str) -> bool:
    """Whether a gold letter such as B or (B) is the one chosen: `B`, `(B)`, `B) 5`, `Option B`."""
    letter = re.fullmatch(r"[(\[]?([a-z])[)\].:]*", plain(gold))
    chosen = re.match(r"(?i)(?:(?:option|choice) ?)?[(\[]?([a-z])(?:[)\].:]+(.*)|$)", plain(answer), re.DOTALL)
    if not letter or not chosen or letter[1] != chosen[1]:
        return False
    return len(answer) <= MAX_ANSWER and not re.search(r"\b[a-j](?:[).:]|$)|\b(?:or|and|not)\b", chosen[2] or "")


# --- Units ---------------------------------------------------------------------------------------------------------

_KNOWN = (
    "cm|mm|km|dm|kg|mg|ml|mL|cl|kmh|kph|mph|ft|in|inch|inches|yd|mi|lbs?|oz|hrs?|mins?|secs?|ms|am|pm|AM|PM|st|nd|rd|th"
    "|dollars?|cents?|euros?|degrees?|kWh?|Hz|kJ|USD|EUR"
)
_UNIT = re.compile(
    rf"(.*?(?:[0-9%.)}}!]|\\pi))(\s*\\degree\s*[CF]?|(?:\s+|(?=(?:{_KNOWN})\b)|(?=[mgshl]$))[A-Za-z][A-Za-z\s.'’/()-]*"
    r"(?:\^\{?-?[1-3]\}?)?[A-Za-z\s./]*)"
)
_SAME_UNITS = {
    same: words.split()[0]
    for words in (
        "cm centimeter centimetre", "m meter metre", "km kilometer kilometre", "mm millimeter millimetre",
        "kg kilogram kilo", "g gram gm", "mg milligram", "l liter litre", "ml milliliter millilitre", "h hour hr",
        "min minute", "s second sec", "ft foot feet", "in inch", "yd yard", "mi mile", "lb pound", "oz ounce",
        "dollar usd buck", "euro eur", "degree deg", "child children kid", "person people", "man men", "woman women",
        "kmh km/h kph", "mph mi/h", "mouse mice",
    )
    for same in words.split()
}  # fmt: skip
_NO_UNIT = re.compile(  # what a number's unit ends before, as in `10 apples in total`
    r"in|of|is|are|was|were|total|left|more|altogether|each|and|or|so|as|at|for|which|because|since|by|to|from|if|on"
    r"|remaining|there|that|it|the|an?|approximately|exactly|only"
)
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen"}


def _unit(text: str) -> frozenset[str]:
    """The words of a unit in one form: `Square centimetres` → cm^2; none after `of them` and `in total`."""
    text = re.sub(r"\\degree|°", " degree ", text).lower().replace(".", "").replace(" per ", "/")
    text = re.sub(r"(?:\bsquare|\bsq) ([a-z]+)|([a-z]+) squared", r"\1\2^2", text)
    text = re.sub(r"(?:\bcubic|\bcu) ([a-z]+)|([a-z]+) cubed", r"\1\2^3", text)
    words = []
    for word, power in re.findall(r"(/?[a-z]+)(\^\{?-?[1-3])?", text):
        if _NO_UNIT.fullmatch(word) and text.strip() != "in":
            break
        slash, word = ("/", word[1:]) if word[0] == "/" else ("", word)
        if word not in _SAME_UNITS:
            word = re.sub(
                r"(?<=[b-df-hj-np-tv-z])ies$|(?<=ch|sh|ss)es$|(?<=x)es$|(?<=[^s])s$",
                lambda s: "y" if s[0] == "ies" else "",
                word,
            )
        words.append(slash + _SAME_UNITS.get(word, word) + power.lstrip("^{"))
    return frozenset(["kmh"] if words == ["km", "/h"] else ["mph"] if words == ["mi", "/h"] else words)


def _other_unit(answer: str, unit: str, gold: Gold) -> bool:
    """Whether an answer has a unit that is not the gold answer's."""
    words = _unit(unit) | {_CURRENCIES[sign] for sign in answer if sign in "€£¥"}
    return bool(gold.unit and words and not gold.unit <= words)


@functools.lru_cache(maxsize=2**14)
def _read_with_unit(text: str) -> tuple[Meaning | None, str]:
    if len(text) > MAX_ANSWER:
        return None, ""
    meaning = read(text)
    found = _UNIT.fullmatch(clean(text))
    # the letters of `5 cm` and `5m` are no variables, those of `5x` are
    plain_degrees = found and found[2].strip().startswith("\\degree") and "\\" not in found[1]
    if found and (
        meaning is None
        or plain_degrees
        or re.fullmatch(rf"[mgshl](?:/[mgshl])?(?:\^\{{?-?[1-3]\}}?)?|(?:{_KNOWN})\b.*", found[2].strip())
    ):
        value = read(found[1])
        if "=" in found[1] or (isinstance(value, Scalar) and len(value.values) == 1):
            return value, found[2].strip()
    return meaning, ""


def _is_name(meaning: Meaning) -> bool:
    return isinstance(meaning, Scalar) and meaning.name


# --- Gold answers --------------------------------------------------------------------------------------------------

_NO_EXPRESSION = re.compile(
    r"[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{2,4}|[0-9]+\s*[-\u2013]\s*[0-9]+"  # a date, a score or range
    r"|[^0-9\\^+*/<>=√π∞∅|½-]*"  # a word or a letter
)


@functools.lru_cache(maxsize=2**14)
def gold_of(gold: str) -> Gold:
    r"""What a gold answer is.

    >>> gold_of("1,000").number, gold_of("5 cm").unit, gold_of(r"3\sqrt{2}").number, gold_of("12:30").meaning
    (True, frozenset({'cm'}), False, None)
    """
    if _NO_EXPRESSION.fullmatch(gold.strip()):
        return Gold(None, frozenset())
    if re.fullmatch(r"[0-9]+\s?[a-z]", gold.strip()) and gold.strip()[-2] != " ":
        return Gold(read(gold), frozenset())  # 5m is 5 times m
    meaning, unit = _read_with_unit(gold)
    return Gold(meaning, _unit(unit))


def kind_of(gold: str) -> str:
    """How a gold answer is compared: as a number, as mathematics or as text.

    >>> [kind_of(gold) for gold in ("1,000", "5 cm", r"\\frac{1}{2}", r"3\\sqrt{2}", "(1,2)", "12:30", "Paris")]
    ['number', 'number', 'number', 'mathematics', 'mathematics', 'text', 'text']
    """
    known = gold_of(gold)
    return "number" if known.number else "text" if known.meaning is None else "mathematics"


# --- Where a conclusion is in prose --------------------------------------------------------------------------------

_FORMULA = re.compile(r"\$\$?([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_SAID = re.compile(r"\b(?:is|are|was|be|equals?|gives?|get|have|has|at)\b|=|:|≈")
_CLAUSE = re.compile(r"[.;!?](?=\s|$)|,\s+(?=[a-z]{2,})|\s(?=(?:since|because|so|which|where|when|as|for|if|of)\b)")


def _candidates(answer: str, gold: Gold) -> Iterator[str]:
    """What may be the answer, the likeliest first: all of it, then what its last sentences conclude."""
    prose = gold.number and len(answer) > MAX_NUMBER and "\\" not in answer
    if len(answer) <= MAX_ANSWER and not prose:
        yield answer
    end = answer[-500:]
    if gold.number and not re.search(r"\\[a-z(\[]|\^|√|π", end):
        return  # the last number decides
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n+", end)[-3:]):
        if gold.number and not re.search(r"\\[a-z(\[]|\^|√|π", sentence):
            if NUMBER.search(sentence):
                return
            continue
        if len(sentence) <= MAX_ANSWER:
            yield without_marks(sentence)
        starts = [said.end() for said in _SAID.finditer(sentence)][-8:]
        formulas = [next(filter(None, found.groups())) for found in _FORMULA.finditer(sentence)]
        said = re.search(r"(?i)\b(?:answer|result|solution)s? (?:is|are|=)", sentence)
        if said:
            yield _clause(sentence[said.end() :])
        if formulas:
            yield formulas[-1]
        for start in starts:
            yield _clause(sentence[start:])


def _clause(text: str) -> str:
    formula = _FORMULA.match(text.strip())
    return without_marks(formula[0] if formula else _CLAUSE.split(text, maxsplit=1)[0])


# --- The last number ---------------------------------------------------------------------------------------------

_HEDGE = re.compile(
    r"(?:\s+[A-Za-z]+){0,3}[\s,;:?(\u2013\u2014-]*\b(?:or|no|nope|maybe|perhaps|possibly|alternatively|wait|actually|vs|versus)\b"
    r"(?:[\s,;:?(]|\b(?:or|no|maybe|perhaps|possibly|even|wait|actually|it|is|it's|about|around|rather|i|mean|sorry)\b)*[$*]*"
)
_WHY = re.compile(r"([0-9]\S{0,9}(?: [A-Za-z]+){0,2}) ?\([^()]{0,99}[-+*/×÷=][^()]{0,99}\)[\s.!*]*$")  # 72 (48 + 24)
_ONLY_NUMBERS = re.compile(
    r"(?:[\s,;|&?!().:$%/*-]|\b(?:or|and|either|maybe|perhaps|possibly|no|both|to|between|from)\b)*"
)
_EXCLUDED = re.compile(r"(?i)(?:\bnot|n['’]t|rather than|instead of)\s+(?:(?:be|equal(?: to)?|exactly)\s+)?[*$]*$")
_BEFORE = re.compile(r"(?:\\sqrt\s*(?:\[[0-9]+\])?\s*\{?|√\s*\(?|[0-9)}]\^\{?)$")
_TWO_SIGNS = re.compile(r"(?:±|\\pm|\+/-?)\s*$")  # ±72 is two answers, 72 ± 3 a range
_PERCENT = r"\s*(?:\\?%|percent)"
_AFTER = re.compile(r"\}?\s*(?:\^|\\sqrt|\\pi|√|π)")


def _ends_with(answer: str, text: str, gold: Gold) -> bool:
    """Whether the last number of the answer, or of the text where it has none, is the gold answer, without a hedge."""
    end = next(filter(NUMBER.search, map(_prepared, (answer, text))), "")
    numbers = [found for found in [*NUMBER.finditer(end)][-20:] if _counts(found, end)][-2:]
    if (
        not numbers
        or any(len(found[0]) > 200 for found in numbers)
        or _is_hedge(numbers, end)
        or _AFTER.match(end, numbers[-1].end())
        or _TWO_SIGNS.search(end[: numbers[-1].start()][-30:])
    ):
        return False
    rest = end[numbers[-1].end() :]
    unit = re.match(r"[^\S\n]*\\?[A-Za-z°\\{][^.,;:!?\n]{0,60}", rest)
    assert gold.meaning is not None
    right = same(_scalar(numbers[-1], re.match(_PERCENT, rest) is not None), gold.meaning)
    return right and not _other_unit("", clean(unit[0]) if unit else "", gold)


def _prepared(text: str) -> str:
    """The end of a text, without what explains its last number in brackets."""
    end = _with_fractions(text[-END:])
    shorter = _WHY.sub(r"\1", end)
    return shorter if NUMBER.search(shorter) else end


def _counts(number: re.Match[str], text: str) -> bool:
    """Whether a number may be the answer: not one in `not 72`, in √72 or in 2^72."""
    before = text[max(0, number.start() - 30) : number.start()]
    return not _BEFORE.search(before) and not _EXCLUDED.search(before)


def _is_hedge(numbers: list[re.Match[str]], text: str) -> bool:
    """Whether the last two numbers are two answers: `72 or 71`, `72, no 71`, `71, 72` as the whole answer."""
    if len(numbers) < 2:
        return False
    first, last = numbers
    between, percent = text[first.end() : last.start()], re.match(_PERCENT, text[last.end() :])
    if number_value(first) in (number_value(last), number_value(last) / (100 if percent else 1)):
        return False
    if len(text) <= MAX_ANSWER and _ONLY_NUMBERS.fullmatch(NUMBER.sub("", text).lower()):
        return True
    # no hedges: `Is it 71? No, 72.` and `x = 5x/5, or 20`
    new = re.search(r"[?!.]\s+[A-Z]", between) or re.search(r"[-+*/×÷\u2212\u2013]\s*$", text[: first.start()][-9:])
    return _HEDGE.fullmatch(between.lower()) is not None and not new


def _scalar(number: re.Match[str], percent: bool = False) -> Scalar:
    return Scalar((number_value(number),), percent, len(number["decimals"] or ".") - 1)


def _with_fractions(text: str) -> str:
    r"""1 \frac{1}{2} and 1 1/2 as 3/2; powers of units and the stops of abbreviations removed."""
    text = re.sub(r"\\[dt]?frac\s*(?:\{([0-9]{1,9})\}\s*\{([0-9]{1,9})\}|([0-9])([0-9]))", r" \1\3/\2\4 ", text)
    text = re.sub(
        r"(?<![0-9.,/])([0-9]{1,9})\s+([0-9]{1,9})/([1-9][0-9]{0,8})(?![0-9./])",
        lambda found: (
            f"{int(found[1]) * int(found[3]) + int(found[2])}/{found[3]}"
            if int(found[2]) < int(found[3])
            else found[0]
        ),
        text,
    )
    text = re.sub(r"(?<=[A-Za-z])\.(?=[0-9])", " ", text)  # Rs.5
    return re.sub(r"(?<=[A-Za-z}])\^\{?[-\u2212]?[0-9]+\}?|[²³]", " ", text)
