r"""Parse short formulas, in LaTeX or as people type them, and decide whether two are equal.

This module splits tuples, sets, intervals, matrices and equations; math-verify's parser reads the expressions in them.
Expressions are computed at three points, not simplified: exactly as fractions or, for roots and functions, to 60 and
to 120 digits. There is no tolerance: with more digits, the difference of equal values shrinks.
"""

import functools
import math
import re
import threading
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from exact_answers.amounts import MAX_LENGTH, Number, joined, read_number, split_unit, without_unit

MAX_EXPRESSION = 100  # most characters of a formula
# Functions with the same name in sympy and mpmath
FUNCTIONS = {"exp", "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
LARGEST = 1e55  # largest difference of equal values, to 60 digits
MAX_BITS, MAX_ARGUMENT = 10**5, 10**6  # bounds: exponents of exact powers, and arguments of functions

# --- Formulas -----------------------------------------------------------------------------------------------------

Inexact = tuple[Any, Any]  # a value to 60 and to 120 digits
Value = Fraction | Inexact


class Expression(NamedTuple):
    """An expression, given by its values at three points that are the same for all expressions."""

    values: tuple[Value, ...]


class Several(NamedTuple):
    """The parts of a tuple, an interval, a set, a list, a union, a matrix or a relation; infinity has none."""

    kind: str  # both brackets, or a sign; empty for a list
    parts: tuple["Meaning | None", ...] = ()


class Equation(NamedTuple):
    """Two sides; with a name and its value for `x = 5` and `f(x) = 2x`."""

    sides: tuple[str, str]
    name: str = ""
    value: "Meaning | None" = None


class Either(NamedTuple):
    """A text with two meanings, such as 1,5 or 2 and 3/8."""

    readings: tuple["Meaning | None", ...]


Meaning = Number | Expression | Several | Equation | Either

# Not read: a time, a date, a range, 52_8, H2O; and prose, a word of three letters that is no command of LaTeX
NO_FORMULA = re.compile(
    r":|^[0-9]+(?:[-/.][0-9]+){2}$|^[0-9]+\s?-\s?[0-9]+$|[0-9]_|\b(?<!\\)[A-Za-z][0-9]|[0-9]\s?[apAP]\.?[mM]\b"
)
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?:[A-Za-z]{3}|(?:is|it|so|at|to|no|we|of|as|by|if|on)\b)|[A-Za-z]{2} +[A-Za-z]{2}"
)
_COMMANDS = re.compile(r"\\(?:begin|end)\{\w+\}|\\mathbb|\b(?:or|and)\b")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\w)?'*(?:\([A-Za-z, ]*\))?|\([a-z](?:,\s?[a-z])+\)")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_BRACKETS = {"(": ("]", ")"), "[": ("]", ")"), r"\{": (r"\}",), "{": ("}",)}
_RELATION = re.compile(r"(<=|>=|<|>|\\ne\b)")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", r"\ne": r"\ne"}
_MATRIX = re.compile(r"[(\[]?\s?\\begin\{([bp]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}\s?[)\]]?")
_ROWS = re.compile(r"\[\s?\[([^\[\]]*)\](?:\s?,\s?\[[^\[\]]*\])+\s?\]")
_OUTWARD = re.compile(r"([\[\](])([^\[\]()]*[,;][^\[\]()]*)([\[\])])")  # ]0, 1[ is (0, 1)
_TWO_WAYS = re.compile(r"-?[0-9]+(?:,(?:[0-9]{1,2}|[0-9]{4,})|\s(?:and|or)\s[0-9]+/[0-9]+)")
_TOO_LARGE = re.compile(  # for the parser: deep brackets, |x||x||x|, towers of powers, large binomials; it adds 1 1
    r"(?:[(\[{][^)\]}]*){5}|(?:\|[^|]*){5}|\^\s?(?:\w+|\{[^{}]*\})\s?\^|\\binom\D*[0-9]{5}|(?<!_)[0-9]\s+[0-9]"
)


def is_formula(text: str) -> bool:
    """True if a clean text is short and has no words except a unit."""
    return 0 < len(text) <= MAX_LENGTH and not _PROSE.search(_COMMANDS.sub(",", without_unit(text)))


