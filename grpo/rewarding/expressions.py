r"""Mathematics in an answer, as LaTeX or as people type it, and whether two of them mean the same.

`read` turns a text into numbers, lists, sets, tuples, intervals, matrices and relations; `same` compares two of these.
Expressions are not simplified but computed, exactly where they are rational, with their variables at a few fixed
points: so x + 1 is 1 + x, and every judgement takes a time that is bounded by the size of the text, in any thread.
math-verify is the oracle of the tests and no more: its parser takes half a second for `(((((((((1)))))))))`, and only
a clock bounds its simplification.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from grpo.rewarding.calculator import Number, add, all_close, at_points, close, compute, divide, multiply

MAX_LENGTH, MAX_ITEMS, MAX_NESTING = 300, 40, 6  # longer texts are not read


class Scalar(NamedTuple):
    """An expression by its values: one, or with variables those at the fixed points."""

    values: tuple[Number, ...]
    percent: bool = False
    digits: int = 0  # after the point, where it is written as a decimal number
    name: bool = False  # a variable, or f(x)


class Group(NamedTuple):
    """Several: kind is a list, a set, a union, both brackets of a tuple, a matrix's row, its rows, a base."""

    kind: str
    items: tuple["Meaning", ...]


class Relation(NamedTuple):
    """A chain such as 1 < x < 3: one more side than signs."""

    signs: tuple[str, ...]
    sides: tuple["Meaning", ...]


Meaning = Scalar | Group | Relation

# --- Cleaning: one way to write everything ------------------------------------------------------------------------

# fmt: off
_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "∕": "/", "⁄": "/", "∞": r"\infty "}
    | {"π": r"\pi ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∈": r"\in "}
    | {"±": r"\pm ", "⟨": "(", "⟩": ")", "，": ",", "\u00a0": " ", "\u2009": " ", "½": r"\frac{1}{2}"}
    | {"θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "∅": r"\emptyset ", "≈": r"\approx ", "°": r"\degree "}
    | {sign: rf"\frac{{{a}}}{{{b}}}" for sign, a, b in ("⅓13", "⅔23", "¼14", "¾34", "⅕15", "⅛18", "⅙16")}
    | {"∛": r"\sqrt[3] "} | dict.fromkeys("¢€£¥", "")
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_NAMES = "sqrt|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|pi|infinity|infty|inf|theta"
_WORDS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# (pattern, replacement), in this order
_CLEANING: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?<=[0-9])(?:\s*\{,\}\s*|,\s*\\!\s*)(?=[0-9]{3})", ","),
    (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: f"^{{{found[0].translate(_RAISED)}}}"),
    (
        r"(?<!\\)\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|!|;|:|,|q?quad\b|\s)(?![a-z])\.?|\\?~|\{\\rm\b|[`\"]",
        " ",
    ),
    (r"\\[()\[\]]|^\s*\*\*|\*\*\s*$|\\?\$", " "),
    (r"\s+", " "),
    (r"\\mathbb\s*\{?R\}?(?![a-z])|ℝ", r"(-\\infty,\\infty)"),
    (r"\\(?:boxed|fbox|mathbb|mathbf|mathrm|operatorname|boldsymbol|vec)\s*\{([^{}]*)\}", r" \1 "),
    (r"\\(?:text(?:bf|it|rm|normal)?|[mh]box)\s*\{([^{}]*)\}", r" \1 "),
    (r"\s*\^\s*", "^"),
    (r"\\[dtcs](frac|binom)(?![a-z])", r"\\\1"),
    (r"\{([^{}]*)\\over(?![a-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\\(le|ge|ne)(?:q|qslant)?(?![a-z])", r"\\\1 "),
    (r"<=|=<", r"\\le "),
    (r">=", r"\\ge "),
    (r"!=", r"\\ne "),
    (r"\\(?:lt|gt)(?![a-z])", lambda found: "<" if found[0] == r"\lt" else ">"),
    (r"==", "="),
    (r"\\(?:cdot|times|ast)(?![a-z])", "*"),
    (r"\\div(?![a-z])", "/"),
    (r"\\(?:langle|lparen)(?![a-z])", "("),
    (r"\\(?:rangle|rparen)(?![a-z])", ")"),
    (r"\\(?:varnothing|O(?![a-z]))", r"\\emptyset"),
    (r"\\[lr]?vert(?![a-z])", "|"),
    (r"\^\s*\{?\s*\\circ\s*\}?", r"\\degree "),
    (r"\*\*", "^"),
    (r"(?<=[\])}])\s*U\s*(?=[\[({\\])", r"\\cup "),
    (rf"(?<![A-Za-z\\])(?:{_NAMES})(?![A-Za-z])", lambda found: rf"\{found[0].replace('infinity', 'infty')} "),
    (r"(?i)\s*\bper\s?cent(?:age)?\b|\\%", "%"),
    (r"(?i)\s*,?\s*\b(?:and|or)\b\s*", ","),
    (r"(?i)(?<=[0-9])\s*\b(thousand|million|billion|trillion)\b", lambda found: f"*10^{_WORDS[found[1].lower()]}"),
    (r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})(?![A-Za-z0-9.])", r"\1*10^{\2}"),
    (r"\\frac\s*([0-9]|(?<=\s)[a-z])\s*([0-9a-z])", r"\\frac{\1}{\2}"),
    (r"([0-9]*)\.([0-9]*)\\overline\s*\{([0-9]{1,9})\}", lambda found: _repeating(*found.groups())),
    (r"(?<![0-9.^_/}])([0-9]+)\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}", lambda found: _mixed(found)),
    (r"(?<![0-9.^_/}])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])", lambda found: _mixed(found)),
)
# fmt: on
_COMPILED = [(re.compile(pattern), replacement) for pattern, replacement in _CLEANING]


