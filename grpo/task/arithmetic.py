"""Arithmetic in a text: exact values of expressions, and the lines that count for `step_verified_reward_func`."""

import ast
import itertools
import operator
import re
from collections.abc import Iterator
from fractions import Fraction

MAX_EXPRESSION = 100  # most characters of an expression; this also bounds its depth
MAX_LINE, MAX_LINES = 500, 64  # most characters of a line, and lines with an equals sign in a text
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

_ANNOTATION = re.compile(r"<<([^<>]*)>>")  # GSM8K's calculator: 48/2 = <<48/2=24>>24
_CLEANING = (
    (r"(?<![0-9])\*\*|\*\*(?![0-9])|\\?\$", ""),  # bold type, dollars
    (r"^\s*(?:[-*•]|[0-9]+[.)])\s", ""),  # a list's bullet or number
    (r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", ""),  # 1,000
    (r"[×·]|\\times\b|\\cdot\b|(?<=[0-9)])\s*[xX]\s*(?=[0-9(.])", "*"),
    (r"÷|\\div\b", "/"),
    (r"[−–]", "-"),
    (r"\.(?![0-9])", ";"),  # a full stop ends an equation
)
# Numbers, operators and brackets, unless a letter, a power or a percent sign touches them
_ARITHMETIC = re.compile(r"(?<![\w^%!.])[0-9+*/().= -]++(?:(?<= )|(?![\w^%!]))")
_OPERATOR = re.compile(r"[0-9)][-+*/]")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")


def value(expression: str) -> Fraction | None:
    """Compute an expression exactly; None without a value, or if it has more than numbers, `+ - * /` and brackets.

    Python only parses the text; nothing is executed.

    >>> value("8 / (3 - 8 / 3)"), value("0.1 + 0.2"), value("2 ** 9"), value("1 / (2 - 2)"), value("__import__('os')")
    (Fraction(24, 1), Fraction(3, 10), None, None, None)
    """
    expression = expression.strip()
    if not re.fullmatch(rf"[0-9.+*/() -]{{1,{MAX_EXPRESSION}}}", expression):
        return None
    expression = re.sub(r"(?<![0-9.])0+(?=[0-9])", "", expression)  # Python refuses 007
    try:
        return _value(ast.parse(expression, mode="eval").body, expression)
    except (SyntaxError, ZeroDivisionError, KeyError):  # KeyError: another operation, such as **
        return None


def _value(node: ast.expr, expression: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(ast.get_source_segment(expression, node) or "")  # the number as written, not as a float
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, expression)
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATIONS[type(sign)](_value(left, expression), _value(right, expression))
    raise KeyError(ast.dump(node))


def equations(line: str) -> list[tuple[str, str]]:
    """Return both sides of each equation in a line with an expression of numbers on the left.

    >>> equations("So 48 / 2 = <<48/2=24>>24 clips, and 24 + $1,000 = 1,024."), equations("2x + 3 = 9")
    ([('48/2', '24'), ('48/2', '24'), ('24+1000', '1024')], [])
    """
    text = _ANNOTATION.sub("", line)
    for pattern, replacement in _CLEANING:
        text = re.sub(pattern, replacement, text)
    pairs: list[tuple[str, str]] = []
    annotations = _ANNOTATION.findall(line)
    for run in [*annotations, *_ARITHMETIC.findall(text)]:
        sides = [re.sub(r"\s*([-+*/()])\s*", r"\1", side.strip()) for side in run.strip(" =").split("=")]
        sides = [side if side.count("(") == side.count(")") else side.strip("()") for side in sides]
        if (run in annotations or _OPERATOR.search(sides[0])) and value(sides[0]) is not None:
            pairs += itertools.pairwise(sides)
    return pairs


def is_verified(line: str) -> bool:
    """True if a line has an equation, all its equations are true, and it is not too long. 10 / 3 is not 3.33."""
    pairs = equations(line) if len(line) <= MAX_LINE else []
    computes = any(_OPERATOR.search(left) for left, _ in pairs)
    return computes and all(value(left) == value(right) is not None for left, right in pairs)


def verified_lines(reasoning: str, question: str | None = None) -> Iterator[str]:
    """Yield the verified lines that have a new equation.

    With a question, a line must also use one of its numbers, or one of an earlier verified line.

    >>> list(verified_lines("1 + 1 = 2\\n3 * 4 = 12\\n3*4 = 12.0\\n12 - 7 = 5", "4 a day?"))
    ['3 * 4 = 12', '12 - 7 = 5']
    """
    seen: set[str] = set()
    known = _numbers((question or "")[:10_000])
    for line in [line for line in reasoning.splitlines() if "=" in line][:MAX_LINES]:
        if not is_verified(line):
            continue
        pairs = equations(line)
        # 03+4 = 7.0 is 3+4 = 7 again
        sums = ["=".join(sides) for sides in pairs if _OPERATOR.search(sides[0])]
        new = {_NUMBER.sub(lambda number: str(Fraction(number[0])), text) for text in sums} - seen
        if new and (question is None or known & _numbers(" ".join(left for left, _ in pairs))):
            seen |= new
            known |= _numbers(" ".join(map("=".join, pairs)))
            yield line


def _numbers(text: str) -> set[Fraction]:
    return {Fraction(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?", text)}
