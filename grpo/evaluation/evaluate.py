"""Evaluate a policy on held-out questions: one greedy answer each, judged in two ways, and optionally k samples.

*Strict*: the extracted answer is the gold answer, character by character, as for the correctness reward.
*Lenient*: the answer is right however it is written, by the verdict of the run's task (task/task.py).
"""

import contextlib
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from rich.table import Table
from transformers import PreTrainedModel, TrainerState

from exact_answers import is_right
from exact_answers.prose import NOT_UNDERSTOOD
from grpo.core import jsonfiles
from grpo.core.processes import by_first_process, say, show
from grpo.core.settings import Config
from grpo.core.text import for_rich
from grpo.data.dataset import Questions
from grpo.policy.answering import Policy
from grpo.results.table import HEADINGS, meanings
from grpo.results.table import rows as rows_of_table
from grpo.rewarding import guard, registry
from grpo.rewarding.guard import random_states_kept
from grpo.rewarding.registry import Rewards
from grpo.rewarding.rollout import Fault, Rollout, Values, verdicts
from grpo.runs.run import Run
from grpo.task.given import how_read, why_right
from grpo.task.task import Task
from grpo.training.console import show_answer

COLUMN_OF = {  # key in eval_*.json → column in the records
    "accuracy_strict": "strict",
    "accuracy_lenient": "lenient",
    "format_strict": "format_strict",
    "format_soft": "format_soft",
    "truncated": "truncated",
    "maj_k": "majority_right",
    "pass_k": "any_right",
}


@dataclass
class Evaluation:
    """A policy's answers with their grades, and a summary.

    Attributes:
        summary: the content of eval_*.json, flat: `n`; shares in [0, 1] with 95 % Wilson intervals as `…_low` and
            `…_high`; `mean_length` in tokens; `seconds`; each reward's mean as `reward_<name>`, and that of their
            weighted sum as `reward`; with k samples per question `k`, `maj_k` and `pass_k`. Without gold answers
            there is no accuracy. If the user's judge raised, `judge_error` has the reason.
        records: one per question, the lines of completions_*.jsonl.
    """

    summary: dict[str, Any]
    records: list[dict[str, Any]]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share (E. B. Wilson, 1927): (low, high), both in [0, 1].

    >>> tuple(round(bound, 4) for bound in wilson(8, 10))
    (0.4902, 0.9433)
    """
    z, share = NormalDist().inv_cdf(0.975), successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, center - half), min(1.0, center + half)


# --- Measuring ----------------------------------------------------------------------------------------------------


def measure(
    config: Config,
    model: PreTrainedModel,
    tokenizer: Any,
    task: Task,
    data: Questions,
    rewards: Rewards,
    run: Run | None = None,
    state: TrainerState | None = None,
) -> Evaluation:
    """Answer the held-out questions greedily, in the number format of training, and grade the answers.

    The run's rewards score the answers, too. With `eval_num_samples` k > 1, also sample k completions of each
    question, as in rollouts. If the judge needs gold answers and a question has none, there is no accuracy.

    Args:
        run: while it trains, a signal makes all processes raise GivenUp.
        state: the trainer's, of which rewards see the step; None: before training.
    """
    start = time.perf_counter()
    training, k = config.training, config.script.eval_num_samples
    policy = Policy.in_training(model, tokenizer, training, task.prompt.prefill)
    rows, check = data.held_out.to_list(), run.check if run else lambda: None
    questions = [row["prompt"] for row in rows]
    answers = policy.answer(questions, check)
    samples = policy.sample(questions, k, check) if k > 1 else []

    records: list[dict[str, Any]] = []
    for index, (row, given) in enumerate(zip(rows, answers, strict=True)):
        record = {"question": row["question"], "answer": row["answer"], "completion": given.text}
        record |= {"truncated": given.truncated, "tokens": given.tokens}
        if samples:
            record["samples"] = [drawn.text for drawn in samples[index]]
        # the other columns, for the user's rewards
        record["row"] = {key: value for key, value in row.items() if key not in ("prompt", "question", "answer")}
        records.append(record)

    notes: dict[str, Any] = {"judge": task.judge_name} if task.judge else {}
    if error := add_grades(records, rows, task, run):
        notes["judge_error"] = error
        say(f"note: {error}; this evaluation has no accuracy")
    texts, ids = [given.text for given in answers], [given.ids for given in answers]
    rollout = Rollout.of_texts(rows, texts, ids, task.prompt.chat, state)
    notes |= add_rewards(records, _scores(rewards, rollout, task, run), registry.weights_of(config, rewards))
    task.forget()
    return Evaluation({**summarize(records), **notes, "seconds": round(time.perf_counter() - start, 2)}, records)


def _scores(rewards: Rewards, rollout: Rollout, task: Task, run: Run | None = None) -> dict[str, Values]:
    """Score completions with the rewards that apply to them, in the first process only, since rewards may be slow."""
    if any(row["answer"] is None for row in rollout.rows):
        rewards = {name: reward for name, reward in rewards.items() if not registry.needs_answer(reward, task)}

    def score() -> dict[str, Values]:
        return guard.excluding_faults(guard.score(rewards, rollout)) if rewards else {}

    return by_first_process(score, run.at_once() if run else None)


def add_grades(
    records: Sequence[dict[str, Any]], rows: Sequence[Mapping[str, Any]], task: Task, run: Run | None = None
) -> str:
    """Add to each record the extracted answer, whether the format is right and, if it can be judged, the answer.

    Returns:
        The error of the user's judge, if it raised; then no record has a verdict. Otherwise "".
    """

    def judge() -> tuple[list[list[Any]], str]:
        if not all(map(task.can_judge, rows)):
            return [], ""
        judged: list[list[Any]] = []
        with random_states_kept(), contextlib.redirect_stdout(io.StringIO()):
            for record, row in zip(records, rows, strict=True):
                texts = [record["completion"], *record.get("samples", [])]
                rollout = Rollout.of_texts([row] * len(texts), texts, [[]] * len(texts), task.prompt.chat)
                judged.append([])
                for verdict in verdicts(task, rollout):
                    if isinstance(verdict, Fault):
                        return [], f"judge {verdict}"
                    judged[-1].append(verdict)
        return judged, ""

    judged, failure = by_first_process(judge, run.at_once() if run else None)  # a judge may be slow, or a paid model
    for index, (record, row) in enumerate(zip(records, rows, strict=True)):
        right, *samples = judged[index] if judged else [None]
        grade = task.grade(record["completion"], row, right)
        record |= {key: value for key, value in grade._asdict().items() if value is not None}
        if samples:
            chosen = majority([task.answer(text) for text in record["samples"]])
            majority_right = chosen is not None and samples[chosen]
            record |= {"samples_right": samples, "majority_right": majority_right, "any_right": any(samples)}
    return failure


def majority(answers: Sequence[str]) -> int | None:
    """Return the index of the most frequent answer, where it occurs first; None if all are empty.

    Answers are equal if their texts are, or by the lenient rule. Of two equally frequent answers, the one sampled
    first wins.
    """
    votes: dict[int, int] = {}  # index of an answer's first occurrence → count
    for index, text in enumerate(answers):
        if text:
            first = next((seen for seen in votes if text == answers[seen] or is_right(text, answers[seen])), index)
            votes[first] = votes.get(first, 0) + 1
    return max(votes, key=lambda index: votes[index], default=None)


def add_rewards(
    records: Sequence[dict[str, Any]], scores: dict[str, list[float | None]], weights: dict[str, float]
) -> dict[str, float]:
    """Add to each record its `rewards` (None if one failed) and their weighted sum, `reward`.

    If a reward with a weight has no value, there is no sum.

    Returns:
        Their means, for the summary.
    """
    if not scores:
        return {}
    whole = all(name in scores for name, weight in weights.items() if weight)
    columns = {f"reward_{name}": values for name, values in scores.items()} | {"reward": []}
    for index, record in enumerate(records):
        record["rewards"] = {name: values[index] for name, values in scores.items()}
        known = any(value is not None for value in record["rewards"].values())
        record["reward"] = registry.weighted_sum(record["rewards"], weights) if known and whole else None
        columns["reward"].append(record["reward"])
    numbers = {key: [value for value in values if value is not None] for key, values in columns.items()}
    return {key: fmean(values) for key, values in numbers.items() if values}


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares of columns that all records have, with their intervals, and the mean length."""
    n = len(records)
    summary: dict[str, Any] = {"n": n}
    for share, column in COLUMN_OF.items():
        if all(column in record for record in records):
            count = sum(record[column] for record in records)
            summary[share] = count / n
            summary[f"{share}_low"], summary[f"{share}_high"] = wilson(count, n)
    if all("why" in record for record in records):
        summary["not_understood"] = sum(record["why"] == NOT_UNDERSTOOD for record in records) / n
    if "samples" in records[0]:
        summary["k"] = len(records[0]["samples"])
    return {**summary, "mean_length": fmean(record["tokens"] for record in records)}