def _mixed(found: re.Match[str]) -> str:
    whole, above, below = found.groups()
    proper = len(above) < 9 and len(below) < 9 and int(above) < int(below)
    return f"({whole}+{above}/{below})" if proper else found[0]


def _repeating(whole: str, digits: str, repeated: str) -> str:
    nines = (10 ** len(repeated) - 1) * 10 ** len(digits[:50])
    value = Fraction(f"{whole or 0}.{digits[:50] or 0}") + Fraction(int(repeated), nines)
    return f"({value})"


@functools.lru_cache(maxsize=2**14)
def clean(text: str) -> str:
    r"""A text as plain LaTeX: no delimiters, spacing, `\text` and boxes; signs, functions and numbers in one way.

    >>> clean(r"$\left(\dfrac12, 2\pi\right)$"), clean("3√2 ≤ x or 1 1/2")
    ('(\\frac{1}{2}, 2\\pi )', '3\\sqrt 2 \\le x,(1+1/2)')
    """
    text = text.translate(_SIGNS)
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".").strip()


# --- Reading -------------------------------------------------------------------------------------------------------

_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx")
_SIGN = re.compile(r"\\?[{}]|[()\[\]]|\\(?:le|ge|ne|in|approx|cup)(?![a-z])|[<>=,;]")
# Words of four letters, words beside other words or numbers: `pi day`, `5 cm`; but not 2xy + ab
_WORD = re.compile(
    r"[A-Za-z]{4,}|[0-9A-Za-z)}?]\s+[A-Za-z]{2,3}(?![A-Za-z])|(?<![A-Za-z])[A-Za-z]{2,3}(?:\s*[0-9]|\s+[A-Za-z])"
    r"|^[A-Za-z]{2,3}$"
)
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z](?:,\s*[A-Za-z])*\))?")  # x, \theta, a_1, f(x)


@functools.lru_cache(maxsize=2**14)
def read(text: str) -> Meaning | None:
    r"""What a short text means, if it is mathematics throughout; None for words, and for what is too large to compute.

    >>> read(r"\frac12"), read("pi day"), read("9^9^9^9")
    (Scalar(values=(Fraction(1, 2),), percent=False, digits=0, name=False), None, None)
    """
    if len(text) > MAX_LENGTH:
        return None
    try:
        return _read(_without_thousands(clean(text)), 0)
    except (ValueError, ArithmeticError, IndexError):
        return None


def _without_thousands(text: str) -> str:
    """Commas between thousands removed; inside brackets only where another comma is followed by a space."""
    if re.search(r"[(\[{]", text) and not re.search(r",\s", text):
        return text
    text = re.sub(r"^-?[0-9]{1,3}(?: [0-9]{3})+$", lambda found: found[0].replace(" ", ""), text)
    return _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)


def _split(text: str, *at: str) -> tuple[list[str], list[str]]:
    """The parts of a text between the given signs outside all brackets, and these signs."""
    depth = start = 0
    parts, signs = [], []
    for found in _SIGN.finditer(text):
        depth += (found[0][-1] in "([{") - (found[0][-1] in ")]}")
        if depth == 0 and found[0] in at:
            parts.append(text[start : found.start()])
            signs.append(found[0])
            start = found.end()
    if len(parts) >= MAX_ITEMS:
        raise ValueError("too many")
    return [*parts, text[start:]], signs


