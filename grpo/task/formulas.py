r"""The meaning of short formulas, in LaTeX or as people type them, and whether two of them mean the same.

Numbers are exact fractions. Tuples, sets, intervals and equations are taken apart here; math-verify parses the
expressions in them, which are computed at three points instead of being simplified: the text's size bounds the time.
"""

import cmath
import functools
import logging
import math
import re
import zlib
from fractions import Fraction
from typing import Any, NamedTuple

from grpo.task import arithmetic

MAX_LENGTH, MAX_EXPRESSION = 200, 100  # characters of a formula, and of an expression in it; longer is not read

# --- One way to write everything ----------------------------------------------------------------------------------

_SIGNS = {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "\u00a0": " ", "²": "^2", "³": "^3", "€": "$"}
_SIGNS |= {"π": r"\pi ", "√": r"\sqrt ", "∞": r"\infty ", "≤": "<=", "≥": ">=", "≠": r"\ne ", "∪": r"\cup ", "£": "$"}
_SIGNS |= {"∈": r"\in ", "±": r"\pm ", "+/-": r"\pm ", "∅": r"\emptyset ", "θ": r"\theta ", "°": " degrees "}
_SIGNS |= {sign: rf"\frac{{{above}}}{{{below}}}" for sign, above, below in ("½12", "⅓13", "⅔23", "¼14", "¾34")}
_CLEANING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"<<[^<>]*>>|</?[A-Za-z]+>", " "),  # GSM8K's calculator, HTML
        (r"(?<!\w)\*\*(?=\S)([^*]+)\*\*", r"\1"),  # bold type
        (r"\\(?:left|right|displaystyle)(?![a-z])|\\!|\\(?=[$%])", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\[,;: ]|~|\\q?quad\b", " "),
        (r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox|boxed|fbox)\s{0,9}\{([^{}]*)\}", r" \1 "),
        (r"\^\s?\{?\s?\\circ\s?\}?", " degrees "),
        (r"\\[dts]frac", r"\\frac"),
        (r"\\(?:le|leq|leqslant)\b", "<="),
        (r"\\(?:ge|geq|geqslant)\b", ">="),
        (r"\\neq\b", r"\\ne"),
        (r"\\(?:times|cdot)\b", "*"),
        (r"\\div\b", "/"),
        (r"[=-]+>|[⇒→∴]|\\(?:implies|therefore|[Rr]ightarrow|to)\b", " : "),
        (r"\^-([0-9]+)", r"^{-\1}"),
        (r"\\approx\b", "≈"),
        (r"\\varnothing\b|\\\{ ?\\\}", r"\\emptyset"),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),  # Python's power
        (r"(?<=[)\]]) ?U ?(?=[(\[])", r"\\cup "),
        (r"([_^])\{(\w)\}", r"\1\2"),
        (r"(?<![\\A-Za-z])infinity\b", r"\\infty "),
        (r"(?<![\\A-Za-z])(?=(?:sqrt|pi|ln|log|sin|cos|tan|infty)(?![A-Za-z]))", r"\\"),
        (r"\\sqrt\s{0,9}(?:\(([^()]*)\)|([0-9]+))", r"\\sqrt{\1\2}"),
    )
]
_UNIT = re.compile(  # the words after a number, a bracket or 2\pi, to the end
    r"(?:(?<=[0-9)}\]%!])|(?<=[0-9)}*]\\pi)|(?<=[0-9)}] \\pi)|(?<=illion)|(?<=thousand))\s{0,9}"
    r"(?:(?:cm|mm|km|dm|kg|mg|ml|ft|in|mi|lbs?|oz|hrs?|mins?|st|nd|rd|th)\b"
    r"|\s(?!thousand|million|billion|percent)(?:[A-Za-z]{3,}|of|sq|[mgshlL])\b)"
    r"[A-Za-z .,'’/()-]*(?:\^\{?-?[0-9]\}?[A-Za-z /.]*)*$"
)


def clean(text: str) -> str:
    r"""One way to write each sign: LaTeX's for those of Unicode, without type, spacing and `\text{}`.

    >>> clean(r"**\left(1, \dfrac{1}{2}\right)**"), clean("3√2 ≤ x"), clean(r"10\,\text{cm}^{2}")
    ('(1, \\frac{1}{2})', '3\\sqrt{2} <= x', '10  cm ^2')
    """
    for sign, latex in _SIGNS.items():
        text = text.replace(sign, latex)
    for pattern, replacement in _CLEANING:
        text = pattern.sub(replacement, text)
    return text.strip().strip("*").strip()


