"""Compare answers before and after training: fixed and broken questions, and whether chance explains the change.

Each question is its own control, so a paired interval is narrower than two separate ones.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

from grpo.core.errors import UserError
from grpo.core.text import decimals
from grpo.results import measures
from grpo.results.measures import FORMAT_SOFT, FORMAT_STRICT, LENIENT, REWARD, STRICT, Measure
from grpo.results.samples import most_given
from grpo.scoring.sample import Sample

SIGNIFICANT = 0.05
FEWEST = 6  # changed answers that a verdict needs: of five, chance alone turns all one way in 1 of 16 cases
Z = NormalDist().inv_cdf(1 - SIGNIFICANT / 2)
NO_CHANGE = 0.02  # verdict "no change" if the interval of the difference is within ± this share
# Quantiles of Student's t distribution by degrees of freedom; between two, use the wider interval
STUDENT_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228, 20: 2.086, 60: 2.0}


def mcnemar(fixed: int, broken: int) -> float:
    """Two-sided p-value of McNemar's score test (1947). Null hypothesis: fixed and broken are equally likely.

    >>> round(mcnemar(7, 1), 3)
    0.034
    """
    return math.erfc(abs(fixed - broken) / (2 * (fixed + broken)) ** 0.5) if fixed + broken else 1.0


def tango(fixed: int, broken: int, n: int) -> tuple[float, float]:
    """95 % score interval of the paired difference (fixed - broken) / n (T. Tango, 1998).

    It excludes 0 exactly if `mcnemar` is below 0.05. Both hold for small samples, where exact methods are too wide
    and the bootstrap is too narrow (Fagerland, Lydersen and Laake, 2013 and 2014).

    >>> [round(bound, 3) for bound in tango(1, 7, 21)]
    [-0.517, -0.026]
    """
    return _lowest(fixed, broken, n), -_lowest(broken, fixed, n)


def is_significant(fixed: int, broken: int) -> bool:
    """True if chance does not explain that more (or fewer) questions were fixed than broken.

    >>> is_significant(7, 1), is_significant(5, 0)
    (True, False)
    """
    return fixed + broken >= FEWEST and mcnemar(fixed, broken) < SIGNIFICANT


def _lowest(fixed: int, broken: int, n: int) -> float:
    """The smallest difference that the score test does not reject, by bisection."""
    rejected, accepted = -1.0, (fixed - broken) / n
    for _ in range(50):
        difference = (rejected + accepted) / 2
        # the likeliest share of broken questions, had they this difference: the root of a quadratic equation
        slope = (2 * n - fixed + broken) * difference - fixed - broken
        share = ((slope**2 + 8 * n * broken * difference * (1 - difference)) ** 0.5 - slope) / (4 * n)
        variance = n * (2 * share + difference * (1 - difference))
        if (fixed - broken - n * difference) ** 2 > Z**2 * variance:
            rejected = difference
        else:
            accepted = difference
    return accepted


def mean_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and 95 % interval by Student's t, or slightly wider; (mean, None, None) for a single value.

    >>> mean_interval([2.0]), [round(bound, 2) for bound in mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])]
    ((2.0, None, None), [3.0, 1.04, 4.96])
    """
    mean, freedom = fmean(values), len(values) - 1
    if not freedom:
        return mean, None, None
    t = STUDENT_95[max(listed for listed in STUDENT_95 if listed <= freedom)]
    half = t * stdev(values, mean) / len(values) ** 0.5
    return mean, mean - half, mean + half


def compare(before: Sequence[Sample], after: Sequence[Sample], judge_error: str = "") -> dict[str, Any]:
    """Compare two evaluations of the same questions, in the same order.

    Args:
        judge_error: the reason why one has no accuracy, if the user's judge raised.

    Returns:
        `n`, `verdict`, `sentence`, and each measure that both have by its name, those of single rewards in `rewards`.
        A share has the counts `both`, `fixed`, `broken` and `neither`, the shares `before`, `after` and `difference`
        with `difference_low` and `difference_high`, and `p_value`; a mean has means instead, over the `n` questions
        with a value both times; only `n`, 0, without such questions.
    """
    if [sample.question for sample in before] != [sample.question for sample in after] or not before:
        raise UserError("comparison: the two evaluations asked different questions; evaluate both on the same rows")
    changes: dict[str, Any] = {"n": len(before), "verdict": "", "sentence": "", "rewards": {}}
    for measure in measures.of_samples([*before, *after]):
        values = [(measure.of(old), measure.of(new)) for old, new in zip(before, after, strict=True)]
        pairs = [(old, new) for old, new in values if old is not None and new is not None]
        if pairs or not measure.is_share:
            change = _changes(pairs) if measure.is_share else _change_of_means(pairs)
            (changes if measure in measures.MEASURES else changes["rewards"])[measure.name] = change
    if judge_error:
        verdict, sentence = "no_accuracy", f"No accuracy: {judge_error}."
    elif LENIENT.name in changes:
        most = most_given(after)
        verdict, sentence = _verdict(len(before), changes, str(most) if most and most.for_everything else "")
    else:
        verdict, sentence = _verdict_by_reward(changes[REWARD.name])
    return changes | {"verdict": verdict, "sentence": sentence}