def _read(text: str, depth: int) -> Meaning:
    text = text.strip()
    if depth > MAX_NESTING:
        raise ValueError("too deep")

    def each(texts: Sequence[str]) -> tuple[Meaning, ...]:
        return tuple(_read(one, depth + 1) for one in texts)

    for separator in (";", ","):
        items, _ = _split(text, separator)
        if len(items) > 1:
            return Group("list", each([item for item in items if item.strip()]))
    text = _split(text, r"\in")[0][-1].strip()  # x ∈ [0, 1]
    sides, signs = _split(text, *_RELATIONS)
    if len(sides) == 2 and not sides[0].strip() and signs[0] in ("=", r"\approx"):  # ≈ 72
        return _read(sides[1], depth + 1)
    if signs:
        return Relation(tuple(signs), each(sides))
    sets, _ = _split(text, r"\cup")
    if len(sets) > 1:
        return Group("union", each(sets))
    matrix = re.fullmatch(r"\\begin\s*\{([pb])matrix\}(.*)\\end\s*\{\1matrix\}", text)
    if matrix:
        rows = [row.split("&") for row in matrix[2].split(r"\\") if row.strip()]
        return Group("matrix", tuple(Group("row", each(row)) for row in rows))
    base = re.fullmatch(r"([0-9]+)_\s*\{?\s*([0-9]+)\s*\}?", text)
    if base:
        return Group("base", each(base.groups()))
    bracketed = re.fullmatch(r"(\\?[{(\[])(.*?)(\\?[})\]])", text)
    if text == r"\emptyset" or (bracketed and not bracketed[2].strip()):
        return Group("set", ())
    if bracketed and _is_one_pair(text):
        items, _ = _split(bracketed[2], ",", ";")
        if bracketed[1][-1] == "{" and (len(items) > 1 or bracketed[1] == r"\{"):
            return Group("set", each(items))
        if len(items) > 1:
            return Group(bracketed[1] + bracketed[3], each(items))
        if bracketed[1] + bracketed[3] in ("()", "{}"):
            return _read(bracketed[2], depth + 1)
    if r"\pm" in text:
        return Group("list", each([text.replace(r"\pm", sign, 1) for sign in "+-"]))
    number = text.rstrip("% ")
    if _WORD.search(re.sub(r"\\[A-Za-z]+", "?", number)):
        raise ValueError("words")
    values = compute(number)
    decimals = re.fullmatch(r"-?[0-9]*\.([0-9]+)", number)
    name = len(values) > 1 and _NAME.fullmatch(number) is not None
    return Scalar(values, text != number, len(decimals[1]) if decimals else 0, name)


def _is_one_pair(text: str) -> bool:
    """Whether the first bracket is closed by the last one, unlike in (1)(2)."""
    depths = itertools.accumulate(
        (found[0][-1] in "([{") - (found[0][-1] in ")]}") for found in _SIGN.finditer(text) if found[0][-1] in "()[]{}"
    )
    return [depth > 0 for depth in depths].count(False) == 1


# --- Comparing -----------------------------------------------------------------------------------------------------


def same(answer: Meaning, gold: Meaning) -> bool:
    r"""Whether an answer means what the gold answer means.

    Order counts in tuples, not in lists and sets; (0, 1) may be written without brackets; x = 5 is 5, and x < 3 is
    its interval; 50 % is both 50 and 1/2.

    >>> pairs = ("0.5", r"\frac12"), ("x=5", "5"), ("(2,1)", "(1,2)"), ("2, 1", r"\{1,2\}"), ("x < 3", r"(-\infty,3)")
    >>> [same(read(answer), read(gold)) for answer, gold in pairs]
    [True, True, False, True, True]
    """
    try:
        return _same(answer, gold)
    except ArithmeticError:
        return False


def _same(one: Meaning, other: Meaning) -> bool:
    if isinstance(one, Relation) or isinstance(other, Relation):
        if isinstance(one, Relation) and isinstance(other, Relation):
            return _same_relations(one, other)
        relation, value = (one, other) if isinstance(one, Relation) else (other, one)
        assert isinstance(relation, Relation)
        return _relation_is(relation, value)
    if isinstance(one, Scalar) and isinstance(other, Scalar):
        return _same_scalars(one, other)
    if isinstance(one, Scalar):
        one, other = other, one
    assert isinstance(one, Group)
    if isinstance(other, Scalar):
        if one.kind == "base":
            return _same(one.items[0], other)
        return one.kind in ("list", "set") and len(found := _distinct(one.items)) == 1 and _same(found[0], other)
    kinds = {one.kind, other.kind}
    if kinds <= {"list", "set"} or kinds == {"union"}:
        return _matched(_distinct(one.items), _distinct(other.items), _same)
    ordered = len(kinds) == 1 or kinds == {"list", "()"}
    return ordered and len(one.items) == len(other.items) and all(map(_same, one.items, other.items))


