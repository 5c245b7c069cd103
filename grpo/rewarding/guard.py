"""Rewards that fail: the completions at fault are excluded from their rollout, counted and described.

TRL ends the run if a reward raises, takes a NaN for a None (0 in its sum, so a wrong answer), and zeroes a whole group
for an infinity. Here such a row gets None from every reward: its group's advantages are those of a group without it,
and its own is 0.
"""

import asyncio
import contextlib
import numbers
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from trl.trainer.utils import is_async_callable

from grpo.core import out_of_memory
from grpo.core.errors import UserError
from grpo.runs.record import append_line, mask
from rewards import completion_text

if TYPE_CHECKING:
    from trl import GRPOTrainer

LARGEST = 1e15  # a group's standard deviation squares rewards, in float32: far beyond, it would be infinite
DESCRIBED = 3  # rows at fault of each reward and rollout that are described; all of them are counted
SHOWN = 600  # characters of a text in the console
Values = list[float | None]


def numbers_of(name: str, result: Any, count: int) -> Values:
    """The list of `count` numbers (or None) that a reward returned.

    Raises:
        UserError: it returned something else.
    """
    expected = f"return a list of {count} numbers (or None), one for each completion"
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
    return value is None or abs(value) <= LARGEST  # NaN is not


@dataclass
class Faults:
    """What went wrong with the rewards of one process on one rollout.

    Attributes:
        rows: those at fault, whichever reward it was.
        nonfinite: those of them for which a reward returned NaN, an infinity or a number beyond LARGEST.
        described: some of them, as they are written to `faults.jsonl`.
        error: what ends the run, because a reward returned something else than numbers; otherwise empty.
    """

    rows: set[int] = field(default_factory=set)
    nonfinite: set[int] = field(default_factory=set)
    described: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def add(self, name: str, row: int, columns: Mapping[str, Any], error: Exception) -> None:
        self.rows.add(row)
        if sum(fault["function"] == name for fault in self.described) == DESCRIBED:
            return
        place = error.__traceback__
        while place and place.tb_frame.f_code.co_filename == __file__:  # only what the user wrote
            place = place.tb_next
        prompt = columns.get("question", columns["prompts"])[row]
        self.described.append(
            {
                "function": name,
                "row": row,
                "question": str(prompt if isinstance(prompt, str) else prompt[-1]["content"]),
                "completion": str(completion_text(columns["completions"][row])),
                "fault": f"{type(error).__name__}: {error}"[:500],
                "traceback": "".join(traceback.format_exception(type(error), error, place))[-4000:] if place else "",
            }
        )

    def add_nonfinite(self, name: str, row: int, columns: Mapping[str, Any], value: float) -> None:
        self.nonfinite.add(row)
        self.add(name, row, columns, ValueError(f"it returned {value:g}"))


