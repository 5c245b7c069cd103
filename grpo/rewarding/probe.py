"""Rewards outside of training: tried by preflight on a perfect completion and on flawed ones, and in an evaluation."""

import asyncio
import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.table import Table
from transformers import TrainerState
from trl.trainer.utils import is_async_callable

from grpo.core.checklist import Check, warn_if
from grpo.core.processes import say
from grpo.core.text import counted, for_rich, short_name, shorten
from grpo.data.dataset import Data
from grpo.rewarding.guard import FAILED, RewardGuard, Values, fault_of, own_copy
from grpo.rewarding.registry import Rewards
from grpo.task.answers import is_right, kind_of, last_number
from grpo.task.gold import gold_mark, has_mark, mark_name
from grpo.task.task import Task
from rewards import template_parts

REWRITTEN = "the same answer, written otherwise"
PATIENCE = 60.0  # seconds for an async reward
ENDING = 60  # characters of a test completion's end
EXTRA = "\nI hope that this helps!\n"

LONG_GOLD = 30  # characters; hardly any completion holds such a text exactly
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]|[%€£]")  # but no command of LaTeX: beside a number, its unit

Value = float | str | None  # a text where the reward fails: its fault
Tried = dict[str, dict[str, Value]]  # by reward and test completion
Changed = dict[str, list[str]]  # by reward, the arguments that it changes


# --- Calling rewards as TRL does ----------------------------------------------------------------------------------


