"""Find the values in a sentence: which tokens belong together, such as 48 + 24 = 72 clips."""

from collections.abc import Sequence
from typing import NamedTuple

from exact_answers import units, words
from exact_answers.amounts import read_unit
from exact_answers.formulas import FUNCTIONS
from exact_answers.writing import CLOSING, OPENING, Token, get

MAX_SPAN = 150  # tokens of a value
MAX_BRACKETS = 8  # that open at one place


class Span(NamedTuple):
    """Tokens that may be a value, from `start` to `end`, and the words after it that it counts, to `after`."""

    start: int
    end: int
    after: int


_SIGNS = {"number", "currency", "percent", "command", "power", "equals", "relation", "amp"}
_TYPED = (FUNCTIONS | {"pi"}) - {"min", "max", "sec", "log"}  # functions without a backslash
_JOINING = words.OR | {"and", "to"}
_IN_WORDS = set("共个些样定起直般")  # 一共, 一个: no number


def spans(tokens: Sequence[Token]) -> list[Span]:
    """Find all values of a sentence, in order."""
    found, place = [], 0
    while place < len(tokens):
        if begins(tokens, place) and not _is_pronoun(tokens, place):
            end = _end(tokens, place)
            after = words.counted(tokens, end)
            found.append(Span(place, end, after))
            place = max(after, place + 1)
        else:
            place += 1
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
        case "number" | "command" | "equals" | "relation":
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
            return _word_begins(tokens, place)
    return False


def _word_begins(tokens: Sequence[Token], place: int) -> bool:
    token, after = tokens[place], get(tokens, place + 1)
    if token.low in ("minus", "negative"):
        return after is not None and begins(tokens, place + 1)
    if token.low in ("a", "an"):
        return after is not None and after.low in units.LARGE
    if after is not None and after.kind == "currency" and after.glued:
        return token.low in units.COUNTRIES
    return token.low in units.CARDINALS or token.low == "half" or token.low in _TYPED or is_letter(tokens, place)


def _is_pronoun(tokens: Sequence[Token], place: int) -> bool:
    """True for the one, this one, one of them, one who."""
    if tokens[place].low != "one":
        return False
    before, after = (get(tokens, place + step) for step in (-1, 1))
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


def _end(tokens: Sequence[Token], start: int) -> int:
    """Return the end of the value that begins at a place."""
    place, depth = start + 1, int(tokens[start].text in OPENING)
    while place < min(len(tokens), start + MAX_SPAN):
        token = tokens[place]
        if token.text in OPENING:
            taken = _opens(tokens, place, depth)
        elif token.text in CLOSING:
            taken = int(depth > 0)
        else:
            taken = _taken(tokens, start, place, depth)
        if not taken:
            break
        depth += (token.text in OPENING) - (token.text in CLOSING)
        place += taken
    while place > start + 1 and (
        tokens[place - 1].kind in ("comma", "colon", "dash") or tokens[place - 1].low in _JOINING
    ):
        place -= 1
    return place


def _opens(tokens: Sequence[Token], place: int, depth: int) -> int:
    """Take an opening bracket, unless it begins a remark: 72 (in words)."""
    before, after = tokens[place - 1], get(tokens, place + 1)
    if depth or tokens[place].kind == "command":
        return 1
    if after is None or not (begins(tokens, place + 1) or (after.kind == "word" and len(after.text) == 1)):
        return 0
    goes_on = before.kind in ("operator", "equals", "command", "comma", "relation")
    return int(goes_on or tokens[place].glued)


def _taken(tokens: Sequence[Token], start: int, place: int, depth: int) -> int:
    """Return how many tokens continue a value, 0 if it ends here."""
    token, before, after = tokens[place], tokens[place - 1], get(tokens, place + 1)
    if token.kind in _SIGNS:
        return 1
    if token.kind in ("operator", "power"):
        return _operator(token, after)
    if token.low in units.OVER and (taken := _divides(tokens, place, len(units.OVER[token.low]))):
        return taken
    if token.kind in ("comma", "colon", "dash") or token.text == ";" or token.low in _JOINING:
        return _joint(tokens, start, place, depth)
    if token.kind == "quote" and token.glued:
        return 1
    if token.kind == "abbreviation":
        return int(token.low in ("a.m.", "p.m."))
    if token.kind == "han":
        return _scale_or_unit(tokens, place) or int(token.text in units.HAN and before.kind == "han")
    return _word(tokens, place, depth) if token.kind == "word" else 0


def _operator(token: Token, after: Token | None) -> int:
    """Take a sign; not the hyphen of 10-year-old; of $5/day take the day, too."""
    glued_word = after is not None and token.glued and after.glued and after.kind == "word" and len(after.text) > 1
    if not glued_word or (after is not None and after.low in units.CARDINALS):
        return 1
    if token.text == "-":
        return int(after is not None and (len(after.text) == 2 or after.low in units.PARTS))
    return 2 if token.text == "/" else 1


