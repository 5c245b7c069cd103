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
from grpo.rewarding.isolation import random_states_kept
from grpo.rewarding.registry import Rewards
from grpo.task.gold import alternatives
from grpo.task.task import Task
from grpo.task.wrong import rewritten_json, wrong_answer
from rewards import Gold

REWRITTEN = "the same answer, written otherwise"
OTHER_GOLD = "the same answer, to a row with another gold answer"
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


# --- Preflight ----------------------------------------------------------------------------------------------------


def perturbed(reasoning: str, gold: Gold | None, task: Task, wrong: str = "") -> dict[str, str]:
    """Make a perfect completion and flawed ones; without a gold answer, one in the format and flawed ones.

    Args:
        wrong: a wrong answer.
    """
    shaped, plain = ("in the format", "no tags") if task.has_format else ("the answer alone", "in a sentence")
    if not (golds := alternatives(gold)):
        text = task.perfect("Some thoughts.", "42")
        return {shaped: text, plain: "Some thoughts.\nThe answer is 42.", "extra text": text + EXTRA, "empty": ""}
    perfect = task.perfect(reasoning, golds[0])
    return {
        "perfect": perfect,
        "wrong answer": task.perfect(reasoning, wrong or wrong_answer(golds)),
        plain: f"{reasoning}\nThe answer is {golds[0]}.".strip(),
        "extra text": perfect + EXTRA,
        "empty": "",
    }


def rewritten(reasoning: str, row: Mapping[str, Any], task: Task) -> str | None:
    """Make a right completion whose answer differs from the gold answer in its characters; None if it is not right."""
    for answer in alternatives(row["answer"])[:1]:
        text = task.perfect(reasoning, rewritten_json(answer) or f"{answer}.")
        with contextlib.suppress(Exception, SystemExit):  # a judge of the user's may raise anything: about_judge
            if task.verdict(text, row):
                return text
    return None


def try_rewards(
    rewards: Rewards,
    row: dict[str, Any],
    reasoning: str,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    wrong: str = "",
) -> tuple[dict[str, str], Tried, list[str]]:
    """Call each reward on each test completion of a training row. Return the completions, and values or faults.

    The completions pass through the tokenizer, like a model's. Last, return the rewards that read the gold answer and
    pay for a right one only if it is the same character by character.

    Args:
        wrong: a wrong answer to the row.
    """
    texts, rows = perturbed(reasoning, row["answer"], task, wrong), {}
    if otherwise := rewritten(reasoning, row, task):
        texts[REWRITTEN] = otherwise
        texts[OTHER_GOLD], rows[OTHER_GOLD] = texts["perfect"], row | {"answer": wrong or wrong_answer(row["answer"])}
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts.values()]
    decoded = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in ids]
    texts = dict(zip(texts, decoded, strict=True))
    columns = columns_of([rows.get(kind, row) for kind in texts], decoded, ids, task.prompt.chat)
    with contextlib.redirect_stdout(io.StringIO()):  # debug prints samples
        given, faults = guarded_values({name: _impatient(reward) for name, reward in rewards.items()}, columns)
    first = {fault["function"]: told(fault["fault"]) for fault in reversed(faults)}
    tried = {
        name: {kind: first[name] if value == FAILED else value for kind, value in zip(texts, values, strict=True)}
        for name, values in given.items()
    }
    exact = [name for name, values in tried.items() if wants_every_character(values)]
    for by_kind in (texts, *tried.values()):
        for kind in (REWRITTEN, OTHER_GOLD):
            by_kind.pop(kind, None)  # type: ignore[attr-defined]
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
    """True if a reward reads the gold answer, and pays less for a right one that is written in another way."""
    right, rewritten = values.get("perfect"), values.get(REWRITTEN)
    pays_less = isinstance(right, float) and isinstance(rewritten, float) and right > rewritten
    return pays_less and values.get(OTHER_GOLD) != right
