"""Rewards that fail: the rows that they fail on are excluded from their rollout, counted and described.

TRL ends the run if a reward raises, takes a NaN for a None (0 in its sum, so a wrong answer), and zeroes a whole group
for an infinity. A guarded reward returns an infinity for a row that it fails on, and TRL gathers it from all processes
with the other values. Then the row gets None from every reward: its group's advantages are those of a group without
it, and its own is 0.
"""

import asyncio
import contextlib
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import is_async_callable

from grpo.core.errors import place_of
from grpo.core.out_of_memory import is_out_of_memory
from grpo.core.processes import show
from grpo.core.text import for_rich
from grpo.runs.record import append_line
from rewards import completion_text

LARGEST = 1e15  # a group's standard deviation squares rewards, in float32: far beyond, it would be infinite
FAILED = math.inf  # the value that a guarded reward returns for a row on which it fails
DESCRIBED = 3  # failed rows of each reward and rollout that are described; all of them are counted
SHOWN = 600  # characters of a text in the console
Values = list[float | None]


class NotNumbers(ValueError):
    """A reward returned something other than one number (or None) for each completion."""


def _numbers_of(result: Any, count: int) -> Values:
    """The list of `count` numbers (or None) that a reward returned; NotNumbers for anything else."""
    try:
        values = [value if value is None else float(value + 0) for value in result]  # + 0: "1" is not a number
    except (TypeError, ValueError):
        values = []
    if len(values) != count:
        expected = "return a list of numbers (or None), one for each completion"
        expected += " (is its return missing?)" if result is None else ""
        raise NotNumbers(f"it returned {repr(result)[:80]}; {expected}")
    return values


class RewardGuard:
    """Makes sure that a trainer's rewards are numbers, and excludes the rows for which they are not.

    Args:
        directory: of the run; failed rows are described in its `faults.jsonl`.
        limit: the largest share of a training rollout's rows, of all processes, that may be excluded, in [0, 1].

    Attributes:
        faults: the first rows of this process on which each reward failed in this rollout.
        any_fault: whether any reward has failed in this run so far.
        excess: why the run has to end, if more failed; otherwise empty. The same on all processes.
    """

    def __init__(self, directory: Path, limit: float) -> None:
        self.path, self.limit = directory / "faults.jsonl", limit
        self.faults: list[dict[str, Any]] = []
        self.any_fault, self.excess = False, ""
        self._shown: set[str] = set()

    def guarded(self, name: str, reward: Callable[..., Any]) -> Callable[..., Any]:
        """The reward as TRL calls it, async if it is; it returns FAILED for the rows on which it fails.

        Each call gets a copy of the arguments: TRL passes the same lists to all rewards, and logs them afterwards.

        A reward that fails on a rollout is called for each row alone, and only those that fail again are lost; all of
        them where it returned too few values and none fails alone, whose value nobody knows. An async one is called
        for all of them at once: a server that is down would be waited for row by row.
        """

        def score(**columns: Any) -> Values:
            result = _call(reward, columns)
            failed = isinstance(result, BaseException)
            alone = [_call(reward, row) for row in _rows_alone(columns)] if failed else []
            return self._noted(name, columns, _results(result, alone))

        async def score_async(**columns: Any) -> Values:
            result = await _call_async(reward, columns)
            failed = isinstance(result, BaseException)
            calls = [_call_async(reward, row) for row in _rows_alone(columns)] if failed else []
            return self._noted(name, columns, _results(result, await asyncio.gather(*calls)))

        return score_async if is_async_callable(reward) else score

    def _noted(self, name: str, columns: Mapping[str, Any], results: Sequence[Values | BaseException]) -> Values:
        """The values of all results, FAILED for failed rows, of which the first are described."""
        outcomes = [one for result in results for one in ([result] if isinstance(result, BaseException) else result)]
        values: Values = []
        described = 0
        for row, one in enumerate(outcomes):
            if one is None or (isinstance(one, float) and abs(one) <= LARGEST):
                values.append(one)
                continue
            values.append(FAILED)
            if described < DESCRIBED:
                error = one if isinstance(one, BaseException) else ValueError(f"it returned {one:g}")
                self.faults.append(_describe(name, row, columns, error))
                described += 1
        return values

    @contextlib.contextmanager
    def watching(self, trainer: Any) -> Iterator[None]:
        """While TRL calls the rewards, they are guarded; reward models, which TRL calls itself, stay as they are."""
        unguarded = trainer.reward_funcs
        trainer.reward_funcs = [
            reward if isinstance(reward, torch.nn.Module) else self.guarded(name, reward)
            for name, reward in zip(trainer.reward_func_names, unguarded, strict=True)
        ]
        self.faults = []
        try:
            yield
        finally:
            trainer.reward_funcs = unguarded

    def exclude(self, trainer: Any, values: torch.Tensor) -> torch.Tensor:
        """The rewards, with NaN from every reward for a row on which one failed; these rows are counted and reported.

        Args:
            values: (rows of all processes, rewards), as TRL has gathered them from guarded rewards.
        """
        models = [isinstance(reward, torch.nn.Module) for reward in trainer.reward_funcs]
        failed = values.isinf().any(1) | values[:, models].isnan().any(1)
        values[failed] = torch.nan
        training, step = trainer.model.training, trainer.state.global_step + 1
        self.any_fault |= bool(failed.any())
        if not self.any_fault:
            return values
        share = failed.float().mean().item()
        trainer.note("rewards/left_out", share)  # also 0, so that a log's mean is over its rollouts
        if not failed.any():
            return values
        process = trainer.accelerator.process_index
        faults = gather_object([{"step": step, "process": process, **fault} for fault in self.faults])
        if trainer.accelerator.is_main_process:
            for fault in faults:
                self._report(fault)
        if training and share > self.limit and not self.excess:
            first = f" (first: {faults[0]['function']}: {faults[0]['fault']})" if faults else ""
            self.excess = f"the reward guard: {100 * share:.0f} % of the rows of step {step} were excluded{first}"
        return values

    def _report(self, fault: dict[str, Any]) -> None:
        """Append a fault to the run's file; print it if it is the first of its reward."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, fault)
        if fault["function"] in self._shown:
            return
        self._shown.add(fault["function"])
        show(f"[bold red]faulty reward at step {fault['step']}: {for_rich(fault['function'])}[/bold red]")
        for key in ("question", "completion", "fault", "traceback"):
            show(f"[bold]{key}[/bold]: {for_rich(fault[key].strip()[-SHOWN:])}")
        show(
            f"Such rows are excluded from their rollout (metric rewards/left_out); above {100 * self.limit:g} % of a "
            f"rollout (max_faulty_rewards) the run ends. {self.path.name} describes more of them."
        )


def own_copy(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reward, with lists and mappings of its own that it may change."""
    # token ids are the one long column; copying its numbers one by one would take longer than many rewards
    return {
        key: [list(ids) for ids in value] if key == "completion_ids" else _copied(value)
        for key, value in columns.items()
    }


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _call(reward: Callable[..., Any], columns: Mapping[str, Any]) -> Values | BaseException:
    """The reward's numbers, or what it raised; out of memory is not the fault of a row, and is raised."""
    try:
        return _numbers_of(reward(**own_copy(columns)), len(columns["prompts"]))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return error