@functools.lru_cache(maxsize=2**14)  # the same answers come again and again in a group
def read(text: str) -> Meaning | None:
    """Parse a clean formula, with or without a unit; None if it is not a formula."""
    text = re.sub(r"\$|\\[()\[\]]", "", text.split("≈")[0]).strip().rstrip(" .")
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)\b", text):
        text = re.sub(r"([0-9.]+)\s{0,9}degrees\b", r"(\1\\pi/180)", text)
    number = read_number(text)
    if number and _TWO_WAYS.fullmatch(split_unit(text)[0]):
        return Either((number, _list([read(part) for part in re.split(r",|\s(?:and|or)\s", without_unit(text))])))
    if number:
        return number
    alternatives = re.search(r"\bor\b", text)
    text = re.sub(r",?\s*\b(?:or|and)\b", ",", without_unit(text))
    if element := re.match(r"[a-z]\s*\\in\b", text):
        interval = read(text[element.end() :].strip())
        return interval._replace(kind="open") if isinstance(interval, Several) and interval.kind == "()" else interval
    text = text.strip()
    if not text or len(text) > MAX_LENGTH or NO_FORMULA.search(text):
        return None
    if infinite := re.fullmatch(r"([-+]?)\s?\\infty", text):
        return Several(f"{infinite[1].strip('+')}infinity")
    if r"\cup" in text:
        return Several("union", tuple(map(read, text.split(r"\cup"))))
    if matrix := _MATRIX.fullmatch(text):
        return _matrix([row.split("&") for row in matrix[2].strip().removesuffix(r"\\").split(r"\\")])
    if _ROWS.fullmatch(text):
        return _matrix([row.split(",") for row in re.findall(r"\[([^\[\]]+)\]", text)])
    text = joined(text)
    if outward := _OUTWARD.fullmatch(text):
        text = outward[1].replace("]", "(") + outward[2] + outward[3].replace("[", ")")
    if len(parts := _split(text)) > 1:
        several = _list([read(part) for part in parts])
        if alternatives and isinstance(several, Several):  # 3 or 4 is not a point, and x = 3 or y = 4 has no meaning
            return None if several.kind.startswith("named") else several._replace(kind="{}")
        return several
    if _RELATION.search(text):
        return _relation(_RELATION.split(text))
    if "=" in text:
        return _equation([side.strip() for side in text.split("=")])
    if text.count(r"\pm") == 1:
        return Several("", tuple(read(text.replace(r"\pm", sign).strip(" +")) for sign in "+-"))
    for opening, closings in _BRACKETS.items():
        closing = next((sign for sign in closings if text.endswith(sign)), "")
        parts = _split(text[len(opening) : -len(closing)]) if text.startswith(opening) and closing else []
        if len(parts) > 1:
            return Several((opening + closing).replace("\\", ""), tuple(map(read, parts)))
        if parts and opening == r"\{":
            return read(parts[0])  # a set of one
    return _expression(text)