def is_decided(measure: Measure, change: Mapping[str, Any]) -> bool:
    """True if chance does not explain a measure's change, or if it is known to be next to none.

    >>> is_decided(LENIENT, _changes([(False, True)] * 6)), is_decided(LENIENT, _changes([(False, True)] * 5))
    (True, False)
    """
    low, high = change.get("difference_low"), change.get("difference_high")
    if low is None or high is None:
        return False
    if measure.is_share:
        return is_significant(change["fixed"], change["broken"]) or _is_next_to_none(change)
    return change["n"] >= FEWEST and (low > 0 or high < 0 or low == high)  # equal: no answer changed


def change_of(measure: Measure, comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change of a measure in a comparison; {} if it has none."""
    changes = comparison if measure in measures.MEASURES else comparison.get("rewards") or {}
    return changes.get(measure.name) or {}


def _changes(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    n, both = len(pairs), pairs.count((True, True))
    fixed, broken = pairs.count((False, True)), pairs.count((True, False))
    low, high = tango(fixed, broken, n)
    return {
        "both": both,
        "fixed": fixed,
        "broken": broken,
        "neither": n - both - fixed - broken,
        "before": (both + broken) / n,
        "after": (both + fixed) / n,
        "difference": (fixed - broken) / n,
        "difference_low": low,
        "difference_high": high,
        "p_value": mcnemar(fixed, broken),
    }


def _change_of_means(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    if not pairs:
        return {"n": 0}
    before, after = (fmean(side) for side in zip(*pairs, strict=True))
    difference, low, high = mean_interval([new - old for old, new in pairs])
    ends = {"difference_low": low, "difference_high": high}
    return {"n": len(pairs), "before": before, "after": after, "difference": difference, **ends}


def _verdict(n: int, changes: Mapping[str, Any], one_answer: str = "") -> tuple[str, str]:
    """Decide by lenient accuracy whether the model learned to answer, or only how to write the answer.

    Args:
        changes: by name of the measure.
        one_answer: a sentence about the answer that the model gives to nearly everything; "" if there is none.
    """

    def rose(measure: Measure) -> bool:
        change = changes.get(measure.name) or {"fixed": 0, "broken": 0}
        return change["fixed"] > change["broken"] and is_significant(change["fixed"], change["broken"])

    lenient = changes[LENIENT.name]
    shown = _shown("right", lenient)
    if rose(LENIENT) and one_answer:
        return (
            "learned_one_answer",
            f"It learned one answer, not to tell questions apart: {one_answer}, while {shown}.",
        )
    if rose(LENIENT):
        return "got_better", f"It got better: {shown}."
    if is_significant(lenient["fixed"], lenient["broken"]):
        return "got_worse", f"It got worse: {shown}."
    for measure in (FORMAT_STRICT, FORMAT_SOFT, STRICT):
        if rose(measure):
            what = "exactly right in the tags" if measure is STRICT else "in the format"
            tags = _shown(what, changes[measure.name])
            return "learned_the_tags", f"It learned the tags, not to answer better: {tags}, while {shown}."
    if _is_next_to_none(lenient):
        return "no_change", f"No change: {shown}."
    few = lenient["fixed"] + lenient["broken"]
    why = f", as only {few} answers changed" if lenient["p_value"] < SIGNIFICANT else ""
    return "too_small_to_tell", f"The sample of {n} is too small to tell{why}: {shown}."


def _is_next_to_none(share: Mapping[str, Any]) -> bool:
    return max(abs(share["difference_low"]), abs(share["difference_high"])) <= NO_CHANGE


def _verdict_by_reward(reward: Mapping[str, Any]) -> tuple[str, str]:
    """Decide without gold answers, by the change of the weighted sum of the rewards."""
    n = reward["n"]
    if not n:
        return "too_small_to_tell", "Nothing could be compared: a reward failed on every answer."
    low, high = reward["difference_low"], reward["difference_high"]
    interval = "" if low is None else f", 95 % interval {decimals(low, 2, '+')} to {decimals(high, 2, '+')}"
    shown = f"mean reward {decimals(reward['before'], 2)} before and {decimals(reward['after'], 2)} after "
    shown += f"({decimals(reward['difference'], 2, '+')}{interval}, {n} questions)"
    if low is not None and low > 0:
        return "got_better", f"It got better: {shown}."
    if high is not None and high < 0:
        return "got_worse", f"It got worse: {shown}."
    if low == high == 0:
        return "no_change", f"No change: {shown}."
    return "too_small_to_tell", f"The sample of {n} is too small to tell: {shown}."


def _shown(what: str, measure: Mapping[str, Any]) -> str:
    chance = f"p = {measure['p_value']:.2g}" if measure["p_value"] >= 1e-4 else "p < 0.0001"
    points, low, high = (decimals(100 * measure[f"difference{end}"], 1, "+") for end in ("", "_low", "_high"))
    return (
        f"{100 * measure['before']:.1f} % of the answers were {what} before and {100 * measure['after']:.1f} % after "
        f"({points} points, 95 % interval {low} to {high}; {measure['fixed']} fixed, {measure['broken']} broken, "
        f"{chance})"
    )
