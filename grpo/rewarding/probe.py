"""Rewards tried before training: on a perfect completion, and on what they should tell from it."""

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from inspect import iscoroutinefunction
from typing import Any

from grpo.core.checklist import Check, check_if
from grpo.core.errors import UserError
from grpo.data.prompts import PromptFormat
from grpo.rewarding.guard import numbers_of
from grpo.rewarding.registry import Rewards
from rewards import last_number, short_name

Tried = dict[str, dict[str, float | None] | BaseException]


def perturbed(reasoning: str, answer: str, style: PromptFormat) -> dict[str, str]:
    """A perfect completion, and what a reward should tell from it."""
    number = last_number(answer)
    wrong = f"not {answer}" if number is None else str(number + 1)
    perfect = style.answered(reasoning, answer)
    return {
        "perfect": perfect,
        "wrong number": style.answered(reasoning, wrong),
        "no tags": f"{reasoning}\nThe answer is {answer}.",
        "extra text": perfect + "\nI hope that this helps!\n",
        "empty": "",
    }


def try_rewards(
    rewards: Rewards, row: dict[str, Any], reasoning: str, style: PromptFormat, encode: Callable[[str], list[int]]
) -> Tried:
    """What each reward gives for each of these completions of a training row, or the exception that it raises (a
    UserError where it returns no list of numbers).

    Rewards get what TRL gives them: prompts, completions, their token ids, the row's columns, the trainer's state, and
    two functions to log with. Asynchronous ones are skipped.
    """
    from transformers import TrainerState

    texts = perturbed(reasoning, row["answer"], style)
    arguments: dict[str, Any] = {key: [value] * len(texts) for key, value in row.items() if key != "prompt"}
    arguments["prompts"] = [row["prompt"]] * len(texts)
    arguments["completions"] = [[{"role": "assistant", "content": t}] if style.chat else t for t in texts.values()]
    arguments["completion_ids"] = [encode(text) for text in texts.values()]
    arguments |= {"trainer_state": TrainerState(), "log_extra": lambda *_: None, "log_metric": lambda *_: None}
    tried: Tried = {}
    for name, reward in rewards.items():
        if iscoroutinefunction(reward):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # debug prints samples
                tried[name] = dict(zip(texts, numbers_of(name, reward(**arguments), len(texts)), strict=True))
        except (Exception, SystemExit) as error:  # a user's function may raise anything; the table shows it
            tried[name] = error
    return tried


def about_rewards(tried: Tried, weights: dict[str, float]) -> Iterator[Check]:
    total: dict[str, float] = {}
    for name, values in tried.items():
        title = f"reward {short_name(name)}"
        if isinstance(values, BaseException):
            wrong = isinstance(values, UserError)
            finding = str(values).partition(": ")[2] if wrong else f"raises {type(values).__name__}: {values}"
            remedy = "in training, this ends the run" if wrong else "in training, such rows are excluded"
            yield Check("error", title, finding, f"fix it: {remedy}")
            continue
        finding = ", ".join(f"{kind} {'none' if value is None else f'{value:.3g}'}" for kind, value in values.items())
        if not all(math.isfinite(value or 0.0) for value in values.values()):
            yield Check("error", title, finding, "fix it: in training, rows with NaN or infinity are excluded")
            continue
        remedy = "all of them earn the same, so it moves no advantage unless your completions differ in other ways"
        yield check_if(len(set(values.values())) == 1, title, finding, remedy)
        for kind, value in values.items():
            total[kind] = total.get(kind, 0.0) + weights[name] * (value or 0.0)
    if not any(weights.values()):
        yield Check("error", "all rewards", "every weight is 0", "nothing can be learned; set reward_weights above 0")
    elif total:
        finding = ", ".join(f"{kind} {value:.3g}" for kind, value in total.items())
        remedy = "a wrong number earns as much as the right one; add a correctness reward, or raise its weight"
        if len(set(total.values())) == 1:
            remedy = "they all earn the same; unless your completions differ in other ways, nothing can be learned"
        yield check_if(total["perfect"] <= total["wrong number"], "all rewards", finding, remedy)
