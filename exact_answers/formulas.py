r"""Parse expressions, in LaTeX or as people type them, and decide whether two have the same values.

They are computed at a dozen points of mixed signs and sizes, not simplified: exactly as fractions or, for roots and
functions, to 60 and to 120 digits. There is no tolerance: with more digits, the difference of equal values shrinks.
Every size is bounded before anything is computed.
"""

import functools
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from exact_answers.lexicon import vocabulary
from exact_answers.writing import Token

MAX_TOKENS, MAX_DEPTH = 150, 24  # of an expression
MAX_BITS, MAX_ARGUMENT, MAX_COUNT = 20_000, 10**6, 2000  # of exact powers; of functions; of factorials
POINTS, POSITIVE, NEEDED = 12, 4, 3  # points, those with positive variables, and those that must have a value
LARGEST = 1e55  # largest difference of equal values, to 60 digits

Node = tuple[Any, ...]  # its kind, then its parts
Inexact = tuple[Any, Any]  # a value to 60 and to 120 digits
Value = Fraction | Inexact

FUNCTIONS = vocabulary("exp sin cos tan sec csc cot sinh cosh tanh ln log lg sqrt gcd lcm max min")
_ALSO = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin", "acos": "acos", "atan": "atan"}
_ALSO |= {name: name for name in FUNCTIONS}
TRIGONOMETRY = {"sin", "cos", "tan", "sec", "csc", "cot"}
_ARC = {"sin": "asin", "cos": "acos", "tan": "atan"}
_GREEK = "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau"
SYMBOLS = set(f"{_GREEK} upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega".split())
_SAME_SYMBOL = {"varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta"}
APPLIED = set("fgFGhO")  # a letter before a bracket that is a function, and no factor
WORDS = vocabulary("ok oh is it so at to no we of as by if on or and in an be he me my us do go up am pm")
CLOSING = {"(": ")", "[": "]", "{": "}"}


class NotRead(Exception):
    """A text is no expression, or it is too large."""


class _Irrational(Exception):
    """The value of an expression is not a fraction."""


class _NoValue(Exception):
    """An expression has no real value at a point."""


# --- Parsing ------------------------------------------------------------------------------------------------------


