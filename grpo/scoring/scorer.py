"""`Scorer`: the one road from completions to their verdicts, formats, rewards and faults.

Training, evaluations, preflight's made-up texts and the X-ray's lines of a file all take it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.core.errors import USERS_ERRORS
from grpo.core.functions import innermost
from grpo.core.out_of_memory import is_out_of_memory
from grpo.scoring.calling import Rollout, Score, call_all, fault
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
        """Return the samples with verdict and format. The user's judge is asked once for each that has no verdict."""
        return [
            sample if sample.verdict.lenient is not None else self._judged(sample, place)
            for place, sample in enumerate(samples)
        ]

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
        """Return each reward's scores by name. Those that read samples need no call."""
        read = {name: reader for name, reward in self.rewards.items() if (reader := reader_of(reward))}
        called = {name: reward for name, reward in self.rewards.items() if name not in read}
        chat = self.task.prompt.chat
        scores = call_all(called, Rollout(samples, chat) if shared is None else Rollout(samples, chat, shared))
        scores |= {name: [reader(sample) for sample in samples] for name, reader in read.items()}
        return {name: scores[name] for name in self.rewards}


def reader_of(reward: Callable[..., Any]) -> Callable[[Sample], Score] | None:
    """Return what gives a reward's score of a judged sample without a call, its `of_sample`; None for most rewards."""
    return getattr(innermost(reward), "of_sample", None)


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

    In a run it reads the verdict that each sample has; this is for other trainers, which pass columns.
    """
    task, count = task or Task(PromptFormat("")), len(completions)
    columns = {key: value for key, value in kwargs.items() if isinstance(value, list | tuple) and len(value) == count}
    columns.pop("completion_ids", None)
    columns["prompt"] = columns.pop("prompts", [None] * count)
    rows = [{key: column[place] for key, column in columns.items()} for place in range(count)]
    texts = map(completion_text, completions)
    return [PAYS if task.verdict(text, row).lenient else 0.0 for text, row in zip(texts, rows, strict=True)]


def _pay(sample: Sample) -> Score:
    if sample.judge_fault:
        return replace(sample.judge_fault, function=judge_reward_func.__name__)
    return PAYS if sample.verdict.lenient else 0.0


judge_reward_func.of_sample = _pay  # type: ignore[attr-defined]
