"""Completions with the rows of their prompts, and the one way to call the user's rewards and judge on them.

A function that fails on a row gives a Fault there, whatever it raises or returns.
"""

import asyncio
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerState

from grpo.core.errors import USERS_ERRORS, WrongResult, fault_of
from grpo.core.out_of_memory import is_out_of_memory
from grpo.task.prompts import PromptFormat, last_text
from grpo.task.task import Task
from rewards import Completion, Texts, completion_text

LARGEST = 1e15  # a group's standard deviation squares rewards in float32, and overflows above this
SILENT = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}  # TRL's, where nothing is logged


@dataclass(frozen=True)
class Fault:
    """A failure of a reward or judge on a row. Its text is `function: exception (file:line)`."""

    function: str
    row: int  # its place in the rollout
    question: str
    completion: str
    fault: str  # the exception with the user's own line, or the result that is no value
    traceback: str

    def __str__(self) -> str:
        return f"{self.function}: {self.fault}"


Score = float | None | Fault  # a reward's value for a completion


@dataclass(frozen=True)
class Rollout:
    """Completions with the rows of their prompts.

    Attributes:
        rows: the data's row of each completion, with its `prompt`.
        completions: texts, or lists of messages.
        ids: the token ids of each completion.
        shared: what rewards get once for all of them: `trainer_state`, `log_extra`, `log_metric`.
    """

    rows: Sequence[Mapping[str, Any]]
    completions: Sequence[Completion]
    ids: Sequence[Sequence[int]]
    shared: Mapping[str, Any] = field(default_factory=lambda: {"trainer_state": TrainerState(), **SILENT})

    @classmethod
    def of_texts(
        cls,
        rows: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
        chat: bool,
        ids: Sequence[Sequence[int]] | None = None,
    ) -> "Rollout":
        """Make a rollout outside of training: `trainer_state` has no steps, so that rewards that follow the step are
        the same in all evaluations of a run.

        Args:
            chat: True if completions are messages.
            ids: None where nobody reads them.
        """
        completions: list[Completion] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
        return cls(rows, completions, ids or [[]] * len(rows))

    @classmethod
    def of_arguments(
        cls, completions: Sequence[Completion], prompts: Any = None, completion_ids: Any = None, **others: Any
    ) -> "Rollout":
        """Make a rollout of the arguments that TRL passes to a reward. Other lists of this length are columns."""
        count = len(completions)
        columns = {
            key: value
            for key, value in others.items()
            if isinstance(value, list | tuple) and len(value) == count and key not in SILENT
        }
        shared = {key: value for key, value in others.items() if key not in columns}
        columns["prompt"] = [None] * count if prompts is None else prompts
        rows = [{key: column[index] for key, column in columns.items()} for index in range(count)]
        return cls(rows, completions, [[]] * count if completion_ids is None else completion_ids, shared)

    @property
    def texts(self) -> list[str]:
        """The text of each completion."""
        return list(map(completion_text, self.completions))

    def columns(self) -> dict[str, Any]:
        """Return the arguments that TRL passes to rewards, as lists and mappings that a reward may change."""
        columns: dict[str, Any] = {key: [row[key] for row in self.rows] for key in self.rows[0] if key != "prompt"}
        columns["prompts"] = [row["prompt"] for row in self.rows]
        columns["completions"] = list(self.completions)
        # a deep copy of token ids, the only long column, would take longer than many rewards
        ids = [list(ids) for ids in self.ids]
        return {**_copied(columns), "completion_ids": ids, **self.shared}

    def row(self, index: int) -> "Rollout":
        """Return the rollout of one completion alone. It logs nothing: TRL takes one list from `log_extra`."""
        shared = {**self.shared, **SILENT}
        return Rollout([self.rows[index]], [self.completions[index]], [self.ids[index]], shared)

    def each(self) -> Iterator["Rollout"]:
        """Yield the rollout of each completion alone."""
        return map(self.row, range(len(self.rows)))

    def fault(self, function: str, index: int, error: BaseException) -> Fault:
        """Describe what a function raised on a row."""
        prompt = self.rows[index].get("question", self.rows[index]["prompt"])
        return Fault(
            function,
            index,
            str(prompt and last_text(prompt)),
            str(self.texts[index]),
            fault_of(error),
            "".join(traceback.format_exception(error, limit=-3))[-4000:],  # the innermost frames
        )


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


# --- Rewards ------------------------------------------------------------------------------------------------------