def _matched(ones: Sequence[Any], others: Sequence[Any], same: Callable[..., bool]) -> bool:
    """Whether each item has one of the other items for itself, in whatever order."""
    left = list(ones)
    for other in others:
        place = next((place for place, one in enumerate(left) if same(one, other)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _distinct(items: Sequence[Meaning]) -> list[Meaning]:
    kept: list[Meaning] = []
    for item in items:
        if not any(_same(item, other) for other in kept):
            kept.append(item)
    return kept


def _same_scalars(one: Scalar, other: Scalar) -> bool:
    if one.percent != other.percent:
        percent, plain = (one, other) if one.percent else (other, one)
        whole = isinstance(plain.values[0], Fraction) and plain.values[0].denominator == 1
        if (whole or plain.digits) and all_close(percent.values, plain.values):
            return True  # 50 % is both 50 and 1/2, but 0.5 % is not 1/2
        one, other = plain, percent._replace(values=tuple(multiply(v, Fraction(1, 100)) for v in percent.values))
    if all_close(one.values, other.values):
        return True
    # 0.333333 is 1/3, since six digits and no fewer say which number is meant
    decimal, exact = (one, other) if one.digits else (other, one)
    value, written = exact.values[0], decimal.values[0]
    if decimal.digits < 6 or exact.digits or len(exact.values) > 1:
        return False
    if isinstance(value, complex):
        return False
    rest = complex(add(value, -written)).real * 10.0**decimal.digits  # rounded, or cut off
    return -0.5 <= (rest if complex(written).real > 0 else -rest) < 1


def _is_name(meaning: Meaning) -> bool:
    return isinstance(meaning, Scalar) and meaning.name


def _relation_is(relation: Relation, other: Meaning) -> bool:
    """Whether other is the value of x = 5 or 2 + 3 = 5, one side of √2 ≈ 1.41, or the interval of 1 < x < 3."""
    signs, sides = set(relation.signs), relation.sides
    if r"\approx" in signs:
        return any(_same(side, other) for side in sides)
    if signs != {"="}:
        interval = _interval(relation)
        return interval is not None and _same(interval, other)
    first, last = (sides[-1], sides[0]) if _is_name(sides[-1]) and not _is_name(sides[0]) else (sides[0], sides[-1])
    equation = isinstance(first, Scalar) and len(first.values) > 1 and not first.name  # 2x + z = 1 is not 1
    return (not equation or _same(first, last)) and _same(last, other)  # 2x + x = 3x is 3x


def _interval(relation: Relation) -> Group | None:
    """1 < x ≤ 3 as (1, 3]; None for other relations."""
    signs, sides = relation.signs, relation.sides
    if signs[0] in _FLIPPED:
        signs, sides = tuple(_FLIPPED.get(sign, "") for sign in reversed(signs)), tuple(reversed(sides))
    if len(signs) == 1 and _is_name(sides[0]):
        signs, sides = ("<", *signs), (Scalar((-math.inf,)), *sides)
    elif len(signs) == 1:
        signs, sides = (*signs, "<"), (*sides, Scalar((math.inf,)))
    if not set(signs) <= {"<", r"\le"} or [*map(_is_name, sides)] != [False, True, False]:
        return None
    return Group(("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]"), (sides[0], sides[2]))


_FLIPPED = {">": "<", r"\ge": r"\le"}


def _same_relations(one: Relation, other: Relation) -> bool:
    """Whether two have the same links, in any order and direction and multiplied by any factor: 2x = 10 is x = 5."""
    links, others = _links(one), _links(other)
    if links is None or others is None:
        alike = one.signs == other.signs and len(one.sides) == len(other.sides)
        return alike and all(map(_same, one.sides, other.sides))
    return len(links) == len(others) and _matched(links, others, _same_links)


def _links(relation: Relation) -> list[tuple[str, list[Number]]] | None:
    """The sign of each link of a chain, > turned to <, and its left side minus its right side at the points."""
    links = []
    for sign, (left, right) in zip(relation.signs, itertools.pairwise(relation.sides), strict=True):
        if not isinstance(left, Scalar) or not isinstance(right, Scalar):
            return None
        if sign in _FLIPPED:
            sign, left, right = _FLIPPED[sign], right, left
        links.append(
            (sign, [add(minuend, -subtrahend) for minuend, subtrahend in at_points(left.values, right.values)])
        )
    return links


def _same_links(one: tuple[str, list[Number]], other: tuple[str, list[Number]]) -> bool:
    pairs = list(at_points(one[1], other[1]))
    if one[0] != other[0] or any((left == 0) != (right == 0) for left, right in pairs):
        return False
    ratios = [divide(left, right) for left, right in pairs if right != 0]
    positive = one[0] in ("=", r"\ne") or all(not isinstance(ratio, complex) and ratio > 0 for ratio in ratios)
    return bool(ratios) and positive and all(close(ratio, ratios[0]) for ratio in ratios)
