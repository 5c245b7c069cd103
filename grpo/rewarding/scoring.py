"""Rewards called outside of training: in preflight's trial, and in an evaluation without gold answers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trl.trainer.utils import is_async_callable

from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.rewarding.guard import Faults, Values, guarded
from grpo.rewarding.registry import Rewards

PATIENCE = 60.0  # seconds for an async reward in preflight, which may ask a server


class TooSlow(Exception):
    """An async reward took longer than it may."""


def columns_of(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], ids: Sequence[Sequence[int]], chat: bool
) -> dict[str, Any]:
    """What TRL passes to rewards for these completions of these rows (with `prompt`), one each."""
    from transformers import TrainerState

    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    columns["prompts"] = [row["prompt"] for row in rows]
    columns["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    columns["completion_ids"] = [list(each) for each in ids]
    ignored = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    return {**columns, "trainer_state": TrainerState(), **ignored}


def call(reward: Callable[..., Any], columns: Mapping[str, Any], limit: float | None = None) -> Any:
    """What a reward returns, async or not; TooSlow where an async one takes more than `limit` seconds."""
    if not is_async_callable(reward):
        return reward(**columns)

    async def run() -> Any:
        done, late = await asyncio.wait([asyncio.ensure_future(reward(**columns))], timeout=limit)
        if late:
            raise TooSlow(f"no answer within {limit:g} seconds")
        try:
            return done.pop().result()
        except asyncio.CancelledError:  # no Exception, and not what ends the run
            raise RuntimeError("it was cancelled") from None

    with ThreadPoolExecutor(1) as thread:  # a notebook's own already runs an event loop
        return thread.submit(asyncio.run, run()).result()


def scores(rewards: Rewards, columns: Mapping[str, Any]) -> dict[str, Values]:
    """The rewards of completions, by name; None for all of them where one fails.

    Raises:
        UserError: a reward returned something else than numbers.
    """
    faults = Faults()
    found = {name: list(call(guarded(name, reward, faults), columns)) for name, reward in rewards.items()}
    if faults.error:
        raise UserError(faults.error)
    if faults.rows:
        first = f"{faults.described[0]['function']}: {faults.described[0]['fault']}"
        count = f"{len(faults.rows)} of {len(columns['prompts'])}"
        say(f"note: rewards fail on {count} answers, which are excluded from their means (first: {first})")
    return {name: [None if row in faults.rows else value for row, value in enumerate(v)] for name, v in found.items()}
