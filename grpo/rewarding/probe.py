"""Rewards tried before training: on a perfect completion, and on what they should tell from it."""

import contextlib
import copy
import io
import math
import reprlib
from collections.abc import Callable, Container, Iterator
from typing import Any

from rich.table import Table

from grpo.core.checklist import Check, warn_if
from grpo.core.errors import UserError
from grpo.core.text import for_rich
from grpo.data.prompts import PromptFormat
from grpo.rewarding import scoring
from grpo.rewarding.guard import numbers_of
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import Rewards
from rewards import last_number, short_name

EXTRA = "\nI hope that this helps!\n"

Tried = dict[str, dict[str, float | None] | BaseException]  # by name of the reward


def perturbed(reasoning: str, answer: str | None, prompt_format: PromptFormat) -> dict[str, str]:
    """A perfect completion, and what a reward should tell from it; without a gold answer, one in the format."""
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
    """What each reward gives for each of these completions of a training row, or the exception that it raises (a
    UserError where it returns no list of numbers).

    Rewards get what TRL gives them: prompts, completions, their token ids, the row's columns, the trainer's state, and
    two functions to log with.
    """
    texts = perturbed(reasoning, row["answer"], prompt_format)
    ids = [encode(text) for text in texts.values()]
    columns = scoring.columns_of([row] * len(texts), list(texts.values()), ids, prompt_format.chat)
    tried: Tried = {}
    for name, reward in rewards.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # debug prints samples
                values = numbers_of(name, scoring.call(reward, columns, scoring.PATIENCE), len(texts))
            if not all(math.isfinite(value or 0.0) for value in values):
                raise ValueError(f"it returned {values}, where only finite numbers count")
            tried[name] = dict(zip(texts, values, strict=True))
        except (Exception, SystemExit) as error:  # a user's function may raise anything; the table shows it
            tried[name] = error
    return tried


def about_judge(judge: Judge, row: dict[str, Any], prompt_format: PromptFormat) -> Iterator[Check]:
    """A judge of one's own, tried on completions of a training row; whether it tells right from wrong."""
    if judge.function is None:
        return
    texts = perturbed("", row.get("answer"), prompt_format)
    try:
        verdicts = {kind: judge.function(text, copy.deepcopy(row)) for kind, text in texts.items()}
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        finding = f"{judge.name} raises {type(error).__name__}: {error}"
        yield Check("error", "judge", finding, "fix it: it gets a completion's text and its row, a dictionary")
        return
    odd = next((verdict for verdict in verdicts.values() if type(verdict).__name__ not in ("bool", "bool_")), None)
    if odd is not None or None in verdicts.values():
        yield Check("error", "judge", f"{judge.name} returns {reprlib.repr(odd)}", "let it return True or False")
        return
    right = ", ".join(kind for kind, verdict in verdicts.items() if verdict) or "none of them"
    finding, remedy = f"{judge.name}; of the test completions right: {right}", ""
    if row.get("answer") and (verdicts["wrong number"] or not verdicts["perfect"]):
        remedy = "it does not tell the gold answer from a wrong one; fix it, or drop the answer_column"
    yield warn_if(remedy, "judge", finding, remedy)


def weighted_sum(tried: Tried, weights: dict[str, float]) -> dict[str, float]:
    """What each completion earns from all rewards that work; empty if none does."""
    working = {name: values for name, values in tried.items() if isinstance(values, dict)}
    kinds = next(iter(working.values()), {})
    return {kind: sum(weights[name] * (values[kind] or 0.0) for name, values in working.items()) for kind in kinds}


def about_rewards(tried: Tried, weights: dict[str, float], explained: Container[str] = ()) -> Iterator[Check]:
    """The rewards at fault, and what all of them together tell apart; those `explained` may give the same to all."""
    for name, values in tried.items():
        title = f"reward {short_name(name)}"
        if isinstance(values, scoring.TooSlow):
            yield Check("warning", title, str(values), "each rollout waits for it; let it answer faster")
        elif isinstance(values, BaseException):
            wrong = isinstance(values, UserError)
            finding = str(values).partition(": ")[2] if wrong else f"raises {type(values).__name__}: {values}"
            remedy = f"fix it: in training, {'this ends the run' if wrong else 'such rows are excluded'}"
            yield Check("error", title, finding, remedy)
        elif len(set(values.values())) == 1 and name not in explained:
            remedy = "it moves no advantage unless your completions differ in other ways"
            first = next(iter(values.values()))
            yield Check("warning", title, f"gives {_number(first)} to every test completion", remedy)
    total = weighted_sum(tried, weights)
    if not any(weights.values()):
        yield Check("error", "all rewards", "every weight is 0", "nothing can be learned; set reward_weights above 0")
    elif total and "perfect" not in total:  # what is right is not known
        finding = ", ".join(f"{kind} earns {_number(value)}" for kind, value in total.items())
        remedy = "unless your completions differ in other ways, nothing can be learned"
        yield warn_if(len(set(total.values())) == 1, "all rewards", finding, remedy)
    elif total:
        finding = f"perfect earns {_number(total['perfect'])}, wrong number {_number(total['wrong number'])}"
        remedy = "a wrong number earns as much as the right one; add a correctness reward, or raise its weight"
        if len(set(total.values())) == 1:
            remedy = "they all earn the same; unless your completions differ in other ways, nothing can be learned"
        yield warn_if(total["perfect"] <= total["wrong number"], "all rewards", finding, remedy)


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