def columns_of(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], ids: Sequence[Sequence[int]], chat: bool
) -> dict[str, Any]:
    """The arguments that TRL passes to rewards for these completions of these rows (with `prompt`), one each."""
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    columns["prompts"] = [row["prompt"] for row in rows]
    columns["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    columns["completion_ids"] = [list(tokens) for tokens in ids]
    ignored = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    return {**columns, "trainer_state": TrainerState(), **ignored}


def guarded_values(rewards: Rewards, columns: Mapping[str, Any]) -> tuple[dict[str, Values], list[dict[str, Any]]]:
    """The rewards of completions as training takes them, by name, FAILED where one fails; and the first faults."""
    guard = RewardGuard(Path(), limit=1.0)
    return {name: _call(guard.guarded(name, reward), columns) for name, reward in rewards.items()}, guard.faults


def _call(reward: Callable[..., Any], columns: Mapping[str, Any]) -> Values:
    if not is_async_callable(reward):
        return reward(**columns)
    with ThreadPoolExecutor(1) as thread:  # a notebook's own already runs an event loop
        return thread.submit(lambda: asyncio.run(reward(**columns))).result()


def scores(rewards: Rewards, columns: Mapping[str, Any]) -> dict[str, Values]:
    """The rewards of completions, by name; None for all of them where one fails. What they print is not shown."""
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


def perturbed(reasoning: str, answer: str | None, task: Task) -> dict[str, str]:
    """A perfect completion and flawed ones; without a gold answer, one in the format and others."""
    if answer is None:
        shaped = task.perfect("Some thoughts.", "42")
        others = {"no tags": "Some thoughts.\nThe answer is 42.", "extra text": shaped + EXTRA, "empty": ""}
        return {"in the format": shaped, **others}
    number = last_number(answer)
    wrong = f"not {answer}"
    if number is not None:  # 8 days for 9 days, not 10: to a reward for the length, both are the same
        wrong = min(str(number + 1), str(number - 1), key=lambda text: abs(len(text) - len(str(number))))
        wrong = answer.replace(str(number), wrong) if str(number) in answer else wrong
    perfect = task.perfect(reasoning, answer)
    return {
        "perfect": perfect,
        "wrong answer": task.perfect(reasoning, wrong),
        "no tags": f"{reasoning}\nThe answer is {answer}.",
        "extra text": perfect + EXTRA,
        "empty": "",
    }


def rewritten(reasoning: str, answer: str | None, task: Task) -> str | None:
    """A completion that is right and does not hold the gold answer character by character."""
    text = None if answer is None else task.perfect(reasoning, f"{answer}.")
    return text if text and is_right(text, str(answer), task.prompt.pattern) else None


def try_rewards(
    rewards: Rewards,
    row: dict[str, Any],
    reasoning: str,
    task: Task,
    encode: Callable[[str], list[int]],
) -> tuple[Tried, Changed, list[str]]:
    """Each reward's value for each test completion of a training row, or its fault; the arguments that it changes.

    The last are the rewards that pay a right answer only where it is the gold answer character by character.
    """
    changed: Changed = {}
    texts = perturbed(reasoning, row["answer"], task)
    if otherwise := rewritten(reasoning, row["answer"], task):
        texts[REWRITTEN] = otherwise
    ids = [encode(text) for text in texts.values()]
    columns = columns_of([row] * len(texts), list(texts.values()), ids, task.prompt.chat)
    with contextlib.redirect_stdout(io.StringIO()):  # debug prints samples
        watched = {name: _watched(reward, changed.setdefault(name, [])) for name, reward in rewards.items()}
        given, faults = guarded_values(watched, columns)
    first = {fault["function"]: _told(fault["fault"]) for fault in reversed(faults)}
    tried = {
        name: {kind: first[name] if value == FAILED else value for kind, value in zip(texts, values, strict=True)}
        for name, values in given.items()
    }
    exact = [name for name, values in tried.items() if wants_every_character(values)]
    for values in tried.values():
        values.pop(REWRITTEN, None)
    return tried, {name: arguments for name, arguments in changed.items() if arguments}, exact


def _watched(reward: Callable[..., Any], changed: list[str]) -> Callable[..., Any]:
    """The reward, which lists the arguments that it changes.

    An async one, which may wait for a server that is down, fails after PATIENCE seconds.
    """

    @contextlib.contextmanager
    def watching(columns: Mapping[str, Any]) -> Iterator[None]:
        before = own_copy(columns)
        try:
            yield
        finally:
            changed.extend(key for key in columns if key not in changed and columns[key] != before[key])

    def score(**columns: Any) -> Any:
        with watching(columns):
            return reward(**columns)

    async def ask(**columns: Any) -> Any:
        with watching(columns):
            try:
                return await asyncio.wait_for(reward(**columns), PATIENCE)
            except TimeoutError:
                raise TimeoutError(f"no answer within {PATIENCE:g} seconds") from None

    return ask if is_async_callable(reward) else score


def _told(fault: str) -> str:
    """A fault as preflight names it; a result that is no number or verdict is refused here, and raised by nobody."""
    _, _, ours = fault.partition(": ")
    return ours if ours.startswith("it returned") else f"raises {fault}"


def about_rewards(tried: Tried, weights: dict[str, float], columns: Sequence[str], task: Task) -> Iterator[Check]:
    """The rewards that fail, agree or prefer what is wrong, and what all of them together tell apart.

    Args:
        columns: those of the training rows.
    """
    for name, values in tried.items():
        title = f"reward {short_name(name)}"
        if not works(values):
            yield _about_failure(name, values, columns)
        elif len(set(values.values())) == 1:
            if task.judge and "perfect" not in values:
                continue  # what the judge finds right is not known here
            remedy = "it moves no advantage unless your completions differ in other ways"
            first = next(iter(values.values()))
            yield Check("warning", title, f"gives {_number(first)} to every test completion", remedy)
        elif prefers_wrong(earned := weighted_sum({name: values}, weights)):
            finding = f"wrong answer earns {_number(earned['wrong answer'])}, perfect {_number(earned['perfect'])}"
            remedy = "it pays for being wrong: fix it, drop it, or change the gold answers"
            yield Check("warning", title, finding, remedy)
    total = weighted_sum(tried, weights)
    if not any(weights.values()):
        yield Check("error", "all rewards", "every weight is 0", "nothing can be learned; set reward_weights above 0")
    elif total:
        finding = ", ".join(f"{kind} earns {_number(value)}" for kind, value in total.items())
        remedy = ""
        if "perfect" in total:  # what is right is known
            finding = f"perfect earns {_number(total['perfect'])}, wrong answer {_number(total['wrong answer'])}"
            if total["perfect"] <= total["wrong answer"]:
                remedy = (
                    "a wrong answer earns no less than the right one; add a correctness reward, or raise its weight"
                )
        if len(set(total.values())) == 1:
            remedy = "they all earn the same; unless your completions differ in other ways, nothing can be learned"
        yield warn_if(remedy, "all rewards", finding, remedy)


def about_changed(changed: Changed) -> Iterator[Check]:
    """The rewards that change their arguments in place."""
    for name, arguments in changed.items():
        finding = f"changes its input: {' and '.join(arguments)}"
        remedy = "this program gives each reward a copy; in plain TRL other rewards would get what it leaves"
        yield Check("warning", f"reward {short_name(name)}", finding, remedy)


def works(values: Mapping[str, Value]) -> bool:
    """Whether a reward gave finite numbers, or None, for all test completions."""
    return not any(isinstance(value, str) for value in values.values())


def _about_failure(name: str, values: Mapping[str, Value], columns: Sequence[str]) -> Check:
    failed = {kind: value for kind, value in values.items() if isinstance(value, str)}
    fault = next(iter(failed.values()))
    on = "" if len(failed) == len(values) else f" on {' and '.join(map(repr, failed))}"
    remedy = "fix it"
    if "unexpected keyword argument" in fault:  # TRL passes all columns, and more
        remedy = "add **kwargs to its parameters"
    elif re.match(rf"raises TypeError: (\S+\.)?({re.escape(name)}|__call__)\(\) missing ", fault):
        passed = [column for column in columns if column != "prompt"]
        remedy = f"it gets {', '.join(['prompts', 'completions', 'completion_ids', *passed])}: use these names"
    return Check("error", f"reward {short_name(name)}", fault + on, remedy)


def prefers_wrong(earned: Mapping[str, float]) -> bool:
    """Whether the wrong answer earns more than the perfect answer, by more than its length may do."""
    if "perfect" not in earned:  # what is right is not known
        return False
    return earned["wrong answer"] - earned["perfect"] > 0.1 * max(map(abs, earned.values()))


def about_tags(prompt: str, task: Task, tried: Tried, weights: dict[str, float]) -> Iterator[Check]:
    """Whether the prompt shows the tags and marks that the rewards pay for."""
    total, marks = weighted_sum(tried, weights), []
    if total and next(iter(total.values())) > total["no tags"]:  # the first is in the format
        before_answer = template_parts(task.prompt.completion)[-2].split()
        marks = [*re.findall(r"<\w+>", task.prompt.completion), *before_answer[-1:]]
    hidden = [mark for mark in dict.fromkeys(marks) if mark not in prompt]
    if hidden:
        finding = f"the prompt never shows {' and '.join(hidden)}, which the rewards pay for"
        yield Check("warning", "tags", finding, "show them in the prompt (system_prompt), or use num_shots 1")


def about_golds(data: Data, exact: Sequence[str], task: Task) -> Iterator[Check]:
    """Describe the gold answers, and warn where hardly any completion can hold them.

    Args:
        exact: the rewards that want every character of them.
    """
    golds = [gold for gold in data.train["answer"] if gold is not None]
    if not data.has_golds:
        some = f"{len(golds)} of {counted(len(data.train), 'training row')}" if golds else "no gold answers"
        measured = "the judge's verdict" if task.judge else "rewards"
        yield Check("ok", "gold answers", f"{some}: evaluation reports {measured} and format")
    if not golds:
        return
    numbers = [gold for gold in golds if kind_of(gold) == "number"]
    units = [gold for gold in numbers if WORD.search(gold)]
    mathematics = [gold for gold in golds if kind_of(gold) == "mathematics"]
    texts = [gold for gold in golds if kind_of(gold) == "text"]
    kinds = {"numbers": numbers, "with a unit": units, "mathematics": mathematics, "text": texts}
    shown = ", ".join(f'"{shorten(gold)}"' for gold in golds[:3])
    finding = f"{shown} · {data.where_golds_are()} · "
    finding += "".join(f"{100 * len(some) / len(golds):.0f} % {kind}, " for kind, some in kinds.items() if some)
    finding += f"longest {counted(max(map(len, golds)), 'character')}"
    odd = [gold for gold in texts if len(gold) > LONG_GOLD or any(map(str.isdigit, gold))] + mathematics + units
    remedy = ""
    marked = [gold for gold in golds if has_mark(gold)]
    if len(marked) > 0.05 * len(golds) and (mark := gold_mark(marked)):
        count = f"{len(marked)} of {len(golds)} have {mark_name(mark)}"
        remedy = f"{count}, too few for it to be read: put it in all of them, or in none"
    elif exact and len(odd) > 0.1 * len(golds):
        names = " and ".join(map(short_name, exact))
        remedy = f'"{shorten(odd[0])}": {names} want{"s" * (len(exact) == 1)} every character of it: keep the '
        remedy += r"answer alone, mark it (####, \boxed{}, Answer:), or use judge_reward_func, which takes what means "
        remedy += "the same"
    yield warn_if(remedy, "gold answers", finding, remedy)


def wants_every_character(values: Mapping[str, Value]) -> bool:
    """Whether a reward pays less for the right answer where it is written in another way."""
    right, rewritten = values.get("perfect"), values.get(REWRITTEN)
    return isinstance(right, float) and isinstance(rewritten, float) and right > rewritten


def about_judge(task: Task, row: dict[str, Any]) -> Iterator[Check]:
    """A judge of the user's, tried on completions of a training row; whether it tells right from wrong."""
    if task.judge is None:
        return
    texts = perturbed("", row.get("answer"), task)
    try:
        verdicts = {kind: task.verdict(text, row) for kind, text in texts.items()}
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        remedy = "fix it: it gets a completion's text and its row, a dictionary"
        yield Check("error", "judge", f"{task.judge_name}: {_told(fault_of(error))}", remedy)
        return
    right = ", ".join(kind for kind, verdict in verdicts.items() if verdict) or "none of them"
    remedy = ""
    if row.get("answer") and (verdicts["wrong answer"] or not verdicts["perfect"]):
        remedy = "it does not tell the gold answer from a wrong one; fix it, or drop the answer_column"
    yield warn_if(remedy, "judge", f"{task.judge_name}; of the test completions right: {right}", remedy)


def weighted_sum(tried: Tried, weights: dict[str, float]) -> dict[str, float]:
    """Each completion's weighted sum of the rewards that work; empty if none does."""
    working = {name: values for name, values in tried.items() if works(values)}
    kinds = next(iter(working.values()), {})

    def earned(name: str, kind: str) -> float:
        value = working[name][kind]
        return weights[name] * value if isinstance(value, float) else 0.0  # None is no value

    return {kind: sum(earned(name, kind) for name in working) for kind in kinds}


def matrix(tried: Tried, weights: dict[str, float]) -> Table:
    """Rewards and their weighted sum by row, the completions by column."""
    total = weighted_sum(tried, weights)
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for kind in next(iter(tried.values())):
        table.add_column(kind, justify="right", no_wrap=True)
    for name, values in tried.items():
        weight = "" if weights[name] == 1 else f" × {weights[name]:g}"
        table.add_row(for_rich(short_name(name) + weight), *map(_number, values.values()))
    if total:
        table.add_row("weighted sum", *map(_number, total.values()), style="bold")
    return table


def listing(texts: Mapping[str, str]) -> Table:
    """The test completions: the first in full, and of the others how they end, in which they differ from it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    first, *others = texts
    table.add_row(first, for_rich(texts[first].strip()))
    for kind in others:
        text = " ".join(texts[kind].split())
        table.add_row(kind, for_rich(text if len(text) <= ENDING else f"…{text[1 - ENDING :]}") or "(no text)")
    return table


def _number(value: Value) -> str:
    if isinstance(value, str):
        return "raises" if value.startswith("raises") else "–"  # what it returned is no number
    return "none" if value is None else f"{value:.3g}"
