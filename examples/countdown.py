"""A task of one's own, the countdown game: reach a target with the given numbers, each used exactly once.

    python train_grpo.py --config recipes/countdown.yaml

Many expressions are right, so no row has a gold answer; `is_right`, the recipe's `judge`, checks what the model wrote.
Rows have the columns `numbers` and `target` (assets/countdown/make_countdown.py).
"""

import re
from collections.abc import Mapping
from typing import Any

from grpo.task import extract_answer
from grpo.task.arithmetic import value

SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})


def is_right(text: str, row: Mapping[str, Any]) -> bool:
    """True if the answer in a completion uses each of the row's numbers exactly once and reaches its target.

    The answer is an expression with `+ - * /` and brackets, with `= target` after it or without.

    >>> row = {"numbers": [3, 7, 2], "target": 20}
    >>> [is_right(f"<answer>{answer}</answer>", row) for answer in ("(3 + 7) * 2", "2 * (7 + 3) = 20", "20", "10 * 2")]
    [True, True, False, False]
    """
    expression, equals, result = extract_answer(text).translate(SIGNS).partition("=")
    if equals and result.strip() != str(row["target"]):
        return False
    used = re.findall("[0-9.]+", expression)
    return sorted(used) == sorted(map(str, row["numbers"])) and value(expression) == row["target"]