def _joint(tokens: Sequence[Token], start: int, place: int, depth: int) -> int:
    """Take a comma, a colon, "and", "or" or "to" between two values; and not after 3 + 4 = 7."""
    token, before, after = tokens[place], tokens[place - 1], get(tokens, place + 1)
    taken = 1
    if token.kind == "comma" and after is not None and after.low in words.OR | {"and"}:
        taken, after = 2, get(tokens, place + 2)
    if token.kind in ("colon", "dash") or token.low == "to":
        return int(before.kind == "number" and after is not None and after.kind == "number")
    if depth:
        return taken
    if (
        after is None
        or not begins(tokens, place + taken)
        or after.kind == "equals"
        or _is_solved(tokens, start, place)
    ):
        return 0
    return 0 if token.kind == "comma" and before.kind == "word" and len(before.text) > 1 else taken


def _divides(tokens: Sequence[Token], place: int, size: int) -> int:
    """Take the words of 4 out of 9, which ends its clause."""
    before, end = tokens[place - 1], place + size
    if not (_is_whole(before) and end < len(tokens) and _is_whole(tokens[end])):
        return 0
    while end < len(tokens) and (_is_whole(tokens[end]) or tokens[end].text == "-"):
        end += 1
    ends = end == len(tokens) or tokens[end].kind in ("comma", "close")
    return size if ends and not (tokens[place].low == "in" and len(tokens[end - 1].text) == 4) else 0


def _is_whole(token: Token) -> bool:
    return token.text.isdigit() or token.low in units.CARDINALS


def _is_solved(tokens: Sequence[Token], start: int, end: int) -> bool:
    """True if a value so far is a whole equation such as 3 + 4 = 7, after which a comma begins something else."""
    equals = next((place for place in range(start, end) if tokens[place].kind == "equals"), start)
    return any(tokens[place].kind in ("number", "currency") for place in range(start, equals))


def _word(tokens: Sequence[Token], place: int, depth: int) -> int:
    """Take a scale, a unit, a variable, more of a number in words, or words before a sign: 8 pages * 3."""
    token, before, after = tokens[place], tokens[place - 1], get(tokens, place + 1)
    if before.kind in ("number", "percent", "close", "currency", "word", "han", "command", "power") and (
        taken := _scale_or_unit(tokens, place)
    ):
        return taken
    if token.low == "x" and before.kind == "number":
        return int(token.glued or (after is not None and after.kind in ("number", "currency", "open")))
    if is_letter(tokens, place, bracket=depth > 0) or (depth and len(token.text) == 1):
        return 1
    signs = ("operator", "power", "relation", "equals", "command", "close")
    if len(token.text) == 1 and token.low != "a" and before.kind in signs:
        return 1
    if token.low in _TYPED and before.kind in ("operator", "number", "equals", "close"):
        return 1
    if token.low in units.CARDINALS or token.low in units.PARTS:
        return int(before.kind in ("word", "number", "equals") or before.text == "-")
    return _words_before_sign(tokens, place) if before.kind in ("number", "close", "word") else 0


def _scale_or_unit(tokens: Sequence[Token], place: int) -> int:
    """Return how many tokens are a scale, a percent word or a unit with which a number goes on."""
    token, after = tokens[place], get(tokens, place + 1)
    if token.low in ("score", "cent", "grand"):
        pass
    elif token.text in units.SCALES or (
        len(token.text) > 2 and units.SCALES.keys() & {token.low, token.low.removesuffix("s")}
    ):
        return 1
    if token.low in ("percent", "prozent", "am", "pm") or (token.glued and token.text in units.LETTER_SCALES):
        return 1
    if token.low == "per" and after is not None and after.low == "cent":
        return 2
    unit, end = read_unit(tokens, place)
    return end - place if unit else 0


def _words_before_sign(tokens: Sequence[Token], place: int) -> int:
    """Return how many words come before the next sign, at most four: 8 red pages * 3 minutes = 24 minutes."""
    if tokens[place].low in words.NOT_COUNTED:
        return 0
    for ahead in range(place + 1, min(place + 5, len(tokens) - 1)):
        token, after = tokens[ahead], tokens[ahead + 1]
        if token.kind == "equals" or (token.kind == "operator" and token.text in "*+-/"):
            if token.kind == "operator" and token.text in "-/" and token.glued and after.glued:
                return 0  # 5 pastries/day
            return ahead - place
        if token.kind != "word" or token.low in words.NOT_COUNTED:
            return 0
    return 0
