"""Exclude rows on which a reward fails from their rollout, count them and describe them.

In TRL, a reward that raises ends the run, NaN counts as None (0 in the sum, as a wrong answer would), and an infinity
zeroes its whole group. A guarded reward returns an infinity for a row on which it fails, which TRL gathers from all
processes. Then the row gets None from every reward: its own advantage is 0, and the group's advantages are those of a
group without it.
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

from grpo.core.errors import fault_of
from grpo.core.jsonfiles import append_line
from grpo.core.out_of_memory import is_out_of_memory
from grpo.core.processes import show
from grpo.core.text import for_rich
from rewards import completion_text

LARGEST = 1e15  # a group's standard deviation squares rewards in float32, and overflows above this
FAILED = math.inf  # a guarded reward's value for a row on which it fails
DESCRIBED = 3  # failed rows described per reward and rollout; all are counted
SHOWN = 600  # characters of a text in the console
Values = list[float | None]


class NotNumbers(ValueError):
    """A reward did not return one number (or None) for each completion."""


def _numbers_of(result: Any, count: int) -> Values:
    """Convert a reward's result to a list of `count` numbers (or None). Raise NotNumbers for anything else."""
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
    """Exclude the rows of a rollout for which a reward does not return a finite number.

    Args:
        directory: the run's directory; its `faults.jsonl` describes failed rows.
        limit: the largest excluded share of a training rollout's rows (of all processes), in [0, 1].

    Attributes:
        faults: the first failed rows of this process in this rollout, a few for each reward.
        any_fault: True if any reward has failed in this run.
        excess: the reason to end the run if more than `limit` failed, else "". The same on all processes.
    """

    def __init__(self, directory: Path, limit: float) -> None:
        self.path, self.limit = directory / "faults.jsonl", limit
        self.faults: list[dict[str, Any]] = []
        self.any_fault, self.excess = False, ""
        self._shown: set[str] = set()

    def guarded(self, name: str, reward: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a reward (or async reward) for TRL, so that it returns FAILED for rows on which it fails.

        Each call gets a copy of the arguments, since TRL passes the same lists to all rewards and logs them later.

        A reward that fails on a rollout is called again on each row separately, and only rows that fail again are
        lost. If it returned too few values and no row fails alone, all rows are lost. Async rewards are called for
        all rows at once, so that a server that is down costs one wait.
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
        """Return the values of all results, FAILED for failed rows, and describe the first failures."""
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
        """Guard the rewards while TRL calls them."""
        unguarded = trainer.reward_funcs
        names = trainer.reward_func_names
        trainer.reward_funcs = [self.guarded(name, reward) for name, reward in zip(names, unguarded, strict=True)]
        self.faults = []
        try:
            yield
        finally:
            trainer.reward_funcs = unguarded

    def exclude(self, trainer: Any, values: torch.Tensor) -> torch.Tensor:
        """Set all rewards of a failed row to NaN. Count and report these rows.

        Args:
            values: (rows of all processes, rewards), as TRL gathered them from guarded rewards.
        """
        failed = values.isinf().any(1)
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
        """Append a fault to `faults.jsonl`; print it if it is the first of its reward."""
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
    """Copy a reward's arguments, with lists and mappings that it may change."""
    # a deep copy of token ids, the only long column, would take longer than many rewards
    return {
        key: [list(ids) for ids in value] if key == "completion_ids" else _copied(value)
        for key, value in columns.items()
    }


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _call(reward: Callable[..., Any], columns: Mapping[str, Any]) -> Values | BaseException:
    """Return the reward's numbers, or the exception that it raised. Out-of-memory errors are raised."""
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
    """Return the rollout's result; if it failed, the rows' results; or its fault for each if no row fails alone."""
    if isinstance(whole, NotNumbers) and not any(isinstance(one, BaseException) for one in alone):
        return [whole] * len(alone)
    return alone if isinstance(whole, BaseException) else [whole]


def _rows_alone(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments for calling a reward on each row separately."""
    count = len(columns["prompts"])
    lists = {key: value for key, value in columns.items() if isinstance(value, list) and len(value) == count}
    # TRL takes one list per rollout from log_extra: only what was logged before the failure counts
    silent = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    for row in range(count):
        yield {**columns, **{key: [value[row]] for key, value in lists.items()}, **silent}


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
