"""A task of one's own, the countdown game: reach a target with the given numbers, each used exactly once.

    python train_grpo.py --config recipes/countdown.yaml

Many expressions are right, so no row has a gold answer; `is_right`, the recipe's `judge`, checks what the model wrote.
Rows have the columns `numbers` and `target` (assets/countdown/make_countdown.py).
"""

import ast
import operator
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rewards import extract_answer

MAX_LENGTH = 100  # characters of an expression, which also bounds its depth
SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def is_right(text: str, row: Mapping[str, Any]) -> bool:
    """Whether the answer in a completion uses each of the row's numbers exactly once and reaches its target.

    The answer is an expression with `+ - * /` and brackets, with `= target` after it or without.

    >>> row = {"numbers": [3, 7, 2], "target": 20}
    >>> [is_right(f"<answer>{answer}</answer>", row) for answer in ("(3 + 7) * 2", "2 * (7 + 3) = 20", "20", "10 * 2")]
    [True, True, False, False]
    """
    expression, equals, result = extract_answer(text).translate(SIGNS).partition("=")
    if equals and result.strip() != str(row["target"]):
        return False
    used = sorted(map(int, re.findall("[0-9]+", expression[:MAX_LENGTH])))
    return used == sorted(row["numbers"]) and value(expression) == row["target"]


def value(expression: str) -> Fraction | None:
    """The exact value of an expression; None if it has none or contains anything but numbers, `+ - * /`, brackets.

    Nothing is executed: Python only parses the text.

    >>> value("8 / (3 - 8 / 3)"), value("2 ** 9"), value("1 / (2 - 2)"), value("__import__('os')")
    (Fraction(24, 1), None, None, None)
    """
    expression = expression.strip()
    if not re.fullmatch(rf"[0-9+*/() -]{{1,{MAX_LENGTH}}}", expression):
        return None
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, KeyError):  # KeyError: an operation such as ** that is not allowed
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATIONS[type(sign)](_value(left), _value(right))
    raise KeyError(ast.dump(node))
