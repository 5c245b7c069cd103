"""Try the rewards on test completions of the first training row: a perfect one, and flawed ones."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from transformers import PreTrainedTokenizerBase
from trl.trainer.utils import is_async_callable

from grpo.core.text import for_rich, short_name, with_minus
from grpo.rewarding import registry
from grpo.rewarding.guard import score
from grpo.rewarding.registry import Rewards
from grpo.rewarding.rollout import Fault, Rollout, Score, verdicts
from grpo.task.gold import alternatives
from grpo.task.task import Task
from grpo.task.wrong import rewritten_json, wrong_answer
from rewards import Gold

REWRITTEN = "the same answer, written otherwise"
OTHER_GOLD = "the same answer, to a row with another gold answer"
PATIENCE = 60.0  # seconds for an async reward
EXTRA = "\nI hope that this helps!\n"
LONG = 240  # characters; of longer test completions only the end is shown

Tried = dict[str, dict[str, Score]]  # by reward and kind of test completion


@dataclass(frozen=True)
class Trial:
    """The run's rewards on test completions of the first training row; empty without training."""

    texts: dict[str, str] = field(default_factory=dict)  # test completions by kind: perfect, wrong answer, …
    values: Tried = field(default_factory=dict)
    exact: list[str] = field(default_factory=list)  # rewards that need the gold answer character by character
    weights: dict[str, float] = field(default_factory=dict)  # by reward


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
        if next(verdicts(task, Rollout.of_texts([row], [text], task.prompt.chat))) is True:
            return text
    return None  # also if the user's judge fails, which about_judge reports


def try_rewards(
    rewards: Rewards,
    row: dict[str, Any],
    reasoning: str,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    wrong: str = "",
) -> tuple[dict[str, str], Tried, list[str]]:
    """Call each reward on each test completion of a training row. Return the completions, and scores.

    The completions pass through the tokenizer, like a model's. Last, return the rewards that read the gold answer and
    pay for a right one only if it is the same character by character.

    Args:
        wrong: a wrong answer to the row.
    """
    texts, rows = perturbed(reasoning, row["answer"], task, wrong), {}
    if task.judge and "perfect" in texts:
        rollout = Rollout.of_texts([row], [texts["perfect"]], task.prompt.chat)
        if next(verdicts(task, rollout)) is False:  # it may judge by other columns: none is known to be right
            texts = perturbed(reasoning, None, task)
    if "perfect" in texts and (otherwise := rewritten(reasoning, row, task)):
        texts[REWRITTEN] = otherwise
        texts[OTHER_GOLD], rows[OTHER_GOLD] = texts["perfect"], row | {"answer": wrong or wrong_answer(row["answer"])}
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts.values()]
    decoded = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in ids]
    texts = dict(zip(texts, decoded, strict=True))
    rollout = Rollout.of_texts([rows.get(kind, row) for kind in texts], decoded, task.prompt.chat, ids)
    scores = score({name: _impatient(reward) for name, reward in rewards.items()}, rollout)
    tried = {name: dict(zip(texts, values, strict=True)) for name, values in scores.items()}
    exact = [name for name, values in tried.items() if wants_every_character(values)]
    for by_kind in (texts, *tried.values()):
        for kind in (REWRITTEN, OTHER_GOLD):
            by_kind.pop(kind, None)  # type: ignore[attr-defined]
    return texts, tried, exact


def _impatient(reward: Callable[..., Any]) -> Callable[..., Any]:
    """Let an async reward fail after PATIENCE seconds, since its server may be down."""

    async def ask(**columns: Any) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await reward(**columns)
        except TimeoutError:
            raise TimeoutError(f"no answer within {PATIENCE:g} seconds") from None

    return ask if is_async_callable(reward) else reward


def wants_every_character(values: Mapping[str, Score]) -> bool:
    """True if a reward reads the gold answer, and pays less for a right one that is written in another way."""
    right, rewritten = values.get("perfect"), values.get(REWRITTEN)
    pays_less = isinstance(right, float) and isinstance(rewritten, float) and right > rewritten
    return pays_less and values.get(OTHER_GOLD) != right


def perfect_values(trial: Trial, penalties: Collection[str]) -> dict[str, float]:
    """Return what rewards pay for a perfect completion, without those that pay no more for it than for any other.

    Such a reward judges something that a perfect completion of the format does not show, such as a whole JSON object.

    Args:
        penalties: rewards that pay 0 at most.
    """
    found = {}
    for name, values in trial.values.items():
        perfect, numbers = values.get("perfect"), [value for value in values.values() if isinstance(value, float)]
        if isinstance(perfect, float) and (name in penalties or perfect > min(numbers)):
            found[name] = perfect
    return found


def works(values: Mapping[str, Score]) -> bool:
    """True if a reward returned a finite number or None for every test completion."""
    return not any(isinstance(value, Fault) for value in values.values())


def weighted_sum(trial: Trial, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the weighted sum of the rewards (all, or `names`) for each completion.

    As in training, a completion on which one of them fails has no sum. A reward that fails on all is left out; {} if
    all do.
    """
    kinds = next(iter(trial.values.values()), {}).keys()

    def fails(name: str, kind: str) -> bool:
        return isinstance(trial.values[name][kind], Fault)

    working = [name for name in names or trial.values if not all(fails(name, kind) for kind in kinds)]
    whole = [kind for kind in kinds if working and not any(fails(name, kind) for name in working)]
    columns: Any = {kind: {name: trial.values[name][kind] for name in working} for kind in whole}
    return {kind: registry.weighted_sum(values, trial.weights) for kind, values in columns.items()}


def rewards_table(trial: Trial) -> Table:
    """Build preflight's table: a row for each reward and the weighted sum, a column for each test completion."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for kind in trial.texts:
        table.add_column(kind, justify="right", no_wrap=True)
    for name, values in trial.values.items():
        weight = "" if trial.weights[name] == 1 else f" × {trial.weights[name]:g}"
        table.add_row(for_rich(short_name(name) + weight), *map(number, values.values()))
    if total := weighted_sum(trial):
        sums = [number(total[kind]) if kind in total else "–" for kind in trial.texts]  # – where a reward fails
        table.add_row("weighted sum", *sums, style="bold")
    return table


def completions_table(texts: Mapping[str, str]) -> Table:
    """List the test completions with line breaks: the first one in full, only the ends of other long ones."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, (kind, text) in enumerate(texts.items()):
        shown = text if number == 0 or len(text) <= LONG else f"…{text[1 - LONG :]}"
        table.add_row(kind, for_rich(shown.replace("\n", "↵ ").strip()) or "(no text)")
    return table


def number(value: Score) -> str:
    """Format a value for a narrow column."""
    if isinstance(value, Fault):
        return "fails"
    return "none" if value is None else with_minus(value, "z.3g")