# --- Saving and printing ------------------------------------------------------------------------------------------


def save(directory: Path, when: str, evaluation: Evaluation, step: int = 0) -> None:
    """Write `eval_<when>.json` and `completions_<when>.jsonl`. A kill in between does not mix two evaluations."""
    directory.mkdir(parents=True, exist_ok=True)
    summary, completions = directory / f"eval_{when}.json", directory / f"completions_{when}.jsonl"
    summary.unlink(missing_ok=True)
    jsonfiles.write_lines(completions, evaluation.records)
    jsonfiles.write_json(summary, evaluation.summary | {"step": step})


def print_answers(when: str, records: Sequence[dict[str, Any]], pattern: str = "xml") -> None:
    """Print the first held-out questions, always the same, with their greedy completions."""
    for record in records[:2]:
        notes = [why_right(record) or ("right" if record["lenient"] else "wrong")] if "lenient" in record else []
        title = f"a held-out question, {when}"
        read = how_read(record["completion"], record["read"], pattern, record.get("judged"))
        show_answer(title, record["question"], record["completion"], read, record["answer"], notes)


def print_summaries(summaries: dict[str, dict[str, Any]], comparison: dict[str, Any] | None = None) -> None:
    """Print the summary `only`, or `before` and `after` with their comparison."""
    last = list(summaries.values())[-1]
    meant = [f"{key.removeprefix('accuracy_')}: {text}" for key, text in meanings(last).items()]
    caption = "; ".join(meant) or "no accuracy"
    title = f"{last['n']} held-out questions, greedy, in per cent (95 % interval)"
    table = Table(title=title, caption=for_rich(caption), title_justify="left", caption_justify="left", min_width=64)
    for heading in ["", *(HEADINGS[when] for when in summaries), *(["Change"] if comparison else [])]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, cells in rows_of_table(summaries, comparison or {}).values():
        values = [f"{value} ({interval.replace(' to ', '-')})" if interval else value for value, interval in cells[:2]]
        table.add_row(for_rich(name), *values, *(change for change, _ in cells[2:]))
    show(table)
    if comparison:
        verdict, _, figures = comparison["sentence"].partition(": ")
        show(for_rich(f"{verdict}."), style="bold")
        show(for_rich(figures[:1].upper() + figures[1:]))
        for cause in comparison.get("diagnosis", ()):
            show(for_rich(f"Likely cause: {cause}."))