def _split(text: str) -> list[str]:
    """Split a text at commas and semicolons outside of brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"([()\[\]{},;])", text):
        if piece in (",", ";") and depth == 0:
            parts.append("")
        else:
            depth += (piece in ("(", "[", "{")) - (piece in (")", "]", "}"))
            parts[-1] += piece
    return parts


def _list(parts: list[Meaning | None]) -> Meaning | None:
    """Build a list. x = 1, x = 2 becomes 1, 2; y = 2, x = 1 becomes (1, 2); 1/2, 0.5 becomes 1/2."""
    if all(same(parts[0], part) for part in parts[1:]):
        return parts[0]
    named = [part for part in parts if isinstance(part, Equation) and part.name]
    if len(named) == len(parts) and len({part.name for part in named}) > 1:
        named.sort(key=lambda part: part.name)
        return Several(f"named {' '.join(part.name for part in named)}", tuple(part.value for part in named))
    return Several("", tuple(part.value if isinstance(part, Equation) else part for part in parts))


def _matrix(rows: list[list[str]]) -> Several:
    """Build a matrix from its rows; a single row or column is also a tuple."""
    if len(rows) == 1 or all(len(row) == 1 for row in rows):
        return Several(
            "row" if len(rows) == 1 else "column", tuple(read(cell.strip()) for row in rows for cell in row)
        )
    return Several("matrix", tuple(Several("row", tuple(read(cell.strip()) for cell in row)) for row in rows))


def _relation(pieces: list[str]) -> Several:
    """Turn x < 3 and 1 <= x < 3 into intervals; keep other relations with their signs."""
    sides, signs = [piece.strip() for piece in pieces[::2]], pieces[1::2]
    if signs[0].startswith(">"):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    if len(sides) == 2 and signs != [r"\ne"]:
        if re.fullmatch("[a-z]", sides[0]):
            sides, signs = [r"-\infty", *sides], ["<", *signs]
        elif re.fullmatch("[a-z]", sides[1]):
            sides, signs = [*sides, r"\infty"], [*signs, "<"]
    if len(sides) == 3 and re.fullmatch("[a-z]", sides[1]) and set(signs) <= {"<", "<="}:
        brackets = ("[" if signs[0] == "<=" else "(") + ("]" if signs[1] == "<=" else ")")
        brackets = "open" if brackets == "()" else brackets
        return Several(brackets, (read(sides[0]), read(sides[2])))
    return Several("".join(signs), tuple(map(read, sides)))


def _equation(sides: list[str]) -> Meaning | None:
    """Return the common value of equal sides, as in 48 + 24 = 72; else an equation."""
    name = next((side for side in (sides[0], sides[-1]) if _NAME.fullmatch(side)), "")
    if name.startswith("(") and (order := re.findall("[a-z]", name)) != sorted(order):
        return None  # (y, x) = (2, 3) is the point (3, 2)
    if not name and not _VARIABLE.search(sides[0]) and read(sides[0]) is None:
        name = sides[0]  # an expression that is not computed, such as \gcd(4,6)
    values = [read(side) for side in sides if side != name]
    if values and all(same(values[0], value) for value in values[1:]):
        return Equation((sides[0], sides[-1]), name, values[0]) if name else values[0]
    return Equation((sides[0], sides[1])) if len(sides) == 2 else None


# --- Expressions --------------------------------------------------------------------------------------------------

_SPELLING: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<![A-Za-z\\_^{])([0-9.]+)[eE]([-+]?[0-9]{1,3})(?![0-9A-Za-z])"), r"\1*10^{\2}"),
    (
        re.compile(r"(?<![0-9])([0-9]+)/([0-9]+)(?=\s?(?:[A-Za-z(]|\\pi|\\sqrt))"),
        r"\\frac{\1}{\2}",
    ),  # 1/2x is half of x
    (  # the parser would turn it into a double
        re.compile(r"([0-9]*)\.([0-9]+)"),
        lambda decimal: rf"{{\frac{{{int(decimal[1] + decimal[2])}}}{{{10 ** len(decimal[2])}}}}}",
    ),
    (re.compile(r"([A-Za-z])('+)"), lambda primed: f"{primed[1]}_{{p{len(primed[2])}}}"),  # it would drop primes
    (re.compile(r"\^\s?\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"\\(?:log|lg)_([0-9])\s?([0-9]+)"), r"\\log_{\1}{\2}"),
]


_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")  # names, but no commands


def both_cases(text: str) -> bool:
    """True if a formula has a letter in both cases: then they are two variables, otherwise X is x."""
    letters = set("".join(_LETTER.findall(text)))
    return any(letter.upper() in letters for letter in letters if letter.islower())


def _expression(text: str) -> Expression | None:
    """Compute an expression that math-verify's parser reads; None if it cannot read it, or if a value is too large."""
    if len(text) > MAX_EXPRESSION or _TOO_LARGE.search(text) or re.search(r"\\(?:gcd|lcm)[^A-Za-z]*[a-z]", text):
        return None  # the parser takes variables for coprime
    # here: the import takes seconds, and plain numbers do not need it
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    if not both_cases(text):
        text = _LETTER.sub(lambda letter: letter[0].lower(), text)
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    case = ConversionConfig(lowercase_symbols=False)
    try:
        parsed = latex2sympy(text, normalization_config=None, conversion_config=case)
    except Exception:  # the parser raises plain Exceptions
        return None
    try:
        return Expression(tuple(_value_at(parsed, point) for point in range(3)))
    except (TypeError, ValueError, ArithmeticError, AttributeError):  # no value, or not an expression
        return None


class _Irrational(Exception):
    """The value of an expression is not a fraction."""


_contexts = threading.local()  # mpmath's contexts hold their precision: one of each for a thread


def _value_at(parsed: Any, point: int) -> Value:
    try:
        return _value(parsed, point, None)
    except _Irrational:
        return _inexact(lambda context: _value(parsed, point, context))


