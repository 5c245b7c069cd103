"""Call rewards outside of training: in preflight, on a perfect completion and flawed ones, and in evaluations."""

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, TrainerState
from trl.trainer.utils import is_async_callable

from grpo.core.processes import say
from grpo.rewarding.guard import FAILED, RewardGuard, Values
from grpo.rewarding.registry import Rewards
from grpo.task.answers import is_right, last_number
from grpo.task.gold import alternatives
from grpo.task.task import Task
from rewards import Gold

REWRITTEN = "the same answer, written otherwise"
PATIENCE = 60.0  # seconds for an async reward
EXTRA = "\nI hope that this helps!\n"

Value = float | str | None  # a string describes a failure
Tried = dict[str, dict[str, Value]]  # by reward and test completion


# --- Calling rewards as TRL does ----------------------------------------------------------------------------------


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
    """Score completions as training does, by name of the reward, FAILED for failures; also return the first faults."""
    guard = RewardGuard(Path(), limit=1.0)
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


# --- Preflight ----------------------------------------------------------------------------------------------------


def perturbed(reasoning: str, gold: Gold | None, task: Task) -> dict[str, str]:
    """Make a perfect completion and flawed ones; without a gold answer, one in the format and flawed ones."""
    if not (golds := alternatives(gold)):
        shaped = task.perfect("Some thoughts.", "42")
        others = {"no tags": "Some thoughts.\nThe answer is 42.", "extra text": shaped + EXTRA, "empty": ""}
        return {"in the format": shaped, **others}
    answer = golds[0]
    number = last_number(answer)
    wrong = f"not {answer}"
    if number is not None:  # 8 days for 9 days, not 10: to a reward for the length, both are the same
        near = [number + sign * distance for distance in range(1, len(golds) + 1) for sign in (1, -1)]
        near = [other for other in near if other not in map(last_number, golds)]
        wrong = min(map(str, near), key=lambda text: abs(len(text) - len(str(number))))
        wrong = answer.replace(str(number), wrong) if str(number) in answer else wrong
    perfect = task.perfect(reasoning, answer)
    return {
        "perfect": perfect,
        "wrong answer": task.perfect(reasoning, wrong),
        "no tags": f"{reasoning}\nThe answer is {answer}.",
        "extra text": perfect + EXTRA,
        "empty": "",
    }


def rewritten(reasoning: str, gold: Gold | None, task: Task) -> str | None:
    """Make a right completion whose answer differs from the gold answer in its characters."""
    for answer in alternatives(gold)[:1]:
        text = task.perfect(reasoning, f"{answer}.")
        if is_right(text, answer, task.prompt.pattern):
            return text
    return None


def try_rewards(
    rewards: Rewards, row: dict[str, Any], reasoning: str, task: Task, tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, str], Tried, list[str]]:
    """Call each reward on each test completion of a training row. Return the completions, and values or faults.

    The completions pass through the tokenizer, like a model's. Last, return the rewards that pay for a right answer
    only if it is the gold answer character by character.
    """
    texts = perturbed(reasoning, row["answer"], task)
    if otherwise := rewritten(reasoning, row["answer"], task):
        texts[REWRITTEN] = otherwise
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts.values()]
    decoded = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in ids]
    texts = dict(zip(texts, decoded, strict=True))
    columns = columns_of([row] * len(texts), decoded, ids, task.prompt.chat)
    with contextlib.redirect_stdout(io.StringIO()):  # debug prints samples
        given, faults = guarded_values({name: _impatient(reward) for name, reward in rewards.items()}, columns)
    first = {fault["function"]: told(fault["fault"]) for fault in reversed(faults)}
    tried = {
        name: {kind: first[name] if value == FAILED else value for kind, value in zip(texts, values, strict=True)}
        for name, values in given.items()
    }
    exact = [name for name, values in tried.items() if wants_every_character(values)]
    for values in tried.values():
        values.pop(REWRITTEN, None)
    texts.pop(REWRITTEN, None)
    return texts, tried, exact


def _impatient(reward: Callable[..., Any]) -> Callable[..., Any]:
    """Let an async reward fail after PATIENCE seconds, since its server may be down."""

    async def ask(**columns: Any) -> Any:
        try:
            return await asyncio.wait_for(reward(**columns), PATIENCE)
        except TimeoutError:
            raise TimeoutError(f"no answer within {PATIENCE:g} seconds") from None

    return ask if is_async_callable(reward) else reward


def told(fault: str) -> str:
    """Describe a fault for preflight: an exception, or a result that is not a number or verdict."""
    _, _, ours = fault.partition(": ")
    return ours if ours.startswith("it returned") else f"raises {fault}"


def wants_every_character(values: Mapping[str, Value]) -> bool:
    """True if a reward pays less for a right answer that is written in another way."""
    right, rewritten = values.get("perfect"), values.get(REWRITTEN)
    return isinstance(right, float) and isinstance(rewritten, float) and right > rewritten
