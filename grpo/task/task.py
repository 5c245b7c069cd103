"""The task of a run: its prompts, its answer pattern, and its rule for right answers.

Evaluation, preflight, alarms, samples, logged shares of right groups, `ask` and the X-ray all use it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exact_answers import extract_answer
from exact_answers.verdict import grade_any
from grpo.core.checklist import Check
from grpo.core.errors import WrongResult
from grpo.task.gold import alternatives
from grpo.task.prompts import Message, Prompt, PromptFormat, Shot
from rewards import has_soft_format, has_strict_format, is_gold, template_parts

Judge = Callable[[str, Mapping[str, Any]], bool]


class Verdict(NamedTuple):
    """The verdict on a completion; `lenient` and `strict` are None if it cannot be judged."""

    read: str = ""  # the extracted answer
    lenient: bool | None = None  # right, however it is written, or by the user's judge
    strict: bool | None = None  # that, and exactly the gold answer in its place; by a judge: exactly in the format
    judged: str | None = None  # by the lenient rule: what it read
    why: str | None = None  # and why that is right or not: value, unit, not computed, …: exact_answers.Verdict

    def __bool__(self) -> bool:
        """True if the completion is right."""
        return self.lenient is True

    def __str__(self) -> str:
        """Say in a word or two whether it is right, and why; "" without a verdict.

        >>> str(Verdict(lenient=False, why="two answers")), str(Verdict(lenient=True)), str(Verdict())
        ('wrong: two answers', 'right', '')
        """
        word = "" if self.lenient is None else "right" if self.lenient else "wrong"
        return f"{word}: {self.why}" if word and self.why else word


class Format(NamedTuple):
    """The form of a completion: has it the format of the prompt? None without one, as any text has it."""

    strict: bool | None = None
    soft: bool | None = None


@dataclass(frozen=True)
class Task:
    """The prompt of a run, and its rule for right answers.

    >>> boxed = PromptFormat("", completion="{reasoning} \\\\boxed{{answer}}", pattern="boxed")
    >>> str(Task(boxed).verdict(r"So it is \\\\boxed{72.0}.", {"answer": "72"}))
    'right: value'
    """

    prompt: PromptFormat
    shots: Sequence[Shot] = ()  # worked examples in each prompt
    judge: Judge | None = None  # the user's function of a text and its row; None: the lenient rule
    judge_name: str = ""  # without `judge`: that of a recorded run, whose verdicts are known
    prepare: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None  # the user's function of a row
    notes: Sequence[Check] = field(default=(), repr=False, compare=False)  # decisions about prompts, for preflight

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
        """True if completions of this row can be judged: by the user's judge, else with a gold answer."""
        return self.judge is not None or (row.get("answer") is not None and not self.judge_name)

    def verdict(self, text: str, row: Mapping[str, Any]) -> Verdict:
        """Judge a completion. Each call asks the user's judge, which may be slow or a paid model.

        Without a gold answer, or the judge that decided, there is only the extracted answer.

        Args:
            row: the columns of the data, with the gold answer as `answer`: text, a list of alternatives, or None
                without one.

        Raises:
            WrongResult: the user's judge does not return a boolean. Its own exceptions pass through.
        """
        read = self.answer(text)
        if self.judge is not None:
            right = self._by_judge(self.judge, text, row)
            return Verdict(read, right, right and has_strict_format(text, self.prompt.completion))
        golds = alternatives(row.get("answer"))
        if not golds or not self.can_judge(row):
            return Verdict(read)
        graded = grade_any(text, golds, self.prompt.pattern)
        return Verdict(read, graded.right, graded.right and is_gold(read, row["answer"]), graded.read, graded.why)

    def _by_judge(self, judge: Judge, text: str, row: Mapping[str, Any]) -> bool:
        verdict = judge(text, dict(row))  # which it may change
        if verdict not in (0, 1):  # booleans only; "no" or a coroutine would count as true, None as false
            raise WrongResult(f"it returned {repr(verdict)[:80]}; let it return True or False")
        return bool(verdict)

    def form(self, text: str) -> Format:
        """Say whether a completion has the format."""
        if not self.has_format:
            return Format()
        template = self.prompt.completion
        return Format(has_strict_format(text, template), has_soft_format(text, template))

    def record(self) -> dict[str, Any]:
        """Return the format and the worked examples for the run's record, to ask its model again."""
        return {"prompt": dataclasses.asdict(self.prompt), "shots": list(self.shots)}
