"""`MEASURES`: the figures of an evaluation, the one list that all files, tables, curves and trackers read.

A new line is measured, saved, compared before and after, logged and shown everywhere.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exact_answers.prose import NOT_UNDERSTOOD
from exact_answers.verdict import NOT_COMPUTED
from grpo.core.text import short_name
from grpo.scoring.sample import Sample

Summary = Mapping[str, Any]  # the content of eval_*.json
UNREAD = 0.1  # share of answers that are not understood above which it is shown: how far to trust lenient accuracy
UNCOMPUTED = 0.01  # share of right values that are left as formulas above which it is shown: a policy that learns to


@dataclass(frozen=True)
class Measure:
    """A share of the answers, or a mean over them.

    Attributes:
        key: its name in eval_*.json, with `eval/` before it in metrics.jsonl and in trackers.
        label: its name for people; `@k` becomes the number of samples.
        of: the value of a sample (True, False or a number); None if it has none, so that it does not count.
        paired: its key in comparison.json; default: `key`.
        curve: True if it has a curve in the report and curves.png, a place in the console's line while training, and
            a column of `compare`.
        higher_is_better: None if it cannot choose the best checkpoint.
        is_share: True for a share in [0, 1], with an interval, shown in per cent; False for a mean.
        places: decimals that are shown.
        beside: the key of the measure in whose chart the report draws its curve, in grey.
        meaning: in an evaluation, said where it is shown large; "" where it is not.
        tells: False where it says nothing in an evaluation, and is not shown.
    """

    key: str
    label: str
    of: Callable[[Sample], float | None]
    paired: str = ""
    curve: bool = False
    higher_is_better: bool | None = True
    is_share: bool = True
    places: int = 1
    beside: str = ""
    meaning: Callable[[Summary], str] = lambda summary: ""
    tells: Callable[[Summary], bool] = lambda summary: True

    @property
    def name(self) -> str:
        """Its key in comparison.json."""
        return self.paired or self.key

    @property
    def logged(self) -> str:
        """Its key in metrics.jsonl and in trackers."""
        return f"eval/{self.key}"

    @property
    def words(self) -> str:
        """Its name in a few words.

        >>> LENIENT.words, FORMAT_STRICT.words, of_reward("correctness_reward_func").words
        ('lenient', 'format strict', 'correctness')
        """
        return short_name(self.name).replace("_", " ")

    @property
    def factor(self) -> int:
        """100 if it is shown in per cent."""
        return 100 if self.is_share else 1


def _meaning_of_lenient(summary: Summary) -> str:
    return f"right by {summary['judge']}" if summary.get("judge") else "the right answer, however it is written"


def _meaning_of_strict(summary: Summary) -> str:
    if summary.get("judge"):
        return "that, and exactly in the format"
    return "exactly the gold answer" + ", in its place" * _has_format(summary)


def _has_format(summary: Summary) -> bool:
    return FORMAT_STRICT.key in summary


def _has_reason(reason: str) -> Callable[[Sample], bool | None]:
    """Make a measure of the verdicts that have a reason; None where none was given, as by the user's own judge."""
    return lambda sample: None if sample.verdict.why is None else sample.verdict.why == reason


def _meaning_of_reward(summary: Summary) -> str:
    return "" if LENIENT.key in summary else "the weighted sum of the rewards, mean over the held-out questions"


# Those that something else asks for by name, too
LENIENT = Measure(
    "accuracy_lenient",
    "Accuracy, lenient",
    lambda sample: sample.verdict.lenient,
    paired="lenient",
    curve=True,
    meaning=_meaning_of_lenient,
)
STRICT = Measure(
    "accuracy_strict",
    "Accuracy, strict",
    lambda sample: sample.verdict.strict,
    paired="strict",
    curve=True,
    beside=LENIENT.key,
    meaning=_meaning_of_strict,
    tells=lambda summary: not summary.get("judge") or _has_format(summary),  # else it is lenient again
)
FORMAT_STRICT = Measure("format_strict", "Format, strict", lambda sample: sample.format.strict, curve=True)
FORMAT_SOFT = Measure("format_soft", "Format, soft", lambda sample: sample.format.soft)
REWARD = Measure(
    "reward",
    "Reward, weighted sum",
    lambda sample: sample.reward,
    curve=True,
    is_share=False,
    places=2,
    meaning=_meaning_of_reward,
)

MEASURES = (
    LENIENT,
    STRICT,
    Measure("maj_k", "maj@k, sampled", lambda sample: sample.majority_right),
    Measure("pass_k", "pass@k, sampled", lambda sample: sample.any_right),
    FORMAT_STRICT,
    FORMAT_SOFT,
    Measure("truncated", "Truncated", lambda sample: sample.truncated, higher_is_better=False),
    Measure(
        "not_understood",
        "Not understood by the judge",
        _has_reason(NOT_UNDERSTOOD),
        higher_is_better=False,
        tells=lambda summary: summary["not_understood"] > UNREAD,
    ),
    Measure(
        "not_computed",
        "Right, but not computed",
        _has_reason(NOT_COMPUTED),
        higher_is_better=False,
        tells=lambda summary: summary["not_computed"] > UNCOMPUTED,
    ),
    Measure("mean_length", "Mean length, tokens", lambda sample: sample.tokens, higher_is_better=None, is_share=False),
    REWARD,
)


def is_of_evaluation(key: str) -> bool:
    """True if a logged number is one of an evaluation: the run's own, or in older runs TRL's.

    >>> is_of_evaluation("eval/accuracy_strict"), is_of_evaluation("eval_reward"), is_of_evaluation("reward")
    (True, True, False)
    """
    return key.startswith(("eval/", "eval_"))


def of_reward(name: str) -> Measure:
    """Return the measure of one of the run's rewards."""

    def value(sample: Sample) -> float | None:
        return (sample.rewards or {}).get(name)

    return Measure(f"reward_{name}", short_name(name), value, paired=name, is_share=False, places=2)


def _with_rewards(names: Iterable[str]) -> list[Measure]:
    """Return all measures, with that of each reward before their weighted sum."""
    at = MEASURES.index(REWARD)
    return [*MEASURES[:at], *map(of_reward, dict.fromkeys(names)), *MEASURES[at:]]


def of_samples(samples: Iterable[Sample]) -> list[Measure]:
    """Return all measures, and that of each reward of the samples."""
    return _with_rewards(name for sample in samples for name in sample.rewards or {})


def of_summaries(summaries: Iterable[Summary]) -> list[Measure]:
    """Return the measures that evaluations have and that say something in one of them."""
    summaries = list(summaries)
    return [
        measure
        for measure in _with_rewards(
            key[7:] for of_evaluation in summaries for key in of_evaluation if key.startswith("reward_")
        )
        if any(summary.get(measure.key) is not None and measure.tells(summary) for summary in summaries)
    ]
