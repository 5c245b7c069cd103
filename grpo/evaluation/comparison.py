"""Before against after on the same questions: what was fixed, what broke, and whether that can be chance.

Every question is its own control, so the paired figures say more than two separate intervals do.
"""

from collections.abc import Sequence
from math import erfc
from statistics import NormalDist
from typing import Any

from grpo.core.errors import UserError

MEASURES = ("strict", "lenient", "format_strict", "format_soft")  # columns of the records
SIGNIFICANT = 0.05
Z = NormalDist().inv_cdf(1 - SIGNIFICANT / 2)
NO_CHANGE = 0.02  # an interval of the difference that lies within ± this share says that nothing changed


def mcnemar(fixed: int, broken: int) -> float:
    """Two-sided p-value of McNemar's score test (1947): had nothing changed, each change would go either way.

    >>> round(mcnemar(7, 1), 3)
    0.034
    """
    return erfc(abs(fixed - broken) / (2 * (fixed + broken)) ** 0.5) if fixed + broken else 1.0


def tango(fixed: int, broken: int, n: int) -> tuple[float, float]:
    """95 % score interval of the paired difference (fixed - broken) / n (T. Tango, 1998).

    It excludes 0 exactly where `mcnemar` is below 0.05. Both can be trusted on small samples, where exact methods are
    too wide and the bootstrap is too narrow (Fagerland, Lydersen and Laake, 2013 and 2014).

    >>> [round(bound, 3) for bound in tango(1, 7, 21)]
    [-0.517, -0.026]
    """
    return _lowest(fixed, broken, n), -_lowest(broken, fixed, n)


def _lowest(fixed: int, broken: int, n: int) -> float:
    """The smallest difference that the score test does not reject, by bisection."""
    rejected, kept = -1.0, (fixed - broken) / n
    for _ in range(50):
        difference = (rejected + kept) / 2
        # the likeliest share of broken questions, had they this difference: the root of a quadratic equation
        slope = (2 * n - fixed + broken) * difference - fixed - broken
        share = ((slope**2 + 8 * n * broken * difference * (1 - difference)) ** 0.5 - slope) / (4 * n)
        variance = n * (2 * share + difference * (1 - difference))
        if (fixed - broken - n * difference) ** 2 > Z**2 * variance:
            rejected = difference
        else:
            kept = difference
    return kept


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
        low, high = tango(fixed, broken, n)
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
    shown = _shown("the right answer", lenient)
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