def without_unit(text: str) -> str:
    """A clean text without the words after its number or formula, dollar signs and a full stop."""
    return _UNIT.sub("", text.strip(" $").rstrip(" .$")).rstrip(" .$")


# --- Numbers ------------------------------------------------------------------------------------------------------

NUMBER = re.compile(  # a minus after a digit, a letter or a bracket is a subtraction: 18-5
    r"(?P<sign>(?<![0-9A-Za-z)\]}])(?<![0-9)] )-\s?)?(?:\$(?P<minus>-)?)?(?:(?P<mixed>[0-9]+)\s(?=[0-9]+/[0-9]))?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<![A-Za-z0-9])(?=\.[0-9]))(?P<decimals>\.[0-9]+)?"
    r"(?:\s?/\s?(?P<below>[1-9][0-9]*)|e(?P<exponent>[-+]?[0-9]{1,2})\b|\s(?P<word>thousand|million|billion)\b)?"
    r"(?P<percent>\s?%|\spercent)?"
)
_POWERS = {"thousand": 3, "million": 6, "billion": 9, None: 0}
_THOUSANDS = re.compile(r"(?<![0-9.,(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?!,?[0-9])")  # (1,200) is a tuple
_FRACTION = re.compile(r"\s*\\frac\s?(?:\{\s?(-?[0-9]+)\s?\}\s?\{\s?([0-9]+)\s?\}|([0-9])\s?([0-9]))")


class Number(NamedTuple):
    value: Fraction
    percent: bool = False
    digits: int = 0  # after the point


def number_of(match: re.Match[str]) -> Number:
    """The value of a match of NUMBER."""
    value = Fraction((match["whole"].replace(",", "") or "0") + (match["decimals"] or ""))
    value = value / int(match["below"] or 1) + int(match["mixed"] or 0)
    value *= Fraction(10) ** (int(match["exponent"] or 0) + _POWERS[match["word"]])
    value = -value if match["sign"] or match["minus"] else value
    return Number(value, bool(match["percent"]), len(match["decimals"] or ".") - 1)


def _joined(thousands: re.Match[str]) -> str:
    return thousands[0].replace(",", "")


def with_slashes(text: str) -> str:
    r"""A clean text whose \frac{1}{2} are 1/2, as NUMBER reads it.

    >>> with_slashes(r"1\frac{1}{2} or -\frac34")
    '1 1/2 or -3/4'
    """
    text = _FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]}", text)
    return re.sub(r"(?<=[-$({]) (?=[0-9]+/)", "", text).strip()


def read_number(text: str) -> Number | None:
    """A clean text that is a number or arithmetic of numbers, with a unit or without; None for any other."""
    if len(text) > MAX_LENGTH:
        return None
    text = without_unit(with_slashes(text)).removeprefix("+")
    if re.fullmatch(r"-?[0-9]{1,3}(?: [0-9]{3})+", text):
        text = text.replace(" ", "")  # 1 000
    if number := NUMBER.fullmatch(text):
        return number_of(number)
    value = arithmetic.value(_THOUSANDS.sub(_joined, text.replace("$", "")))
    return None if value is None else Number(value)


# --- Formulas -----------------------------------------------------------------------------------------------------


class Expression(NamedTuple):
    """An expression by its values at three points, which are the same for all."""

    values: tuple[complex, ...]


class Several(NamedTuple):
    """The parts of a tuple, an interval, a set, a list, a union, a matrix or a relation."""

    kind: str  # both brackets, or another sign; empty for a list
    parts: tuple["Meaning | None", ...]


class Equation(NamedTuple):
    """Two sides; with a name and its value for `x = 5` and `f(x) = 2x`."""

    sides: tuple[str, str]
    name: str = ""
    value: "Meaning | None" = None


Meaning = Number | Expression | Several | Equation

