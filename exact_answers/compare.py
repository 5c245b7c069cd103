r"""Read a value of any type from tokens, and decide whether two are the same.

Types: an amount (a number with its unit), an expression, a tuple, set, list, interval, union or matrix, a relation or
equation, and what has one spelling (spelled.py): a date, a time, an ordinal, a number in another base, a ratio or a
range. A text that is none has no value.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from exact_answers import formulas, nouns, units, words
from exact_answers.amounts import Number, read_amount, read_unit
from exact_answers.formulas import Node, Value
from exact_answers.lexicon import vocabulary
from exact_answers.spelled import Text, read_spelled
from exact_answers.units import Unit
from exact_answers.writing import CLOSING, OPENING, Token, get, normalize, tokenize

MAX_LENGTH, MAX_TOKENS = 400, 150  # characters and tokens of a value
MAX_PARTS = 24  # of a list, a tuple or a matrix


class Expression(NamedTuple):
    node: Node
    unit: Unit = ()


class Several(NamedTuple):
    """The parts of a tuple, an interval, a set, a list, a union, a matrix or a relation; infinity has none."""

    kind: str  # both brackets, or a sign; empty for a list
    parts: tuple["Meaning | None", ...] = ()


class Equation(NamedTuple):
    """An equation: the difference of its sides; with a name and its value for `x = 5` and `f(x) = 2x`.

    m + n = 73 has a value without a name: as an answer it is also 73, but 73 is not the line x + y = 73.
    """

    difference: Node | None
    name: str = ""
    value: "Meaning | None" = None


class Either(NamedTuple):
    """A text with two meanings, such as 1,5 or 5m."""

    readings: tuple["Meaning | None", ...]


Meaning = Number | Expression | Several | Equation | Either | Text

# --- Reading ------------------------------------------------------------------------------------------------------

_SKIPPED = {"\\(", "\\)", "\\[", "\\]", "\\text", "\\mathrm", "\\boxed", "\\fbox", "\\"}
_NAMING = {"\\det", "\\overline", "\\angle", "\\vec", "\\lim", "\\int", "\\sum", "\\prod", "\\hat", "\\bar", "\\max"}
_NAMING |= {"\\triangle", "\\measuredangle", "\\operatorname", "\\Pr", "\\gcd", "\\lcm", "\\iint", "\\mathbb"}
_COMMANDS = formulas.FUNCTIONS | formulas.SYMBOLS | {command[1:] for command in _NAMING}
_COMMANDS |= vocabulary(
    "pi frac binom pm mp approx cdot times div bmod cup cap in infty begin over choose lfloor lceil"
)
_RELATIONS = {"\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">="}
_RELATIONS |= {"\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "!=": "!=", "=<": "<="}
_RELATIONS |= {sign: sign for sign in ("<", ">", "<=", ">=")}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_PAIRS = {"(": "()", "[": "[]", "\\{": "{}", "{": "{}", "\\langle": "()"}
INFINITY, MINUS_INFINITY = Several("infinity"), Several("-infinity")


@functools.lru_cache(maxsize=2**13)  # a whole group is compared with the same gold answer
def read(text: str) -> Meaning | None:
    """Read a text that is one value; None for any other text, and for one that is too long."""
    if len(text) > MAX_LENGTH:
        return None
    return None if "\n" in text.strip() else read_tokens(tokenize(normalize(text)))


def read_tokens(tokens: Sequence[Token]) -> Meaning | None:
    """Read tokens that are one value; None for any other."""
    if not 0 < len(tokens) <= MAX_TOKENS:
        return None
    try:
        return _read(undecorated(tokens))
    except (formulas.NotRead, RecursionError):
        return None


def remembered(tokens: Sequence[Token]) -> Meaning | None:
    """Read tokens that are one value; a run that was read before is looked up."""
    return _read_again(tuple((token.kind, token.text, token.glued, token.low) for token in tokens))


@functools.lru_cache(maxsize=2**14)
def _read_again(run: tuple[tuple[str, str, bool, str], ...]) -> Meaning | None:
    return read_tokens([Token(kind, text, 0, 0, glued, low) for kind, text, glued, low in run])


def read_display(tokens: Sequence[Token]) -> Meaning | None:
    r"""Read a display of several lines: its last line, or the values of all of its names; None for other tokens.

    2x = 12, x = 6 is 6; x = 1, y = 2 is (1, 2); and x = 6, x = 7 are two values.
    """
    kept = [token for token in tokens if token.kind != "bold"]
    while kept and kept[-1].kind in ("newline", "stop", "comma"):
        kept.pop()
    signs = [token.text for token in kept if token.text in ("\\[", "\\]")]
    if signs != ["\\[", "\\]"] or kept[0].text != "\\[" or kept[-1].text != "\\]" or len(kept) > MAX_TOKENS:
        return None
    newlines = [place for place, token in enumerate(kept) if token.kind == "newline"]
    lines = [line for part in _cut(kept, newlines) if (line := undecorated(part))]
    if not 1 < len(lines) <= MAX_PARTS:
        return None
    try:
        found = [_read(line) for line in lines]
    except (formulas.NotRead, RecursionError):
        return None
    if None in found or (isinstance(found[-1], Equation) and not found[-1].name):
        return found[-1]
    names = {part.name for part in found[:-1] if isinstance(part, Equation) and part.name}
    if names and names <= {token.text for token in lines[-1]} and not names & {name_of(lines[-1][:1])}:
        return found[-1]  # a = 1, b = 2, c = a + b = 3
    claims = [line for line, part in zip(lines[:-1], found, strict=False) if not _is_step(line, part)] + lines[-1:]
    return found[-1] if len(claims) == 1 else _list(claims, alternatives=False)


def _is_step(tokens: Sequence[Token], meaning: Meaning | None) -> bool:
    """True for a line of a display that names no value: 2x = 12, 5 * 3 = 15."""
    named = isinstance(meaning, Equation) and meaning.name
    return not named and any(token.kind == "equals" for token in tokens)


def is_formula(tokens: Sequence[Token]) -> bool:
    r"""True for what is mathematics and no prose: if it has no value, no part of it is an answer.

    It has a command, a power, a factorial or an index, no word but units and functions, and is no list and no steps.
    """
    kept = undecorated(tokens)
    ends = any(
        token.kind in ("stop", "newline", "arrow", "comma", "colon", "han") and not (token.text == "!" and token.glued)
        for token in kept
    )
    named = (token.text for token in kept if token.kind == "word" and len(token.text) > 1)
    if ends or not all(name in formulas.FUNCTIONS or units.symbol_of(name) for name in named):
        return False
    return any(
        token.kind == "power"
        or (token.kind == "command" and token.text[1:] in _COMMANDS)
        or (token.text in "!_" and token.glued and place < len(kept) - 1)
        for place, token in enumerate(kept)
    )


def undecorated(tokens: Sequence[Token]) -> list[Token]:
    """Drop bold type, delimiters of formulas, quotes around it and a final full stop."""
    kept = [token for token in tokens if token.kind not in ("bold", "newline") and token.text not in _SKIPPED]
    kept = _without_dollars(kept)
    while kept and kept[-1].text in (".", ";", ",", "...", "!") and not (kept[-1].text == "!" and kept[-1].glued):
        kept.pop()
    texts = {token.text for token in kept}
    if len(kept) > 1 and kept[0].text in ("(", "[") and not texts & {")", "]"} and kept[-1].text != "[":
        kept = kept[1:]
    elif len(kept) > 1 and kept[-1].text in (")", "]") and not texts & {"(", "["} and kept[0].text != "]":
        kept = kept[:-1]
    if len(kept) > 2 and kept[0].kind == "quote" and kept[-1].kind == "quote":
        kept = kept[1:-1]
        while kept and kept[-1].text == ".":
            kept.pop()
    return kept


def _without_dollars(tokens: list[Token]) -> list[Token]:
    """Drop dollar signs around formulas, but not those of money."""
    places = [place for place, token in enumerate(tokens) if token.text == "$"]
    dropped: set[int] = set()
    opening: int | None = None
    for place in places:
        before, after = get(tokens, place - 1), get(tokens, place + 1)
        double = before is not None and before.text == "$" and tokens[place].glued
        if opening is not None and double and opening == place - 1:
            dropped |= {place}
        elif opening == 0 and place == len(tokens) - 1 and len(places) == 2:
            dropped |= {opening, place}
        elif opening is not None and tokens[place].glued and not (after and after.kind == "number" and after.glued):
            dropped |= {opening, place}
            opening = None
        elif opening is None and (place - 1 not in dropped or not double):
            opening = place
        elif double:
            dropped.add(place)
        else:
            opening = place
    if opening is not None and opening + 1 < len(tokens) and tokens[opening + 1].kind not in ("number", "operator"):
        dropped.add(opening)
    return [token for place, token in enumerate(tokens) if place not in dropped]


def _read(tokens: list[Token]) -> Meaning | None:
    if not tokens:
        return None
    if (spelled := read_spelled(tokens)) is not None:
        digits = spelled.text.removesuffix("_10")
        return spelled if digits == spelled.text else Number(formulas.numeral(digits))
    if (amount := _amount(tokens)) is not None:
        return amount
    texts = [token.text for token in tokens]
    if texts[0] in ("\\approx", "~"):
        return _read(tokens[1:])
    if signs := [place for place, text in enumerate(texts) if text == "\\approx"]:
        return _approximated([_read(part) for part in _cut(tokens, signs)])
    if "\\cup" in texts or "U" in texts[1:-1]:
        signs = [place for place, text in enumerate(texts) if text in ("\\cup", "U")]
        parts = _cut(tokens, signs)
        if all(part and part[0].text in OPENING | {"\\mathbb", "]"} for part in parts):
            return Several("union", tuple(map(_read, parts)))
    if texts[0] == "\\mathbb" and texts[1:] in (["{", "R", "}"], ["R"]):
        return Several("open", (MINUS_INFINITY, INFINITY))
    if infinity := _infinity(texts):
        return infinity
    if "\\in" in texts[1:2]:
        inside = _read(tokens[2:])
        named = isinstance(inside, Several) and inside.kind == "()"
        return inside._replace(kind="open") if named and isinstance(inside, Several) else inside
    if (texts[0] == "]" and texts[-1] in ("[", "]")) or texts[0] == "[" == texts[-1]:  # ]0, 1[ is (0, 1)
        ends = _split(tokens[1:-1])
        return (
            _interval(_read(ends[0]), _read(ends[1]), (texts[0] == "[", texts[-1] == "]")) if len(ends) == 2 else None
        )
    if matrix := _matrix(tokens):
        return matrix
    if "\\pm" in texts or "\\mp" in texts:
        return _both_signs(tokens)
    alternatives = any(token.low in words.OR for token in tokens)
    outside = {place for place, _ in _outside(tokens)} if "\\begin" in texts else range(len(tokens))
    joined = [
        token._replace(kind="comma", text=",") if place in outside and _joins(token) else token
        for place, token in enumerate(tokens)
    ]
    parts = _split(joined)
    if len(parts) > 1:
        return _list(parts, alternatives)
    if signs := [place for place, text in _outside(tokens) if text in _RELATIONS]:
        return _relation(_cut(tokens, signs), [_RELATIONS[texts[place]] for place in signs])
    if equals := [place for place, text in _outside(tokens) if tokens[place].kind == "equals"]:
        return _equation(_cut(tokens, equals))
    if texts[0] in OPENING | {"]"} and texts[-1] in CLOSING | {"["} and encloses(tokens):
        within = _split(tokens[1:-1])
        kind = _PAIRS.get(texts[0], "]")[0] + {"\\rangle": ")", "\\}": "}"}.get(texts[-1], texts[-1])
        if 1 < len(within) <= MAX_PARTS:
            kind = {"][": "open", "[[": "[)", "]]": "(]"}.get(kind, kind)
            read_part = _member if kind == "{}" else _read
            return Several(kind, tuple(read_part(part) if part else None for part in within))
        if texts[0] == "\\{":
            if (built := _set_builder(within[0])) is not None:
                return built
            member = _member(within[0])
            nested = isinstance(member, Several) and member.kind in ("{}", "empty")
            return Several("{}", (member,)) if nested else member if within[0] else Several("empty")
        if texts[0] in ("(", "[") and within[0] and (bracketed := _read(within[0])) is not None:
            return bracketed
    if texts in (["\\emptyset"], ["\\varnothing"], ["{", "}"]):
        return Several("empty")
    return _expression(tokens)


def _approximated(values: list[Meaning | None]) -> Meaning | None:
    r"""Return the exact value of 5/12 \approx 0.417; None if what follows is no rounding of it."""
    for exact, number in itertools.pairwise(values):
        one, other = _value(exact), _value(number)
        if not isinstance(one, Number | Expression) or not isinstance(other, Number):
            return None
        if other.percent and not (isinstance(one, Number) and one.percent):
            other = other._replace(value=other.value / 100, decimals=other.decimals + 2, percent=False)
        if not same(other, one) and not (units.agree(other.unit, one.unit) and is_rounding(other, one)):
            return None
    return values[0]


def _joins(token: Token) -> bool:
    return token.low in words.JOINING


def _cut(tokens: list[Token], places: Sequence[int]) -> list[list[Token]]:
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(tokens)]
    return [tokens[start:end] for start, end in zip(starts, ends, strict=True)]


def _outside(tokens: Sequence[Token]) -> Iterable[tuple[int, str]]:
    """Yield places and texts outside of brackets."""
    depth = 0
    for place, token in enumerate(tokens):
        depth -= token.text in CLOSING or token.text == "\\end"
        if depth <= 0:
            yield place, token.text
        depth += token.text in OPENING or token.text == "\\begin"


def _split(tokens: list[Token]) -> list[list[Token]]:
    """Split at commas and semicolons outside of brackets; an empty part between two of them is dropped."""
    places = [place for place, text in _outside(tokens) if text in (",", ";")]
    parts = _cut(tokens, places)
    return [part for part in parts if part] if len(parts) > 1 and parts[0] and parts[-1] else [tokens]


def encloses(tokens: Sequence[Token]) -> bool:
    """True if the first bracket is closed by the last."""
    depth = 0
    for place, token in enumerate(tokens):
        if 0 < place < len(tokens) - 1:
            depth += (token.text in OPENING) - (token.text in CLOSING)
        else:
            depth += 1 if place == 0 else -1  # also of ]0, 1[
        if depth == 0:
            return place == len(tokens) - 1
    return False


def _amount(tokens: list[Token]) -> Meaning | None:
    """Read a number with its unit, or with the words that it counts."""
    if tokens[0].low in ("a", "an") and len(tokens) > 1 and units.size_of(((units.symbol_of(tokens[1].text), 1),)):
        tokens = [tokens[0]._replace(kind="number", text="1", low="1"), *tokens[1:]]  # an hour and a half
    if tokens[0].text == "(" and tokens[-1].text == ")" and encloses(tokens) and len(tokens) < 8:
        inner = _amount(tokens[1:-1]) if len(tokens) > 2 else None
        return inner if isinstance(inner, Number) and not inner.comma else None
    read = read_amount(tokens)
    if read is None:
        return None
    number, end = read
    rest = tokens[end:]
    if not rest:
        if number.comma and not number.unit and not number.percent:
            comma = next(place for place, token in enumerate(tokens) if token.text == ",")
            return Either((number, Several("", (_read(tokens[:comma]), _read(tokens[comma + 1 :])))))
        if tokens[-1].text in units.LETTER_SCALES and tokens[-1].glued:  # 3k
            return Either((number, _expression(tokens, ambiguous=True)))
        if len(tokens) > 1 and tokens[-1].glued and tokens[-1].text in units.SHORT and len(number.unit) == 1:
            return Either((_expression(tokens, ambiguous=True), number))  # 5m
        return number
    if len(rest) == 1 and rest[0].text in units.LETTER_UNITS and not (rest[0].glued or number.unit or number.percent):
        return Either((number._replace(unit=((rest[0].text, 1),)), _expression(tokens, ambiguous=True)))  # 500 K
    if nouns.are_counted(rest, tokens[:end]):
        rate = rest[0].low in ("each", "every", "per") and len(rest) > 1
        if rate and (below := units.read_unit(" ".join(token.text for token in rest[1:]))):
            return number._replace(unit=tuple(sorted([*number.unit, *((name, -power) for name, power in below)])))
        if number.unit:
            return number
        return number._replace(unit=units.read_unit(" ".join(token.text for token in rest)))
    if rest[0].text == "(" and rest[-1].text == ")" and encloses(rest):  # 72 (seventy-two)
        inside = _read(rest[1:-1]) if len(rest) > 2 else None
        return number if inside is not None and same(inside, number) else None
    return None


def _member(tokens: list[Token]) -> Meaning | None:
    r"""Read a member of a set; \{5\} is no 5 there."""
    meaning = _read(tokens)
    is_set = bool(tokens) and tokens[0].text == "\\{" and encloses(tokens)
    if is_set and not (isinstance(meaning, Several) and meaning.kind in ("{}", "empty")):
        return Several("{}", (meaning,))
    return meaning


def _set_builder(tokens: list[Token]) -> Several | None:
    r"""Read x | x > 4, of all real numbers x, as an interval."""
    texts = [token.text for token in tokens]
    bar = next((place for place, text in enumerate(texts[:7]) if text in ("|", ":")), 0)
    if not bar or not _is_variable(texts[0]) or "".join(texts[1:bar]) not in ("", "\\in\\mathbb{R}", "\\inR"):
        return None
    condition = _read(tokens[bar + 1 :])
    relation = any(text in _RELATIONS for text in texts[bar:]) and texts[0] in texts[bar:]
    return condition if relation and isinstance(condition, Several) and len(condition.parts) == 2 else None


def _infinity(texts: list[str]) -> Several | None:
    sign = texts[0] if texts[0] in ("+", "-") or texts[0] in ("negative", "minus") else ""
    if texts[1 if sign else 0 :] in (["\\infty"], ["inf"], ["infinity"], ["\\inf"], ["Infinity"]):
        return INFINITY if sign in ("", "+") else MINUS_INFINITY
    return None


def _both_signs(tokens: list[Token]) -> Meaning | None:
    places = [place for place, token in enumerate(tokens) if token.text in ("\\pm", "\\mp")]
    if len(places) > 1:
        return None
    if (equals := next((place for place, token in enumerate(tokens) if token.kind == "equals"), None)) is not None:
        tokens = tokens[equals + 1 :]
        places = [place for place, token in enumerate(tokens) if token.text in ("\\pm", "\\mp")]
        if not places:
            return None
    before, sign, after = tokens[: places[0]], tokens[places[0]], tokens[places[0] + 1 :]
    found = []
    for text in "+-":
        signed = [
            *before,
            *([] if text == "+" and not before else [sign._replace(kind="operator", text=text)]),
            *after,
        ]
        found.append(_read(signed))
    return Several("", tuple(found))


_MATRICES = {"pmatrix", "bmatrix", "matrix", "smallmatrix", "array", "Bmatrix"}


def _matrix(tokens: list[Token]) -> Several | None:
    r"""Read \begin{pmatrix} … \end{pmatrix}, or [[1, 2], [3, 4]]; a single row or column is also a tuple."""
    texts = [token.text for token in tokens]
    if "\\begin" in texts[:2]:
        if texts[0] + texts[-1] in ("()", "[]", "{}", "\\{\\}"):
            tokens, texts = tokens[1:-1], texts[1:-1]
        if len(texts) < 9 or texts[:2] != ["\\begin", "{"] or texts[-4:-2] != ["\\end", "{"]:
            return None
        name, end = texts[2], len(texts) - 4
        if texts.index("\\end") != end or texts[-1] != "}" or name not in _MATRICES or texts[end + 2] != name:
            return None
        start = 4
        if name == "array" and texts[4] == "{":
            start = texts.index("}", 4) + 1
        body, rows = tokens[start:end], [[[]]]  # type: list[Token], list[list[list[Token]]]
        for token in body:
            if token.text == "\\\\":
                rows.append([[]])
            elif token.text == "&":
                rows[-1].append([])
            else:
                rows[-1][-1].append(token)
        rows = [row for row in rows if row != [[]]]
    elif texts[:2] == ["[", "["] and texts[-2:] == ["]", "]"]:
        rows = []
        for row in _split(tokens[1:-1]):
            if row[0].text != "[" or row[-1].text != "]":
                return None
            rows.append(_split(row[1:-1]))
        if len(rows) < 2:
            return None
    else:
        return None
    if sum(map(len, rows)) > MAX_PARTS:
        return None
    cells = [tuple(_read(cell) if cell else None for cell in row) for row in rows]
    if len(rows) == 1 or all(len(row) == 1 for row in rows):
        return Several("row" if len(rows) == 1 else "column", tuple(cell for row in cells for cell in row))
    return Several("matrix", tuple(Several("row", row) for row in cells))


def _list(parts: list[list[Token]], alternatives: bool) -> Meaning | None:
    """Build a list. x = 1, x = 2 becomes 1, 2; y = 2, x = 1 becomes (1, 2); 1/2, 0.5 becomes 1/2."""
    if len(parts) > MAX_PARTS:
        return None
    found = [_read(part) for part in parts]
    if any(part is None for part in found):
        return None
    if all(same(found[0], part) for part in found[1:]):
        return _stated(found)
    intervals = [
        part for part in found if isinstance(part, Several) and len(part.kind) in (2, 4) and len(part.parts) == 2
    ]
    relations = [any(token.text in _RELATIONS for token in part) for part in parts]
    if all(relations) and len(intervals) == len(found):
        if alternatives:
            return Several("union", tuple(found))
        return _intersection(intervals[0], intervals[1]) if len(found) == 2 else None
    named = [part for part in found if isinstance(part, Equation) and part.name]
    several = {part.name.split("_")[0] for part in named}
    if len(named) == len(found) and len({part.name for part in named}) > 1 and len(several) > 1:
        if alternatives:
            return None  # x = 3 or y = 4 has no meaning
        named.sort(key=lambda part: part.name)
        return Several(f"named {' '.join(part.name for part in named)}", tuple(part.value for part in named))
    first = found[0]
    if isinstance(first, Equation) and first.name and len(named) == 1:  # n = 2, 3, 4
        return Several("{}" if alternatives else "", (first.value, *found[1:]))
    if any(isinstance(part, Equation) and not part.name for part in found):
        return None
    return Several("{}" if alternatives else "", tuple(_value(part) for part in found))


def _value(meaning: Meaning | None) -> Meaning | None:
    return meaning.value if isinstance(meaning, Equation) else meaning


def _interval(low: Meaning | None, high: Meaning | None, closed: tuple[bool, bool]) -> Several:
    kind = "(["[closed[0]] + ")]"[closed[1]]
    return Several("open" if kind == "()" else kind, (low, high))


def _intersection(one: Several, other: Several) -> Several | None:
    """Join x > 1 and x < 3."""
    for first, second in ((one, other), (other, one)):
        if first.parts[1] == INFINITY and second.parts[0] == MINUS_INFINITY:
            return _interval(first.parts[0], second.parts[1], (first.kind[0] == "[", second.kind[-1] == "]"))
    return None


def _relation(sides: list[list[Token]], signs: list[str]) -> Several | None:
    """Turn x < 3 and 1 <= x < 3 into intervals; keep other relations with their signs."""
    if not all(sides):
        return None
    letters = [len(side) == 1 and side[0].kind == "word" and len(side[0].text) == 1 for side in sides]
    if signs[0].startswith(">"):
        sides, letters, signs = sides[::-1], letters[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    values = [None if letter else _read(side) for side, letter in zip(sides, letters, strict=True)]
    if len(sides) == 2 and signs == ["!="] and letters != [True, True] and any(letters):
        value = values[0] or values[1]
        return Several(
            "union", (_interval(MINUS_INFINITY, value, (False, False)), _interval(value, INFINITY, (False,) * 2))
        )
    if len(sides) == 2 and signs[0] in ("<", "<=") and any(letters):
        closed = signs == ["<="]
        if letters[0]:
            return _interval(MINUS_INFINITY, values[1], (False, closed))
        return _interval(values[0], INFINITY, (closed, False))
    texts = [token.text for token in sides[0]]
    absolute = len(sides) == 2 and texts[0] == "|" == texts[-1] and len(texts) == 3 and sides[0][1].kind == "word"
    if absolute and signs[0] in ("<", "<=") and isinstance(values[1], Number) and values[1].value > 0:
        return _interval(values[1]._replace(value=-values[1].value), values[1], (signs == ["<="],) * 2)
    if len(sides) == 3 and letters == [False, True, False] and set(signs) <= {"<", "<="}:
        return _interval(values[0], values[2], (signs[0] == "<=", signs[1] == "<="))
    every = [_read(side) for side in sides]
    return Several("".join(signs), tuple(every)) if None not in every else None


def name_of(tokens: Sequence[Token]) -> str:
    """Return the name on one side of an equation, such as x, x_1, f(x), P(A), AB or Area; "" if it is no name."""
    texts = [token.text for token in tokens]
    if len(texts) > 16:
        return ""
    name = "".join(texts)
    if texts[0] in _NAMING or name.startswith(("m\\angle", "\\frac{d}")) or _DERIVATIVE.fullmatch(name):
        return name
    first = tokens[0]
    symbol = first.kind == "word" or first.text.lstrip("\\") in formulas.SYMBOLS
    if texts[0] == "(" and texts[-1] == ")" and all(map(_is_variable, texts[1:-1:2])):
        return name if len(texts) % 2 and set(texts[2:-1:2]) <= {","} and len(texts) > 3 else ""
    if not symbol or (first.low in formulas.FUNCTIONS and len(first.text) > 1):
        return ""
    rest = texts[1:]
    if first.low in words.PREMISES | words.TRIALS | words.FIRST_PERSON or words.denies_in(t.low for t in tokens):
        return ""  # let x = 5
    if all(token.kind == "word" for token in tokens):
        if words.any_of([token.low for token in tokens], words.OPERATIONS):
            return ""  # x squared = 9
        long = [text for text in texts if len(text) > 1]
        return name if len(texts) == 1 or long == texts or (len(long) >= len(texts) - 1 and len(texts[0]) > 1) else ""
    if rest[:1] == ["_"]:
        rest = rest[rest.index("}") + 1 :] if "{" in rest[:2] and "}" in rest else rest[2:]
    while rest and set(rest[0]) == {"'"}:
        rest = rest[1:]
    if "".join(rest[:5]) == "^{-1}":
        rest = rest[5:]
    if not rest:
        return name
    simple = all(text in (",", "\\cup", "\\cap", "|", "^", "c", "'", "=") or _is_simple(text) for text in rest[1:-1])
    event = all(token.kind == "word" and len(token.text) > 1 for token in tokens[len(tokens) - len(rest) + 1 : -1])
    return name if rest[0] == "(" and rest[-1] == ")" and len(rest) > 2 and (simple or event) else ""


def _is_total(tokens: Sequence[Token]) -> bool:
    """True for a sum or a product of different single letters: m + n, a + b + c, pq."""
    texts = [token.text for token in tokens]
    letters = list("".join(texts[::2])) if set(texts[1::2]) <= {"+"} or set(texts[1::2]) <= {"*", "\\cdot"} else []
    return len(letters) > 1 and len(set(letters)) == len(letters) and all(map(str.isalpha, letters))


_DERIVATIVE = re.compile(r"\\frac\{(?:d|\\partial)[A-Za-z]\}\{(?:d|\\partial)[A-Za-z]\}|d[a-z]/d[a-z]")


def _is_simple(text: str) -> bool:
    return _is_variable(text) or text.replace(".", "").isdigit()


def _is_variable(text: str) -> bool:
    return (text.isalpha() and len(text) == 1) or text.lstrip("\\") in formulas.SYMBOLS


def _equation(sides: list[list[Token]]) -> Meaning | None:
    """Return the common value of equal sides, as in 48 + 24 = 72; else an equation."""
    if sides and not sides[0]:
        sides = sides[1:]  # = 5
    if not all(sides) or not 1 <= len(sides) <= 8:
        return None
    if any(side[-1].kind == "operator" and side[-1].text in "+-*/" for side in sides):
        return None  # x += 5
    if len(sides) == 1:
        return _read(sides[0])
    names = [name_of(side) for side in (sides[0], sides[-1])]
    name = names[0] or (names[1] if len(sides) == 2 else "")
    if name.startswith("(") and sides[0][0].text == "(":
        order = [(token.kind == "command", token.text) for token in sides[0] if _is_variable(token.text)]
        if order != sorted(order):
            return None  # (y, x) = (2, 3) is the point (3, 2)
    others = sides[1:] if names[0] else sides[:-1] if name else sides
    values = [_side(side) for side in others]
    one, other = formulas.parse(sides[0]), formulas.parse(sides[-1])
    difference: Node | None = None
    if one is not None and other is not None and len(sides) == 2:
        difference = ("add", one, ("mul", ("num", Fraction(-1)), other))
    if isinstance(said := values[-1], Expression) and name in formulas.names(said.node):
        return Equation(difference) if difference is not None else None  # x = 2x + 3
    if name and values and values[-1] is not None:
        known = [value for value in values if value is not None]
        if isinstance(values[-1], Number | Expression) and not _varies(values[-1]):
            known = [value for value in known if not _varies(value)]  # A = \pi r^2 = 25\pi
        if None not in values and all(same(known[0], value) for value in known[1:]):
            return Equation(difference, name, _stated(values))
        return None
    if not name and all(value is not None and same(values[-1], value) for value in values):
        return _stated(values)
    if difference is not None and one is not None and other is not None and formulas.equal(one, other):
        return _side(sides[-1])  # 5 m - 3 m = 2 m
    if difference is not None and len(sides) == 2 and _is_total(sides[0]) and isinstance(values[-1], Number):
        return Equation(difference, value=values[-1])
    return Equation(difference) if difference is not None else None


def _stated(values: Sequence[Meaning | None]) -> Meaning | None:
    """Return the last of equal values that is no formula, else the last: 48 + 24 = 72 and 72 = 48 + 24 state 72."""
    return next((value for value in reversed(values) if getattr(value, "formula", 0) is None), values[-1])


def _varies(meaning: Meaning) -> bool:
    return isinstance(meaning, Expression) and bool(formulas.names(meaning.node) - {"i"})


def _side(tokens: list[Token]) -> Meaning | None:
    """Read a side of an equation, where 110-55 is a difference and no range."""
    meaning = _read(tokens)
    return _expression(tokens) if isinstance(meaning, Text) and "-" in meaning.text else meaning


_DEGREES = (["^", "\\circ"], ["^", "{", "\\circ", "}"])


def _expression(tokens: list[Token], ambiguous: bool = False) -> Meaning | None:
    r"""Read an expression, with or without a unit after it: 3\sqrt{2} cm.

    Args:
        ambiguous: of what is also an amount, such as 5m.
    """
    texts = [token.text for token in tokens]
    functions = any(text.lstrip("\\") in formulas.TRIGONOMETRY for text in texts)
    for place in range(0 if ambiguous else 1, 0 if ambiguous else len(tokens)):
        token = tokens[place]
        if texts[place:] in _DEGREES and not functions:
            return _with_unit(tokens[:place], (("degree", 1),))
        if place == len(tokens) - 1 and units.symbol_of(token.text) and _is_scientific(texts[:place]):
            return _with_unit(tokens[:place], units.read_unit(token.text))
        if token.kind == "word" and not token.glued and len(token.text) > 1 and token.low not in _NO_UNITS:
            unit, end = read_unit(tokens, place)
            if unit and end == len(tokens):
                return _with_unit(tokens[:place], unit)
            named = place == 1 and tokens[0].kind == "word"  # I think
            if len(token.text) > 2 and not named and nouns.are_counted(tokens[place:]):
                return _with_unit(tokens[:place], units.read_unit(" ".join(texts[place:])))
    return _with_unit(tokens, ())


def _is_scientific(texts: list[str]) -> bool:
    """True for a × 10^n, after which a letter is a unit."""
    return len(texts) > 3 and texts[1] in ("*", "\\times", "\\cdot", "x") and texts[2:4] == ["10", "^"]


_NO_UNITS = formulas.FUNCTIONS | {"theta", "phi", "pi"}


def _with_unit(tokens: list[Token], unit: Unit) -> Meaning | None:
    percent = tokens[-1].text in ("%", "\\%")
    tokens = [token for token in (tokens[:-1] if percent else tokens) if token.kind != "currency"]
    node = formulas.parse(tokens)
    if node is None:
        return None
    value = formulas.constant(node) if not formulas.names(node) else None
    if isinstance(value, Fraction):
        return Number(value, percent, unit=unit, formula=node)
    if percent:
        return None
    return Expression(node, unit) if value is not None or formulas.names(node) else None


# --- Comparing ----------------------------------------------------------------------------------------------------


def same(answer: Meaning | None, gold: Meaning | None) -> bool:
    """True if two values are equal: sets and lists in any order, equations up to a factor; x = 5 is also 5."""
    if isinstance(answer, Either) or isinstance(gold, Either):
        ones = answer.readings if isinstance(answer, Either) else (answer,)
        others = gold.readings if isinstance(gold, Either) else (gold,)
        if isinstance(gold, Either) and not _is_comma(gold):
            others = others[:1]  # a gold answer 5h is a product
        return any(same(one, other) for one in ones for other in others)
    if isinstance(answer, Equation) and isinstance(gold, Equation):
        if answer.name and answer.name == gold.name:
            return same(answer.value, gold.value)
        if answer.difference is None or gold.difference is None:
            return False
        return formulas.is_multiple(answer.difference, gold.difference)
    if isinstance(gold, Equation) and isinstance(answer, Several | Number | Expression):
        return bool(gold.name) and same(answer, gold.value)
    answer, gold = _value(answer), _value(gold)
    if answer is None or gold is None:
        return False
    if isinstance(answer, Text) or isinstance(gold, Text):
        return answer == gold
    if isinstance(answer, Several) or isinstance(gold, Several):
        return isinstance(answer, Several) and isinstance(gold, Several) and _same_parts(answer, gold)
    if isinstance(answer, Either | Equation) or isinstance(gold, Either | Equation):
        return same(answer, gold)
    if isinstance(answer, Number) and isinstance(gold, Number):
        return _same_number(answer, gold)
    if {answer.unit, gold.unit} == {_DEGREE, _RADIAN}:
        return formulas.equal(_in_radians(answer), _in_radians(gold))
    if not _agree(answer, gold):
        return False
    if isinstance(answer, Number) and _rounds(_constant(gold), answer):
        return True
    if isinstance(gold, Number) and gold.digits > 15 and _rounds(_constant(answer), gold):
        return True
    one, other = (("num", side.value) if isinstance(side, Number) else side.node for side in (answer, gold))
    if any(isinstance(side, Number) and side.percent for side in (answer, gold)):
        return False
    return formulas.equal(one, other)


_DEGREE, _RADIAN = (("degree", 1),), (("rad", 1),)


def _in_radians(angle: Number | Expression) -> Node:
    node = ("num", angle.value) if isinstance(angle, Number) else angle.node
    return ("mul", node, ("pi",), ("num", Fraction(1, 180))) if angle.unit == _DEGREE else node


def _is_comma(either: Either) -> bool:
    return isinstance(either.readings[0], Number)


def same_but_for_unit(answer: Meaning | None, gold: Meaning | None) -> bool:
    """True if two amounts differ in nothing but their units."""
    answer, gold = _value(answer), _value(gold)
    if not isinstance(answer, Number | Expression) or not isinstance(gold, Number | Expression):
        return False
    return answer.unit != gold.unit and same(answer._replace(unit=()), gold._replace(unit=()))


def _agree(answer: Number | Expression, gold: Number | Expression) -> bool:
    """True unless both have a unit, and units differ; radians need none."""
    for one, other in ((answer, gold), (gold, answer)):
        if one.unit == _DEGREE and not other.unit and isinstance(other, Expression) and _has_pi(other.node):
            return False
    return units.agree(answer.unit, gold.unit)


def _has_pi(node: Any) -> bool:
    return isinstance(node, tuple) and (node == ("pi",) or any(map(_has_pi, node)))


def _same_parts(answer: Several, gold: Several) -> bool:
    kinds, one, other = {answer.kind, gold.kind}, answer.parts, gold.parts
    if len(one) != len(other):
        return False
    if kinds <= {"", "{}"} or kinds == {"union"} or (kinds <= {"", "[]"} and len(one) > 2 and len(kinds) == 2):
        return all(any(same(part, item) for item in b) for a, b in ((one, other), (other, one)) for part in a)
    point = next((kind for kind in kinds if kind.startswith("named")), "row")
    alike = len(kinds) == 1 or kinds in ({"", "()"}, {"open", "()"}, {"row", "()"}, {"column", "()"}, {point, "()"})
    alike |= kinds in ({"row", "column"}, {"row", "[]"}, {"column", "[]"}) or kinds == {point, ""}
    return alike and all(map(same, one, other))


def _same_number(answer: Number, gold: Number) -> bool:
    """True if values, and units if both have one, are equal; 50 % is 50 and 1/2, but 0.5 % is not 1/2.

    From 100 % on, a percentage is one number only, the one that is written: 150 % is 150 (or 150 %), and not 1.5.
    """
    if not units.agree(answer.unit, gold.unit):  # 150 minutes are 2.5 hours
        one, other = units.measure_of(answer.unit), units.measure_of(gold.unit)
        return one[0] == other[0] and answer.value * one[1] == gold.value * other[1]
    if answer.percent != gold.percent and (gold.unit if answer.percent else answer.unit):
        return False  # 25 % are not $25
    got, want = answer.value, gold.value
    pairs = [(got, want)] if answer.percent <= gold.percent or abs(want) >= 1 else []
    if answer.percent != gold.percent and not (answer.percent and abs(got) >= 100):
        pairs.append((got / 100, want) if answer.percent else (got, want / 100))
    return any(one == other or gold.is_rounded_to(one) or _rounds(other, answer) for one, other in pairs)


def _constant(meaning: Number | Expression) -> Value | None:
    return meaning.value if isinstance(meaning, Number) else formulas.constant(meaning.node)


def _rounds(value: Value | None, number: Number) -> bool:
    """True for six or more significant digits of a value without a finite decimal: 3.141593 (pi), 0.333333 (1/3)."""
    if value is None or min(number.digits, number.decimals) < 6 or number.decimals > 400:
        return False
    if isinstance(value, Fraction):
        if 10 ** value.denominator.bit_length() % value.denominator == 0:
            return False  # a decimal: 0.1234567 is not 0.123457
    elif value[1].imag:
        return False
    else:
        value = Fraction(str(value[1].real))
    cut = Fraction(int(value * 10**number.decimals), 10**number.decimals)
    return number.value in (round(value, number.decimals), cut) or number.is_rounded_to(value)


def is_rounding(number: Meaning | None, exact: Meaning | None) -> bool:
    """True if a decimal is another value, rounded or cut at its last digit: 0.4167 is 5/12, approximately."""
    number, exact = _value(number), _value(exact)
    if not isinstance(number, Number) or not isinstance(exact, Number | Expression) or number.decimals > 30:
        return False
    value = _constant(exact) if not (isinstance(exact, Expression) and formulas.names(exact.node)) else None
    if value is None or (not isinstance(value, Fraction) and value[1].imag):
        return False
    value = value if isinstance(value, Fraction) else Fraction(str(value[1].real))
    cut = abs(value) - abs(number.value)
    return abs(number.value - value) <= Fraction(1, 2 * 10**number.decimals) or (
        number.value * value > 0 and 0 <= cut * 10**number.decimals < 1
    )
