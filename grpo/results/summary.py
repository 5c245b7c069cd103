"""The summary of an evaluation, the content of eval_*.json, and the table that shows it."""

from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Any

from grpo.core.text import decimals
from grpo.results import measures
from grpo.results.comparison import change_of
from grpo.results.measures import Measure, Summary
from grpo.scoring.sample import Sample

HEADINGS = {"before": "Before", "after": "After", "only": "Result"}  # evaluation → heading of its column

Cell = tuple[str, str]  # a number, and its 95 % interval or ""
TableRow = tuple[
    str, list[Cell]
]  # a measure's label; a cell for each evaluation, and one for the change if there are two


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share (E. B. Wilson, 1927): (low, high), both in [0, 1].

    >>> tuple(round(bound, 4) for bound in wilson(8, 10))
    (0.4902, 0.9433)
    """
    z, share = NormalDist().inv_cdf(0.975), successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, center - half), min(1.0, center + half)


def summarize(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return `n`, each measure that the samples have, shares with their intervals, and the number of draws, `k`."""
    summary: dict[str, Any] = {"n": len(samples)}
    for measure in measures.of_samples(samples):
        values = [value for value in map(measure.of, samples) if value is not None]
        if values:
            summary[measure.key] = fmean(values)
        if values and measure.is_share:
            bounds = wilson(sum(map(bool, values)), len(values))
            summary[f"{measure.key}_low"], summary[f"{measure.key}_high"] = bounds
    return summary | ({"k": len(samples[0].draws)} if samples[0].draws else {})


def meanings(summary: Summary) -> dict[str, str]:
    """Say what the measures that are shown large mean in this evaluation, by their key."""
    meant = {measure.key: measure.meaning(summary) for measure in measures.of_summaries([summary])}
    return {key: text for key, text in meant.items() if text}


def table_rows(evaluations: dict[str, dict[str, Any]], comparison: dict[str, Any]) -> dict[str, TableRow]:
    """Return the rows of a table, by the key in eval_*.json; shares in per cent."""
    summaries = list(evaluations.values())
    k = next((summary["k"] for summary in summaries if "k" in summary), "k")
    table = {}
    for measure in measures.of_summaries(summaries):
        cells = table_cells(measure, summaries, change_of(measure, comparison))
        table[measure.key] = measure.label.replace("@k", f"@{k}"), cells
    return table


def table_cells(measure: Measure, summaries: Sequence[Summary], change: Summary) -> list[Cell]:
    """Return the cells of a measure: one for each evaluation, and one for the change if there are two."""
    cells = [_cell(measure, summary, measure.key) for summary in summaries]
    if len(summaries) == 2:
        figures = [summary[measure.key] for summary in summaries if summary.get(measure.key) is not None]
        apart = {"difference": figures[1] - figures[0]} if len(figures) == 2 else {}
        cells.append(_cell(measure, change or apart, "difference", "+"))
    return cells


def _cell(measure: Measure, summary: Summary, key: str, sign: str = "") -> Cell:
    """Format a number with its interval; a dash if it is unknown."""
    numbers = [summary.get(key + end) for end in ("", "_low", "_high")]
    value, *ends = ["–" if item is None else decimals(measure.factor * item, measure.places, sign) for item in numbers]
    varies = "–" not in ends and numbers[1] != numbers[2]
    return value, " to ".join(ends) if varies else ""