async def _call_async(reward: Callable[..., Any], columns: Mapping[str, Any]) -> Values | BaseException:
    try:
        return _numbers_of(await reward(**own_copy(columns)), len(columns["prompts"]))
    except (Exception, asyncio.CancelledError) as error:
        if is_out_of_memory(error):
            raise
        return error


def _results(
    whole: Values | BaseException, alone: Sequence[Values | BaseException]
) -> Sequence[Values | BaseException]:
    """A rollout's result; where it failed, those of its rows alone, or for each its fault if none shows it alone."""
    if isinstance(whole, NotNumbers) and not any(isinstance(one, BaseException) for one in alone):
        return [whole] * len(alone)
    return alone if isinstance(whole, BaseException) else [whole]


def _rows_alone(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a reward that is called for each row alone."""
    count = len(columns["prompts"])
    lists = {key: value for key, value in columns.items() if isinstance(value, list) and len(value) == count}
    # TRL takes one list a rollout from log_extra, so what the reward logged before it raised is all that is logged
    silent = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    for row in range(count):
        yield {**columns, **{key: [value[row]] for key, value in lists.items()}, **silent}


def fault_of(error: BaseException) -> str:
    """Describe an exception, with the user's own line: `ValueError: no number (my_reward.py:12)`."""
    line = place_of(error)
    return f"{type(error).__name__}: {error}"[:500] + (line and f" ({line})")


def _describe(name: str, row: int, columns: Mapping[str, Any], error: BaseException) -> dict[str, Any]:
    prompt = columns.get("question", columns["prompts"])[row]
    return {
        "function": name,
        "row": row,
        "question": str(prompt if isinstance(prompt, str) else prompt[-1]["content"]),
        "completion": str(completion_text(columns["completions"][row])),
        "fault": fault_of(error),
        "traceback": "".join(traceback.format_exception(error, limit=-3))[-4000:],  # the innermost frames
    }
