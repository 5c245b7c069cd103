"""Format the results of evaluations as rows of a table, for the console, the report, the card and `compare`."""

from typing import Any

from grpo.core.text import short_name

HEADINGS = {"before": "Before", "after": "After", "only": "Result"}  # evaluation → heading of its column
SHARES = {  # key in eval_*.json → name of its row
    "accuracy_lenient": "Accuracy, lenient",
    "accuracy_strict": "Accuracy, strict",
    "maj_k": "maj@k, sampled",
    "pass_k": "pass@k, sampled",
    "format_strict": "Format, strict",
    "format_soft": "Format, soft",
    "truncated": "Truncated",
}


Cell = tuple[str, str]  # a number, and its 95 % interval or ""
Row = tuple[str, list[Cell]]  # a measure's name; a cell for each evaluation, and one for the change if there are two


def rows(evaluations: dict[str, dict[str, Any]], comparison: dict[str, Any]) -> dict[str, Row]:
    """Return the rows of a table, by the key in eval_*.json; shares in per cent."""
    summaries = list(evaluations.values())
    keys = dict.fromkeys(key for summary in summaries for key in summary)
    rewards = {key: short_name(key[7:]) for key in keys if key.startswith("reward_")}
    rewards |= {"reward": "Reward, weighted sum"} if "reward" in keys else {}
    k = next((summary["k"] for summary in summaries if "k" in summary), "k")
    shares = {key: name.replace("@k", f"@{k}") for key, name in SHARES.items()}
    table = {}
    for key, name in (shares | {"mean_length": "Mean length, tokens"} | rewards).items():
        unit, places = (100, ".1f") if key in SHARES else (1, ".1f" if key == "mean_length" else ".2f")
        known = [summary[key] for summary in summaries if summary.get(key) is not None]
        cells = [_cell(summary, key, unit, places) for summary in summaries]
        if len(summaries) == 2:
            change = _paired(comparison, key) or ({"difference": known[1] - known[0]} if len(known) == 2 else {})
            cells.append(_cell(change, "difference", unit, f"+z{places}"))
        if known:
            table[key] = name, cells
    return table


def _paired(comparison: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Return the paired change of a measure in comparison.json."""
    if key.startswith("reward_"):
        return (comparison.get("rewards") or {}).get(key[7:])
    return comparison.get(key.removeprefix("accuracy_"))


def _cell(summary: dict[str, Any], key: str, unit: int, places: str) -> Cell:
    """Format a number with its interval; a dash if it is unknown."""
    numbers = [summary.get(key + end) for end in ("", "_low", "_high")]
    value, *ends = ["–" if item is None else format(unit * item, places).replace("-", "−") for item in numbers]
    varies = "–" not in ends and numbers[1] != numbers[2]
    return value, " to ".join(ends) if varies else ""
