"""Find the values in a sentence: a value ends where the value reader ends (compare.py).

At each place where one may begin, the longest run of tokens that is read as one value is taken: 48 + 24 = 72, (1, 2),
5 km/h, 4 July 1976. What looks like mathematics and is not read is passed over as a whole, so that none of its numbers
is taken for a value.
"""

from collections.abc import Sequence
from typing import NamedTuple

from exact_answers import nouns, units, words
from exact_answers.compare import remembered
from exact_answers.formulas import FUNCTIONS
from exact_answers.lexicon import vocabulary
from exact_answers.spelled import may_begin, may_go_on, read_spelled
from exact_answers.writing import CLOSING, OPENING, Token, get, tokenize

LONGEST = 40  # tokens of a value in a sentence
MAX_READ = 400  # runs of tokens that are tried in a sentence
MAX_BRACKETS = 8  # that open at one place


class Span(NamedTuple):
    """Tokens that may be a value, from `start` to `end`, and the words after it that it counts, to `after`."""

    start: int
    end: int
    after: int


_SIGNS = {"number", "currency", "percent", "command", "power", "equals", "relation", "operator", "amp"}
_TYPED = (FUNCTIONS | {"pi"}) - {"min", "max", "sec", "log"}  # functions without a backslash
_SPELLING = vocabulary(
    "over out percent per square cubic sq half hundred thousand point base cent degrees squared cubed"
)
_CUTTING = {"newline", "stop", "mark", "arrow", "dots"}
_ENDING = {
    "comma",
    "colon",
    "dash",
    "stop",
    "equals",
    "operator",
    "relation",
    "open",
    "arrow",
    "dots",
}  # no value ends so
_IN_WORDS = set("共个些样定起直般")  # 一共, 一个: no number


def spans(tokens: Sequence[Token]) -> list[Span]:
    """Find all values of a sentence, in order."""
    found: list[Span] = []
    place = tried = 0
    while place < len(tokens):
        if not begins(tokens, place) or _is_pronoun(tokens, place):
            place += 1
            continue
        end, cost = _longest(tokens, place, MAX_READ - tried)
        tried += cost
        if not end and may_begin(tokens[place]):
            after = place + 1 + (tokens[place + 1 : place + 2] != [] and tokens[place + 1].kind == "comma")
            date = tokens[place].low.endswith("day") and after < len(tokens) and begins(tokens, after)
            if not date:
                place += 1
                continue
            end = _longest(tokens, after, MAX_READ)[0] or after  # Monday, July 4, 1976, which was a Sunday
        if not end and tokens[place].kind == "open":
            place += 1
            continue
        end = end or _unread(tokens, place)
        named = tokens[place].kind == "mark" and remembered(tokenize(tokens[place].text)) is None
        after = end if named else nouns.counted(tokens, end)
        found.append(Span(place, end, after))
        place = after
    return found


def is_amount(tokens: Sequence[Token], place: int) -> bool:
    """True if a number in digits is at a place, maybe of money."""
    after = get(tokens, place + 1)
    money = tokens[place].kind == "currency" and after is not None and after.kind == "number"
    return money or tokens[place].kind == "number"


def begins(tokens: Sequence[Token], place: int) -> bool:
    """True if a value may begin at a place."""
    token, after = tokens[place], get(tokens, place + 1)
    match token.kind:
        case "number" | "command" | "equals" | "relation" | "mark":
            return True
        case "currency":
            return after is not None and after.kind != "currency" and begins(tokens, place + 1)
        case "operator" if after is not None and token.text in "-+":
            return (
                after.kind in ("number", "currency", "command")
                or is_letter(tokens, place + 1)
                or after.text in OPENING
            )
        case "operator" if after is not None and token.text == "|":
            return after.glued
        case "open":
            inner = next(
                (at for at in range(place, min(place + MAX_BRACKETS, len(tokens))) if tokens[at].kind != "open"), 0
            )
            return inner > 0 and (begins(tokens, inner) or is_letter(tokens, inner, bracket=True))
        case "han":
            return token.text in units.HAN and not (
                token.text == "一" and after is not None and after.text in _IN_WORDS
            )
        case "word":
            return _word_begins(tokens, place) or may_begin(token)
    return False


