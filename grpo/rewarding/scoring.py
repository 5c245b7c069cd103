"""One process' rewards on one rollout, whatever they do: the rows at fault are found, the others have their values."""

import numbers
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from trl.trainer.utils import is_async_callable

from grpo.core import out_of_memory
from grpo.core.errors import UserError
from rewards import completion_text

LARGEST = 1e15  # a group's standard deviation squares rewards, in float32: far beyond, it would be infinite
RECORDED = 3  # rows at fault of each reward that are described; all of them are counted
Values = list[float | None]


def numbers_of(name: str, result: Any, count: int) -> Values:
    """What a reward returned, as a list of `count` numbers; None where it gave none.

    Raises:
        UserError: it is anything else.
    """
    expected = f"give a list of {count} numbers (or None), one for each completion"
    if isinstance(result, str | bytes | Mapping | set) or not hasattr(result, "__iter__"):
        raise UserError(f"reward_funcs: {name} returned {_shown(result)}; {expected}")
    values = list(result)
    if len(values) != count:
        raise UserError(f"reward_funcs: {name} returned {len(values)} values for {count} completions; {expected}")
    return [value if value is None else _number(name, value, expected) for value in values]


def _number(name: str, value: Any, expected: str) -> float:
    if getattr(value, "shape", None) == ():  # a scalar of numpy or torch
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise UserError(f"reward_funcs: {name} returned {_shown(value)} for a completion; {expected}")
    try:
        return float(value)
    except OverflowError:  # a whole number that no float can hold
        return float("inf")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:80] + '…'}"


def _is_sound(value: float | None) -> bool:
    return value is None or abs(value) <= LARGEST  # which NaN is not


class Scoring:
    """What the rewards of this process do on one rollout.

    Args:
        hopeless: the share of this process' rows that ends the run, if they are at fault, whatever the others do.

    Attributes:
        rows: at fault, whichever reward it was.
        nonfinite: those of them that a reward gave NaN, an infinity or a number beyond LARGEST for.
        faults: descriptions of some of them.
        error: what ends the run, because a reward returned no list of numbers; empty otherwise.
    """

    def __init__(self, hopeless: float = 1.0) -> None:
        self.hopeless = hopeless
        self.rows: set[int] = set()
        self.nonfinite: set[int] = set()
        self.faults: list[dict[str, Any]] = []
        self.error = ""

    def guarded(self, name: str, reward: Callable[..., Any]) -> Callable[..., Any]:
        """The reward as TRL calls it, async if it is; rows at fault have a 0 that nobody is to read."""

        async def run(**columns: Any) -> Values:
            try:
                values = await self._score(name, reward, columns)
            except UserError as error:  # said together with the other processes, which would wait for this one
                self.error = self.error or str(error)
                return [0.0] * len(columns["prompts"])
            for row, value in enumerate(values):
                if not _is_sound(value):
                    self.refuse(name, row, columns, value)
            return [value if _is_sound(value) else 0.0 for value in values]

        def run_now(**columns: Any) -> Values:
            try:
                run(**columns).send(None)  # to its end: a function that is not async waits for nothing
            except StopIteration as done:
                return done.value
            raise AssertionError(f"{name} is not async, and waits")

        return run if is_async_callable(reward) else run_now

    async def _score(self, name: str, reward: Callable[..., Any], columns: dict[str, Any]) -> Values:
        rows = range(len(columns["prompts"]))
        try:
            return await _call(name, reward, columns, rows)
        except Exception as error:
            if _is_for_others(error):
                raise
            first = error
        good: list[int] = []
        for row in rows:
            try:
                await _call(name, reward, columns, [row], silent=True)
                good.append(row)
            except Exception as error:
                if _is_for_others(error):
                    raise
                self._add(name, row, columns, error)
            if row + 1 - len(good) > self.hopeless * len(rows):  # the rest may take long: a judge that is down
                self.rows.update(rows[row + 1 :])
                break
        values: Values = [0.0] * len(rows)
        try:
            for row, value in zip(good, await _call(name, reward, columns, good) if good else [], strict=True):
                values[row] = value
        except Exception as error:
            if _is_for_others(error):
                raise
            for row in good:  # it fails on all of them together
                self._add(name, row, columns, error)
        if not any(fault["function"] == name for fault in self.faults):  # at the second try it did not
            self._describe(name, None, columns, first)
        return values

    def refuse(self, name: str, row: int, columns: Mapping[str, Any], value: float | None) -> None:
        """Leave a row out for a value that is no finite number."""
        self.nonfinite.add(row)
        self._add(name, row, columns, ValueError(f"it returned {value:g}"))

    def _add(self, name: str, row: int, columns: Mapping[str, Any], error: Exception) -> None:
        self.rows.add(row)
        if sum(fault["function"] == name for fault in self.faults) < RECORDED:
            self._describe(name, row, columns, error)

    def _describe(self, name: str, row: int | None, columns: Mapping[str, Any], error: Exception) -> None:
        place = error.__traceback__
        while place and place.tb_frame.f_code.co_filename == __file__:
            place = place.tb_next
        self.faults.append(
            {
                "function": name,
                "row": row,
                "question": "" if row is None else _question(columns, row),
                "completion": "" if row is None else str(completion_text(columns["completions"][row])),
                "fault": f"{type(error).__name__}: {error}"[:500],
                "traceback": _lines(error, place) if place else "",
            }
        )


def _lines(error: Exception, place: TracebackType) -> str:
    return "".join(traceback.format_exception(type(error), error, place))[-4000:]


def _question(columns: Mapping[str, Any], row: int) -> str:
    prompt = columns.get("question", columns["prompts"])[row]
    return str(prompt if isinstance(prompt, str) else prompt[-1]["content"])


def _is_for_others(error: Exception) -> bool:
    """Whether this is no fault of a row's: a mistake that ends the run, or a device that is full."""
    return isinstance(error, UserError) or out_of_memory.is_one(error)


async def _call(
    name: str, reward: Callable[..., Any], columns: Mapping[str, Any], rows: Sequence[int], silent: bool = False
) -> Values:
    """The reward's values for some rows; what it logs counts once it has returned, unless `silent`."""
    count, logged = len(columns["prompts"]), []
    given = dict(columns)
    if len(rows) < count:
        given |= {
            key: [value[row] for row in rows]
            for key, value in columns.items()
            if isinstance(value, list) and len(value) == count
        }

    def log_extra(column: str, values: list[Any]) -> None:
        if len(rows) < count and len(values) == len(rows):  # TRL's table has a line for each row
            by_row = dict(zip(rows, values, strict=True))
            values = [by_row.get(row) for row in range(count)]
        logged.append((columns["log_extra"], column, values))

    def log_metric(metric: str, value: float) -> None:
        logged.append((columns["log_metric"], metric, value))

    given |= {"log_extra": log_extra, "log_metric": log_metric}
    result = reward(**given)
    values = numbers_of(name, await result if is_async_callable(reward) else result, len(rows))
    for log, *what in () if silent else logged:
        log(*what)
    return values


def of_models(
    scoring: Scoring, names: Sequence[str], rewards: Sequence[Any], values: torch.Tensor, columns: Mapping[str, Any]
) -> None:
    """Leave out the rows that a reward model, which TRL calls itself, gave no finite number for."""
    for index, (name, reward) in enumerate(zip(names, rewards, strict=True)):
        if isinstance(reward, torch.nn.Module):
            for row, value in enumerate(values[:, index].tolist()):
                if not _is_sound(value):
                    scoring.refuse(name, row, columns, value)
