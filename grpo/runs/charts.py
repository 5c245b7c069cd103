"""The curves of a run: one way to draw a number that was logged, in the report's page (SVG) and in `curves.png`."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from grpo.core.redaction import printable
from rewards import short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("accuracy_lenient", "accuracy_strict", "format_strict")
PER_CENT = ("completions/clipped_ratio", "frac_reward_zero_std")
# The light theme of the page, by the names of its variables: in its SVGs these follow the dark theme
COLORS = {
    "accent": "#1d6a8f",
    "earlier": "#8d979d",
    "ink": "#1c2226",
    "soft": "#5d676e",
    "rule": "#e4e0d8",
    "bad": "#ab3a28",
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
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": COLORS["soft"],
    "ytick.labelcolor": COLORS["soft"],
    "grid.color": COLORS["rule"],
}


@dataclass(frozen=True)
class Curve:
    """One number at the optimizer steps at which it was logged, and a band around it (`lows` … `highs`)."""

    steps: list[int]
    values: list[float]
    lows: list[float]
    highs: list[float]
    top: float = 0.0  # its axis reaches at least so far

    @property
    def window(self) -> int:
        """Logs in the running mean that is drawn over a long run's noise; 1: none is."""
        return 2 * min(len(self.values) // 40, 50) + 1

    @property
    def running_mean(self) -> list[float]:
        half = self.window // 2
        parts = [self.values[max(0, at - half) : at + half + 1] for at in range(len(self.values))]
        return [sum(part) / len(part) for part in parts]


def read_curves(metrics: list[dict[str, Any]]) -> dict[str, Curve]:
    """A curve of every number that was logged, by its key; the reward and the mean length have a band."""
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
            value = 100 * value if key in PER_CENT else value
            spread = numbers.get("reward_std", 0) if key == "reward" else 0
            low, high = value - spread, value + spread
            if key == "completions/mean_length":
                low, high = (numbers.get(f"completions/{end}_length", value) for end in ("min", "max"))
            points.setdefault(key, []).append((line["step"], value, low, high))
    curves = {}
    for key, found in points.items():
        steps, values, lows, highs = (list(column) for column in zip(*found, strict=True))
        curves[key] = Curve([int(step) for step in steps], values, lows, highs, top=100 if key in PER_CENT else 0)
    return curves


def number(value: float) -> str:
    """A number as people read it, to about three digits: 842,354 · 34.1 · 0.0184 · 2.1e-8."""
    small = 0 < abs(value) < 1e-3
    text = f"{value:.1e}" if small else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace(".0e", "e").replace("e-0", "e-").replace("-", "−", value < 0)


def draw(
    axes: "Axes", curve: Curve, stages: Sequence[dict[str, Any]], alarms: Sequence[dict[str, Any]] = (),
    color: str = "accent",
) -> None:  # fmt: skip
    """Draw a curve against optimizer steps, with a line where a stage begins and a dashed one at each alarm."""
    from matplotlib.ticker import MaxNLocator

    left, right = curve.steps[0], max(curve.steps[-1], curve.steps[0] + 1)
    bottom, top = min(0, *curve.lows), max(curve.top, *curve.highs)
    locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    ticks = [float(tick) for tick in locator.tick_values(bottom, top if top > bottom else 1)]
    axes.set(xlim=(left, right), ylim=(bottom, ticks[-1]))  # a tick at or above the highest value
    ticks = [tick for tick in ticks if tick >= bottom]
    axes.set_yticks(ticks, [f"{number(tick / 1000)}k" if tick >= 10000 else number(tick) for tick in ticks])
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    if curve.lows != curve.highs:
        outline = (curve.steps + curve.steps[::-1], curve.highs + curve.lows[::-1])
        axes.fill(*outline, color=COLORS[color], alpha=0.15, linewidth=0)
    axes.plot(curve.steps, curve.values, color=COLORS[color], linewidth=2 if curve.window == 1 else 1,
              alpha=1 if curve.window == 1 else 0.4)  # fmt: skip
    if curve.window > 1:
        axes.plot(curve.steps, curve.running_mean, color=COLORS[color], linewidth=2)
    for stage in stages:
        if left < stage["first_step"] <= right:
            axes.axvline(stage["first_step"], color=COLORS["soft"], linewidth=0.8)
    for alarm in alarms:
        if isinstance(alarm["step"], int) and left <= alarm["step"] <= right:
            axes.axvline(alarm["step"], color=COLORS["bad"], linewidth=1.2, linestyle=(0, (3, 3)))


def name_stages(axes: "Axes", stages: Sequence[dict[str, Any]], characters: int) -> None:
    """Write each stage's name above the part of the axes that is its own, which is `characters` wide in all."""
    left, right = axes.get_xlim()
    for stage in stages:
        first, last = max(stage["first_step"], left), min(stage["last_step"], right)
        room = int(characters * (last - first) / (right - left))
        if room > 0:
            name = " ".join(printable(stage["name"]).split())
            name = name if len(name) <= room else name[: room - 1] + "…"
            axes.text(first, 1.02, name.replace("$", r"\$"), transform=axes.get_xaxis_transform(), va="bottom")


def svg(
    curve: Curve, label: str, width: int, height: int, stages: Sequence[dict[str, Any]],
    alarms: Sequence[dict[str, Any]] = (), named: bool = False, color: str = "accent",
) -> Markup:  # fmt: skip
    """The curve as an SVG element for the page: it takes its colours, and shows values under the pointer.

    Args:
        label: the curve's name, for those who listen to the page.
        width: in px, as is `height`; the element scales with its box.
        named: whether the stages' names stand above it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    left, right, bottom, top = 38, width - 8, 18, height - (18 if named and stages else 8)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        axes = figure.add_axes((left / width, bottom / height, (right - left) / width, (top - bottom) / height))
        draw(axes, curve, stages, alarms, color)
        if named:
            name_stages(axes, stages, characters=(right - left) // 6)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    # without what is for a file of its own: its head, global styles and names that another chart has, too
    drawn = re.sub(
        r'<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->| (?:id|clip-path)="[^"]*"',
        "",
        file.getvalue(),
        flags=re.S,
    )
    _, _, inner = drawn[drawn.index("<svg") :].partition(">")
    inner = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), inner)  # half the size
    for name, value in COLORS.items():
        inner = inner.replace(value, f"var(--{name})")
    start, end = axes.get_xlim()
    marks = [
        f'<rect x="{left + (right - left) * (step - start) / (end - start) - 2:.1f}" y="0" width="4" '
        f'height="{height - bottom}"><title>step {step}: {number(value)}</title></rect>'
        for step, value in list(zip(curve.steps, curve.values, strict=True))[:: 1 + len(curve.steps) // 60]
    ]
    first, last = (f"{number(curve.values[at])} at step {curve.steps[at]}" for at in (0, -1))
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}: {first}, {last}">'
    return Markup(head + inner.replace("</svg>", "".join(marks) + "</svg>"))


def draw_curves(
    path: Path, curves: dict[str, Curve], evaluations: dict[str, dict[str, Any]], stages: list[dict[str, Any]]
) -> Path:
    """Draw `curves.png`, the rewards while training beside the answers before and after, and return its path.

    Args:
        evaluations: the summaries by when they were made: `before`, `after`.
        stages: as in `run.json`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    singles = [key for key in curves if re.fullmatch("rewards/.*/mean", key)]
    rows = math.ceil(len(singles) / 3)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 2.8 + 1.2 * rows), layout="constrained")
        halves: Any = figure.subfigures(1, 2, width_ratios=(3, 2), wspace=0.04)
        left, right = halves
        grid = left.add_gridspec(1 + rows, 3, height_ratios=(2, *[1] * rows))
        places = [("reward", "Reward, all together", grid[0, :])] if "reward" in curves else []
        places += [(key, short_name(key[8:-5]), grid[1 + at // 3, at % 3]) for at, key in enumerate(singles)]
        for key, name, place in places:
            axes, curve = left.add_subplot(place), curves[key]
            draw(axes, curve, stages)
            first, last = number(curve.values[0]), number(curve.values[-1])
            ends, pad = (f"{first} → {last}", 16 if stages else 6) if key == "reward" else (last, 6)
            name = printable(name).replace("$", r"\$")
            axes.set_title(name[:20], loc="left", weight="bold", color=COLORS["ink"], pad=pad)
            axes.set_title(ends, loc="right", color=COLORS["accent"], pad=pad)
            if key == "reward":
                name_stages(axes, stages, characters=90)
        left.supxlabel("optimizer step", size=9, color=COLORS["soft"])
        _draw_evaluations(right.subplots(), evaluations)
        figure.savefig(path, dpi=130)
    return path


def _draw_evaluations(axes: "Axes", evaluations: dict[str, dict[str, Any]]) -> None:
    """Bars with 95 % intervals; nothing where there was no evaluation."""
    for when, offset, color in (("before", -0.2, "#b8c4ce"), ("after", 0.2, "#4d94bd")):
        if summary := evaluations.get(when):
            share = [100 * summary[key] for key in MEASURES]
            errors = [
                [abs(100 * (summary[key + end] - summary[key])) for key in MEASURES] for end in ("_low", "_high")
            ]
            places = [index + offset for index in range(len(MEASURES))]
            bars = axes.bar(places, share, 0.38, yerr=errors, color=color, label=when, error_kw={"alpha": 0.5})
            axes.bar_label(bars, fmt="%.1f", label_type="center")
            axes.set_title(f"{summary['n']} held-out questions, greedy, per cent", weight="bold", color=COLORS["ink"])
    if not axes.patches:
        axes.remove()
        return
    axes.set_xticks(range(len(MEASURES)), [key.replace("_", "\n") for key in MEASURES])
    axes.set_ylim(0, 105)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper right", ncols=2)
