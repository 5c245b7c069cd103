"""Format the results of evaluations as rows of a table, for the console, the report, the card and `compare`."""

from typing import Any

from grpo.core.text import decimals, short_name

HEADINGS = {"before": "Before", "after": "After", "only": "Result"}  # evaluation → heading of its column
SHARES = {  # key in eval_*.json → name of its row
    "accuracy_lenient": "Accuracy, lenient",
    "accuracy_strict": "Accuracy, strict",
    "maj_k": "maj@k, sampled",
    "pass_k": "pass@k, sampled",
    "format_strict": "Format, strict",
    "format_soft": "Format, soft",
    "truncated": "Truncated",
    "not_understood": "Not understood by the judge",
}
UNREAD = (
    0.1  # share of answers that are not understood above which their row is shown: how far to trust lenient accuracy
)


Cell = tuple[str, str]  # a number, and its 95 % interval or ""
Row = tuple[str, list[Cell]]  # a measure's name; a cell for each evaluation, and one for the change if there are two


def meanings(summary: dict[str, Any]) -> dict[str, str]:
    """Say what lenient and strict accuracy are in this evaluation, by their key; only those that it has.

    With the user's judge, strict is: in the format, too. Without a format it would be the same again.
    """
    if judge := summary.get("judge"):
        meant = {"accuracy_lenient": f"right by {judge}", "accuracy_strict": "that, and exactly in the format"}
        meant = meant if "format_strict" in summary else {"accuracy_lenient": meant["accuracy_lenient"]}
    else:
        meant = {"accuracy_lenient": "the right answer, however it is written"}
        meant["accuracy_strict"] = "exactly the gold answer" + ", in its place" * ("format_strict" in summary)
    return {key: text for key, text in meant.items() if key in summary}


def rows(evaluations: dict[str, dict[str, Any]], comparison: dict[str, Any]) -> dict[str, Row]:
    """Return the rows of a table, by the key in eval_*.json; shares in per cent."""
    summaries = list(evaluations.values())
    meant = {key for summary in summaries for key in meanings(summary)}
    keys = dict.fromkeys(key for summary in summaries for key in summary)
    rewards = {key: short_name(key[7:]) for key in keys if key.startswith("reward_")}
    rewards |= {"reward": "Reward, weighted sum"} if "reward" in keys else {}
    k = next((summary["k"] for summary in summaries if "k" in summary), "k")
    shares = {key: name.replace("@k", f"@{k}") for key, name in SHARES.items()}
    table = {}
    for key, name in (shares | {"mean_length": "Mean length, tokens"} | rewards).items():
        if key.startswith("accuracy") and key not in meant:
            continue
        if key == "not_understood" and not any(summary.get(key, 0) > UNREAD for summary in summaries):
            continue
        unit, places = (100, 1) if key in SHARES else (1, 1 if key == "mean_length" else 2)
        known = [summary[key] for summary in summaries if summary.get(key) is not None]
        cells = [_cell(summary, key, unit, places) for summary in summaries]
        if len(summaries) == 2:
            change = _paired(comparison, key) or ({"difference": known[1] - known[0]} if len(known) == 2 else {})
            cells.append(_cell(change, "difference", unit, places, "+"))
        if known:
            table[key] = name, cells
    return table


def _paired(comparison: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Return the paired change of a measure in comparison.json."""
    if key.startswith("reward_"):
        return (comparison.get("rewards") or {}).get(key[7:])
    return comparison.get(key.removeprefix("accuracy_"))


def _cell(summary: dict[str, Any], key: str, unit: int, places: int, sign: str = "") -> Cell:
    """Format a number with its interval; a dash if it is unknown."""
    numbers = [summary.get(key + end) for end in ("", "_low", "_high")]
    value, *ends = ["–" if item is None else decimals(unit * item, places, sign) for item in numbers]
    varies = "–" not in ends and numbers[1] != numbers[2]
    return value, " to ".join(ends) if varies else ""
