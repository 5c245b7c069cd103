"""The curves of a run: one way to draw a number that was logged, in the report's page (SVG) and in `curves.png`."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from grpo.core.text import printable
from rewards import short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("accuracy_lenient", "accuracy_strict", "format_strict")
PER_CENT = r"completions/clipped_ratio|frac_reward_zero_std|groups/.*|eval/(accuracy|format|truncated).*"
# The light theme of the page, by the names of its variables: in its SVGs these follow the dark theme
COLORS = {
    "accent": "#1d6a8f",
    "earlier": "#8d979d",
    "ink": "#1c2226",
    "soft": "#5d676e",
    "rule": "#e4e0d8",
    "bad": "#ab3a28",
    "good": "#24724a",
}
STYLE: Any = {  # matplotlib names each key's type
    "svg.fonttype": "none",  # text that can be selected, in the page's font
    "svg.hashsalt": "grpo",  # the same file for the same run
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.edgecolor": COLORS["soft"],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": COLORS["soft"],
    "ytick.labelcolor": COLORS["soft"],
    "grid.color": COLORS["rule"],
    "text.parse_math": False,  # names of rewards and stages are text
}


@dataclass(frozen=True)
class Curve:
    """One number at the optimizer steps at which it was logged, and a band around it (`lows` … `highs`)."""

    steps: list[int]
    values: list[float]
    lows: list[float]
    highs: list[float]

    @property
    def window(self) -> int:
        """Logs in the running mean that is drawn over a long run's noise; 1: none is."""
        return 2 * min(len(self.values) // 40, 50) + 1

    @property
    def running_mean(self) -> list[float]:
        half = self.window // 2
        parts = [self.values[max(0, at - half) : at + half + 1] for at in range(len(self.values))]
        return [sum(part) / len(part) for part in parts]


Beside = Sequence[tuple[Curve, str]]  # thinner lines in the same chart, with their colours


def read_curves(metrics: list[dict[str, Any]]) -> dict[str, Curve]:
    """A curve of every number that was logged, by its key; the reward, the mean length and accuracies have a band."""
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
            low, high = numbers.get(f"{key}_low", value - spread), numbers.get(f"{key}_high", value + spread)
            if key == "completions/mean_length":
                low, high = (numbers.get(f"completions/{end}_length", value) for end in ("min", "max"))
            unit = 100 if re.fullmatch(PER_CENT, key) else 1
            points.setdefault(key, []).append((line["step"], unit * value, unit * low, unit * high))
    return {key: Curve(*map(list, zip(*found, strict=True))) for key, found in points.items()}


def number(value: float) -> str:
    """A number as people read it, to about three digits: 842,354 · 34.1 · 0.0184 · 2.1e-8."""
    small = 0 < abs(value) < 1e-3
    text = f"{value:.1e}" if small else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace(".0e", "e").replace("e-0", "e-").replace("-", "−", value < 0)


def draw(
    axes: "Axes", curve: Curve, stages: Sequence[dict[str, Any]], alarms: Sequence[dict[str, Any]] = (),
    color: str = "accent", limit: float | None = None, beside: Beside = (),
) -> None:  # fmt: skip
    """Draw a curve against optimizer steps, and lines: where a stage begins, dashed at alarms, dotted at `limit`."""
    others = [value for other, _ in beside for value in other.values]
    left, right = _frame(axes, curve.steps, [limit or 0, *curve.lows, *curve.highs, *others])
    if curve.lows != curve.highs:
        outline = (curve.steps + curve.steps[::-1], curve.highs + curve.lows[::-1])
        axes.fill(*outline, color=COLORS[color], alpha=0.15, linewidth=0)  # fill_between would define it in <defs>
    _dot(axes, curve, color)
    noisy = curve.window > 1
    axes.plot(curve.steps, curve.values, color=COLORS[color], linewidth=1 if noisy else 2, alpha=0.4 if noisy else 1)
    if noisy:
        axes.plot(curve.steps, curve.running_mean, color=COLORS[color], linewidth=2)
    for other, name in beside:
        axes.plot(other.steps, other.running_mean, color=COLORS[name], linewidth=1.5, zorder=1.9)
    if limit is not None:
        axes.axhline(limit, color=COLORS["soft"], linewidth=1.2, linestyle=(0, (1, 2)))
    for stage in stages:
        if left < stage["first_step"] <= right:
            axes.axvline(stage["first_step"], color=COLORS["soft"], linewidth=0.8)
    for alarm in alarms:
        if isinstance(alarm["step"], int) and left <= alarm["step"] <= right:
            axes.axvline(alarm["step"], color=COLORS["bad"], linewidth=1.2, linestyle=(0, (3, 3)))


def _dot(axes: "Axes", curve: Curve, color: str) -> None:
    """Show a curve of a single point, which as a line would be nothing."""
    if len(curve.steps) == 1:  # unlike a marker, this needs no <defs>
        ends = [curve.steps[0], curve.steps[0] + 0.01]
        axes.plot(ends, 2 * curve.values, color=COLORS[color], linewidth=6, solid_capstyle="round", clip_on=False)


def _frame(axes: "Axes", steps: list[int], values: Sequence[float]) -> tuple[int, int]:
    """Scale the axes to hold these values, and 0, at these steps; the first step and the last."""
    from matplotlib.ticker import MaxNLocator

    left, right = steps[0], max(steps[-1], steps[0] + 1)
    bottom, top = min(0, *values), max(0, *values)
    locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    ticks = [float(tick) for tick in locator.tick_values(bottom, top if top > bottom else 1)]
    axes.set(xlim=(left, right), ylim=(bottom, ticks[-1]))  # a tick at or above the highest value
    ticks = [tick for tick in ticks if tick >= bottom]
    axes.set_yticks(ticks, [number(tick) for tick in ticks])
    axes.set_xticks(_ticks(steps))
    axes.get_xticklabels()[-1].set_horizontalalignment("right")
    return left, right


def _ticks(steps: list[int]) -> list[int]:
    """The last step, and round ones before it that were logged; where none is, some that were."""
    from matplotlib.ticker import MaxNLocator

    first, last = steps[0], steps[-1]
    near = last - (last - first) / 8  # whose label would touch the last one's
    tried = MaxNLocator(4, steps=[1, 2, 5, 10], integer=True).tick_values(first, last)
    found = [int(tick) for tick in tried if tick in set(steps) and tick < near]
    return [*found, last] if found else steps[:: -max(1, len(steps) // 3)][::-1]


def svg(
    curve: Curve, label: str, width: int, height: int, stages: Sequence[dict[str, Any]],
    alarms: Sequence[dict[str, Any]] = (), color: str = "accent", limit: float | None = None, beside: Beside = (),
) -> Markup:  # fmt: skip
    """The curve as an SVG element for the page, whose colours it takes.

    Args:
        label: the curve's name, for those who listen to the page.
        width: in px, as is `height`; the element scales with its box.
    """
    first, last = (f"{number(curve.values[at])} at step {curve.steps[at]}" for at in (0, -1))

    def lines(axes: "Axes") -> None:
        draw(axes, curve, stages, alarms, color, limit, beside)

    return _element(lines, f"{label}: {first}, {last}", width, height)


def _element(lines: Callable[["Axes"], None], label: str, width: int, height: int) -> Markup:
    """What is drawn on axes of this size, as an SVG element in the page's colours."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        lines(figure.add_axes((38 / width, 18 / height, 1 - 46 / width, 1 - 26 / height)))
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    # without what is for a file of its own: its head, global styles and names that another chart has, too
    only_there = r'<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->| (?:id|clip-path)="[^"]*"'
    drawn = re.sub(only_there, "", file.getvalue(), flags=re.DOTALL)
    _, _, inner = drawn[drawn.index("<svg") :].partition(">")
    for name, value in COLORS.items():
        inner = inner.replace(value, f"var(--{name})")
    return Markup(f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">' + inner)


def draw_curves(
    path: Path, curves: dict[str, Curve], evaluations: dict[str, dict[str, Any]], stages: list[dict[str, Any]],
    limits: dict[str, float],
) -> Path:  # fmt: skip
    """Draw `curves.png`, the rewards while training and the answers before and after, and return its path.

    Args:
        evaluations: the summaries by when they were made: `before`, `after`.
        stages: as in `run.json`.
        limits: dotted lines, by the key of the curve.
    """
    import matplotlib
    from matplotlib.figure import Figure

    names = {key: short_name(key[8:-5]) for key in curves if re.fullmatch("rewards/.*/mean", key)}
    first = {"eval/accuracy_lenient": "Lenient accuracy, %", "reward": "Reward, all together"}
    names = {key: name for key, name in first.items() if key in curves} | names
    rows = math.ceil((len(names) + 1) / 4)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 2.4 * rows))
        figure.subplots_adjust(0.04, 0.2 / rows, 0.98, 1 - 0.15 / rows, hspace=0.4)
        panels = figure.subplots(rows, 4, squeeze=False).flatten().tolist()
        for axes, (key, name) in zip(panels, names.items(), strict=False):
            draw(axes, curves[key], stages, limit=limits.get(key))
            axes.set_title(printable(name)[:30], loc="left", weight="bold", color=COLORS["ink"])
            axes.set_title(number(curves[key].values[-1]), loc="right", color=COLORS["accent"])
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        if evaluations:
            _draw_evaluations(panels[len(names)], evaluations)
        figure.savefig(path, dpi=130)
    return path


def _draw_evaluations(axes: "Axes", evaluations: dict[str, dict[str, Any]]) -> None:
    """Bars with 95 % intervals."""
    measures = [key for key in MEASURES if all(key in summary for summary in evaluations.values())]
    for at, (when, summary) in enumerate(evaluations.items()):
        shares, lows, highs = ([100 * summary[key + end] for key in measures] for end in ("", "_low", "_high"))
        errors = [[abs(end - share) for end, share in zip(ends, shares, strict=True)] for ends in (lows, highs)]
        places = [index + 0.4 * at - 0.2 for index in range(len(measures))]
        color = COLORS["earlier" if when == "before" else "accent"]
        bars = axes.bar(places, shares, 0.38, yerr=errors, color=color, label=when, ecolor=COLORS["soft"])
        axes.bar_label(bars, fmt="%.1f", label_type="center", color="white", fontsize=8)
        axes.set_title(f"{summary['n']} held-out questions, %", loc="left", weight="bold", color=COLORS["ink"])
    axes.set_axis_on()
    axes.set_xticks(range(len(measures)), [key.replace("_", "\n") for key in measures])
    axes.set(ylim=(0, 120), yticks=range(0, 101, 25))
    axes.legend(frameon=False, loc="upper right", ncols=2)
