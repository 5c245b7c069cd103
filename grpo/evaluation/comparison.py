"""Before against after on the same questions: what was fixed, what broke, and whether that can be chance.

Every question is its own control, so the paired figures say more than two separate intervals do.
"""

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy

from grpo.core.errors import UserError

MEASURES = ("strict", "lenient", "format_strict", "format_soft")  # columns of the records
SIGNIFICANT = 0.05
NO_CHANGE = 0.02  # an interval of the difference that lies within ± this share says that nothing changed


def mcnemar(fixed: int, broken: int) -> float:
    """Two-sided exact p-value of McNemar's test (1947): had nothing changed, each change would go either way.

    >>> mcnemar(8, 1)
    0.0390625
    """
    n = fixed + broken
    tail = sum(comb(n, k) for k in range(min(fixed, broken) + 1))
    return min(1.0, 2 * tail / 2**n)


def bootstrap(fixed: int, broken: int, n: int, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the paired difference (fixed - broken) / n, over resampled questions.

    A question counts +1, -1 or 0, so that resampling the questions is drawing from a multinomial distribution. Where
    none has changed there is nothing to resample: the interval is what n questions without a change leave possible.
    """
    if fixed == broken == 0:
        bound = 1 - 0.05 ** (1 / n)  # the exact form of the rule of three
        return -bound, bound
    shares = numpy.array([fixed, broken, n - fixed - broken]) / n
    drawn = numpy.random.default_rng(seed).multinomial(n, shares, size=resamples)
    low, high = numpy.quantile((drawn[:, 0] - drawn[:, 1]) / n, [0.025, 0.975])
    return float(low), float(high)


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Two evaluations of the same questions, in the same order.

    Returns:
        `n`, `verdict`, `sentence`, and for each of MEASURES the counts `both`, `fixed`, `broken` and `neither`, the
        shares `before`, `after` and `difference` with `difference_low` and `difference_high`, and `p_value`.

    Raises:
        UserError: the questions are not the same.
    """
    if [row["question"] for row in before] != [row["question"] for row in after] or not before:
        raise UserError(
            "comparison: the two evaluations did not ask the same questions; evaluate both on the same rows"
        )
    n = len(before)
    measures = {}
    for measure in MEASURES:
        pairs = [(bool(old[measure]), bool(new[measure])) for old, new in zip(before, after, strict=True)]
        both, fixed, broken = pairs.count((True, True)), pairs.count((False, True)), pairs.count((True, False))
        low, high = bootstrap(fixed, broken, n)
        measures[measure] = {
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
    verdict, sentence = _judge(n, measures)
    return {"n": n, "verdict": verdict, "sentence": sentence, **measures}


def _judge(n: int, measures: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Learned to answer, or only how to write the answer? What the lenient accuracy does decides."""
    lenient = measures["lenient"]

    def rose(measure: str) -> bool:
        return measures[measure]["difference"] > 0 and measures[measure]["p_value"] < SIGNIFICANT

    tags = [name for name in ("format_strict", "format_soft", "strict") if rose(name)]
    shown = _shown("the right number", lenient)
    if rose("lenient"):
        return "got_better", f"It got better: {shown}."
    if lenient["difference"] < 0 and lenient["p_value"] < SIGNIFICANT:
        more = " although it learned the tags" if tags else ""
        return "got_worse", f"It got worse{more}: {shown}."
    steady = max(abs(lenient["difference_low"]), abs(lenient["difference_high"])) <= NO_CHANGE
    unclear = "" if steady else f"; {n} questions are too few to tell a smaller change"
    if tags:
        what = {"strict": "the exact answer in its tag"}.get(tags[0], "the format")
        return "learned_the_tags", (
            f"It learned the tags, not to answer better: {_shown(what, measures[tags[0]])}, while {shown}{unclear}."
        )
    if steady:
        return "no_change", f"No change: {shown}."
    return "too_small_to_tell", f"The sample of {n} is too small to tell: {shown}."


def _shown(what: str, measure: dict[str, Any]) -> str:
    chance = f"p = {measure['p_value']:.2g}" if measure["p_value"] >= 1e-4 else "p < 0.0001"
    return (
        f"{what} in {100 * measure['before']:.1f} % of the answers before and {100 * measure['after']:.1f} % after "
        f"({100 * measure['difference']:+.1f} points, 95 % interval {100 * measure['difference_low']:+.1f} to "
        f"{100 * measure['difference_high']:+.1f}; {measure['fixed']} fixed, {measure['broken']} broken, {chance})"
    )
