"""`Answer`: a completion of a held-out question with its grades and rewards; the reader of completions_*.jsonl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from grpo.core.jsonfiles import read_lines
from grpo.task import given
from rewards import Gold


@dataclass(frozen=True)
class Answer:
    """A greedy completion of a held-out question. What is None is unknown, and not written to the file.

    Attributes:
        answer: the gold answer: text, a list of alternatives, or None without one.
        completion: begins with the text that the prompt ends in.
        truncated: True if it was cut off at the length limit.
        tokens: its length without the end token.
        read: the extracted answer.
        format_strict, format_soft: whether it has the format; None without a format.
        strict: right, and exactly the gold answer in its place (with the user's judge: and exactly in the format).
        lenient: right, however it is written, or by the user's judge.
        judged: the text that the lenient rule read.
        why: the lenient rule's reason: value, unit, two answers, denied, not understood.
        rewards: the value of each reward by name; None where it failed.
        reward: their weighted sum; None if a reward with a weight has no value.
        row: the data's other columns.
        samples, samples_right: texts sampled as in rollouts, and the verdict on each.
        majority_right, any_right: the verdict on the most frequent sampled answer, and on all of them.
    """

    question: Any = ""
    answer: Gold | None = None
    completion: str = ""
    read: str = ""
    strict: bool | None = None
    lenient: bool | None = None
    format_strict: bool | None = None
    format_soft: bool | None = None
    truncated: bool | None = None
    tokens: int | None = None
    judged: str | None = None
    why: str | None = None
    rewards: Mapping[str, float | None] | None = None
    reward: float | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[str] | None = None
    samples_right: Sequence[bool] | None = None
    majority_right: bool | None = None
    any_right: bool | None = None

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Answer":
        """Make an answer of a line of completions_*.jsonl; keys of other versions are ignored."""
        known = {each.name: line[each.name] for each in fields(cls) if each.name in line}
        return cls(**known | {"answer": line.get("answer") or None})  # not a list without alternatives

    def to_json(self) -> dict[str, Any]:
        """Return the line of completions_*.jsonl."""
        kept = {"answer"} | ({"reward"} if self.rewards is not None else set())
        return {key: value for key, value in vars(self).items() if value is not None or key in kept}

    @property
    def verdict(self) -> str:
        """Say in a word or two whether it is right, and why; "" without a verdict.

        >>> Answer(lenient=False, why="two answers").verdict, Answer(lenient=True).verdict, Answer().verdict
        ('wrong: two answers', 'right', '')
        """
        word = "" if self.lenient is None else "right" if self.lenient else "wrong"
        return f"{word}: {self.why}" if word and self.why else word

    def how_read(self, pattern: str) -> str:
        """Say which answer was read: the answer, or the whole completion."""
        return given.how_read(str(self.completion), str(self.read), pattern, self.judged)


def file_of(directory: Path, when: str) -> Path:
    """Return the file of an evaluation's answers: `before`, `after` or `only` (without training)."""
    return directory / f"completions_{when}.jsonl"


def read_answers(file: Path) -> list[Answer]:
    """Read the file of an evaluation's answers; [] without it. Raise UserError for a broken line."""
    return list(map(Answer.from_json, read_lines(file, Answer)))


def most_given(answers: Sequence[Answer]) -> given.OneAnswer | None:
    """Return the most frequent answer to different questions; None if one has no gold answer."""
    return given.one_answer([given.tally([str(one.read) for one in answers], [one.answer for one in answers])])
