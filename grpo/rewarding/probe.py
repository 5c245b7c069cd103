"""Call rewards outside of training as TRL does: in preflight and in evaluations."""

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import TrainerState
from trl.trainer.utils import is_async_callable

from grpo.core.processes import say
from grpo.rewarding.guard import FAILED, RewardGuard, Values
from grpo.rewarding.isolation import random_states_kept
from grpo.rewarding.registry import Rewards


def columns_of(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], ids: Sequence[Sequence[int]], chat: bool
) -> dict[str, Any]:
    """Return the arguments that TRL passes to rewards, for one completion of each of these rows (with `prompt`)."""
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    columns["prompts"] = [row["prompt"] for row in rows]
    columns["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    columns["completion_ids"] = [list(tokens) for tokens in ids]
    ignored = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    return {**columns, "trainer_state": TrainerState(), **ignored}


def guarded_values(rewards: Rewards, columns: Mapping[str, Any]) -> tuple[dict[str, Values], list[dict[str, Any]]]:
    """Score completions as training does, by name of the reward, FAILED for failures; also return the first faults.

    The random states are kept, so that neither preflight nor an evaluation changes the run.
    """
    guard = RewardGuard(Path(), limit=1.0)
    with random_states_kept():
        return {name: _call(guard.guarded(name, reward), columns) for name, reward in rewards.items()}, guard.faults


def _call(reward: Callable[..., Any], columns: Mapping[str, Any]) -> Values:
    if not is_async_callable(reward):
        return reward(**columns)
    with ThreadPoolExecutor(1) as thread:  # a notebook already runs an event loop
        return thread.submit(lambda: asyncio.run(reward(**columns))).result()


def scores(rewards: Rewards, columns: Mapping[str, Any]) -> dict[str, Values]:
    """Score completions, by name of the reward; None for all if one fails. Hides what rewards print."""
    with contextlib.redirect_stdout(io.StringIO()):
        given, faults = guarded_values(rewards, columns)
    failed = [FAILED in row for row in zip(*given.values(), strict=True)]
    if faults:
        first, count = f"{faults[0]['function']}: {faults[0]['fault']}", f"{sum(failed)} of {len(failed)}"
        say(f"note: rewards fail on {count} answers, which are excluded from their means (first: {first})")
    return {
        name: [None if fails else value for value, fails in zip(values, failed, strict=True)]
        for name, values in given.items()
    }
