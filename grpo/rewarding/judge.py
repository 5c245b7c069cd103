"""The rule that judges a run's completions: `rewards.is_right`, or a function of the user's.

Evaluation, preflight, `judge_reward_func` and the logged shares of right groups ask the same one.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import rewards

Verdict = Callable[[str, Mapping[str, Any]], bool]
# What a rollout adds to a row of the data, and what TRL keeps from rewards
OF_A_ROLLOUT = {"prompt", "prompts", "completion", "completions", "completion_ids"}


@dataclass(frozen=True)
class Judge:
    """`rewards.is_right` with this answer pattern, or a function of the user's: (text, row) → bool.

    A row holds the columns of the data, with the gold answer as `answer` (None where the data has none). A function of
    the user's, which may be slow or a paid model, is asked once about a completion, until `forget`.

    >>> Judge("boxed").verdict(r"So it is \\boxed{72.0}.", {"answer": "72"})
    True
    """

    pattern: str = "xml"
    function: Verdict | None = None
    name: str = ""  # of the function, as `judge` names it
    _said: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False, compare=False)

    def extract(self, text: str) -> str:
        """The answer in a completion; the whole text where nothing marks it."""
        return rewards.extract_answer(text, self.pattern)

    def can_judge(self, row: Mapping[str, Any]) -> bool:
        """Whether there is a verdict on completions of this row; the built-in rule needs its gold answer."""
        return self.function is not None or row.get("answer") is not None

    def verdict(self, text: str, row: Mapping[str, Any]) -> bool:
        """Whether a completion is right; raises what the user's function raises, TypeError if that is no verdict."""
        if self.function is None:
            gold = row.get("answer")
            return gold is not None and rewards.is_right(text, gold, self.pattern)
        data = {key: value for key, value in row.items() if key not in OF_A_ROLLOUT}
        key = text, json.dumps(data, sort_keys=True, default=repr)
        if key not in self._said:
            verdict = self.function(text, dict(row))  # which it may change
            if verdict not in (0, 1):  # True and False are; "no" or a coroutine would count as true, None as false
                raise TypeError(f"it returned {repr(verdict)[:80]}; let it return True or False")
            self._said[key] = bool(verdict)
        return self._said[key]

    def forget(self) -> None:
        """Ask anew about every completion; call it after a rollout or an evaluation."""
        self._said.clear()