def _inexact(compute: Callable[[Any], Any]) -> Inexact:
    if not hasattr(_contexts, "both"):
        from mpmath import MPContext

        _contexts.both = MPContext(), MPContext()
        _contexts.both[0].dps, _contexts.both[1].dps = 60, 120
    low, high = _contexts.both
    values = compute(low), compute(high)
    if not high.isfinite(values[1]):
        raise ValueError("no number")
    return values


def _value(node: Any, point: int, context: Any) -> Any:
    """Compute an expression of sympy within bounds, which sympy's own evaluation lacks; exactly without a context.

    Raises:
        _Irrational: the value is not a fraction.
        TypeError: the expression is not supported.
        ArithmeticError: the value is too large, or does not exist.
    """
    kind = type(node).__name__
    if node.is_Rational:
        return Fraction(node.p, node.q) if context is None else context.mpf(node.p) / node.q
    if kind == "Symbol" and str(node) != "i":  # near 0, 50 and -50, different for each name
        value = Fraction(zlib.crc32(f"{node}{point}".encode()) % 999_983 + 1, 499_979) + (0, 50, -50)[point]
        return value if context is None else context.mpf(value.numerator) / value.denominator
    parts = [_value(part, point, context) for part in node.args]
    match kind:
        case "Add":
            return sum(parts, start=Fraction(0) if context is None else context.zero)
        case "Mul":
            return math.prod(parts, start=Fraction(1) if context is None else context.one)
        case "Abs":
            return abs(parts[0])
        case "UnevaluatedExpr":
            return parts[0]
        case "factorial" if _is_count(parts[0]):
            return Fraction(math.factorial(int(parts[0])))
        case "binomial" if all(map(_is_count, parts)):
            return Fraction(math.comb(int(parts[0]), int(parts[1])))
        case "floor" | "ceiling" if isinstance(parts[0], Fraction):
            return Fraction(math.floor(parts[0]) if kind == "floor" else math.ceil(parts[0]))
        case "Pow":
            return _power(parts[0], parts[1], context)
    if context is None:
        raise _Irrational
    if any(abs(part) > MAX_ARGUMENT for part in parts):
        raise OverflowError(f"{kind} of too large a number")
    match kind:
        case "Symbol":
            return context.j
        case "Exp1" | "Pi":
            return +getattr(context, {"Exp1": "e", "Pi": "pi"}[kind])
        case "factorial" if abs(parts[0]) < 10**4:
            return context.gamma(parts[0] + 1)
        case "binomial":
            return context.binomial(*parts)
        case "log":
            return context.log(parts[0]) / (context.log(parts[1]) if len(parts) > 1 else 1)
        case _ if kind in FUNCTIONS:
            return getattr(context, kind)(parts[0])
    raise TypeError(f"{kind} is not computed")


def _is_count(value: Any) -> bool:
    return isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= 5000


def _power(base: Any, exponent: Any, context: Any) -> Any:
    if context is not None:
        if base and abs(exponent) * (abs(context.log(abs(base), 2)) + 1) > MAX_BITS:
            raise OverflowError("too large a power")
        return context.power(base, exponent)
    if exponent.denominator != 1:
        raise _Irrational
    if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > MAX_BITS:
        raise OverflowError("too large a power")
    return base ** int(exponent)


# --- Comparing ----------------------------------------------------------------------------------------------------


def same(answer: Meaning | None, gold: Meaning | None) -> bool:
    """True if two formulas are equal: sets and lists in any order, equations up to a factor; x = 5 is also 5."""
    if isinstance(answer, Either) or isinstance(gold, Either):
        readings = [side.readings if isinstance(side, Either) else (side,) for side in (answer, gold)]
        return any(same(one, other) for one in readings[0] for other in readings[1])
    if isinstance(answer, Equation) and isinstance(gold, Equation) and answer.name and answer.name == gold.name:
        return same(answer.value, gold.value)
    if isinstance(answer, Equation) and isinstance(gold, Equation):
        one, other = (_expression("{}-({})".format(*equation.sides)) for equation in (answer, gold))
        return one is not None and other is not None and _is_multiple(one.values, other.values)
    answer, gold = (side.value if isinstance(side, Equation) else side for side in (answer, gold))
    if answer is None or gold is None:
        return False
    if isinstance(answer, Several) or isinstance(gold, Several):
        return isinstance(answer, Several) and isinstance(gold, Several) and _same_parts(answer, gold)
    if isinstance(answer, Number) and isinstance(gold, Number):
        return _same_number(answer, gold)
    if isinstance(answer, Number) and _rounds(_values(gold), answer):
        return True
    if isinstance(gold, Number) and gold.digits > 15 and _rounds(_values(answer), gold):
        return True
    return all(
        _is_equal(one, other)
        for point, (one, other) in enumerate(zip(_values(answer), _values(gold), strict=True))
        if point < 2 or (_is_real(one) and _is_real(other))  # \ln(xy) is \ln x + \ln y if that is real
    )


