"""Rewards that fail: the completions at fault are excluded from their rollout, counted and described.

TRL ends the run if a reward raises, takes a NaN for a None (0 in its sum, so a wrong answer), and zeroes a whole group
for an infinity. Here such a row gets None from every reward: its group's advantages are those of a group without it,
and its own is 0.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import is_async_callable

from grpo.core import out_of_memory
from grpo.core.errors import UserError
from grpo.core.processes import show
from grpo.core.redaction import for_rich, mask
from grpo.runs.record import append_line
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
    if isinstance(result, str | Mapping | set) or not isinstance(result, Iterable):
        raise UserError(f"reward_funcs: {name} returned {type(result).__name__} {repr(result)[:80]}; {expected}")
    values = list(result)
    if len(values) != count:
        raise UserError(f"reward_funcs: {name} returned {len(values)} values for {count} completions; {expected}")
    for index, value in enumerate(values):
        try:
            values[index] = value if value is None else float(value + 0)  # + 0: "1" is not a number
        except (TypeError, ValueError):
            shown = f"{type(value).__name__} {repr(value)[:80]}"
            raise UserError(f"reward_funcs: {name} returned {shown} for a completion; {expected}") from None
    return values


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
        prompt = columns.get("question", columns["prompts"])[row]
        self.described.append(
            {
                "function": name,
                "row": row,
                "question": str(prompt if isinstance(prompt, str) else prompt[-1]["content"]),
                "completion": str(completion_text(columns["completions"][row])),
                "fault": f"{type(error).__name__}: {error}"[:500],
                "traceback": "".join(traceback.format_exception(error, limit=-3))[-4000:],  # the innermost frames
            }
        )

    def add_if_unsound(self, name: str, row: int, columns: Mapping[str, Any], value: float | None) -> bool:
        if _is_sound(value):
            return False
        self.nonfinite.add(row)
        self.add(name, row, columns, ValueError(f"it returned {value:g}"))
        return True


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
    """All rows at once; if that raises, each row alone, so that only those that raise are at fault."""
    count = len(columns["prompts"])
    try:
        try:
            values = numbers_of(name, reward(**columns), count)
        except Exception as error:
            _raise_if_no_fault(error)
            values = [_score_alone(name, reward, columns, row, faults) for row in range(count)]
    except UserError as error:  # raised later, on all processes: the others would wait for this one
        faults.error = faults.error or str(error)
        return [0.0] * count
    return [0.0 if faults.add_if_unsound(name, row, columns, value) else value for row, value in enumerate(values)]


def _score_alone(
    name: str, reward: Callable[..., Any], columns: dict[str, Any], row: int, faults: Faults
) -> float | None:
    count = len(columns["prompts"])
    given = {
        key: [value[row]] if isinstance(value, list) and len(value) == count else value
        for key, value in columns.items()
    }
    # TRL takes one list a rollout from log_extra, so what the reward logged before it raised is all that is logged
    given |= {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    try:
        return numbers_of(name, reward(**given), 1)[0]
    except Exception as error:
        _raise_if_no_fault(error)
        faults.add(name, row, columns, error)
        return 0.0


def _raise_if_no_fault(error: Exception) -> None:
    """Raise what is not the fault of a row: a mistake that ends the run, or a device that is full."""
    if isinstance(error, UserError) or out_of_memory.is_out_of_memory(error):
        raise error


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
                    faults.add_if_unsound(trainer.reward_func_names[index], row, columns, value)
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
            for fault in mask(described):
                self._report(fault)
        if training and excluded > self.limit and not self.excess:
            first = mask(f"{described[0]['function']}: {described[0]['fault']}")
            self.excess = (
                f"the reward guard: {100 * excluded:.0f} % of the rows of step {step} were excluded (first: {first})"
            )
        return values

    def _report(self, fault: dict[str, Any]) -> None:
        """Append a fault to the run's file; print it if it is the first of its reward."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, fault)
        if fault["function"] in self._shown:
            return
        self._shown.add(fault["function"])
        show(f"[bold red]faulty reward at step {fault['step']}: {for_rich(fault['function'])}[/bold red]")
        for key in ("question", "completion", "traceback"):
            show(f"[bold]{key}[/bold]: {for_rich(fault[key].strip()[-SHOWN:])}")
        show(
            f"Such rows are excluded from their rollout (metric rewards/left_out); above {100 * self.limit:g} % of a "
            f"rollout (max_faulty_rewards) the run ends. {self.path.name} describes more of them."
        )
