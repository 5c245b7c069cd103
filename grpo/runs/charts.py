"""What the logs of a run look like drawn: a chart of every number for the report's page, and `curves.png`."""

import math
import re
from pathlib import Path
from typing import Any

from grpo.core.redaction import printable
from rewards import short_name

SHARES = ("accuracy_lenient", "accuracy_strict", "format_strict")


def charts(metrics: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A chart of every number that was logged, by its key; the reward and the mean length have a band."""
    points: dict[str, list[tuple[int, float, float, float]]] = {}  # step, value, low, high
    before: dict[str, float] = {"step": 0, "num_tokens": 0}
    for line in metrics:
        numbers = {key: item for key, item in line.items() if isinstance(item, int | float) and math.isfinite(item)}
        if "num_tokens" in numbers and numbers.get("step_time") and line["step"] > before["step"]:
            # TRL logs the tokens since the start, and the mean time of an optimizer step since the last log
            numbers["seconds"] = (line["step"] - before["step"]) * numbers["step_time"]
            numbers["tokens_per_second"] = (numbers["num_tokens"] - before["num_tokens"]) / numbers["seconds"]
            before = numbers
        for key, value in numbers.items():
            spread = numbers.get("reward_std", 0) if key == "reward" else 0
            low, high = value - spread, value + spread
            if key == "completions/mean_length":
                low, high = (numbers.get(f"completions/{end}_length", value) for end in ("min", "max"))
            points.setdefault(key, []).append((line["step"], value, low, high))
    shares = ("completions/clipped_ratio", "frac_reward_zero_std")
    return {key: _chart(points[key], top=1 if key in shares else 0) for key in points}


def _chart(points: list[tuple[int, float, float, float]], top: float) -> dict[str, Any]:
    """What the page draws of one curve; its axis reaches from 0, or below, to `top`, or above."""
    from matplotlib.ticker import MaxNLocator

    steps, values, lows, highs = zip(*points, strict=True)
    left, right, bottom, top = steps[0], max(steps[-1], steps[0] + 1), min(0, *lows), max(top, *highs)
    top = top if top > bottom else 1
    half = min(len(values) // 40, 50)  # a long run's curve is noisy: a running mean is drawn over it
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    x_ticks, y_ticks = MaxNLocator(4, integer=True), MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    outline = [*zip(steps, highs, strict=True), *reversed([*zip(steps, lows, strict=True)])]
    return {
        "curve": list(zip(steps, values, strict=True)),
        "smooth": [(step, sum(part) / len(part)) for step, part in zip(steps, parts, strict=True)] if half else [],
        "window": 2 * half + 1,
        "band": outline if lows != highs else [],
        "box": (left, right, bottom, top),
        "x_ticks": [tick for tick in x_ticks.tick_values(left, right).tolist() if left <= tick <= right],
        "y_ticks": [tick for tick in y_ticks.tick_values(bottom, top).tolist() if bottom <= tick <= top],
    }


def _label(name: str) -> str:
    """A name as matplotlib shows it as it is: no formula, and no character that fonts cannot draw."""
    return printable(name).replace("$", r"\$")


def draw_curves(
    path: Path, charts: dict[str, dict[str, Any]], evaluations: dict[str, dict[str, Any]], stages: list[dict[str, Any]]
) -> Path:
    """Draw the rewards while training, beside the answers before and after, and return the picture's path.

    Args:
        charts: as `charts` makes them.
        evaluations: the summaries by when they were made: `before`, `after`.
        stages: as `stages.recorded` makes them.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained")
    if "reward" in charts:
        left.plot(*zip(*charts["reward"]["curve"], strict=True), color="black", linewidth=2, label="all rewards")
    for index, key in enumerate(key for key in charts if re.fullmatch("rewards/.*/mean", key)):
        name = _label(short_name(key[8:-5]))
        # dashed, each in its turn: rewards that lie on each other stay visible
        left.plot(*zip(*charts[key]["curve"], strict=True), dashes=(4, 2 * index), label=name)
    for stage in stages[1:] if "reward" in charts else ():
        if (first := stage["first_step"]) <= charts["reward"]["box"][1]:
            left.axvline(first, color="grey", linewidth=0.8)
            name, top = _label(stage["name"]), left.get_xaxis_transform()
            left.text(first, 1, f" {name}", transform=top, va="top", fontsize=8, color="dimgrey")
    left.set(xlabel="optimizer step", ylabel="mean reward of a completion", title="While it trains")
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    left.grid(axis="y", alpha=0.3)
    for when, offset, color in (("before", -0.2, "#b8c4ce"), ("after", 0.2, "#4d94bd")):
        if summary := evaluations.get(when):
            share = [100 * summary[key] for key in SHARES]
            errors = [[abs(100 * (summary[key + end] - summary[key])) for key in SHARES] for end in ("_low", "_high")]
            places = [index + offset for index in range(len(SHARES))]
            bars = right.bar(places, share, 0.38, yerr=errors, color=color, label=when, error_kw={"alpha": 0.5})
            right.bar_label(bars, fmt="%.1f", label_type="center")
            right.set_title(f"{summary['n']} held-out questions, greedy")
    right.set_xticks(range(len(SHARES)), [key.replace("_", "\n") for key in SHARES])
    right.set(ylabel="per cent, with 95 % intervals", ylim=(0, 105))
    if not right.patches:  # no evaluation
        right.remove()
    for axes in [axes for axes in figure.axes if axes.get_legend_handles_labels()[0]]:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
