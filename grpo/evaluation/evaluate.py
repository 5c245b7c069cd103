"""Evaluate a policy on held-out questions: one greedy answer each, judged in two ways, and optionally k samples.

*Strict*: the extracted answer is the gold answer, character by character, as for the correctness reward.
*Lenient*: the answer is right however it is written, by the verdict of the run's task (task/task.py).
"""

import contextlib
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from transformers import PreTrainedModel, TrainerState

from exact_answers import is_right
from grpo.core import jsonfiles
from grpo.core.processes import by_first_process, say, show
from grpo.core.settings import Config
from grpo.core.text import for_rich
from grpo.data.dataset import Questions
from grpo.policy.answering import Policy
from grpo.results.answer import Answer
from grpo.results.measures import of_summaries
from grpo.results.summary import HEADINGS, summarize, table_rows
from grpo.rewarding import guard, registry
from grpo.rewarding.guard import random_states_kept
from grpo.rewarding.registry import Rewards
from grpo.rewarding.rollout import Fault, Rollout, Values, verdicts
from grpo.runs.run import Run
from grpo.task.task import Task
from grpo.training.console import show_answer


@dataclass
class Evaluation:
    """A policy's answers with their grades, and a summary.

    Attributes:
        summary: the content of eval_*.json, flat: `n`, the MEASURES (results/measures.py) that the answers have,
            `seconds`, and with k samples per question `k`. If the user's judge raised, `judge_error` has the reason.
        answers: one per question, the lines of completions_*.jsonl.
    """

    summary: dict[str, Any]
    answers: list[Answer]


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
    completions = policy.answer(questions, check)
    samples = policy.sample(questions, k, check) if k > 1 else []
    texts, ids = [one.text for one in completions], [one.ids for one in completions]
    ungraded = [
        Answer(
            row["question"],
            row["answer"],
            given.text,
            truncated=given.truncated,
            tokens=given.tokens,
            row={key: value for key, value in row.items() if key not in ("prompt", "question", "answer")},
            samples=[drawn.text for drawn in samples[index]] if samples else None,
        )
        for index, (row, given) in enumerate(zip(rows, completions, strict=True))
    ]
    answers, error = graded(ungraded, rows, task, run)
    notes: dict[str, Any] = {"judge": task.judge_name} if task.judge else {}
    if error:
        notes["judge_error"] = error
        say(f"note: {error}; this evaluation has no accuracy")
    scores = _scores(rewards, Rollout.of_texts(rows, texts, ids, task.prompt.chat, state), task, run)
    answers = with_rewards(answers, scores, registry.weights_of(config, rewards))
    task.forget()
    return Evaluation({**summarize(answers), **notes, "seconds": round(time.perf_counter() - start, 2)}, answers)


def _scores(rewards: Rewards, rollout: Rollout, task: Task, run: Run | None = None) -> dict[str, Values]:
    """Score completions with the rewards that apply to them, in the first process only, since rewards may be slow."""
    if any(row["answer"] is None for row in rollout.rows):
        rewards = {name: reward for name, reward in rewards.items() if not registry.needs_answer(reward, task)}

    def score() -> dict[str, Values]:
        return guard.excluding_faults(guard.score(rewards, rollout)) if rewards else {}

    return by_first_process(score, run.at_once() if run else None)


