"""Evaluate a policy on held-out questions: one greedy answer each, judged in two ways, and optionally k samples.

*Strict*: the extracted answer is the gold answer, character by character, as for the correctness reward.
*Lenient*: the answer is right however it is written, by the verdict of the run's task (task/task.py).
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from exact_answers import is_right
from exact_answers.prose import NOT_UNDERSTOOD, VALUE
from grpo.core import jsonfiles
from grpo.core.processes import by_all_processes, by_first_process, say
from grpo.policy.answering import Policy
from grpo.results.answer import Answer, file_of
from grpo.results.summary import summarize
from grpo.rewarding import guard, registry
from grpo.rewarding.registry import Rewards
from grpo.rewarding.rollout import Fault, Rollout, Values, verdicts
from grpo.runs.run import Run
from grpo.task.given import repeat, same_text
from grpo.task.gold import alternatives
from grpo.task.task import Task, key_of


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


# --- Evaluating ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """The held-out questions of a run, and how answers to them are graded.

    Attributes:
        rows: columns `question`, `prompt`, `answer`, and the data's other ones.
        rewards, weights: rewards by name, which score the answers, too, and the weight of each in their sum.
        samples: above 1, sample this many completions of each question, as in rollouts.
    """

    rows: Dataset
    task: Task
    rewards: Rewards
    weights: Mapping[str, float]
    samples: int = 1

    def evaluate(self, policy: Policy, run: Run | None = None) -> Evaluation:
        """Let a policy answer the questions greedily, and grade the answers.

        If the judge needs gold answers and a question has none, there is no accuracy.

        Args:
            run: while it trains, a signal makes all processes raise GivenUp.
        """
        start, task = time.perf_counter(), self.task
        rows, check = self.rows.to_list(), run.check if run else lambda: None
        questions = [row["prompt"] for row in rows]
        completions = policy.answer(questions, check)
        samples = policy.sample(questions, self.samples, check) if self.samples > 1 else []
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
        scores = self._scores(Rollout.of_texts(rows, texts, task.prompt.chat, ids), run)
        answers = with_rewards(answers, scores, self.weights)
        task.forget()
        return Evaluation({**summarize(answers), **notes, "seconds": round(time.perf_counter() - start, 2)}, answers)

    def _scores(self, rollout: Rollout, run: Run | None) -> dict[str, Values]:
        """Score completions with the rewards that apply to them, in the first process only.

        Unlike the judge, a reward sees all completions at once, and may compare them.
        """
        rewards = self.rewards
        if any(row["answer"] is None for row in rollout.rows):
            rewards = {name: one for name, one in rewards.items() if not registry.needs_answer(one, self.task)}

        def score() -> dict[str, Values]:
            return guard.excluding_faults(guard.score(rewards, rollout)) if rewards else {}

        return by_first_process(score, run.at_once() if run else None)


def graded(
    answers: Sequence[Answer], rows: Sequence[Mapping[str, Any]], task: Task, run: Run | None = None
) -> tuple[list[Answer], str]:
    """Return the answers with what was read, whether the format is right and, if it can be judged, the verdict.

    Also return the error of the user's judge, if it raised; then no answer has a verdict. Otherwise "".
    """
    texts = [[answer.completion, *(answer.samples or [])] for answer in answers]
    judged, failure = judgements(texts, rows, task, run) if all(map(task.can_judge, rows)) else ([], "")
    known: list[Answer] = []
    for index, (answer, row) in enumerate(zip(answers, rows, strict=True)):
        right, *samples = judged[index] if judged else [None]
        grade: dict[str, Any] = task.grade(answer.completion, row, right)._asdict()
        if samples:
            chosen = majority([task.answer(text) for text in answer.samples or []])
            majority_right = chosen is not None and samples[chosen]
            grade |= {"samples_right": samples, "majority_right": majority_right, "any_right": any(samples)}
        known.append(replace(answer, **grade))
    return _with_labels(known), failure


def _with_labels(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers, those that are another question's label as understood: the judge knows one gold answer."""
    golds = [answer.answer for answer in answers]
    labels = {same_text(label) for gold in golds for label in alternatives(gold)} if repeat(golds) else set()
    return [
        replace(answer, judged=answer.read, why=VALUE)
        if answer.why == NOT_UNDERSTOOD and same_text(answer.read) in labels
        else answer
        for answer in answers
    ]


def judgements(
    texts: Sequence[Sequence[str]], rows: Sequence[Mapping[str, Any]], task: Task, run: Run | None = None
) -> tuple[list[list[bool]], str]:
    """Return the verdict on each row's texts, and the first error of the user's judge; then no verdicts.

    The processes share the texts, since a judge may be slow, or a paid model. Each is judged once, from random states
    of its own, so that verdicts do not depend on the number of processes.
    """
    pairs = {key_of(text, row): (text, row) for of_row, row in zip(texts, rows, strict=True) for text in of_row}
    asked = list(pairs.values())

    def judge(share: Sequence[int]) -> dict[int, bool | Fault | None]:
        found: dict[int, bool | Fault | None] = {}
        with guard.without_effects():
            for number in share:
                text, row = asked[number]
                own = guard.random_states_kept(f"judge {number}") if task.judge else contextlib.nullcontext()
                with own:  # the lenient rule draws nothing
                    (found[number],) = verdicts(task, Rollout.of_texts([row], [text], task.prompt.chat))
                if isinstance(found[number], Fault):
                    break
        return found

    found = by_all_processes(judge, len(asked), run.at_once() if run else None)
    for number in sorted(found):
        verdict = found[number]
        if isinstance(verdict, Fault):
            for later in filter(number.__lt__, found):  # one process alone would have stopped here
                task.discard(*asked[later])
            return [], f"judge {verdict}"
        task.remember(*asked[number], verdict)
    judged = {key: found[number] for number, key in enumerate(pairs)}
    return [[judged[key_of(text, row)] for text in of_row] for of_row, row in zip(texts, rows, strict=True)], ""


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


# --- Saving -------------------------------------------------------------------------------------------------------


def save(directory: Path, when: str, evaluation: Evaluation, step: int = 0) -> None:
    """Write `eval_<when>.json` and `completions_<when>.jsonl`. A kill in between does not mix two evaluations."""
    directory.mkdir(parents=True, exist_ok=True)
    summary = directory / f"eval_{when}.json"
    summary.unlink(missing_ok=True)
    jsonfiles.write_lines(file_of(directory, when), (answer.to_json() for answer in evaluation.answers))
    jsonfiles.write_json(summary, evaluation.summary | {"step": step})