Values = list[float | None]


def call(name: str, reward: Callable[..., Any], rollout: Rollout) -> list[Score]:
    """Return a reward's value for each completion, a Fault where it fails. Out-of-memory errors are raised.

    A reward that fails on a rollout is called again on each row alone, and only rows that fail again are faults. If it
    returned too few values and no row fails alone, all rows are.
    """
    whole = _attempt(reward, rollout)
    alone = [_attempt(reward, row) for row in rollout.each()] if isinstance(whole, BaseException) else []
    return _scores(name, rollout, whole, alone)


async def call_async(name: str, reward: Callable[..., Any], rollout: Rollout) -> list[Score]:
    """Like `call`, for an async reward. Rows are tried again all at once: a server that is down costs one wait."""
    whole = await _attempt_async(reward, rollout)
    rows = rollout.each() if isinstance(whole, BaseException) else ()
    return _scores(name, rollout, whole, await asyncio.gather(*(_attempt_async(reward, row) for row in rows)))


def _attempt(reward: Callable[..., Any], rollout: Rollout) -> Values | BaseException:
    try:
        return _numbers(reward(**rollout.columns()), len(rollout.rows))
    except USERS_ERRORS as error:
        return _of_the_reward(error)


async def _attempt_async(reward: Callable[..., Any], rollout: Rollout) -> Values | BaseException:
    try:
        return _numbers(await reward(**rollout.columns()), len(rollout.rows))
    except (*USERS_ERRORS, asyncio.CancelledError) as error:
        return _of_the_reward(error)


def _of_the_reward(error: BaseException) -> BaseException:
    if is_out_of_memory(error):
        raise error
    return error


def _numbers(result: Any, count: int) -> Values:
    """Convert a reward's result to a list of `count` numbers (or None). Raise WrongResult for anything else."""
    keyed = hasattr(result, "keys") and not hasattr(result, "tolist")  # iterated, a mapping gives its keys
    try:
        if keyed or isinstance(result, Set | bytes):  # a set has no order, and bytes are numbers
            raise TypeError
        values = [value if value is None else float(value + 0) for value in result]  # + 0: "1" is not a number
    except (TypeError, ValueError):
        values = []
    if len(values) != count:
        expected = "return a list of numbers (or None), one for each completion"
        expected += " (is its return missing?)" if result is None else ""
        raise WrongResult(f"it returned {repr(result)[:80]}; {expected}")
    return values


def _scores(
    name: str, rollout: Rollout, whole: Values | BaseException, alone: Sequence[Values | BaseException]
) -> list[Score]:
    """Return the rollout's values; if it failed, those of its rows; or its fault for each if no row fails alone."""
    if not isinstance(whole, BaseException):
        outcomes: Sequence[float | BaseException | None] = whole
    elif isinstance(whole, WrongResult) and not any(isinstance(one, BaseException) for one in alone):
        outcomes = [whole] * len(alone)
    else:
        outcomes = [one if isinstance(one, BaseException) else one[0] for one in alone]
    scores: list[Score] = []
    for index, one in enumerate(outcomes):
        if isinstance(one, float) and not abs(one) <= LARGEST:
            one = WrongResult(f"it returned {one:g}")
        scores.append(rollout.fault(name, index, one) if isinstance(one, BaseException) else one)
    return scores


# --- The judge ----------------------------------------------------------------------------------------------------


def verdicts(task: Task, rollout: Rollout) -> Iterator[bool | Fault | None]:
    """Yield the task's verdict on each completion; None if it cannot judge, a Fault if the user's judge fails."""
    for index, (text, row) in enumerate(zip(rollout.texts, rollout.rows, strict=True)):
        if not task.can_judge(row):
            yield None
        elif task.judge is None:
            yield task.verdict(text, row)
        else:
            try:
                yield task.verdict(text, row)
            except USERS_ERRORS as error:
                yield rollout.fault(task.judge_name, index, error)


def judge_reward_func(completions: Texts, *, task: Task | None = None, **kwargs: Any) -> list[float]:
    """2.0 if the run's judge (the lenient rule, or the function that `judge` names) accepts the completion; else 0."""
    task, rollout = task or Task(PromptFormat("")), Rollout.of_arguments(completions, **kwargs)
    pairs = zip(rollout.texts, rollout.rows, strict=True)
    return [2.0 if task.verdict(text, row) else 0.0 for text, row in pairs]
