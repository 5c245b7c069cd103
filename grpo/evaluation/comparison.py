"""Before against after on the same questions: what was fixed, what broke, and whether that can be chance.

Every question is its own control, so the paired figures say more than two separate intervals do.
"""

from collections.abc import Sequence
from math import erfc
from statistics import NormalDist, fmean, stdev
from typing import Any

from grpo.core.errors import UserError

MEASURES = ("strict", "lenient", "format_strict", "format_soft")  # columns of the records, where these have them
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


def student(free: int) -> float:
    """What a 95 % interval of a mean takes of Student's t distribution with so many degrees of freedom.

    >>> round(student(2), 3)
    4.303
    """
    import mpmath  # of sympy, which torch needs

    def beyond(t: float) -> Any:
        """The share of both tails, less 5 %."""
        return mpmath.betainc(free / 2, 0.5, 0, free / (free + t * t), regularized=True) - SIGNIFICANT

    return float(mpmath.findroot(beyond, (1.9, 12.8), solver="anderson"))  # it lies between 1.96 and 12.71


def mean_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and its 95 % interval by Student's t; no interval of a single value.

    >>> mean_interval([2.0]), [round(bound, 2) for bound in mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])]
    ((2.0, None, None), [3.0, 1.04, 4.96])
    """
    if len(values) < 2:
        return values[0], None, None
    mean = fmean(values)
    half = student(len(values) - 1) * stdev(values, mean) / len(values) ** 0.5
    return mean, mean - half, mean + half


def rewards_of(record: dict[str, Any]) -> dict[str, float | None]:
    """The weighted reward of a completion, and what it is the sum of, by their names in `eval_*.json`."""
    parts = {f"rewards/{name}": value for name, value in (record.get("rewards") or {}).items()}
    return {"reward": record["reward"], **parts} if "reward" in record else {}


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Two evaluations of the same questions, in the same order.

    Returns:
        `n`, `verdict`, `sentence`, and for each of MEASURES the counts `both`, `fixed`, `broken` and `neither`, the
        shares `before`, `after` and `difference` with `difference_low` and `difference_high`, and `p_value`; for
        rewards their means, the difference and its interval.

    Raises:
        UserError: the questions are not the same.
    """
    if [row["question"] for row in before] != [row["question"] for row in after] or not before:
        raise UserError(
            "comparison: the two evaluations did not ask the same questions; evaluate both on the same rows"
        )
    pairs = list(zip(before, after, strict=True))
    measures = _measures(pairs)
    verdict, sentence = (_judge if "lenient" in measures else _judge_reward)(len(pairs), measures)
    return {"n": len(pairs), "verdict": verdict, "sentence": sentence, **measures}


def _measures(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    measures: dict[str, dict[str, Any]] = {}
    n = len(pairs)
    for measure in (name for name in MEASURES if all(name in old and name in new for old, new in pairs)):
        flags = [(bool(old[measure]), bool(new[measure])) for old, new in pairs]
        both, fixed, broken = flags.count((True, True)), flags.count((False, True)), flags.count((True, False))
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
    earned = [(rewards_of(old), rewards_of(new)) for old, new in pairs]
    for name in earned[0][1]:
        values = [(old.get(name), new.get(name)) for old, new in earned]  # None where a reward failed or abstained
        known = [(old, new) for old, new in values if old is not None and new is not None]
        if known:
            means = {"before": fmean(old for old, _ in known), "after": fmean(new for _, new in known)}
            paired = mean_interval([new - old for old, new in known])
            changes = dict(zip(("difference", "difference_low", "difference_high"), paired, strict=True))
            measures[name] = {"n": len(known), **means, **changes}
    return measures


def _judge_reward(n: int, measures: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The verdict without gold answers: what the weighted reward did."""
    reward = measures.get("reward")
    if reward is None:
        return "too_small_to_tell", "Nothing could be compared: a reward failed on every answer."
    change, low, high = reward["difference"], reward["difference_low"], reward["difference_high"]
    if change == 0 and low == high:
        text = f"No change: each of {n} answers earns what it did before, {reward['before']:.2f} on average."
        return "no_change", text
    shown = f"the reward {'rose' if change > 0 else 'fell'} from {reward['before']:.2f} to {reward['after']:.2f} "
    interval = "" if low is None else f", 95 % interval {low:+.2f} to {high:+.2f}"
    shown += f"({change:+.2f}{interval}, {n} questions)"
    if low is not None and low > 0:
        return "got_better", f"It got better: {shown}."
    if high is not None and high < 0:
        return "got_worse", f"It got worse: {shown}."
    return "too_small_to_tell", f"The sample of {n} is too small to tell: {shown}."


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
