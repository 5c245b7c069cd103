"""Draw the curves of a run for the report and for `curves.png`."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo.core.text import printable, rewarded, short_name
from grpo.core.writing import replacing
from grpo.report.curves import Curve
from grpo.results.measures import Measure

# Mid-tones, readable on light and dark backgrounds
COLORS = {"accent": "#2f85b3", "earlier": "#8b959b", "text": "#747e85", "good": "#2c9664", "bad": "#cf5b47"}
STYLE: Any = {  # matplotlib names each key's type
    "svg.fonttype": "none",  # text in a font of the reader's browser
    "svg.hashsalt": "grpo",  # reproducible: the same file for the same run
    "font.sans-serif": ["Segoe UI", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 11,
    "text.color": COLORS["text"],
    "text.parse_math": False,  # not mathematics: names of rewards may contain $
    "axes.titlesize": 11,
    "axes.edgecolor": COLORS["text"],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLORS["text"],
    "grid.alpha": 0.25,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": COLORS["text"],
    "ytick.labelcolor": COLORS["text"],
    "lines.linewidth": 2,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.w_pad": 0.12,
    "path.simplify_threshold": 0.5,  # px; keeps the page of a long run small
    "savefig.transparent": True,
}
UNITS = (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0, 1, "")  # of ticks: smallest number, divisor, suffix


def number(value: float) -> str:
    """Format a number for people, to about three digits.

    >>> number(842354), number(34.1), number(-0.01842), number(2.1e-8)
    ('842,354', '34.1', '−0.0184', '2.1e-8')
    """
    small = 0 < abs(value) < 1e-3
    text = f"{value:.1e}" if small else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace(".0e", "e").replace("e-0", "e-").replace("-", "−", value < 0)


def draw(
    axes: Axes,
    curve: Curve,
    alarms: Sequence[dict[str, Any]] = (),
    color: str = "accent",
    limit: float | None = None,
    beside: Sequence[tuple[Curve, str]] = (),
) -> None:
    """Draw a curve against optimizer steps.

    Args:
        color: a name in COLORS.
        limit: a dotted horizontal line.
        beside: other curves and their colours, drawn thinner.
    """
    steps = [step for drawn in [curve, *(other for other, _ in beside)] for step in (drawn.steps[0], drawn.steps[-1])]
    left, right = min(steps), max(*steps, min(steps) + 1)
    others = [value for other, _ in beside for value in other.values]
    _scale(axes, left, right, [limit or 0, *curve.lows, *curve.highs, *others])
    if curve.lows != curve.highs:
        axes.fill_between(curve.steps, curve.lows, curve.highs, color=COLORS[color], alpha=0.2, linewidth=0)
    points: dict[str, Any] = {"marker": "o", "markersize": 5, "clip_on": False} if len(curve.steps) < 8 else {}
    if curve.window > 1:
        axes.plot(curve.steps, curve.values, color=COLORS[color], linewidth=0.8, alpha=0.3)
    axes.plot(curve.steps, curve.running_mean, color=COLORS[color], **points)
    for other, name in beside:
        axes.plot(other.steps, other.running_mean, color=COLORS[name], linewidth=1.5, zorder=1.9)
    if limit is not None:
        axes.axhline(limit, color=COLORS["text"], linewidth=1.2, linestyle=(0, (1, 2)))
    for alarm in alarms:
        if isinstance(alarm["step"], int) and left <= alarm["step"] <= right:
            axes.axvline(alarm["step"], color=COLORS["bad"], linewidth=1.2, linestyle=(0, (3, 3)))


def _scale(axes: Axes, left: int, right: int, values: Sequence[float]) -> None:
    """Scale the axes to these steps and values, including 0, with a tick at the least and the greatest value."""
    bottom, top = min(0, *values), max(0, *values)
    locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    ticks = [float(tick) + 0.0 for tick in locator.tick_values(bottom, top if top > bottom else 1)]  # not −0
    axes.set(xlim=(left, right), ylim=(ticks[0], ticks[-1]))
    unit, short = next((unit, short) for least, unit, short in UNITS if max(map(abs, ticks)) >= least)
    axes.set_yticks(ticks, [f"{number(tick / unit)}{short if tick else ''}" for tick in ticks])
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))


def image(curve: Curve, width: int, height: int, **lines: Any) -> str:
    """Return a chart as a `data:` address for an `<img>`, so that ids in different charts do not collide.

    Args:
        width, height: in px; the image scales with its box.
        lines: further arguments of `draw`.
    """
    file = io.BytesIO()
    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        draw(figure.add_axes((44 / width, 22 / height, 1 - 58 / width, 1 - 30 / height)), curve, **lines)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def draw_curves(path: Path, curves: dict[str, Curve], held_out: Sequence[Measure], limits: dict[str, float]) -> None:
    """Write `curves.png`: held-out measures, the reward and its parts, with dotted lines at the limits."""
    names = {measure.logged: f"Held out: {measure.words}{', %' * measure.is_share}" for measure in held_out}
    names |= {"reward": "Reward, all together"} if "reward" in curves else {}
    names |= {key: short_name(name) for key in curves if (name := rewarded(key))}
    rows = math.ceil(len(names) / 4) or 1  # at least one row, also without curves
    with rc_context(STYLE):
        figure = Figure(figsize=(13, 2.4 * rows), layout="constrained")
        panels = figure.subplots(rows, 4, squeeze=False).flatten()
        for axes, (key, name) in zip(panels, names.items(), strict=False):
            draw(axes, curves[key], limit=limits.get(key))
            axes.set_title(printable(name)[:30], loc="left", weight="bold")
            axes.set_title(number(curves[key].ends[1]), loc="right", color=COLORS["accent"])
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        with replacing(path) as file:
            figure.savefig(file, format="png", dpi=130)
