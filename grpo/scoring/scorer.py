"""`Scorer`: the one road from completions to their verdicts, formats, rewards and faults.

Training, evaluations, preflight's made-up texts and the X-ray's lines of a file all take it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.core.errors import USERS_ERRORS
from grpo.core.out_of_memory import is_out_of_memory
from grpo.scoring.calling import SCORED, Rollout, Score, Unjudged, call_all, fault
from grpo.scoring.sample import Fault, Sample
from grpo.task.prompts import PromptFormat
from grpo.task.task import Task, Verdict
from rewards import Texts, completion_text

Rewards = dict[str, Callable[..., Any]]  # by the names that TRL logs
PAYS = 2.0  # judge_reward_func, for a right answer


@dataclass(frozen=True)
class Scorer:
    """A run's task, and its rewards with the weight of each in their sum."""

    task: Task
    rewards: Rewards
    weights: Mapping[str, float]

    def score(self, samples: Sequence[Sample], shared: Mapping[str, Any] | None = None) -> list[Sample]:
        """Return the samples with verdict, format, rewards, their sum, and what failed.

        Args:
            shared: what rewards get once for all samples, as TRL passes it; None: outside of training.
        """
        return self.reward(self.judge(samples), shared)

    def judge(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples with verdict and format.

        The user's judge is asked once for each text of a row, and never again for a sample that it has judged.
        """
        known: dict[tuple[str, str], Sample] = {}
        judged: list[Sample] = []
        for place, sample in enumerate(samples):
            if sample.verdict.lenient is None and sample.judge_fault is None:
                key = sample.text, self._row(sample)
                same = known[key] = known.get(key) or self._judged(sample, place)
                sample = replace(sample, verdict=same.verdict, format=same.format, judge_fault=same.judge_fault)
            judged.append(sample)
        return judged

    def _row(self, sample: Sample) -> str:
        """Return what a verdict reads of a sample's row, as text."""
        return json.dumps(sample.row if self.task.judge else sample.gold, sort_keys=True, default=repr)

    def _judged(self, sample: Sample, place: int) -> Sample:
        form = self.task.form(sample.text)
        try:
            return replace(sample, verdict=self.task.verdict(sample.text, sample.row), format=form)
        except USERS_ERRORS as error:
            if is_out_of_memory(error):
                raise
            failed = fault(self.task.judge_name, place, sample, error)
            return replace(sample, verdict=self.unjudged(sample.text), format=form, judge_fault=failed)

    def unjudged(self, text: str) -> Verdict:
        """Return what is known of a completion without a verdict: the extracted answer."""
        return Verdict(self.task.answer(text))

    def reward(self, samples: Sequence[Sample], shared: Mapping[str, Any] | None = None) -> list[Sample]:
        """Return judged samples with the value of each reward, and their weighted sum.

        Where a reward fails, all have None: such a row teaches nothing, and counts in no mean. If a reward with a
        weight has no value, or is not among `rewards`, there is no sum.
        """
        if not self.rewards or not samples:
            return list(samples)
        scores = self._scores(samples, shared)
        whole = all(name in scores for name, weight in self.weights.items() if weight)
        scored: list[Sample] = []
        for sample, *row in zip(samples, *scores.values(), strict=True):
            faults = [score for score in row if isinstance(score, Fault)]
            values = {name: None if faults else score for name, score in zip(scores, row, strict=True)}
            worked = whole and any(value is not None for value in values.values())
            total = weighted_sum(values, self.weights) if worked else None
            scored.append(replace(sample, rewards=values, reward=total, faults=faults))
        return scored

    def _scores(self, samples: Sequence[Sample], shared: Mapping[str, Any] | None) -> dict[str, list[Score]]:
        """Return each reward's scores by name."""
        chat = self.task.prompt.chat
        return call_all(self.rewards, Rollout(samples, chat) if shared is None else Rollout(samples, chat, shared))


def weighted_sum(values: Mapping[str, Any], weights: Mapping[str, float]) -> float:
    """Sum rewards by their weights, None as 0, to the seven digits of float32, so that equal sums are equal.

    >>> weighted_sum({"a": 0.1, "b": 0.2}, {"a": 1.0, "b": 1.0}) == weighted_sum({"a": 0.3, "b": None}, {"a": 1.0})
    True
    """
    summands = [weights[name] * value for name, value in values.items() if value is not None]
    largest = max(map(abs, summands), default=0.0)
    return round(math.fsum(summands), 6 - math.floor(math.log10(largest))) if largest else 0.0


def judge_reward_func(completions: Texts, *, task: Task | None = None, **kwargs: Any) -> list[float]:
    """2.0 if the run's judge (the lenient rule, or the function that `judge` names) accepts the completion; else 0.

    In a run it reads the verdict that each sample has; other trainers, which pass columns, let it ask.
    """
    task, count = task or Task(PromptFormat("")), len(completions)
    columns = {key: value for key, value in kwargs.items() if isinstance(value, list | tuple) and len(value) == count}
    columns.pop("completion_ids", None)
    columns["prompt"] = columns.pop("prompts", [None] * count)
    rows = [{key: column[place] for key, column in columns.items()} for place in range(count)]
    texts = list(map(completion_text, completions))
    asked = [Sample(row, text) for row, text in zip(rows, texts, strict=True)]
    scored = SCORED.get()
    samples = scored if len(scored) == count and all(map(_is_part, asked, scored)) else asked
    return [PAYS if _is_right(task, sample) else 0.0 for sample in samples]


def _is_part(asked: Sample, scored: Sample) -> bool:
    """True if a sample has the text of another one, and what it has of a row is that one's."""
    return asked.text == scored.text and all(asked.row[key] == scored.row.get(key) for key in asked.row)


def _is_right(task: Task, sample: Sample) -> bool:
    """Return a sample's verdict. Raise Unjudged, or what the judge raises."""
    if sample.judge_fault:
        raise Unjudged(sample.judge_fault)
    return bool(task.verdict(sample.text, sample.row) if sample.verdict.lenient is None else sample.verdict)
