r"""The value of an expression in LaTeX, exact where it is rational, in a time that is bounded by its length.

Variables have fixed values at four points, at which two expressions are compared instead of being simplified.
"""

import cmath
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

Number = Fraction | float | complex

MAX_TOKENS, MAX_DEPTH, MAX_BITS = 200, 20, 4096  # longer, deeper and larger is not computed
POINTS = 4

_TOKEN = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+|\\[A-Za-z]+|[A-Za-z]+|\\.|\S")
_GREEK = re.compile(r"\\(?:alpha|beta|gamma|[dD]elta|epsilon|theta|lambda|mu|rho|sigma|tau|(?:var)?phi|[oO]mega|ell)")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "arcsin": cmath.asin, "arccos": cmath.acos,
    "arctan": cmath.atan, "cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x), "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh,
    "ln": cmath.log, "log": cmath.log10, "exp": cmath.exp,
}  # fmt: skip


def compute(text: str) -> tuple[Number, ...]:
    r"""The value of an expression; with variables, its values at the fixed points.

    Raises ValueError or ArithmeticError for what is no expression, has no value or is too large.

    >>> compute(r"\frac{1}{2} + 3!"), compute(r"\sqrt{8}/\sqrt{2}"), len(compute("x + 1"))
    ((Fraction(13, 2),), (2.0,), 4)
    """
    tokens = _TOKEN.findall(text)
    if len(tokens) > MAX_TOKENS:
        raise ValueError("too long")
    variables = any((token.isalpha() and token not in ("e", "i")) or _GREEK.fullmatch(token) for token in tokens)
    values = tuple(_Calculator(tokens, point).result() for point in range(POINTS if variables else 1))
    if any(cmath.isnan(value) for value in values if not isinstance(value, Fraction)):
        raise ValueError("not a number")
    return values