def graded(
    answers: Sequence[Answer], rows: Sequence[Mapping[str, Any]], task: Task, run: Run | None = None
) -> tuple[list[Answer], str]:
    """Return the answers with what was read, whether the format is right and, if it can be judged, the verdict.

    Also return the error of the user's judge, if it raised; then no answer has a verdict. Otherwise "".
    """

    def judge() -> tuple[list[list[Any]], str]:
        if not all(map(task.can_judge, rows)):
            return [], ""
        judged: list[list[Any]] = []
        with random_states_kept(), contextlib.redirect_stdout(io.StringIO()):
            for answer, row in zip(answers, rows, strict=True):
                texts = [answer.completion, *(answer.samples or [])]
                rollout = Rollout.of_texts([row] * len(texts), texts, [[]] * len(texts), task.prompt.chat)
                judged.append([])
                for verdict in verdicts(task, rollout):
                    if isinstance(verdict, Fault):
                        return [], f"judge {verdict}"
                    judged[-1].append(verdict)
        return judged, ""

    judged, failure = by_first_process(judge, run.at_once() if run else None)  # a judge may be slow, or a paid model
    known: list[Answer] = []
    for index, (answer, row) in enumerate(zip(answers, rows, strict=True)):
        right, *samples = judged[index] if judged else [None]
        grade: dict[str, Any] = task.grade(answer.completion, row, right)._asdict()
        if samples:
            chosen = majority([task.answer(text) for text in answer.samples or []])
            majority_right = chosen is not None and samples[chosen]
            grade |= {"samples_right": samples, "majority_right": majority_right, "any_right": any(samples)}
        known.append(replace(answer, **grade))
    return known, failure


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


def with_rewards(
    answers: Sequence[Answer], scores: Mapping[str, Values], weights: Mapping[str, float]
) -> list[Answer]:
    """Return the answers with the value of each reward (None if one failed) and their weighted sum.

    If a reward with a weight has no value, there is no sum.
    """
    if not scores:
        return list(answers)
    whole = all(name in scores for name, weight in weights.items() if weight)
    known: list[Answer] = []
    for index, answer in enumerate(answers):
        rewards = {name: values[index] for name, values in scores.items()}
        worked = whole and any(value is not None for value in rewards.values())
        total = registry.weighted_sum(rewards, weights) if worked else None
        known.append(replace(answer, rewards=rewards, reward=total))
    return known


# --- Saving and printing ------------------------------------------------------------------------------------------


def save(directory: Path, when: str, evaluation: Evaluation, step: int = 0) -> None:
    """Write `eval_<when>.json` and `completions_<when>.jsonl`. A kill in between does not mix two evaluations."""
    directory.mkdir(parents=True, exist_ok=True)
    summary, completions = directory / f"eval_{when}.json", directory / f"completions_{when}.jsonl"
    summary.unlink(missing_ok=True)
    jsonfiles.write_lines(completions, (answer.to_json() for answer in evaluation.answers))
    jsonfiles.write_json(summary, evaluation.summary | {"step": step})


def print_answers(when: str, answers: Sequence[Answer], pattern: str = "xml") -> None:
    """Print the first held-out questions, always the same, with their greedy completions."""
    for one in answers[:2]:
        title, notes = f"a held-out question, {when}", list(filter(None, [one.verdict]))
        show_answer(title, one.question, one.completion, one.how_read(pattern), one.answer, notes)


def print_summaries(summaries: dict[str, dict[str, Any]], comparison: dict[str, Any] | None = None) -> None:
    """Print the summary `only`, or `before` and `after` with their comparison."""
    last = list(summaries.values())[-1]
    meant = [f"{one.words}: {text}" for one in of_summaries([last]) if (text := one.meaning(last))]
    caption = "; ".join(meant) or "no accuracy"
    title = f"{last['n']} held-out questions, greedy, in per cent (95 % interval)"
    table = Table(title=title, caption=for_rich(caption), title_justify="left", caption_justify="left", min_width=64)
    for heading in ["", *(HEADINGS[when] for when in summaries), *(["Change"] if comparison else [])]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, cells in table_rows(summaries, comparison or {}).values():
        values = [f"{value} ({interval.replace(' to ', '-')})" if interval else value for value, interval in cells[:2]]
        table.add_row(for_rich(name), *values, *(change for change, _ in cells[2:]))
    show(table)
    if comparison:
        verdict, _, figures = comparison["sentence"].partition(": ")
        show(for_rich(f"{verdict}."), style="bold")
        show(for_rich(figures[:1].upper() + figures[1:]))
        for cause in comparison.get("diagnosis", ()):
            show(for_rich(f"Likely cause: {cause}."))