def _word_begins(tokens: Sequence[Token], place: int) -> bool:
    token, after = tokens[place], get(tokens, place + 1)
    if token.low in ("minus", "negative"):
        return after is not None and begins(tokens, place + 1)
    if token.low in ("a", "an"):
        amount = after is not None and units.symbol_of(after.text) and get(tokens, place + 2)
        joined = amount and amount.low == "and" and _is_part(tokens, place + 3)  # an hour and a half
        return bool(joined) or (after is not None and after.low in units.LARGE)
    if after is not None and after.kind == "currency" and after.glued:
        return token.low in units.COUNTRIES
    return token.low in units.CARDINALS or token.low == "half" or token.low in _TYPED or is_letter(tokens, place)


def _is_part(tokens: Sequence[Token], place: int) -> bool:
    """True for a half, a quarter."""
    after = get(tokens, place + 1)
    return place < len(tokens) and tokens[place].low in ("a", "an") and after is not None and after.low in units.PARTS


def _is_pronoun(tokens: Sequence[Token], place: int) -> bool:
    """True for the one, this one, one of them, one who."""
    if tokens[place].low != "one":
        return False
    before, after = (get(tokens, place + step) for step in (-1, 1))
    if after is not None and after.low == "and" and _is_part(tokens, place + 2):
        return False  # one and a half
    if after is not None and (after.low in units.LARGE or after.low in units.PARTS or after.text == "-"):
        return False
    return (before is not None and before.low in words.DETERMINERS) or (
        after is not None and after.low in words.AFTER_ONE
    )


_NEXT_TO_VARIABLE = {
    "\\in",
    "\\approx",
    "\\le",
    "\\ge",
    "\\ne",
    "\\leq",
    "\\geq",
    "\\neq",
    "\\cdot",
    "\\times",
    "\\cup",
}


def is_letter(tokens: Sequence[Token], place: int, bracket: bool = False) -> bool:
    """True for a letter that is a variable: a sign of mathematics is next to it."""
    token, before, after = tokens[place], get(tokens, place - 1), get(tokens, place + 1)
    two = token.glued and before is not None and before.kind != "open"  # 2ab, but not (no, …)
    if token.kind != "word" or len(token.text) > 1 + two:
        return False
    signs = ("operator", "number", "command", "power", "close")
    if token.glued and before is not None and before.kind in signs and before.text != "$":
        return True
    if after is None:
        return False
    if after.kind in ("power", "equals", "relation") or after.text in _NEXT_TO_VARIABLE:
        return True
    if after.kind == "operator":
        return after.text != "!"
    return (after.kind in ("open", "quote") and after.glued) or (bracket and after.text in (",", ")"))


def _longest(tokens: Sequence[Token], start: int, limit: int) -> tuple[int, int]:
    """Return the end of the longest value that begins at a place, 0 without one, and how many runs were read."""
    if tokens[start].kind == "mark":
        return start + 1, 0
    tried = 0
    for end in range(_reach(tokens, start), start, -1):
        if not _may_end(tokens, start, end):
            continue
        tried += 1
        if tried > limit:
            return 0, tried
        run = tokens[start:end]
        if remembered(run) is not None or remembered(_without_nouns(run)) is not None:
            return end, tried
    return 0, tried