# Not read: a time, a date, a range, 52_8, H2O; and prose, a word of three letters that is no command of LaTeX
NO_FORMULA = re.compile(r":|^[0-9]+(?:[-/.][0-9]+){2}$|^[0-9]+\s?-\s?[0-9]+$|[0-9]_|\b(?<!\\)[A-Za-z][0-9]")
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?:[A-Za-z]{3}|(?:is|it|so|at|to|no|we|of|as|by|if|on)\b)|[A-Za-z]{2} +[A-Za-z]{2}"
)
_COMMANDS = re.compile(r"\\(?:begin|end)\{\w+\}|\\mathbb|\b(?:or|and)\b")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\w)?(?:\([A-Za-z, ]*\))?|\([a-z](?:,\s?[a-z])+\)")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[a-z](?![A-Za-z])")
_BRACKETS = {"(": ("]", ")"), "[": ("]", ")"), r"\{": (r"\}",), "{": ("}",)}
_RELATION = re.compile(r"(<=|>=|<|>|\\ne\b)")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", r"\ne": r"\ne"}
_TOO_LARGE = re.compile(  # for the parser: deep brackets, |x||x||x|, towers of powers, a binomial; it adds 1 1
    r"(?:[(\[{][^)\]}]*){5}|(?:\|[^|]*){5}|\^\s?(?:\w+|\{[^{}]*\})\s?\^|\\binom|(?<!_)[0-9]\s+[0-9]"
)


def is_formula(text: str) -> bool:
    """True if a clean text is short and has no words but a unit's."""
    return 0 < len(text) <= MAX_LENGTH and not _PROSE.search(_COMMANDS.sub(",", without_unit(text)))


@functools.lru_cache(maxsize=2**14)  # the same answers come again and again in a group
def read(text: str) -> Meaning | None:
    """The meaning of a clean formula, with a unit or without; None for anything else."""
    text = re.sub(r"\$|\\[()\[\]]", "", text.split("≈")[0]).strip().rstrip(" .")
    if number := read_number(text):
        return number
    text = re.sub(r",?\s*\b(?:or|and)\b", ",", without_unit(text))
    text = re.sub(r"^[a-z]\s*\\in\b", "", text).strip()
    if not text or len(text) > MAX_LENGTH or NO_FORMULA.search(text):
        return None
    if r"\cup" in text:
        return Several("union", tuple(map(read, text.split(r"\cup"))))
    if matrix := re.fullmatch(r"\\begin\{[bp]matrix\}(.*)\\end\{[bp]matrix\}", text):
        rows = matrix[1].strip().removesuffix(r"\\").split(r"\\")
        return Several("matrix", tuple(Several("row", tuple(map(read, row.split("&")))) for row in rows))
    text = _THOUSANDS.sub(_joined, text)
    if len(parts := _split(text)) > 1:
        return _list([read(part) for part in parts])
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
    """The parts between commas that are in no bracket."""
    parts, depth = [""], 0
    for piece in re.split(r"([()\[\]{},])", text):
        if piece == "," and depth == 0:
            parts.append("")
        else:
            depth += (piece in ("(", "[", "{")) - (piece in (")", "]", "}"))
            parts[-1] += piece
    return parts


def _list(parts: list[Meaning | None]) -> Meaning | None:
    """A list; x = 1, x = 2 are 1, 2, and y = 2, x = 1 is (1, 2), but 1/2, 0.5 is 1/2."""
    if all(same(parts[0], part) for part in parts[1:]):
        return parts[0]
    named = [part for part in parts if isinstance(part, Equation) and part.name]
    if len(named) == len(parts) and len({part.name for part in named}) > 1:
        return Several("()", tuple(part.value for part in sorted(named, key=lambda part: part.name)))
    return Several("", tuple(part.value if isinstance(part, Equation) else part for part in parts))


def _relation(pieces: list[str]) -> Several:
    """x < 3 and 1 <= x < 3 as the intervals that they are; others with their signs."""
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
        return Several(brackets, (read(sides[0]), read(sides[2])))
    return Several("".join(signs), tuple(map(read, sides)))


def _equation(sides: list[str]) -> Meaning | None:
    """The value of sides that are equal, as in 48 + 24 = 72; else an equation."""
    name = next((side for side in (sides[0], sides[-1]) if _NAME.fullmatch(side)), "")
    if not name and not _VARIABLE.search(sides[0]) and read(sides[0]) is None:
        name = sides[0]  # what is not computed, such as \gcd(4,6)
    values = [read(side) for side in sides if side != name]
    if values and all(same(values[0], value) for value in values[1:]):
        return Equation((sides[0], sides[-1]), name, values[0]) if name else values[0]
    return Equation((sides[0], sides[1])) if len(sides) == 2 else None