def close(left: Number, right: Number) -> bool:
    """Whether two values are equal: exactly, or to nine digits where one is not a fraction."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    left, right = alike(left, right)
    if cmath.isinf(left) or cmath.isinf(right):
        return left == right
    return abs(complex(left - right)) <= 1e-9 * max(abs(complex(left)), abs(complex(right))) + 1e-14


def at_points(left: Sequence[Number], right: Sequence[Number]) -> Iterator[tuple[Number, Number]]:
    """The values of two expressions, of which either may be without variables, in pairs."""
    return zip(*(itertools.islice(itertools.cycle(one), max(len(left), len(right))) for one in (left, right)))  # noqa: B905


def all_close(left: Sequence[Number], right: Sequence[Number]) -> bool:
    """Whether two expressions are equal at all points; at those where both are real, if any."""
    pairs = list(at_points(left, right))
    real = [pair for pair in pairs if not any(isinstance(value, complex) for value in pair)]
    return all(close(*pair) for pair in real or pairs)


def alike(left: Number, right: Number) -> tuple[Number, Number]:
    """Two numbers as two fractions, or as two floating numbers."""
    if isinstance(left, Fraction) and not isinstance(right, Fraction):
        return float(left), right
    if isinstance(right, Fraction) and not isinstance(left, Fraction):
        return left, float(right)
    return left, right


def add(left: Number, right: Number) -> Number:
    left, right = alike(left, right)
    return _bounded(left + right)


def multiply(left: Number, right: Number) -> Number:
    left, right = alike(left, right)
    return _bounded(left * right)


def divide(left: Number, right: Number) -> Number:
    left, right = alike(left, right)
    return _bounded(left / right)


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise OverflowError("too large")
    elif isinstance(value, complex) and abs(value.imag) <= 1e-13 * abs(value.real):
        return value.real
    return value


def _whole(value: Number, most: int) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= most:
        raise ValueError("not a small whole number")
    return int(value)


def _power(base: Number, exponent: Number) -> Number:
    if not isinstance(exponent, Fraction):
        base = complex(base)
        return _bounded(base**exponent if base else 0.0**exponent)
    above, below = exponent.as_integer_ratio()
    if below > 1:
        return _power(_root(base, below), Fraction(above)) if below <= 64 else _power(base, float(exponent))
    if isinstance(base, Fraction):
        if abs(base) == 1:
            return base ** (above % 2)
        if abs(above) * max(base.numerator.bit_length(), base.denominator.bit_length()) > MAX_BITS:
            raise OverflowError("too large")
    elif abs(above) > MAX_BITS:
        raise OverflowError("too large")
    return _bounded(base**above)


def _root(value: Number, index: int) -> Number:
    """Exact for squares; real for odd roots of negative numbers."""
    if isinstance(value, Fraction) and (value >= 0 or index % 2) and max(map(abs, value.as_integer_ratio())) < 10**30:
        above, below = (round(abs(part) ** (1 / index)) for part in value.as_integer_ratio())
        root = Fraction(above if value >= 0 else -above, below or 1)
        if root**index == value:
            return root
    value = float(value) if isinstance(value, Fraction) else value
    if not isinstance(value, complex) and value < 0 and index % 2:
        return -((-value) ** (1 / index))
    return _bounded(complex(value) ** (1 / index))


class _Calculator:
    """Recursive descent: sums of products of powers of atoms."""

    def __init__(self, tokens: list[str], point: int) -> None:
        self.tokens, self.point, self.at, self.depth = [*tokens, ""], point, 0, 0
        self.in_bars = self.in_angle = False  # inside |…|, and in the argument of a function

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def take(self, expected: str | None = None) -> str:
        token = self.next
        if expected is not None and token != expected:
            raise ValueError(f"{token} where {expected} is expected")
        self.at += 1
        return token

    def result(self) -> Number:
        value = self.sum()
        self.take("")
        return value

    def sum(self) -> Number:
        value = self.product()
        while self.next in ("+", "-"):
            sign = self.take()
            term = self.product()
            value = add(value, term if sign == "+" else -term)
        return value

    def product(self, of_function: bool = False) -> Number:
        value = self.signed()
        while True:
            if self.next in ("*", "/") and not of_function:
                value = (multiply if self.take() == "*" else divide)(value, self.signed())
            elif self.multiplies(self.next) and not (of_function and self.next[1:] in _FUNCTIONS):
                value = multiply(value, self.power())
            else:
                return value

    def multiplies(self, token: str) -> bool:
        """Whether a token multiplies what is before it. A number does not: 2 3 and x2 are no products."""
        known = token[1:] in _FUNCTIONS or token[1:] in ("sqrt", "frac", "pi", "binom", "lfloor", "lceil")
        return (
            token.isalpha()
            or token in _CLOSING
            or known
            or bool(_GREEK.fullmatch(token))
            or (token == "|" and not self.in_bars)
        )

    def signed(self) -> Number:
        negative = False
        while self.next in ("+", "-"):
            negative ^= self.take() == "-"
        value = self.power()
        return -value if negative else value

    def power(self) -> Number:
        value = self.atom()
        while self.next in ("!", r"\degree"):
            if self.take() == "!":
                value = Fraction(math.factorial(_whole(value, 200)))
            elif self.in_angle:
                value = multiply(value, math.pi / 180)
        if self.next == "^":
            self.take()
            value = _power(value, self.deeper(self.signed))  # 2^3^2 is 2^9
        return value

    def deeper(self, read: Callable[[], Number]) -> Number:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("too deep")
        value = read()
        self.depth -= 1
        return value

    def atom(self) -> Number:
        return self.deeper(self.read_atom)

    def read_atom(self) -> Number:
        token = self.take()
        name = token[1:]
        if token in _CLOSING:
            outside, self.in_bars = self.in_bars, False
            value = self.enclosed(_CLOSING[token])
            self.in_bars = outside
        elif token == "|":
            self.in_bars = True
            inside = self.enclosed("|")
            value = abs(inside) if isinstance(inside, Fraction) else abs(complex(inside))
            self.in_bars = False
        elif token.isascii() and token[-1:].isdigit() and len(token) <= 200:
            value = Fraction(token)
        elif token.isalpha() or _GREEK.fullmatch(token):
            value = self.variables(token)
        elif name in ("lfloor", "lceil"):
            value = self.enclosed("\\r" + name[1:])
            if isinstance(value, complex):
                raise ValueError("not a real number")
            value = Fraction(math.floor(value) if name == "lfloor" else math.ceil(value))
        elif name == "frac":
            value = divide(self.atom(), self.atom())
        elif name == "binom":
            value = Fraction(math.comb(_whole(self.atom(), 500), _whole(self.atom(), 500)))
        elif name == "sqrt":
            index = _whole(self.atom(), 64) if self.next == "[" else 2
            value = _root(self.atom(), index)
        elif name in _FUNCTIONS:
            value = self.function(name)
        elif name in ("pi", "infty"):
            value = {"pi": math.pi, "infty": math.inf}[name]
        else:
            raise ValueError(f"{token} is not known")
        return value

    def enclosed(self, closing: str) -> Number:
        value = self.sum()
        self.take(closing)
        return value

    def function(self, name: str) -> Number:
        exponent: Number = Fraction(1)
        base: Number | None = None
        while self.next == "^" or (self.next == "_" and name == "log"):
            if self.take() == "^":
                exponent = self.signed()
            else:
                base = self.atom()
        outside, self.in_angle = self.in_angle, True
        argument = self.atom() if self.next in _CLOSING else self.product(of_function=True)
        self.in_angle = outside
        if exponent == -1 and name in ("sin", "cos", "tan"):
            name, exponent = f"arc{name}", Fraction(1)
        value: Number = _FUNCTIONS[name](complex(argument))
        if base is not None:
            value = divide(value, cmath.log10(complex(base)))
        return _power(_bounded(value), exponent)

    def variables(self, token: str) -> Number:
        """The product of the letters of a token, the last of which may have an index; e and i are the numbers."""
        *letters, last = [token] if token[0] == "\\" else list(token)
        if self.next == "_":
            self.take()
            last += self.take()
            while last.count("{") > last.count("}"):
                last += self.take() or "}"
        value: Number = Fraction(1)
        for name in (*letters, last):
            value = multiply(value, {"e": math.e, "i": 1j}.get(name) or self.variable(name))
        return value

    def variable(self, name: str) -> Fraction:
        """From -2 to 2, different for each name and point, below 0 at every other point."""
        seed = zlib.crc32(f"{name.strip('_')} {self.point}".encode(errors="replace"))
        return Fraction(seed % 997 + 1, -499 if self.point % 2 else 499)
