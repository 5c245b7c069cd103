"""What is right: the one rule by which a run's completions are judged, the built-in one or the user's own.

Evaluation, comparison, majority votes, group metrics, preflight and `judge_reward_func` all ask it.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rewards
from grpo.core.processes import say

Verdict = Callable[[str, Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Judge:
    """`rewards.is_right` with this answer pattern, or a function of one's own: (text, row) → bool.

    A row holds the columns of the data, with the gold answer as `answer` (None where the data has none).

    >>> judge = Judge("boxed")
    >>> text, row = r"So it is \\boxed{72.0}.", {"answer": "72"}
    >>> judge.is_right(text, row), judge.is_exact(text, row)
    (True, False)
    """

    pattern: str = "xml"
    function: Verdict | None = None
    name: str = ""  # of the function, as `judge` names it
    failed: list[str] = field(default_factory=list, compare=False, repr=False)  # what was said of its errors

    def extract(self, text: str) -> str:
        """The answer in a completion; the whole text where nothing marks it."""
        return rewards.extract_answer(text, self.pattern)

    def judges(self, row: Mapping[str, Any]) -> bool:
        """Whether right and wrong can be told for this row: it has a gold answer, or the judge needs none."""
        return self.function is not None or row.get("answer") is not None

    def verdict(self, text: str, row: Mapping[str, Any]) -> bool:
        """Whether a completion is right; raises what a function of one's own raises."""
        if self.function is not None:
            return bool(self.function(text, copy.deepcopy(row)))  # its own, which it may change
        gold = row.get("answer")
        return gold is not None and rewards.is_right(text, gold, self.pattern)

    def is_right(self, text: str, row: Mapping[str, Any]) -> bool:
        """Whether a completion is right; wrong where a function of one's own raises, which is said once."""
        try:
            return self.verdict(text, row)
        except Exception as error:
            if not self.failed:
                self.failed.append(str(error))
                raised = f"{type(error).__name__}: {' '.join(str(error).split())}"
                say(f"note: judge {self.name} raises {raised}; such completions count as wrong")
            return False

    def is_exact(self, text: str, row: Mapping[str, Any], template: str = rewards.XML_COT_FORMAT) -> bool:
        """The strict rule: the extracted answer is the gold answer, character by character.

        A judge of one's own knows no gold answer: there, a completion that is right and exactly in the format.
        """
        if self.function is not None:
            return rewards.has_strict_format(text, template) and self.is_right(text, row)
        return self.extract(text) == row.get("answer")

    def same(self, text: str, other: str) -> bool:
        """Whether two completions have the same answer."""
        one, two = self.extract(text), self.extract(other)
        return one == two or rewards.is_right(one, two) or rewards.is_right(two, one)


def rows_of(columns: Mapping[str, Any], count: int) -> Sequence[dict[str, Any]]:
    """The rows that columns of this length make, as a reward gets them by keyword; what is no column is ignored."""
    lists = {key: value for key, value in columns.items() if isinstance(value, Sequence) and len(value) == count}
    return [{key: value[index] for key, value in lists.items()} for index in range(count)]