def numeral(text: str) -> Fraction:
    """Read digits with separators: 1,200.5, 1.200.000, 1.234,5, 1'200, 1 200, 1e5.

    >>> [str(numeral(text)) for text in ("1,200.5", "1.200.000", "1.234,5", "1'200", "12,00,000", ".5", "1e-2")]
    ['2401/2', '1200000', '2469/2', '1200', '1200000', '1/2', '1/100']
    """
    if len(text) > 1000:
        raise NotRead(text[:20])
    if " " in text:
        text = text.replace(" ", "").replace(",", ".")
    text = text.replace("'", "")
    if text.count(".") > 1 or (0 <= text.find(".") < text.find(",")):
        text = text.replace(".", "").replace(",", ".")
    return Fraction(text.replace(",", "") if text.count(",") else text)


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = [token for token in tokens if token.kind not in ("bold", "newline")]
        self.place, self.depth, self.bars = 0, 0, 0
        self.degrees = any(token.text.lstrip("\\") in TRIGONOMETRY for token in self.tokens)
        if len(tokens) > MAX_TOKENS:
            raise NotRead("too long")

    def next(self, ahead: int = 0) -> Token | None:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def take(self, text: str = "") -> Token:
        token = self.next()
        if token is None or (text and token.text != text):
            raise NotRead(text)
        self.place += 1
        return token

    def at(self, *texts: str) -> bool:
        token = self.next()
        return token is not None and token.text in texts

    def whole(self) -> Node:
        node = self.over(self.sum())
        if self.next() is not None:
            raise NotRead(self.tokens[self.place].text)
        return node

    def over(self, above: Node) -> Node:
        """Parse what divides or chooses from all that was before it: 5 \\over 6."""
        if not self.at("\\over", "\\choose"):
            return above
        sign, below = self.take().text, self.sum()
        return (
            ("binomial", above, below) if sign == "\\choose" else ("mul", above, ("pow", below, ("num", Fraction(-1))))
        )

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotRead("too deep")
        parts = [self.product()]
        while self.at("+", "-"):
            sign = self.take().text
            part = self.product()
            parts.append(("mul", ("num", Fraction(-1)), part) if sign == "-" else part)
        self.depth -= 1
        return parts[0] if len(parts) == 1 else ("add", *parts)

    def product(self) -> Node:
        if self.at("-", "+"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise NotRead("too deep")
            sign, part = self.take().text, self.product()
            self.depth -= 1
            return ("mul", ("num", Fraction(-1)), part) if sign == "-" else part
        parts = [self.factor()]
        while True:
            if self.at("*", "\\times", "\\cdot", "x") and not (self.at("x") and not self._times()):
                self.take()
                parts.append(self.signed())
            elif self.at("/", "\\div"):
                self.take()
                parts.append(("pow", self.signed(), ("num", Fraction(-1))))
            elif self.at("\\bmod"):
                self.take()
                parts = [("mod", parts[0] if len(parts) == 1 else ("mul", *parts), self.signed())]
            elif self._starts():
                before, token = self.tokens[self.place - 1], self.tokens[self.place]
                if token.kind == "number" and before.kind == "number":
                    raise NotRead("two numbers")
                if token.text == "\\frac" and before.kind == "number" and "." not in before.text:
                    part = self.factor()  # 3\frac{1}{2}
                    simple = len(part) == 3 and all(_constant(each) for each in part[1:])
                    parts[-1] = ("add", parts[-1], part) if simple else ("mul", parts[-1], part)
                    continue
                if token.kind == "number" and before.text not in ")]}!":
                    raise NotRead("a number after a name")
                parts.append(self.factor())
            else:
                return parts[0] if len(parts) == 1 else ("mul", *parts)

    def _times(self) -> bool:
        """True if the x here is a sign: 3 x 10^8."""
        before, after = self.tokens[self.place - 1], self.next(1)
        token = self.tokens[self.place]
        return before.kind == "number" and not token.glued and after is not None and after.kind in ("number", "open")

    def signed(self) -> Node:
        if self.at("-", "+"):
            sign = self.take().text
            part = self.factor()
            return ("mul", ("num", Fraction(-1)), part) if sign == "-" else part
        return self.factor()

    def _starts(self) -> bool:
        token = self.next()
        if token is None or token.text in (
            "\\right",
            "\\rfloor",
            "\\rceil",
            "\\}",
            "\\times",
            "\\cdot",
            "\\div",
            "\\choose",
            "\\over",
            "\\bmod",
        ):
            return False
        if token.text == "|":
            return self.bars == 0
        return token.kind in ("number", "word", "command", "open")

    def factor(self) -> Node:
        node = self.base()
        while token := self.next():
            if token.kind == "power":
                self.take()
                if self.at("\\circ") or (self.at("{") and (after := self.next(1)) and after.text == "\\circ"):
                    self.place += 1 if self.at("\\circ") else 3
                    if not self.degrees:
                        raise NotRead("degrees")
                    node = ("mul", node, ("pi",), ("num", Fraction(1, 180)))
                    continue
                node = _power(node, self.exponent())
            elif token.text == "!":
                self.take()
                node = ("factorial", node)
            else:
                break
        return node

    def exponent(self) -> Node:
        if self.at("{", "("):
            return self.group()
        if self.at("-", "+"):
            sign, part = self.take().text, self.base()
            return ("mul", ("num", Fraction(-1)), part) if sign == "-" else part
        return self.base()

    def group(self) -> Node:
        """Parse what is in brackets, or a single piece; of `\\frac12` a single digit."""
        token = self.next()
        if token and token.kind == "open":
            self.take()
            bars, self.bars = self.bars, 0
            node = self.sum()
            node = self.over(node) if token.text == "{" else node
            self.take(CLOSING[token.text])
            self.bars = bars
            return node
        return self.base()

    def digit(self) -> Node:
        token = self.next()
        if token and token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            rest = token._replace(text=token.text[1:], start=token.start + 1)
            self.tokens[self.place] = rest
            return ("num", Fraction(int(token.text[0])))
        if token and token.kind == "word" and len(token.text) > 1:
            self.tokens[self.place] = token._replace(text=token.text[1:], start=token.start + 1)
            return ("sym", token.text[0])
        return self.group() if not self.at("(", "[") else self.base()

    def base(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotRead("too deep")
        node = self._base()
        self.depth -= 1
        return node

    def _base(self) -> Node:
        token = self.next()
        if token is None:
            raise NotRead("it ends")
        if token.kind == "number":
            self.take()
            return ("num", numeral(token.text))
        if token.kind == "open":
            return self.group()
        if token.text == "|":
            self.take()
            self.bars += 1
            node = self.sum()
            self.take("|")
            self.bars -= 1
            return ("abs", node)
        if token.kind == "command":
            return self.command(self.take().text[1:])
        if token.kind == "word":
            return self.word(self.take())
        raise NotRead(token.text)

    def word(self, token: Token) -> Node:
        name = token.text
        if name in _ALSO or (name.isascii() and name.lower() in ("pi", "theta", "phi")):
            return self.command(name)
        before = self.tokens[self.place - 2] if self.place > 1 else None
        factors = before is not None and before.kind == "number" and token.glued and len(name) < 5  # 3aab
        if (len(name) > 2 and not factors) or name.lower() in WORDS or not name.isascii():
            raise NotRead(name)
        if len(name) > 1:
            return ("mul", *map(self.symbol, name[:-1]), self.symbol(name[-1], last=True))
        return self.symbol(name, last=True)

    def symbol(self, name: str, last: bool = False) -> Node:
        if last and (token := self.next()) and token.kind == "quote" and token.glued and set(token.text) == {"'"}:
            name += self.take().text
        if last and self.at("_"):
            self.take()
            if self.at("{"):
                self.take()
                below = ""
                while not self.at("}"):
                    below += self.take().text
                self.take("}")
            else:
                below = self.take().text
            name += f"_{below}"
        if last and name in APPLIED and self.at("("):
            self.take("(")
            arguments = [self.sum()]
            while self.at(","):
                self.take()
                arguments.append(self.sum())
            self.take(")")
            return ("call", name, *arguments)
        return ("sym", name)

    def command(self, name: str) -> Node:
        if name == "frac":
            above, below = self.digit(), self.digit()
            return ("mul", above, ("pow", below, ("num", Fraction(-1))))
        if name == "sqrt":
            root: Node = ("num", Fraction(2))
            if self.at("["):
                root = self.group()
            inside = self.group()
            return _root(inside, root)
        if name == "overline":
            node = self.group()
            if names(node) != {"i"}:
                raise NotRead(name)
            return ("conjugate", node)
        if name == "binom":
            return ("binomial", self.digit(), self.digit())
        if name in ("lfloor", "lceil"):
            node = self.sum()
            self.take(f"\\r{name[1:]}")
            return ("floor", node) if name == "lfloor" else ("ceil", node)
        if name == "pi":
            return ("pi",)
        if name in SYMBOLS:
            return self.symbol("\\" + _SAME_SYMBOL.get(name, name), last=True)
        if name in _ALSO:
            return self.function(_ALSO[name])
        raise NotRead(name)

    def function(self, name: str) -> Node:
        below, power = None, None
        while self.at("_", "^"):
            if self.take().text == "_":
                below = self.digit() if not self.at("{") else self.group()
            else:
                power = self.exponent()
        if name in ("gcd", "lcm", "max", "min"):
            opening = self.take().text
            if opening not in "({":
                raise NotRead(name)
            parts = [self.sum()]
            while self.at(","):
                self.take()
                parts.append(self.sum())
            self.take(CLOSING[opening])
            return (name, *parts)
        argument = self.group() if self.at("(", "[", "{") else self.argument()
        if power == ("mul", ("num", Fraction(-1)), ("num", Fraction(1))) and name in _ARC:
            name, power = _ARC[name], None
        node: Node = (name, argument)
        if name in ("log", "lg"):
            base = below or (("sym", "log's base") if name == "log" else ("num", Fraction(10)))
            node = ("mul", ("ln", argument), ("pow", ("ln", base), ("num", Fraction(-1))))
        elif below is not None:
            raise NotRead(name)
        return node if power is None else _power(node, power)

    def argument(self) -> Node:
        """Parse an argument without brackets: the factors up to a sign or another function."""
        parts = [self.signed()]
        while (token := self.next()) and self._starts() and token.kind != "open":
            if token.text.lstrip("\\") in _ALSO or token.kind == "number":
                break
            parts.append(self.factor())
        return parts[0] if len(parts) == 1 else ("mul", *parts)


def _constant(node: Node) -> bool:
    return node[0] == "num" or (node[0] == "pow" and node[1][0] == "num")


def _power(base: Node, exponent: Node) -> Node:
    if exponent[0] == "mul" and exponent[1:] == (
        ("num", Fraction(1)),
        ("pow", ("num", Fraction(2)), ("num", Fraction(-1))),
    ):
        return _root(base, ("num", Fraction(2)))
    if base == ("sym", "e"):
        return ("exp", exponent)
    return ("pow", base, exponent)


def _root(inside: Node, root: Node) -> Node:
    r"""Build a root; \sqrt{4(x+y)^2} is 2|x+y|."""
    below: Node = ("pow", root, ("num", Fraction(-1)))
    if root == ("num", Fraction(2)):
        parts = inside[1:] if inside[0] == "mul" else (inside,)
        even = [part for part in parts if _is_even(part) and names(part)]
        if even:
            rest = [part for part in parts if part not in even]
            out = [("abs", _power(part[1], ("num", part[2][1] / 2))) for part in even]
            return ("mul", *out, *([("pow", ("mul", *rest), below)] if rest else []))
    return ("pow", inside, below)


def _is_even(node: Node) -> bool:
    return bool(node[0] == "pow" and node[2][0] == "num" and node[2][1] > 0 and node[2][1] % 2 == 0)


def parse(tokens: Sequence[Token]) -> Node | None:
    """Parse tokens as one expression; None if they are none, or too long or deep."""
    try:
        return _Parser(tokens).whole()
    except (NotRead, RecursionError):
        return None


@functools.lru_cache(maxsize=2**12)
def names(node: Node) -> frozenset[str]:
    """Return the variables of an expression, with `i`, and functions whose values nobody knows."""
    if node[0] == "sym":
        return frozenset() if node[1] == "e" else frozenset((node[1],))
    inner = frozenset().union(*(names(part) for part in node[1:] if isinstance(part, tuple)))
    return inner | {node[1]} if node[0] == "call" else inner


# --- Values -------------------------------------------------------------------------------------------------------

_contexts = threading.local()  # mpmath's contexts hold their precision: one of each for a thread


def _both_contexts() -> tuple[Any, Any]:
    if not hasattr(_contexts, "both"):
        from mpmath import MPContext  # here: plain numbers do not need it

        _contexts.both = MPContext(), MPContext()
        _contexts.both[0].dps, _contexts.both[1].dps = 60, 120
    return _contexts.both


def _inexact(compute: Callable[[Any], Any]) -> Inexact:
    low, high = _both_contexts()
    values = compute(low), compute(high)
    if not high.isfinite(values[1]):
        raise _NoValue
    return values


@functools.lru_cache(maxsize=2**12)
def _digest(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def _random(*key: Any) -> Fraction:
    """A fraction in (0, 2] that depends on the key alone."""
    return Fraction(_digest(repr(key)) % 999_983 + 1, 499_979)


def _at(name: str, point: int) -> Fraction:
    """The value of a variable at a point: near 0, 1, 10 and 50, positive first, then of either sign, then integers."""
    value = _random(name, point)
    if point % POINTS >= 9:
        value = Fraction(1 + _digest(f"{name} {point}") % 29)
    elif size := (1, 0, 10, 50, 1, 3, 0, 20, 60)[point % POINTS]:
        value = value * size if size < 50 else value + size
    negative = point % POINTS >= POSITIVE and point % POINTS != 9 and _digest(f"{point}{name}") & 8
    return -value if negative else value


class _At:
    """One point: the variables' values, whether values may be complex, and whether |x| has its own sign."""

    def __init__(self, point: int, complex_: bool, fold: bool, signs: bool = False) -> None:
        self.point, self.complex, self.fold, self.signs = point, complex_, fold, signs

    def value(self, node: Node) -> Value:
        try:
            return self.compute(node, None)
        except _Irrational:
            return _inexact(lambda context: self.compute(node, context))
        except ZeroDivisionError:
            raise _NoValue from None

    def elsewhere(self, node: Node, point: int) -> Any:
        """An expression's value at another point, as a fraction or to 60 digits."""
        value = _At(point, self.complex, self.fold, self.signs).value(node)
        return value if isinstance(value, Fraction) else value[0]

    def compute(self, node: Node, context: Any) -> Any:
        """Compute an expression, exactly without a context.

        Raises:
            _Irrational: the value is not a fraction.
            _NoValue: there is no (real) value.
            NotRead: it is too large.
        """
        kind = node[0]
        if kind == "num":
            return node[1] if context is None else context.mpf(node[1].numerator) / node[1].denominator
        if kind == "sym":
            return self.symbol(node[1], context)
        if kind in ("abs", "floor", "ceil", "gcd", "lcm", "max", "min", "call") and names(node):
            return self.structural(node, context)
        if kind == "mod" and names(node):
            raise NotRead("a remainder that varies")
        if kind == "pi":
            if context is None:
                raise _Irrational
            return +context.pi
        parts = [self.compute(part, context) for part in node[1:]]
        if kind == "add":
            return sum(parts, start=Fraction(0) if context is None else context.zero)
        if kind == "mul":
            return self.bounded(math.prod(parts, start=Fraction(1) if context is None else context.one))
        if kind == "pow":
            return self.power(parts[0], parts[1], context)
        if kind == "abs":
            return abs(parts[0])
        if kind in ("gcd", "lcm", "floor", "ceil", "max", "min"):
            return self.exact(kind, parts, context)
        if kind == "mod":
            if context is not None or any(part.denominator != 1 for part in parts) or parts[1] <= 0:
                raise _NoValue
            return parts[0] % parts[1]
        if kind == "conjugate":
            return parts[0] if context is None else context.conj(parts[0])
        if kind in ("factorial", "binomial"):
            return self.count(kind, parts, context)
        if context is None:
            raise _Irrational
        return self.function(kind, parts[0], context)

    def symbol(self, name: str, context: Any) -> Any:
        if name in ("e", "i"):
            if context is None:
                raise _Irrational
            return context.j if name == "i" else +context.e
        if self.fold and name[0] not in "\\EI":
            name = name[0].lower() + name[1:]
        value = _at(name, self.point)
        return value if context is None else context.mpf(value.numerator) / value.denominator

    def bounded(self, value: Any) -> Any:
        if (
            isinstance(value, Fraction)
            and value.numerator.bit_length() + value.denominator.bit_length() > 4 * MAX_BITS
        ):
            raise NotRead("too large")
        return value

    def structural(self, node: Node, context: Any) -> Any:
        """The value of what differs for each structure of its argument; only that |x| is x or -x, [x+1] is [x]+1."""
        kind = node[0]
        if kind == "call":
            key = tuple(repr(self.key(part)) for part in node[2:])
            return self.given(_random(node[1], key), context)
        if kind in ("gcd", "lcm", "max", "min"):
            return self.given(_random(kind, sorted(repr(self.key(part)) for part in node[1:])), context)
        value = self.compute(node[1], context)
        if kind == "abs" and self.signs:
            return abs(self._real(value))
        if kind == "abs":
            first = self.elsewhere(node[1], 200)
            shape = tuple(self.shape(self.elsewhere(node[1], point) / first) for point in (201, 202)) if first else ()
            sign = 1 if _digest(repr((shape, self.point))) & 16 else -1
            return value * sign * (1 if self._real(first) > 0 else -1)
        exact = self.elsewhere(node[1], self.point)
        exact = Fraction(str(exact)) if not isinstance(exact, Fraction) else exact
        inside = exact % 1 if kind == "floor" else -exact % 1
        part = self.given(_random("floor", self.shape(inside)), context)
        return value - part if kind == "floor" else value + part

    def key(self, node: Node) -> Any:
        return self.shape(self.elsewhere(node, self.point))

    @staticmethod
    def shape(value: Any) -> Any:
        return value if isinstance(value, Fraction) else value.context.nstr(value, 40)

    def _real(self, value: Any) -> Any:
        if not isinstance(value, Fraction) and value.imag:
            raise _NoValue
        return value if isinstance(value, Fraction) else value.real

    def given(self, value: Fraction, context: Any) -> Any:
        return value if context is None else context.mpf(value.numerator) / value.denominator

    def exact(self, kind: str, parts: list[Any], context: Any) -> Any:
        """Compute what needs exact numbers, or a sign."""
        if kind in ("floor", "ceil") and not isinstance(parts[0], Fraction):
            nearest = context.nint(self._real(parts[0]))
            if abs(parts[0] - nearest) < context.mpf(10) ** -40 or abs(parts[0]) > 1e15:
                raise NotRead("a floor that is too near")
        if kind in ("floor", "ceil") and context is not None:
            return (context.floor if kind == "floor" else context.ceil)(self._real(parts[0]))
        if kind in ("max", "min"):
            return (max if kind == "max" else min)(map(self._real, parts))
        if kind in ("gcd", "lcm"):
            if context is not None or any(part.denominator != 1 for part in parts):
                raise _NoValue
            value = (math.gcd if kind == "gcd" else math.lcm)(*(int(part) for part in parts))
            return self.bounded(Fraction(value))
        return Fraction(math.floor(parts[0]) if kind == "floor" else math.ceil(parts[0]))

    def count(self, kind: str, parts: list[Any], context: Any) -> Any:
        if context is None:
            if all(part.denominator == 1 for part in parts) and (parts[0] >= 0 or kind == "binomial"):
                if any(abs(part) > MAX_COUNT for part in parts):
                    if kind == "binomial" and 0 <= parts[1] <= 20 and 0 <= parts[0] < 10**30:
                        return Fraction(math.comb(int(parts[0]), int(parts[1])))
                    raise NotRead("too large")
                if kind == "factorial":
                    return Fraction(math.factorial(int(parts[0])))
                if min(parts) >= 0:
                    return Fraction(math.comb(int(parts[0]), int(parts[1])))
            raise _Irrational
        if any(abs(part) > MAX_COUNT for part in parts):
            raise NotRead("too large")
        try:
            return context.gamma(parts[0] + 1) if kind == "factorial" else context.binomial(*parts)
        except ValueError:  # a pole
            raise _NoValue from None

    def power(self, base: Any, exponent: Any, context: Any) -> Any:
        if context is None:
            if exponent.denominator != 1:
                root = _exact_root(base, exponent.denominator) if exponent.denominator < 64 else None
                if root is None:
                    raise _Irrational
                base, exponent = root, Fraction(exponent.numerator)
            if base in (1, -1) or (base == 0 and exponent > 0):
                return base if exponent % 2 else abs(base)
            if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > MAX_BITS:
                raise NotRead("too large a power")
            return base ** int(exponent)
        if base and abs(exponent) * (abs(context.log(abs(base), 2)) + 1) > 10**5:
            raise NotRead("too large a power")
        if not base and self._real(exponent) <= 0:
            raise _NoValue
        value = context.power(base, exponent)
        if not self.complex and value.imag:
            raise _NoValue
        return value

    def function(self, kind: str, part: Any, context: Any) -> Any:
        if abs(part) > MAX_ARGUMENT and kind != "ln":
            raise NotRead(f"{kind} of too large a number")
        try:
            value = context.log(part) if kind == "ln" else getattr(context, kind)(part)
        except (ValueError, ZeroDivisionError):  # a pole
            raise _NoValue from None
        if not self.complex and value.imag:
            raise _NoValue
        return value


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the root of a fraction if it is one; None otherwise, also of large or negative numbers."""
    if value < 0 or max(value.numerator.bit_length(), value.denominator.bit_length()) > 4000:
        return None
    roots = [_integer_root(part, degree) for part in (value.numerator, value.denominator)]
    return Fraction(*roots) if None not in roots else None  # type: ignore[arg-type]


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        root = low
    return root if root**degree == value else None


def _folds(node: Node) -> bool:
    """True unless a letter is there in both cases: then they are two variables, otherwise X is x."""
    letters = {name[0] for name in names(node) if name[0] != "\\"}
    return not any(letter.upper() in letters for letter in letters if letter.islower())


def values_at(node: Node, other: Node, point: int, signs: bool = False) -> list[Value | None]:
    """The values of two expressions at a point; None where one has none."""
    complex_ = bool({"i"} & (names(node) | names(other))) or not (names(node) | names(other))
    found: list[Value | None] = []
    for each in (node, other):
        try:
            found.append(_At(point, complex_, _folds(each), signs).value(each))
        except _NoValue:
            found.append(None)
    return found


def constant(node: Node) -> Value | None:
    """Return the value of an expression without variables; None if it has variables, no value, or is too large."""
    if names(node) - {"i"}:
        return None
    try:
        return _At(0, True, False).value(node)
    except (NotRead, _NoValue, OverflowError, RecursionError):
        return None


def equal(one: Node, other: Node) -> bool:
    r"""True if two expressions have the same values, wherever both have one.

    The domain counts where one of them has an absolute value, since that is what bars say: \ln|x| is not \ln x, and
    \sqrt{|x|} is not \sqrt{x}. Without bars it does not, as roots and logarithms mostly are of positive variables:
    \ln x + \ln y is \ln(xy), e^{\ln x} is x, and 2\ln x is \ln(x^2). Single points, as in x/x and 1, never count.
    """
    return _compare(one, other, is_equal) and _have_one_domain(one, other)


def _have_one_domain(one: Node, other: Node) -> bool:
    """False if one of two expressions with bars is real alone at a point, or they differ where |x| has its sign."""
    if not (_has_bars(one) or _has_bars(other)):
        return True
    try:
        for point in range(POINTS):
            a, b = values_at(one, other, point, signs=True)
            if (a is None) != (b is None):
                return False
            if a is not None and b is not None and not (_is_large(a) or _is_large(b) or is_equal(a, b)):
                return False
    except (NotRead, OverflowError, RecursionError):
        return False
    return True


@functools.lru_cache(maxsize=2**12)
def _has_bars(node: Node) -> bool:
    """True for an absolute value of something that varies."""
    if node[0] == "abs" and names(node):
        return True
    return any(_has_bars(part) for part in node[1:] if isinstance(part, tuple))


def is_multiple(one: Node, other: Node) -> bool:
    """True if the values of one expression are those of the other times one factor."""
    first: list[tuple[Value, Value]] = []

    def alike(a: Value, b: Value) -> bool:
        first.append((a, b))
        c, d = first[0]
        if is_equal(c, Fraction(0)) or is_equal(d, Fraction(0)):
            return False
        return is_equal(_product(a, d), _product(c, b))

    return _compare(one, other, alike)


def _compare(one: Node, other: Node, alike: Callable[[Value, Value], bool]) -> bool:
    found = 0
    constants = not ((names(one) | names(other)) - {"i"})
    try:
        for point in range(1 if constants else POINTS):
            a, b = values_at(one, other, point)
            if a is not None and b is not None and (constants or not (_is_large(a) or _is_large(b))):
                found += 1
                if not alike(a, b):
                    return False
    except (NotRead, OverflowError, RecursionError):
        return False
    return found >= (1 if constants else NEEDED)


def _is_large(value: Value) -> bool:
    return not isinstance(value, Fraction) and abs(value[1]) > LARGEST


def is_equal(one: Value, other: Value) -> bool:
    """True for equal fractions, or for values whose difference is tiny and shrinks with more digits."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    (_, first), (_, second) = _pair(one), _pair(other)
    low, high = (abs(a - b) for a, b in zip(_pair(one), _pair(other), strict=True))
    size = max(abs(first), abs(second))
    if size > LARGEST or high > 1e-40 * max(size, 1):
        return False
    return bool(high == 0 or high < 1e-20 * low or (low == 0 and high < size * first.context.mpf(10) ** -110))


def _pair(value: Value) -> Inexact:
    if isinstance(value, Fraction):
        return _inexact(lambda context: context.mpf(value.numerator) / value.denominator)
    return value


def _product(one: Value, other: Value) -> Value:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one * other
    (a, b), (c, d) = _pair(one), _pair(other)
    return a * c, b * d
