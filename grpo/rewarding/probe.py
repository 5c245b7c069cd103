"""Rewards outside of training: tried by preflight on a perfect completion and on flawed ones, and in an evaluation."""

import asyncio
import contextlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.table import Table
from transformers import TrainerState
from trl.trainer.utils import is_async_callable

from grpo.core.checklist import Check, warn_if
from grpo.core.processes import say
from grpo.core.text import for_rich
from grpo.data.prompts import PromptFormat
from grpo.rewarding.guard import NOT_FINITE, RAISED, RewardGuard, Values, numbers_of
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import Rewards
from rewards import last_number, short_name

EXTRA = "\nI hope that this helps!\n"
PATIENCE = 60.0  # seconds for an async reward in preflight, which may ask a server

Tried = dict[str, dict[str, float | None] | BaseException]  # by name of the reward


# --- Calling rewards as TRL does ----------------------------------------------------------------------------------


def columns_of(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], ids: Sequence[Sequence[int]], chat: bool
) -> dict[str, Any]:
    """What TRL passes to rewards for these completions of these rows (with `prompt`), one each."""
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    columns["prompts"] = [row["prompt"] for row in rows]
    columns["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    columns["completion_ids"] = [list(each) for each in ids]
    ignored = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    return {**columns, "trainer_state": TrainerState(), **ignored}


def call(reward: Callable[..., Any], columns: Mapping[str, Any], limit: float | None = None) -> Any:
    """What a reward returns, async or not; TimeoutError where an async one takes more than `limit` seconds."""
    if not is_async_callable(reward):
        return reward(**columns)
    with ThreadPoolExecutor(1) as thread:  # a notebook's own already runs an event loop
        return thread.submit(lambda: asyncio.run(asyncio.wait_for(reward(**columns), limit))).result()


def scores(rewards: Rewards, columns: Mapping[str, Any]) -> dict[str, Values]:
    """The rewards of completions, by name; None for all of them where one fails."""
    guard = RewardGuard(Path(), limit=1.0)
    found = {name: call(guard.guarded(name, reward), columns) for name, reward in rewards.items()}
    failed = [any(value in (RAISED, NOT_FINITE) for value in row) for row in zip(*found.values(), strict=True)]
    if guard.faults:
        first = f"{guard.faults[0]['function']}: {guard.faults[0]['fault']}"
        count = f"{sum(failed)} of {len(failed)}"
        say(f"note: rewards fail on {count} answers, which are excluded from their means (first: {first})")
    return {
        name: [None if fails else value for value, fails in zip(values, failed, strict=True)]
        for name, values in found.items()
    }


# --- Preflight ----------------------------------------------------------------------------------------------------


def perturbed(reasoning: str, answer: str | None, prompt_format: PromptFormat) -> dict[str, str]:
    """A perfect completion and flawed ones; without a gold answer, one in the format and others."""
    if answer is None:
        shaped = prompt_format.answered("Some thoughts.", "42")
        others = {"no tags": "Some thoughts.\nThe answer is 42.", "extra text": shaped + EXTRA, "empty": ""}
        return {"in the format": shaped, **others}
    number = last_number(answer)
    wrong = f"not {answer}" if number is None else str(number + 1)
    perfect = prompt_format.answered(reasoning, answer)
    return {
        "perfect": perfect,
        "wrong number": prompt_format.answered(reasoning, wrong),
        "no tags": f"{reasoning}\nThe answer is {answer}.",
        "extra text": perfect + EXTRA,
        "empty": "",
    }


def try_rewards(
    rewards: Rewards,
    row: dict[str, Any],
    reasoning: str,
    prompt_format: PromptFormat,
    encode: Callable[[str], list[int]],
) -> Tried:
    """What each reward gives for each of these completions of a training row, or the exception that it raises."""
    texts = perturbed(reasoning, row["answer"], prompt_format)
    ids = [encode(text) for text in texts.values()]
    columns = columns_of([row] * len(texts), list(texts.values()), ids, prompt_format.chat)
    tried: Tried = {}
    for name, reward in rewards.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # debug prints samples
                values = numbers_of(call(reward, columns, PATIENCE), len(texts))
            if not all(math.isfinite(value or 0.0) for value in values):
                raise ValueError(f"it returned {values}, where only finite numbers count")
            tried[name] = dict(zip(texts, values, strict=True))
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # a user's function may raise anything
            tried[name] = error
    return tried


def about_rewards(tried: Tried, weights: dict[str, float]) -> Iterator[Check]:
    """The rewards that fail or give the same to all completions, and what all of them together tell apart."""
    for name, values in tried.items():
        title = f"reward {short_name(name)}"
        if isinstance(values, TimeoutError):
            finding = f"no answer within {PATIENCE:g} seconds"
            yield Check("warning", title, finding, "each rollout waits for it; let it answer faster")
        elif isinstance(values, BaseException):
            remedy = "fix it"
            if "unexpected keyword argument" in str(values):  # TRL passes all columns, and more
                remedy = "add **kwargs to its parameters"
            yield Check("error", title, f"raises {type(values).__name__}: {values}", remedy)
        elif len(set(values.values())) == 1:
            if name == "judge_reward_func" and "perfect" not in values:
                continue  # what a judge of the user's finds right is not known here
            remedy = "it moves no advantage unless your completions differ in other ways"
            first = next(iter(values.values()))
            yield Check("warning", title, f"gives {_number(first)} to every test completion", remedy)
    total = weighted_sum(tried, weights)
    if not any(weights.values()):
        yield Check("error", "all rewards", "every weight is 0", "nothing can be learned; set reward_weights above 0")
    elif total:
        finding = ", ".join(f"{kind} earns {_number(value)}" for kind, value in total.items())
        remedy = ""
        if "perfect" in total:  # what is right is known
            finding = f"perfect earns {_number(total['perfect'])}, wrong number {_number(total['wrong number'])}"
            if total["perfect"] <= total["wrong number"]:
                remedy = "a wrong number earns as much as the right one; add a correctness reward, or raise its weight"
        if len(set(total.values())) == 1:
            remedy = "they all earn the same; unless your completions differ in other ways, nothing can be learned"
        yield warn_if(remedy, "all rewards", finding, remedy)


def about_judge(judge: Judge, row: dict[str, Any], prompt_format: PromptFormat) -> Iterator[Check]:
    """A judge of the user's, tried on completions of a training row; whether it tells right from wrong."""
    if judge.function is None:
        return
    texts = perturbed("", row.get("answer"), prompt_format)
    try:
        verdicts = {kind: judge.verdict(text, row) for kind, text in texts.items()}
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        finding = f"{judge.name} raises {type(error).__name__}: {error}"
        yield Check("error", "judge", finding, "fix it: it gets a completion's text and its row, a dictionary")
        return
    right = ", ".join(kind for kind, verdict in verdicts.items() if verdict) or "none of them"
    remedy = ""
    if row.get("answer") and (verdicts["wrong number"] or not verdicts["perfect"]):
        remedy = "it does not tell the gold answer from a wrong one; fix it, or drop the answer_column"
    yield warn_if(remedy, "judge", f"{judge.name}; of the test completions right: {right}", remedy)


def weighted_sum(tried: Tried, weights: dict[str, float]) -> dict[str, float]:
    """What each completion earns from all rewards that work; empty if none does."""
    working = {name: values for name, values in tried.items() if isinstance(values, dict)}
    kinds = next(iter(working.values()), {})
    return {kind: sum(weights[name] * (values[kind] or 0.0) for name, values in working.items()) for kind in kinds}


def matrix(tried: Tried, weights: dict[str, float]) -> Table:
    """Rewards and their weighted sum by row, the completions by column."""
    total = weighted_sum(tried, weights)
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for kind in total:
        table.add_column(kind, justify="right", no_wrap=True)
    for name, values in tried.items():
        weight = "" if weights[name] == 1 else f" × {weights[name]:g}"
        cells = [_number(value) for value in values.values()] if isinstance(values, dict) else ["–"] * len(total)
        table.add_row(for_rich(short_name(name) + weight), *cells)
    if total:
        table.add_row("weighted sum", *map(_number, total.values()), style="bold")
    return table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