def _expression(text: str) -> Expression | None:
    """The values of an expression that math-verify parses; None for what it cannot, or what is too large."""
    if len(text) > MAX_EXPRESSION or _TOO_LARGE.search(text):
        return None
    from math_verify import LatexExtractionConfig, parse  # here: it takes seconds, and plain numbers do without

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that there is no timeout
    try:
        parsed = parse(f"${text}$", [LatexExtractionConfig()], "no_fallback", parsing_timeout=None)
        return Expression(tuple(_value(parsed[0], point) for point in range(3)))
    except (IndexError, TypeError, ValueError, ArithmeticError, AttributeError):  # nothing, or nothing with a value
        return None


def _value(node: Any, point: int) -> complex:
    """The value of an expression of sympy, in floating point: sympy's own evaluation has no bound."""
    kind, parts = type(node).__name__, [_value(part, point) for part in node.args]
    match kind:
        case "Symbol":  # between -2 and 2, different for each name and point
            name = str(node)
            return 1j if name == "i" else complex(zlib.crc32(f"{name}{point}".encode()) % 997 / 499.7 - point)
        case "Add":
            return sum(parts)
        case "Mul":
            return math.prod(parts)
        case "Pow":
            return parts[0] ** parts[1]
        case "Abs":
            return complex(abs(parts[0]))
        case "factorial":
            return complex(math.gamma(parts[0].real + 1))
        case "exp" | "log" | "sin" | "cos" | "tan" | "asin" | "acos" | "atan" | "sinh" | "cosh" | "tanh":
            return complex(getattr(cmath, kind)(*parts))
    if parts:
        raise TypeError(f"{kind} is not computed")
    return complex(node)  # a number


# --- Comparing ----------------------------------------------------------------------------------------------------


def same(answer: Meaning | None, gold: Meaning | None) -> bool:
    """True if two meanings are equal: sets and lists in any order, equations up to a factor; x = 5 is also 5."""
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
    pairs = zip(_values(answer), _values(gold), strict=True)
    tolerance = max(_tolerance(answer), _tolerance(gold))
    return all(cmath.isclose(*pair, rel_tol=1e-9, abs_tol=tolerance) for pair in pairs)


def _same_parts(answer: Several, gold: Several) -> bool:
    kinds, one, other = {answer.kind, gold.kind}, answer.parts, gold.parts
    if len(one) != len(other):
        return False
    if kinds <= {"", "{}"} or kinds == {"union"}:  # in any order
        return all(any(same(part, item) for item in b) for a, b in ((one, other), (other, one)) for part in a)
    return (len(kinds) == 1 or kinds == {"", "()"}) and all(map(same, one, other))


def _same_number(answer: Number, gold: Number) -> bool:
    """Equal, or rounded to six decimals or more; 50 % is 50 and 1/2, but 0.5 % is not 1/2."""
    got, want, digits = answer.value, gold.value, answer.digits
    pairs = [(got, want)] if answer.percent <= gold.percent or abs(want) >= 1 else []
    if answer.percent != gold.percent:
        pairs.append((got / 100, want) if answer.percent else (got, want / 100))
    return any(
        got == want or (digits >= 6 and got in (round(want, digits), Fraction(int(want * 10**digits), 10**digits)))
        for got, want in pairs
    )


def _values(meaning: Any) -> tuple[complex, ...]:
    return (complex(meaning.value),) * 3 if isinstance(meaning, Number) else meaning.values


def _tolerance(meaning: Any) -> float:
    """Half of the last digit of a number with six decimals or more: 3.141593 is pi, 3.14 is not."""
    return 0.51 * 10.0**-meaning.digits if isinstance(meaning, Number) and meaning.digits >= 6 else 1e-12


def _is_multiple(one: tuple[complex, ...], other: tuple[complex, ...]) -> bool:
    ratios = [a / b if b else cmath.nan for a, b in zip(one, other, strict=True)]
    return all(cmath.isclose(ratio, ratios[0], rel_tol=1e-9) for ratio in ratios)