def _same_parts(answer: Several, gold: Several) -> bool:
    kinds, one, other = {answer.kind, gold.kind}, answer.parts, gold.parts
    if len(one) != len(other):
        return False
    if kinds <= {"", "{}"} or kinds == {"union"}:  # in any order
        return all(any(same(part, item) for item in b) for a, b in ((one, other), (other, one)) for part in a)
    point = next((kind for kind in kinds if kind.startswith("named")), "row")
    alike = len(kinds) == 1 or kinds in ({"", "()"}, {"open", "()"}, {"row", "()"}, {"column", "()"}, {point, "()"})
    return alike and all(map(same, one, other))


def _same_number(answer: Number, gold: Number) -> bool:
    """True if values, and units if both have one, are equal; 50 % is 50 and 1/2, but 0.5 % is not 1/2."""
    if answer.unit and gold.unit and answer.unit != gold.unit:
        return False
    got, want = answer.value, gold.value
    pairs = [(got, want)] if answer.percent <= gold.percent or abs(want) >= 1 else []
    if answer.percent != gold.percent:
        pairs.append((got / 100, want) if answer.percent else (got, want / 100))
    doubled = gold.digits > 15  # a gold answer that a program printed
    return any(
        one == other or gold.is_rounded_to(one) or _rounds((other,), answer) or (doubled and _rounds((one,), gold))
        for one, other in pairs
    )


def _rounds(values: tuple[Value, ...], number: Number) -> bool:
    """True for six or more significant digits of a value without a finite decimal: 3.141593 (pi), 0.333333 (1/3)."""
    if min(number.digits, number.decimals) < 6 or len(set(values)) > 1:
        return False
    value = values[0]
    if isinstance(value, Fraction):
        if 10 ** value.denominator.bit_length() % value.denominator == 0:
            return False  # a decimal: 0.1234567 is not 0.123457
    elif value[1].imag:
        return False
    else:
        value = Fraction(str(value[1].real))
    cut = Fraction(int(value * 10**number.decimals), 10**number.decimals)
    return number.value in (round(value, number.decimals), cut) or number.is_rounded_to(value)


def _values(meaning: Any) -> tuple[Value, ...]:
    return (meaning.value,) * 3 if isinstance(meaning, Number) else meaning.values


def _is_equal(one: Value, other: Value) -> bool:
    """True for equal fractions, or for values whose difference is tiny and shrinks with more digits."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    (_, first), (_, second) = _both(one), _both(other)
    low, high = (abs(a - b) for a, b in zip(_both(one), _both(other), strict=True))
    size = max(abs(first), abs(second))
    if size > LARGEST or high > 1e-40 * max(size, 1):
        return False
    return bool(high == 0 or high < 1e-20 * low or (low == 0 and high < size * first.context.mpf(10) ** -110))


def _is_real(value: Value) -> bool:
    return isinstance(value, Fraction) or abs(value[1].imag) <= abs(value[1]) * 1e-40


def _both(value: Value) -> Inexact:
    if isinstance(value, Fraction):
        return _inexact(lambda context: context.mpf(value.numerator) / value.denominator)
    return value


def _is_multiple(one: tuple[Value, ...], other: tuple[Value, ...]) -> bool:
    """True if the values of one side are those of the other times one factor."""
    if any(_is_equal(values[0], Fraction(0)) for values in (one, other)):
        return False
    return all(_is_equal(_product(a, other[0]), _product(one[0], b)) for a, b in zip(one, other, strict=True))


def _product(one: Value, other: Value) -> Value:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one * other
    (a, b), (c, d) = _both(one), _both(other)
    return a * c, b * d
