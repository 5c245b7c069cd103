"""`Sample`: a completion and what is known of it, the one shape that it has everywhere, and its line of a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from grpo.task import given
from grpo.task.task import Format, Verdict
from rewards import Gold

UNJUDGED, NO_FORMAT = Verdict(), Format()
APART = ("question", "answer", "prompt")  # columns of a row that no line has in its `row`


@dataclass(frozen=True)
class Fault:
    """A failure of a reward or judge on a row. Its text is `function: exception (file:line)`."""

    function: str
    row: int  # its place among the samples that were scored together
    question: str
    completion: str
    fault: str  # the exception with the user's own line, or the result that is no value
    traceback: str

    def __str__(self) -> str:
        return f"{self.function}: {self.fault}"


class Line(TypedDict, total=False):
    """A line of completions_*.jsonl."""

    question: Any
    answer: Gold | None
    completion: str
    read: str
    strict: bool | None
    lenient: bool | None
    format_strict: bool | None
    format_soft: bool | None
    truncated: bool | None
    tokens: int | None
    judged: str | None
    why: str | None
    rewards: Mapping[str, float | None] | None
    reward: float | None
    row: Mapping[str, Any]
    samples: Sequence[str] | None
    samples_right: Sequence[bool] | None
    majority_right: bool | None
    any_right: bool | None


@dataclass(frozen=True)
class Sample:
    """A completion of a prompt: sampled in training or for a held-out question, made up, or read from a file.

    What is None is unknown, and not written to the file.

    Attributes:
        row: the data's row: `question`, gold `answer` (text, a list of alternatives, or None), `prompt`, and other
            columns.
        text: the completion; it begins with the text that the prompt ends in.
        ids: its token ids, with the end token.
        tokens: its length without the end token.
        truncated: True if it was cut off at the length limit.
        verdict: whether it is right; without one, its `lenient` is None.
        judge_fault: why the user's judge gave no verdict.
        format: whether it has the format.
        rewards: the value of each reward by name; None where it returned None, and for all of them where one failed.
        reward: their weighted sum; None if a reward with a weight has no value.
        faults: the failures of rewards on it.
        draws: further completions of its prompt, sampled as in rollouts.
        majority_right: the verdict on the most frequent answer of the draws.
    """

    row: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    ids: Sequence[int] = ()
    tokens: int | None = None
    truncated: bool | None = None
    verdict: Verdict = UNJUDGED
    judge_fault: Fault | None = None
    format: Format = NO_FORMAT
    rewards: Mapping[str, float | None] | None = None
    reward: float | None = None
    faults: Sequence[Fault] = ()
    draws: Sequence["Sample"] = ()
    majority_right: bool | None = None

    @property
    def question(self) -> Any:
        """Its question, "" without one."""
        return self.row.get("question", "")

    @property
    def gold(self) -> Gold | None:
        """Its gold answer, None without one."""
        return self.row.get("answer")

    @property
    def columns(self) -> dict[str, Any]:
        """The row's other columns."""
        return {key: value for key, value in self.row.items() if key not in APART}

    @property
    def any_right(self) -> bool | None:
        """True if any draw is right; None without verdicts."""
        verdicts = [draw.verdict.lenient for draw in self.draws]
        return any(verdicts) if verdicts and None not in verdicts else None

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Sample":
        """Make a sample of a line of completions_*.jsonl; keys of other versions are ignored."""
        gold = line.get("answer") or None  # not a list without alternatives
        row = {**(line.get("row") or {}), "question": line.get("question", ""), "answer": gold}
        right = line.get("samples_right") or [None] * len(line.get("samples") or ())
        draws = [
            cls(row, text, verdict=Verdict(lenient=verdict))
            for text, verdict in zip(line.get("samples") or (), right, strict=False)
        ]
        verdict = Verdict(
            line.get("read") or "", line.get("lenient"), line.get("strict"), line.get("judged"), line.get("why")
        )
        return cls(
            row,
            line.get("completion") or "",
            tokens=line.get("tokens"),
            truncated=line.get("truncated"),
            verdict=verdict,
            format=Format(line.get("format_strict"), line.get("format_soft")),
            rewards=line.get("rewards"),
            reward=line.get("reward"),
            draws=draws,
            majority_right=line.get("majority_right"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the line of completions_*.jsonl."""
        verdicts = [draw.verdict.lenient for draw in self.draws]
        line = {
            "question": self.question,
            "answer": self.gold,
            "completion": self.text,
            "read": self.verdict.read,
            "strict": self.verdict.strict,
            "lenient": self.verdict.lenient,
            "format_strict": self.format.strict,
            "format_soft": self.format.soft,
            "truncated": self.truncated,
            "tokens": self.tokens,
            "judged": self.verdict.judged,
            "why": self.verdict.why,
            "rewards": self.rewards,
            "reward": self.reward,
            "row": self.columns,
            "samples": [draw.text for draw in self.draws] or None,
            "samples_right": None if None in verdicts else verdicts or None,
            "majority_right": self.majority_right,
            "any_right": self.any_right,
        }
        always = {"answer"} | ({"reward"} if self.rewards is not None else set())
        return {key: value for key, value in line.items() if value is not None or key in always}

    def how_read(self, pattern: str) -> str:
        """Say which answer was read: the answer, or the whole completion."""
        return given.how_read(self.text, self.verdict.read, pattern, self.verdict.judged)
