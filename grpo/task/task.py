"""The task of a run: its prompts, its answer pattern, and its rule for right answers.

Evaluation, preflight, alarms, samples, logged shares of right groups, `ask` and the X-ray all use it.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exact_answers import Verdict, extract_answer
from exact_answers.verdict import grade_any
from grpo.core.checklist import Check
from grpo.core.errors import USERS_ERRORS, WrongResult
from grpo.core.out_of_memory import is_out_of_memory
from grpo.task.gold import alternatives
from grpo.task.prompts import Message, Prompt, PromptFormat, Shot
from rewards import has_soft_format, has_strict_format, is_gold, template_parts

Judge = Callable[[str, Mapping[str, Any]], bool]


class Grade(NamedTuple):
    """The grade of a completion; `strict` and `lenient` are None if it cannot be judged."""

    read: str  # the extracted answer
    format_strict: bool | None  # None without a format, as any text has it
    format_soft: bool | None
    strict: bool | None  # exactly the gold answer, at the place of the format
    lenient: bool | None  # right, however it is written
    judged: str | None = None  # by the lenient rule: what it read
    why: str | None = None  # and why that is right or not: value, unit, two answers, denied, not understood


@dataclass(frozen=True)
class Task:
    """The prompt of a run, and its rule for right answers.

    Rewards, groups and grades ask for the same verdicts, and the user's judge may be slow or a paid model: it is asked
    once for a completion, until `forget`; what it raises is kept like a verdict.

    >>> boxed = PromptFormat("", completion="{reasoning} \\\\boxed{{answer}}", pattern="boxed")
    >>> Task(boxed).verdict(r"So it is \\\\boxed{72.0}.", {"answer": "72"})
    True
    """

    prompt: PromptFormat
    shots: Sequence[Shot] = ()  # worked examples in each prompt
    judge: Judge | None = None  # the user's function of a text and its row; None: the lenient rule
    judge_name: str = ""
    prepare: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None  # the user's function of a row
    notes: Sequence[Check] = field(default=(), repr=False, compare=False)  # decisions about prompts, for preflight
    _verdicts: dict[Any, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # by text and gold answer or row

    def ask(self, question: str | list[Message]) -> Prompt:
        """Build the prompt of a question, with the worked examples."""
        return self.prompt.prompt(question, self.shots)

    @property
    def has_format(self) -> bool:
        """True if completions have a form besides their answer, such as tags."""
        return any(map(str.strip, template_parts(self.prompt.completion)))

    def perfect(self, reasoning: str, answer: str) -> str:
        """Build a perfect completion."""
        return self.prompt.answered(reasoning, answer)

    def answer(self, text: str) -> str:
        """Extract the answer from a completion; the whole text without a mark."""
        return extract_answer(text, self.prompt.pattern)

    def can_judge(self, row: Mapping[str, Any]) -> bool:
        """True if completions of this row can be judged; the lenient rule needs a gold answer."""
        return self.judge is not None or row.get("answer") is not None

    def verdict(self, text: str, row: Mapping[str, Any]) -> bool:
        """True if a completion is right.

        Args:
            row: the columns of the data, with the gold answer as `answer`: text, a list of alternatives, or None
                without one.

        Raises:
            WrongResult: the user's judge does not return a boolean. Its own exceptions pass through.
        """
        if self.judge is None:
            judged = self._by_lenient_rule(text, row)
            return judged is not None and judged.right
        if (key := key_of(text, row)) not in self._verdicts:
            try:
                self._verdicts[key] = self._by_judge(self.judge, text, row)
            except USERS_ERRORS as error:
                if is_out_of_memory(error):
                    raise
                self._verdicts[key] = error
        known = self._verdicts[key]
        if isinstance(known, BaseException):
            raise known
        return known

    def remember(self, text: str, row: Mapping[str, Any], verdict: bool) -> None:
        """Keep the verdict of the user's judge that another process has asked for."""
        if self.judge:
            self._verdicts[key_of(text, row)] = verdict

    def discard(self, text: str, row: Mapping[str, Any]) -> None:
        """Forget the verdict on a completion."""
        self._verdicts.pop(key_of(text, row), None)

    def _by_judge(self, judge: Judge, text: str, row: Mapping[str, Any]) -> bool:
        verdict = judge(text, dict(row))  # which it may change
        if verdict not in (0, 1):  # booleans only; "no" or a coroutine would count as true, None as false
            raise WrongResult(f"it returned {repr(verdict)[:80]}; let it return True or False")
        return bool(verdict)

    def _by_lenient_rule(self, text: str, row: Mapping[str, Any]) -> Verdict | None:
        """Return the lenient rule's verdict; None without a gold answer."""
        golds = tuple(alternatives(row.get("answer")))
        key = text, self.prompt.pattern, golds
        if key not in self._verdicts:
            self._verdicts[key] = grade_any(text, golds, self.prompt.pattern) if golds else None
        return self._verdicts[key]

    def grade(self, text: str, row: Mapping[str, Any], lenient: bool | None = None) -> Grade:
        """Grade a completion.

        Strict means right, and exactly the gold answer in its place; with the user's judge, exactly in the format.

        Args:
            lenient: the verdict, or None.
        """
        template, read = self.prompt.completion, self.answer(text)
        strict_format, soft_format = has_strict_format(text, template), has_soft_format(text, template)
        exact = strict_format if self.judge else is_gold(read, row["answer"])
        strict = None if lenient is None else lenient and exact
        verdict = None if lenient is None or self.judge else self._by_lenient_rule(text, row)
        has = self.has_format
        graded = Grade(read, strict_format if has else None, soft_format if has else None, strict, lenient)
        return graded._replace(judged=verdict.read, why=verdict.why) if verdict else graded

    def record(self) -> dict[str, Any]:
        """Return the format and the worked examples for the run's record, to ask its model again."""
        return {"prompt": dataclasses.asdict(self.prompt), "shots": list(self.shots)}

    def forget(self) -> None:
        """Clear the verdicts that are kept, after a rollout or an evaluation."""
        self._verdicts.clear()


def key_of(text: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a key that is the same for the same completion of the same row."""
    return text, json.dumps(row, sort_keys=True, default=repr)
