"""Evaluate a policy on held-out questions: one greedy answer each, judged in two ways, and optionally k samples.

*Strict*: the extracted answer is the gold answer, character by character, as for the correctness reward.
*Lenient*: the answer is right however it is written, by the verdict of the run's task (task/task.py).
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from exact_answers import grade, is_right
from exact_answers.prose import DENIED, NOT_UNDERSTOOD, VALUE
from exact_answers.verdict import NOT_COMPUTED
from grpo.core import jsonfiles
from grpo.core.processes import by_all_processes, by_first_process, say
from grpo.policy.answering import Policy
from grpo.results.samples import file_of
from grpo.results.summary import summarize
from grpo.scoring.guard import random_states_kept, say_faults, without_effects
from grpo.scoring.registry import needs_answer
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task.given import repeat, same_text
from grpo.task.gold import alternatives


@dataclass
class Evaluation:
    """A policy's answers, scored, and a summary.

    Attributes:
        summary: the content of eval_*.json, flat: `n`, the MEASURES (results/measures.py) that the answers have,
            `seconds`, and with k samples per question `k`. If the user's judge raised, `judge_error` has the reason.
        samples: one per question, the lines of completions_*.jsonl.
    """

    summary: dict[str, Any]
    samples: list[Sample]


@dataclass(frozen=True)
class HeldOut:
    """The held-out questions of a run, and what scores answers to them.

    Attributes:
        rows: columns `question`, `prompt`, `answer`, and the data's other ones.
        draws: above 1, sample this many completions of each question, as in rollouts.
    """

    rows: Dataset
    scorer: Scorer
    draws: int = 1

    def evaluate(
        self,
        policy: Policy,
        check: Callable[[], Any] = lambda: None,
    ) -> Evaluation:
        """Let a policy answer the questions greedily, and score the answers.

        If the judge needs gold answers and a question has none, there is no accuracy.

        Args:
            check: called after each batch of answers and each verdict; if it raises GivenUp in one process, all do.
        """
        start, task = time.perf_counter(), self.scorer.task
        answers = policy.answer(self.rows.to_list(), self.draws if self.draws > 1 else 0, check)
        answers, error = judged(answers, self.scorer, check)
        notes: dict[str, Any] = {"judge": task.judge_name} if task.judge else {}
        if error:
            notes["judge_error"] = error
            say(f"note: {error}; this evaluation has no accuracy")
        answers = self._rewarded(answers)
        if error or not all(task.can_judge(answer.row) for answer in answers):
            answers = [self._without_verdicts(answer) for answer in answers]
        return Evaluation({**summarize(answers), **notes, "seconds": round(time.perf_counter() - start, 2)}, answers)

    def _rewarded(self, answers: list[Sample]) -> list[Sample]:
        """Score answers with the rewards that apply to them, in the first process only.

        Unlike the judge, a reward sees all completions at once, and may compare them.
        """
        scorer = self.scorer
        if any(answer.gold is None for answer in answers):
            rewards = {name: one for name, one in scorer.rewards.items() if not needs_answer(one, scorer.task)}
            scorer = replace(scorer, rewards=rewards)

        def reward() -> list[Sample]:
            with without_effects():
                found = scorer.reward(answers)
            say_faults(found)
            return found

        return list(by_first_process(reward))

    def _without_verdicts(self, answer: Sample) -> Sample:
        draws = [self._without_verdicts(draw) for draw in answer.draws]
        return replace(answer, verdict=self.scorer.unjudged(answer.text), draws=draws, majority_right=None)


def judged(
    answers: Sequence[Sample], scorer: Scorer, check: Callable[[], Any] = lambda: None
) -> tuple[list[Sample], str]:
    """Return answers and their draws with verdicts and formats, and the first error of the user's judge, or "".

    The processes share the texts, since a judge may be slow, or a paid model. Each text of a row is judged once, from
    random states of its own, so that verdicts do not depend on the number of processes. At the first error a process
    stops.
    """
    each = {(at, sample.text): sample for at, answer in enumerate(answers) for sample in (answer, *answer.draws)}
    asked = list(each.values())

    def judge(share: Sequence[int]) -> dict[int, Sample]:
        found: dict[int, Sample] = {}
        with without_effects():
            for number in share:
                # the lenient rule draws nothing
                own = random_states_kept(f"judge {number}") if scorer.task.judge else contextlib.nullcontext()
                with own:
                    (sample,) = scorer.judge([asked[number]])
                found[number] = sample
                check()
                if sample.judge_fault:
                    break
        return found

    verdicts = by_all_processes(judge, len(asked))
    errors = [fault for number in sorted(verdicts) if (fault := verdicts[number].judge_fault)]
    places = {key: number for number, key in enumerate(each)}

    def known(sample: Sample, at: int) -> Sample:
        number = places[at, sample.text]
        if number not in verdicts:  # after an error
            return replace(sample, format=scorer.task.form(sample.text))
        same = verdicts[number]
        return replace(sample, verdict=same.verdict, judge_fault=same.judge_fault, format=same.format)

    found = [
        _with_majority(replace(known(answer, at), draws=[known(draw, at) for draw in answer.draws]))
        for at, answer in enumerate(answers)
    ]
    return _with_labels(found), f"judge {errors[0]}" if errors else ""


def _with_majority(answer: Sample) -> Sample:
    """Return a judged answer with the verdict on the most frequent answer of its draws."""
    if answer.any_right is None:
        return answer
    chosen = majority([draw.verdict.read for draw in answer.draws])
    return replace(answer, majority_right=chosen is not None and answer.draws[chosen].verdict.lenient)


def _with_labels(answers: Sequence[Sample]) -> list[Sample]:
    """Return the answers, those that are another question's label as understood: the judge knows one gold answer."""
    golds = [answer.gold for answer in answers]
    labels = {same_text(label) for gold in golds for label in alternatives(gold)} if repeat(golds) else set()
    return [
        replace(answer, verdict=answer.verdict._replace(judged=answer.verdict.read, why=VALUE))
        if answer.verdict.why in (NOT_UNDERSTOOD, DENIED) and same_text(answer.verdict.read) in labels
        else answer
        for answer in answers
    ]


def majority(answers: Sequence[str]) -> int | None:
    """Return the index of the most frequent answer, where it occurs first; None if all are empty.

    Answers are equal if their texts are, or by the lenient rule. Of two equally frequent answers, the one sampled
    first wins.
    """
    votes: dict[int, int] = {}  # index of an answer's first occurrence → count
    for index, text in enumerate(answers):
        if text:
            first = next((seen for seen in votes if _agree(text, answers[seen])), index)
            votes[first] = votes.get(first, 0) + 1
    return max(votes, key=lambda index: votes[index], default=None)


def _agree(one: str, other: str) -> bool:
    """True if an answer is right by another one, and none of them leaves the other's arithmetic: 48 + 24 is not 72."""
    return one == other or (is_right(one, other) and grade(other, one).why != NOT_COMPUTED)


def save(directory: Path, when: str, evaluation: Evaluation, step: int = 0) -> None:
    """Write `eval_<when>.json` and `completions_<when>.jsonl`. A kill in between does not mix two evaluations."""
    directory.mkdir(parents=True, exist_ok=True)
    summary = directory / f"eval_{when}.json"
    summary.unlink(missing_ok=True)
    jsonfiles.write_lines(file_of(directory, when), (sample.to_json() for sample in evaluation.samples))
    jsonfiles.write_json(summary, evaluation.summary | {"step": step})