def _reach(tokens: Sequence[Token], start: int) -> int:
    """Return the place behind the last token that a value from a place on may have."""
    place, end = start, min(len(tokens), start + LONGEST)
    depth = 0
    solved = amount = False  # 3 + 4 = 7, after which a comma begins something else
    while place < end:
        token = tokens[place]
        if token.kind in _CUTTING or (
            place > start and depth <= 0 and (token.low in words.COPULAS or _ends(tokens, place))
        ):
            break
        depth += (token.text in OPENING) - (token.text in CLOSING)
        if depth <= 0 and place > start and (token.kind == "comma" or token.low in words.JOINING or token.text == ";"):
            after = place + 1 + (tokens[place + 1 : place + 2] != [] and tokens[place + 1].low in words.JOINING)
            goes_on = after < len(tokens) and (begins(tokens, after) or _is_part(tokens, after))
            if solved or not goes_on or tokens[after].kind == "equals":
                break
        amount = amount or token.kind in ("number", "currency")
        solved = solved or (amount and token.kind == "equals")
        place += 1
    return place


def _ends(tokens: Sequence[Token], place: int) -> bool:
    """True for a word of no value: it is no unit, no part of a number, and no noun before a sign."""
    token = tokens[place]
    if token.kind != "word" or token.glued or len(token.text) < 3 or token.low in _TYPED | {"and"} | words.OR:
        return False
    number = token.low in units.CARDINALS or token.low in units.PARTS or token.low.removesuffix("s") in units.SCALES
    if number or token.text in units.SCALES or units.symbol_of(token.text) or may_go_on(token):
        return False
    after = get(tokens, nouns.counted(tokens, place))
    noun = nouns.is_counted(token) and after is not None and after.kind in ("operator", "equals", "command")
    return not (noun or token.low in _SPELLING)


def _may_end(tokens: Sequence[Token], start: int, end: int) -> bool:
    """True if no sign or word at the end of a run, or after it, says that the value goes on or ended before."""
    last, after = tokens[end - 1], get(tokens, end)
    depth = sum((token.text in OPENING) - (token.text in CLOSING) for token in tokens[start:end])
    if depth != 0 and tokens[start].text not in ("]", "[") and not any(t.text == "[" for t in tokens[start:end]):
        return False
    if (last.kind in _ENDING and last.text != "!") or last.low in words.GOING_ON:
        return False
    noun = last.kind == "word" and nouns.counted(tokens[:end], end - 1) == end
    number = last.low in units.SCALES or last.low in units.CARDINALS or last.low in units.PARTS
    if noun and not (number or units.symbol_of(last.text) or read_spelled(tokens[start:end])):
        return False  # a counted noun is not a part of the value
    if after is None:
        return True
    if last.low == "in" and after.kind in ("word", "number"):
        return False  # $12 in change
    divides = any(token.low in units.OVER for token in tokens[start:end])
    if after.kind == "equals" or (divides and after.kind not in ("comma", "close")):
        return False  # 48 + 24 = 73 = 72; 4 in 9 boxes
    ratio = (
        after.kind == "colon" and end + 1 < len(tokens) and tokens[end + 1].glued and tokens[end + 1].kind == "number"
    )
    return not ratio and not (after.glued and after.kind in _SIGNS - {"operator"})


def _without_nouns(tokens: Sequence[Token]) -> list[Token]:
    """Drop the words that numbers count before a sign: 100 rooms - 10 rooms = 90."""
    kept, place = [], 0
    while place < len(tokens):
        kept.append(tokens[place])
        place += 1
        after = nouns.counted(tokens, place) if kept[-1].kind in ("number", "close", "percent") else place
        sign = get(tokens, after)
        if after > place and sign is not None and sign.kind in ("operator", "equals", "command"):
            place = after
    return kept


def _unread(tokens: Sequence[Token], start: int) -> int:
    """Return the end of what looks like a value and is none."""
    place, depth = start, 0
    while place < len(tokens):
        token = tokens[place]
        depth += (token.text in OPENING) - (token.kind == "close")
        letter = token.kind == "word" and len(token.text) <= 2
        letter = letter or (
            token.kind == "colon" and token.glued and place + 1 < len(tokens) and tokens[place + 1].glued
        )
        if not (depth > 0 or letter or token.kind in _SIGNS or token.kind == "close"):
            break
        place += 1
    return max(place, start + 1)
