"""The rule that judges a run's completions: `rewards.is_right`, or a function of the user's.

Evaluation, preflight and `judge_reward_func` ask the same one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import rewards

# The first of these rewards that a run has knows what is right: what it gives more than 0
KNOW_RIGHT = ("judge_reward_func", "correctness_reward_func", "signed_correctness_reward_func")

Verdict = Callable[[str, Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Judge:
    """`rewards.is_right` with this answer pattern, or a function of the user's: (text, row) → bool.

    A row holds the columns of the data, with the gold answer as `answer` (None where the data has none).

    >>> Judge("boxed").verdict(r"So it is \\boxed{72.0}.", {"answer": "72"})
    True
    """

    pattern: str = "xml"
    function: Verdict | None = None
    name: str = ""  # of the function, as `judge` names it

    def extract(self, text: str) -> str:
        """The answer in a completion; the whole text where nothing marks it."""
        return rewards.extract_answer(text, self.pattern)

    def verdict(self, text: str, row: Mapping[str, Any]) -> bool:
        """Whether a completion is right; raises what the user's function raises, TypeError if that is no verdict."""
        if self.function is not None:
            verdict = self.function(text, row)
            if verdict not in (0, 1):  # True and False are; "no" or a coroutine would count as true, None as false
                raise TypeError(f"it returned {repr(verdict)[:80]}; let it return True or False")
            return bool(verdict)
        gold = row.get("answer")
        return gold is not None and rewards.is_right(text, gold, self.pattern)
