"""The one way to call the user's rewards.

A reward that fails on a row gives a Fault there, whatever it raises or returns.
"""

import asyncio
import functools
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import TrainerState
from trl.trainer.utils import is_async_callable

from grpo.core.errors import USERS_ERRORS, WrongResult, fault_of
from grpo.core.out_of_memory import is_out_of_memory
from grpo.scoring.sample import Fault, Sample
from grpo.task.prompts import last_text

LARGEST = 1e15  # a group's standard deviation squares rewards in float32, and overflows above this
SILENT = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}  # TRL's, where nothing is logged

Score = float | None | Fault  # a reward's value for a completion
Values = list[float | None]
# The samples that a reward is called for, which judge_reward_func reads also inside of another function
SCORED: ContextVar[Sequence[Sample]] = ContextVar("scored", default=())


class Unjudged(Exception):
    """A reward asked for a verdict that the user's judge has failed to give, by this fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


@dataclass(frozen=True)
class Rollout:
    """Samples that rewards see together.

    Attributes:
        chat: True if rewards get completions as lists of messages.
        shared: what rewards get once for all of them: `trainer_state`, `log_extra`, `log_metric`. Outside of training
            the state has no steps, so that rewards that follow the step are the same in all evaluations of a run.
    """

    samples: Sequence[Sample]
    chat: bool
    shared: Mapping[str, Any] = field(default_factory=lambda: {"trainer_state": TrainerState(), **SILENT})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that TRL passes to rewards, as lists and mappings that a reward may change."""
        rows = [sample.row for sample in self.samples]
        columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
        columns["prompts"] = [row.get("prompt") for row in rows]
        # a deep copy of token ids, the only long column, would take longer than many rewards
        ids = [list(sample.ids) for sample in self.samples]
        texts = [sample.text for sample in self.samples]
        completions: list[Any] = [[{"role": "assistant", "content": text}] for text in texts] if self.chat else texts
        return {**_copied(columns), "completions": completions, "completion_ids": ids, **self.shared}

    def row(self, index: int) -> "Rollout":
        """Return the rollout of one completion alone. It logs nothing: TRL takes one list from `log_extra`."""
        return Rollout([self.samples[index]], self.chat, {**self.shared, **SILENT})

    def each(self) -> Iterator["Rollout"]:
        """Yield the rollout of each completion alone."""
        return map(self.row, range(len(self.samples)))


def fault(function: str, index: int, sample: Sample, error: BaseException) -> Fault:
    """Describe what a function raised on a sample, the one of this place in its rollout."""
    if isinstance(error, Unjudged):
        return replace(error.fault, function=function, row=index)
    asked = sample.row.get("question", sample.row.get("prompt"))
    return Fault(
        function,
        index,
        str(asked and last_text(asked)),
        sample.text,
        fault_of(error),
        "".join(traceback.format_exception(error, limit=-3))[-4000:],  # the innermost frames
    )


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def call_all(rewards: Mapping[str, Callable[..., Any]], rollout: Rollout) -> dict[str, list[Score]]:
    """Return each reward's value for each completion, by its name; async rewards are called all at once."""
    later = {name: reward for name, reward in rewards.items() if is_async_callable(reward)}
    scores = {name: call(name, reward, rollout) for name, reward in rewards.items() if name not in later}
    if later:

        async def answers() -> list[list[Score]]:
            return await asyncio.gather(*(call_async(name, reward, rollout) for name, reward in later.items()))

        scores |= zip(later, _wait_for(answers()), strict=True)
    return {name: scores[name] for name in rewards}


def _wait_for(work: Coroutine[Any, Any, Any]) -> Any:
    """Wait for work on the one event loop of all async rewards: clients keep their connections on it."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()  # in a thread of its own, since a notebook already runs one
    threading.Thread(target=loop.run_forever, daemon=True, name="async rewards").start()
    return loop


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
    token = SCORED.set(rollout.samples)
    try:
        return _numbers(reward(**rollout.arguments()), len(rollout.samples))
    except USERS_ERRORS as error:
        return _of_the_reward(error)
    finally:
        SCORED.reset(token)


async def _attempt_async(reward: Callable[..., Any], rollout: Rollout) -> Values | BaseException:
    SCORED.set(rollout.samples)  # in the context of this task alone
    try:
        return _numbers(await reward(**rollout.arguments()), len(rollout.samples))
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
    elif isinstance(whole, WrongResult) and not any(isinstance(outcome, BaseException) for outcome in alone):
        outcomes = [whole] * len(alone)
    else:
        outcomes = [outcome if isinstance(outcome, BaseException) else outcome[0] for outcome in alone]
    scores: list[Score] = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, float) and not abs(outcome) <= LARGEST:
            outcome = WrongResult(f"it returned {outcome:g}")
        if isinstance(outcome, BaseException):
            scores.append(fault(name, index, rollout.samples[index], outcome))
        else:
            scores.append(outcome)
    return scores
