r"""Does an answer leave arithmetic to the judge? A policy that is paid for 48 + 24 learns to stop at the formula.

The operations of a formula whose value is a rational number are counted, wherever it is: alone, or as a part of a
tuple, a list, a set, an interval or a matrix. A formula without operations is an answer, and so is one operation that
is neither a sum (or a difference) nor a product; two or more are not. Each of these is one operation:

- `a + b`, `a - b` and `a b`; each more term or factor is one more;
- a fraction or a division; a root or a power, also with a fraction as the exponent; a logarithm of any base;
- a factorial, a binomial coefficient, an absolute value, a function such as gcd, floor or sin.

Signs, percent signs, units and repeating decimals are no operations; a × 10^n and a mixed number, also 3 + 1/2, are
ways to write a number, and 30° and π/6 are ways to write an angle. A formula without a rational value (3 + 2√2, 2π,
1 + i), or one that depends on a variable, is not counted.

A gold answer that has an operation itself, other than those ways and one fraction, accepts every formula.
"""

from fractions import Fraction

from exact_answers import formulas
from exact_answers.amounts import Number
from exact_answers.compare import Either, Equation, Expression, Meaning, Several
from exact_answers.formulas import Node

_LARGEST_DENOMINATOR = 10**12  # of a rational value that is known to 120 digits only
_MINUS_ONE = ("num", Fraction(-1))
_TEN = ("num", Fraction(10))


def leaves_arithmetic(answer: Meaning | None, gold: Meaning | None) -> bool:
    r"""True if an answer, or a part of it, is a rational number that was not computed, and the gold answer is none.

    >>> from exact_answers.compare import read
    >>> def refused(*answers, gold="72"):
    ...     return [leaves_arithmetic(read(answer), read(gold)) for answer in answers]
    >>> refused("48 + 24", "6 * 12", "2(30 + 6)", "(1+1, 2)", "x = 70 + 2", r"\frac{6!}{2}", "72 + x - x")
    [True, True, True, True, True, True, True]
    >>> refused("72", "-144/2", r"\sqrt[3]{8}", r"1.5 \times 10^6", r"3\frac{1}{2}", "48 + 24 = 72", "72 = 48 + 24")
    [False, False, False, False, False, False, False]
    >>> refused(r"3 + 2\sqrt{2}", r"2\pi", "1 + i", "2(x + 1)"), refused("24 + 48", "8 * 9", gold="48 + 24")
    ([False, False, False, False], [False, False])
    """
    return any(map(_is_uncomputed, _formulas(answer))) and not accepts_arithmetic(gold)


def accepts_arithmetic(gold: Meaning | None) -> bool:
    r"""True for a gold answer that is a formula itself, other than one fraction.

    >>> from exact_answers.compare import read
    >>> [accepts_arithmetic(read(gold)) for gold in ("3 + 4", "2^{10}", "(1, 2 * 3)", "7", "1/2", r"\sqrt{2}", "x+4")]
    [True, True, True, False, False, False, False]
    """
    return any(map(_has_operations, _formulas(gold)))


def _formulas(meaning: Meaning | None) -> list[Node]:
    """Return the formulas of a value and of its parts."""
    match meaning:
        case Number():
            return [] if meaning.formula is None else [meaning.formula]
        case Expression():
            return [meaning.node]
        case Several():
            return [node for part in meaning.parts for node in _formulas(part)]
        case Equation():
            return _formulas(meaning.value)
        case Either():
            return min(map(_formulas, meaning.readings), key=len)
    return []


def _is_uncomputed(node: Node) -> bool:
    """True for a sum or a product of rational value, and for two operations or more, unless they write a number."""
    node = _unsigned(node)
    if _is_numeral(node):
        return False
    counted = node[0] == "add" or len(_factors(node)[0]) > 1 or _operations(node) > 1
    return counted and _is_rational(node)


def _has_operations(node: Node) -> bool:
    return _operations(node) > 0 and not _is_numeral(node) and _is_rational(node)


def _operations(node: Node) -> int:
    """Count the operations of a formula."""
    kind = node[0]
    if kind in ("num", "sym", "pi"):
        return 0
    if kind == "add":
        return len(node) - 2 + sum(map(_operations, node[1:]))
    if kind == "mul":
        factors, divisors = _factors(node)
        if ("pi",) in factors and all(part == ("pi",) or _is_numeral(part) for part in factors + divisors):
            return 0
        if [part[0] for part in factors + divisors] == ["ln", "ln"]:  # a logarithm to a base
            return 1 + _operations(factors[0][1]) + _operations(divisors[0][1])
        return max(len(factors), 1) - 1 + len(divisors) + sum(map(_operations, factors + divisors))
    if kind == "pow":
        return 1 + _operations(node[1]) + (0 if _is_numeral(node[2]) else _operations(node[2]))
    return 1 + sum(_operations(part) for part in node[1:] if isinstance(part, tuple))


def _unsigned(node: Node) -> Node:
    """Drop the signs before a formula."""
    while node[0] == "mul" and len(rest := [part for part in node[1:] if part != _MINUS_ONE]) == 1:
        node = rest[0]
    return node


def _factors(node: Node) -> tuple[list[Node], list[Node]]:
    """Split a product into what is multiplied and what divides it, without signs."""
    parts = [part for part in node[1:] if part != _MINUS_ONE] if node[0] == "mul" else [node]
    inverse = [part[0] == "pow" and part[2] == _MINUS_ONE for part in parts]
    factors = [part for part, below in zip(parts, inverse, strict=True) if not below]
    return factors, [part[1] for part, below in zip(parts, inverse, strict=True) if below]


def _is_numeral(node: Node) -> bool:
    """True for a number, a fraction of two, a mixed number and a × 10^n, with signs."""
    node = _unsigned(node)
    if node[0] == "add":
        return len(node) == 3 and _is_whole(node[1]) and _is_proper_fraction(node[2])
    factors, divisors = _factors(node)
    if len(factors) == 2 and not divisors:
        scale = factors[1]
        return _is_signed(factors[0]) and scale[:2] == ("pow", _TEN) and _is_signed(scale[2])
    return len(factors) <= 1 and len(divisors) <= 1 and all(map(_is_signed, factors + divisors))


def _is_signed(node: Node) -> bool:
    """True for a number with or without signs."""
    return bool(_unsigned(node)[0] == "num")


def _is_whole(node: Node) -> bool:
    return bool(node[0] == "num" and node[1] > 0 and node[1].denominator == 1)


def _is_proper_fraction(node: Node) -> bool:
    if node[0] != "mul" or _MINUS_ONE in node[1:]:
        return False
    factors, divisors = _factors(node)
    return len(factors) == len(divisors) == 1 and all(map(_is_whole, factors + divisors)) and factors < divisors


def _is_rational(node: Node) -> bool:
    """True if a formula has one rational value, whatever its variables are: 48 + 24 + ln 1, 72 + x - x."""
    try:
        value = formulas.values_at(node, node, 0)[0]
    except (formulas.NotRead, OverflowError, RecursionError):
        return False
    if isinstance(value, tuple):
        value = Fraction(str(value[1].real)).limit_denominator(_LARGEST_DENOMINATOR)
    return value is not None and formulas.equal(node, ("num", value))
