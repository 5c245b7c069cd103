"""Try the rewards on test completions of the first training row: a perfect one, and flawed ones."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.table import Table
from transformers import PreTrainedTokenizerBase
from trl.trainer.utils import is_async_callable

from grpo.core.text import for_rich, short_name, with_minus
from grpo.scoring.calling import Score
from grpo.scoring.guard import without_effects
from grpo.scoring.sample import Fault, Sample
from grpo.scoring.scorer import Scorer, weighted_sum
from grpo.task.gold import alternatives
from grpo.task.task import Task, Verdict
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
    judged: dict[str, Sample] = field(default_factory=dict)  # the first test completions, with the judge's verdicts


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


def try_rewards(
    scorer: Scorer,
    row: Mapping[str, Any],
    reasoning: str,
    tokenizer: PreTrainedTokenizerBase,
    wrong: str = "",
) -> Trial:
    """Call each reward alone on each test completion of a training row, so that one that fails hides no other.

    The completions pass through the tokenizer, like a model's.

    Args:
        wrong: a wrong answer to the row.
    """
    task = scorer.task

    def made(texts: Mapping[str, str]) -> dict[str, Sample]:
        by_kind: dict[str, Sample] = {}
        for kind, text in texts.items():
            ids = tokenizer.encode(text, add_special_tokens=False)
            decoded = str(tokenizer.decode(ids, skip_special_tokens=True))
            same = (sample for sample in judged.values() if sample.text == decoded)  # is not judged again
            by_kind[kind] = next(same, Sample(row, decoded, ids))
        return dict(zip(by_kind, scorer.judge(list(by_kind.values())), strict=True))

    with without_effects():
        judged: dict[str, Sample] = {}
        tried = judged = made(perturbed(reasoning, row["answer"], task, wrong))
        if task.judge and "perfect" in judged and judged["perfect"].verdict.lenient is False:
            tried = made(perturbed(reasoning, None, task))  # it may judge by other columns: none is known to be right
        samples = dict(tried)
        if "perfect" in tried:
            gold = alternatives(row["answer"])[0]
            otherwise = made({REWRITTEN: task.perfect(reasoning, rewritten_json(gold) or f"{gold}.")})[REWRITTEN]
            if otherwise.verdict.lenient:
                other = {**row, "answer": wrong or wrong_answer(row["answer"])}
                to_other = replace(tried["perfect"], row=other, verdict=Verdict(), judge_fault=None)
                samples |= {REWRITTEN: otherwise, OTHER_GOLD: scorer.judge([to_other])[0]}
        scores = {name: _scores(scorer, name, samples) for name in scorer.rewards}
    exact = [name for name, values in scores.items() if wants_every_character(values)]
    values = {name: {kind: of_reward[kind] for kind in tried} for name, of_reward in scores.items()}
    return Trial({kind: sample.text for kind, sample in tried.items()}, values, exact, dict(scorer.weights), judged)


def _scores(scorer: Scorer, name: str, samples: Mapping[str, Sample]) -> dict[str, Score]:
    """Return a reward's score of each sample, by its kind."""
    alone = replace(scorer, rewards={name: _impatient(scorer.rewards[name])}).reward(list(samples.values()))
    scores = (sample.faults[0] if sample.faults else (sample.rewards or {})[name] for sample in alone)
    return dict(zip(samples, scores, strict=True))


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
    paid = {}
    for name, values in trial.values.items():
        perfect, numbers = values.get("perfect"), [value for value in values.values() if isinstance(value, float)]
        if isinstance(perfect, float) and (name in penalties or perfect > min(numbers)):
            paid[name] = perfect
    return paid


def works(values: Mapping[str, Score]) -> bool:
    """True if a reward returned a finite number or None for every test completion."""
    return not any(isinstance(value, Fault) for value in values.values())


def sums(trial: Trial, names: Sequence[str] | None = None) -> dict[str, float]:
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
    return {kind: weighted_sum(values, trial.weights) for kind, values in columns.items()}


def rewards_table(trial: Trial) -> Table:
    """Build preflight's table: a row for each reward and the weighted sum, a column for each test completion."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for kind in trial.texts:
        table.add_column(kind, justify="right", no_wrap=True)
    for name, values in trial.values.items():
        weight = "" if trial.weights[name] == 1 else f" × {trial.weights[name]:g}"
        table.add_row(for_rich(short_name(name) + weight), *map(number, values.values()))
    if total := sums(trial):
        cells = [number(total[kind]) if kind in total else "–" for kind in trial.texts]  # – where a reward fails
        table.add_row("weighted sum", *cells, style="bold")
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