def guarded(name: str, reward: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    """The reward as TRL calls it, async if it is; it returns a number for every row, 0 for those at fault."""
    if not is_async_callable(reward):
        return lambda **columns: _score(name, reward, columns, faults)

    async def run(**columns: Any) -> Values:
        loop = asyncio.get_running_loop()  # TRL's, for all async rewards at once

        def wait(**given: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(reward(**given), loop).result()

        return await asyncio.to_thread(_score, name, wait, columns, faults)

    return run


def _score(name: str, reward: Callable[..., Any], columns: dict[str, Any], faults: Faults) -> Values:
    try:
        values = _values_of_sound_rows(name, reward, columns, faults)
    except UserError as error:  # raised later, on all processes: the others would wait for this one
        faults.error = faults.error or str(error)
        return [0.0] * len(columns["prompts"])
    for row, value in enumerate(values):
        if value is not None and not _is_sound(value):
            faults.add_nonfinite(name, row, columns, value)
            values[row] = 0.0
    return values


def _values_of_sound_rows(name: str, reward: Callable[..., Any], columns: dict[str, Any], faults: Faults) -> Values:
    """All rows at once; if that raises, each row alone, and then those that did not raise together again."""
    rows = list(range(len(columns["prompts"])))
    try:
        return _call(name, reward, columns, rows)
    except Exception as error:
        _raise_if_no_fault(error)
    good = []
    for row in rows:
        try:
            _call(name, reward, columns, [row], log=False)
            good.append(row)
        except Exception as error:
            _raise_if_no_fault(error)
            faults.add(name, row, columns, error)
    values: Values = [0.0] * len(rows)
    try:
        for row, value in zip(good, _call(name, reward, columns, good) if good else [], strict=True):
            values[row] = value
    except Exception as error:
        _raise_if_no_fault(error)
        for row in good:  # it fails on all of them together
            faults.add(name, row, columns, error)
    return values


def _raise_if_no_fault(error: Exception) -> None:
    """Raise what is not the fault of a row: a mistake that ends the run, or a device that is full."""
    if isinstance(error, UserError) or out_of_memory.is_one(error):
        raise error


def _call(
    name: str, reward: Callable[..., Any], columns: Mapping[str, Any], rows: Sequence[int], log: bool = True
) -> Values:
    """The reward's values for some rows. What it logs is passed on once it has returned."""
    count = len(columns["prompts"])
    logged: list[tuple[str, list[Any]]] = []
    metrics: list[tuple[str, float]] = []
    given = {
        key: [value[row] for row in rows] if isinstance(value, list) and len(value) == count else value
        for key, value in columns.items()
    }
    given["log_extra"] = lambda column, values: logged.append((column, values))
    given["log_metric"] = lambda metric, value: metrics.append((metric, value))
    values = numbers_of(name, reward(**given), len(rows))
    if log:
        for column, extra in logged:  # TRL's table has a line for every row
            by_row = dict(zip(rows, extra, strict=False))
            columns["log_extra"](column, [by_row.get(row) for row in range(count)])
        for metric, value in metrics:
            columns["log_metric"](metric, value)
    return values


class RewardGuard:
    """Makes sure that a trainer's rewards are numbers, and excludes the rows for which they are not.

    Args:
        directory: of the run; rows at fault are described in its `faults.jsonl`.
        limit: the largest share of a training rollout's rows, of all processes, that may be excluded, in [0, 1].

    Attributes:
        any_fault: whether any reward has failed in this run so far.
        excess: why the run has to end, if more failed; otherwise empty. The same on all processes.
    """

    def __init__(self, directory: Path, limit: float) -> None:
        self.path, self.limit = directory / "faults.jsonl", limit
        self.any_fault, self.excess = False, ""
        self._shown: set[str] = set()

    @contextlib.contextmanager
    def watching(self, trainer: "GRPOTrainer") -> Iterator[Faults]:
        """While TRL calls the rewards: one that fails on a row returns a number all the same."""
        own: list[Any] = trainer.reward_funcs  # names of models are loaded by now
        faults = Faults()
        trainer.reward_funcs = [
            reward if isinstance(reward, torch.nn.Module) else guarded(name, reward, faults)
            for name, reward in zip(trainer.reward_func_names, own, strict=True)
        ]
        try:
            yield faults
        finally:
            trainer.reward_funcs = own

    def exclude(self, trainer: "GRPOTrainer", values: torch.Tensor, faults: Faults, **columns: Any) -> torch.Tensor:
        """The rewards, with NaN from every reward for a row at fault; these rows are counted and reported.

        Args:
            values: (rows of all processes, rewards).
            columns: `prompts` and `completions` of this process.

        Raises:
            UserError: on all processes, if a reward on any of them returned something else than numbers.
        """
        rows = len(columns["prompts"])
        own = values[trainer.accelerator.process_index * rows :][:rows]
        for index, reward in enumerate(trainer.reward_funcs):
            if isinstance(reward, torch.nn.Module):  # which TRL calls itself
                for row, value in enumerate(own[:, index].tolist()):
                    if not _is_sound(value):
                        faults.add_nonfinite(trainer.reward_func_names[index], row, columns, value)
        processes: list[Faults] = gather_object([faults])
        if error := next((each.error for each in processes if each.error), ""):
            raise UserError(error)
        for number, each in enumerate(processes):
            values[[number * rows + row for row in sorted(each.rows)]] = torch.nan
        excluded = sum(len(each.rows) for each in processes) / len(values)
        step = trainer.state.global_step + 1
        described = [
            {"step": step, "process": number, **fault}
            for number, each in enumerate(processes)
            for fault in each.described
        ]
        training = trainer.model is not None and trainer.model.training
        self.any_fault |= bool(described)
        if self.any_fault:  # from the first one on, so that the mean over a log's rollouts is right
            metrics = trainer._metrics["train" if training else "eval"]
            metrics.setdefault("rewards/left_out", []).append(excluded)
            nonfinite = sum(len(each.nonfinite) for each in processes) / len(values)
            metrics.setdefault("rewards/nonfinite", []).append(nonfinite)
        if trainer.accelerator.is_main_process:
            self._report(mask(described))
        if training and excluded > self.limit and not self.excess:
            first = mask(f"{described[0]['function']}: {described[0]['fault']}")
            self.excess = (
                f"the reward guard: {100 * excluded:.0f} % of the rows of step {step} were excluded (first: {first})"
            )
        return values

    def _report(self, faults: list[dict[str, Any]]) -> None:
        """Append the faults to the run's file; print the first one of each reward."""
        for fault in faults:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, fault)
            if fault["function"] in self._shown:
                continue
            self._shown.add(fault["function"])
            facts = {
                "Question": fault["question"][-SHOWN:],
                "Completion": fault["completion"][-SHOWN:],
                "Fault": fault["traceback"][-2 * SHOWN :] or fault["fault"],
            }
            text = "\n".join(f"[bold]{kind}[/bold]: {escape(what.strip())}" for kind, what in facts.items())
            text += (
                "\nSuch rows are excluded from their rollout: they count neither as right nor as wrong. The metric "
                f"rewards/left_out is their share; if it exceeds {100 * self.limit:g} % of a rollout "
                f"(max_faulty_rewards), the run ends. {escape(self.path.name)} describes more of them."
            )
            title = f"[bold red]reward at fault at step {fault['step']}: {escape(fault['function'])}[/bold red]"
            Console().print()  # off the progress bar's line
            Console().print(Panel(text, title=title, title_align="left", border_style="red"))
