"""The curves of a run: one way to draw a logged number, for the report's page and for `curves.png`."""

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo.core.text import printable, short_name

PER_CENT = r"completions/clipped_ratio|frac_reward_zero_std|groups/.*|eval/(accuracy|format|truncated).*"
# What TRL, transformers and this program log; any other number is a reward's own (TRL's log_metric)
OURS = re.compile(
    r"step|epoch|stage|((policy|aux)_)?loss|grad_norm|learning_rate|entropy(_coef)?|kl|reward|reward_std|num_tokens"
    r"|num_input_tokens_seen|tokens_per_second|seconds|step_time|skipped_steps|frac_reward_zero_std|cispo_clip_ratio"
    r"|(eval|train)_.*|total_flos|runtime|(samples|steps)_per_second|(model_preparation|jit_compilation)_time"
    r"|(completions|vespo|rewards|reward_weights|clip_ratio|sampling|time|groups|eval|alarms|tools)/.*",
    re.DOTALL,
)
# Mid-tones, which read on a light background and on a dark one
COLORS = {"accent": "#2f85b3", "earlier": "#8b959b", "text": "#747e85", "good": "#2c9664", "bad": "#cf5b47"}
STYLE: Any = {  # matplotlib names each key's type
    "svg.fonttype": "none",  # text in a font of the reader's
    "svg.hashsalt": "grpo",  # the same file for the same run
    "font.sans-serif": ["Segoe UI", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 11,
    "text.color": COLORS["text"],
    "text.parse_math": False,  # names of rewards are text
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
    "path.simplify_threshold": 0.5,  # px: the page of a long run stays small
    "savefig.transparent": True,
}
# Panels of curves.png before those of the single rewards
PANELS = {
    "eval/accuracy_lenient": "Lenient accuracy, %",
    "eval/accuracy_strict": "Strict accuracy, %",
    "eval/reward": "Reward, held out",
    "reward": "Reward, all together",
}


@dataclass(frozen=True)
class Curve:
    """One number at the optimizer steps at which it was logged, and a band around it (`lows` … `highs`)."""

    steps: list[int]
    values: list[float]
    lows: list[float]
    highs: list[float]

    @property
    def tenth(self) -> int:
        """Logs in a tenth of the run, at least one."""
        return max(1, len(self.values) // 10)

    @property
    def ends(self) -> tuple[float, float]:
        """Means over the first and the last tenth of the run: single values jump."""
        return fmean(self.values[: self.tenth]), fmean(self.values[-self.tenth :])

    @property
    def window(self) -> int:
        """Logs in the running mean that is drawn over a long run's noise; 1: none is."""
        return 2 * min(len(self.values) // 40, 50) + 1

    @property
    def running_mean(self) -> list[float]:
        half = self.window // 2
        parts = [self.values[max(0, at - half) : at + half + 1] for at in range(len(self.values))]
        return [fmean(part) for part in parts]


def read_curves(metrics: Sequence[dict[str, Any]]) -> dict[str, Curve]:
    """A curve of every number that was logged, by its key; the reward, the mean length and accuracies have a band.

    Args:
        metrics: the logs, one for each step at which anything was logged, in order.
    """
    points: dict[str, list[tuple[int, float, float, float]]] = {}  # step, value, low, high
    for line in _with_times(metrics):
        numbers = {key: item for key, item in line.items() if isinstance(item, int | float) and math.isfinite(item)}
        for key, value in numbers.items():
            spread = numbers.get("reward_std", 0) if key == "reward" else 0
            low, high = numbers.get(f"{key}_low", value - spread), numbers.get(f"{key}_high", value + spread)
            if key == "completions/mean_length":
                low, high = (numbers.get(f"completions/{end}_length", value) for end in ("min", "max"))
            unit = 100 if re.fullmatch(PER_CENT, key) else 1
            points.setdefault(key, []).append((line["step"], unit * value, unit * low, unit * high))
    return {key: Curve(*map(list, zip(*found, strict=True))) for key, found in points.items()}


def _with_times(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The logs with `seconds`, those of all optimizer steps since the log before, and `tokens_per_second`.

    TRL logs the mean time of an optimizer step since the last log, and where a step began with a rollout the tokens
    since the start. A rollout's tokens are spread over the time of all steps that it serves; while it still serves
    some, its rate is not known.
    """
    lines, last, tokens = [dict(line) for line in metrics], 0, 0.0
    rollouts: list[tuple[float, int, list[dict[str, Any]]]] = []  # tokens, the first step, the lines of what it serves
    for line in lines:
        if not line.get("step_time") or line["step"] <= last:
            continue
        line["seconds"] = (line["step"] - last) * line["step_time"]
        if line.get("num_tokens"):
            rollouts.append((line["num_tokens"] - tokens, last + 1, []))
            tokens = line["num_tokens"]
        if rollouts:
            rollouts[-1][2].append(line)
        last = line["step"]
    served = [those[-1]["step"] - first + 1 for _, first, those in rollouts]
    if len(served) > 1 and served[-1] < served[-2]:
        rollouts.pop()
    for count, _, those in rollouts:
        those[-1]["tokens_per_second"] = count / sum(line["seconds"] for line in those)
    return lines


def is_a_rewards_own(key: str) -> bool:
    """Whether a logged number is one that a reward logs by itself.

    >>> is_a_rewards_own("share_of_dates"), is_a_rewards_own("rewards/int_reward_func/mean")
    (True, False)
    """
    return OURS.fullmatch(key) is None


def number(value: float) -> str:
    """A number as people read it, to about three digits.

    >>> number(842354), number(34.1), number(-0.01842), number(2.1e-8)
    ('842,354', '34.1', '−0.0184', '2.1e-8')
    """
    small = 0 < abs(value) < 1e-3
    text = f"{value:.1e}" if small else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace(".0e", "e").replace("e-0", "e-").replace("-", "−", value < 0)


def draw(
    axes: Axes,
    curve: Curve,
    stages: Sequence[dict[str, Any]] = (),
    alarms: Sequence[dict[str, Any]] = (),
    color: str = "accent",
    limit: float | None = None,
    beside: Sequence[tuple[Curve, str]] = (),
) -> None:
    """Draw a curve against optimizer steps.

    Args:
        stages: each is a vertical line where it begins.
        alarms: each is a dashed vertical line.
        color: a name in COLORS.
        limit: a dotted horizontal line.
        beside: other curves, drawn thinner, with their colours.
    """
    steps = [step for each, _ in [(curve, color), *beside] for step in (each.steps[0], each.steps[-1])]
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
    for stage in stages:
        if left < stage["first_step"] <= right:
            axes.axvline(stage["first_step"], color=COLORS["text"], linewidth=0.8)
    for alarm in alarms:
        if isinstance(alarm["step"], int) and left <= alarm["step"] <= right:
            axes.axvline(alarm["step"], color=COLORS["bad"], linewidth=1.2, linestyle=(0, (3, 3)))


def _scale(axes: Axes, left: int, right: int, values: Sequence[float]) -> None:
    """Scale the axes to these steps and values, from or to 0, with a tick at either end of the values."""
    bottom, top = min(0, *values), max(0, *values)
    found = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(bottom, top if top > bottom else 1)
    ticks = [float(tick) + 0.0 for tick in found]  # not −0
    axes.set(xlim=(left, right), ylim=(ticks[0], ticks[-1]))
    axes.set_yticks(ticks, [number(tick) for tick in ticks])
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))


def image(curve: Curve, width: int, height: int, **lines: Any) -> str:
    """The chart as a `data:` address for an `<img>`, which keeps its names apart from those of other charts.

    Args:
        width: in px, as is `height`; the image scales with its box.
        lines: what else `draw` takes.
    """
    file = io.BytesIO()
    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        draw(figure.add_axes((44 / width, 22 / height, 1 - 58 / width, 1 - 30 / height)), curve, **lines)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def draw_curves(
    path: Path, curves: dict[str, Curve], stages: Sequence[dict[str, Any]], limits: dict[str, float]
) -> None:
    """Write `curves.png`: accuracies, the reward and each of its parts.

    Args:
        limits: dotted lines, by the key of the curve.
    """
    parts = {key: short_name(key[8:-5]) for key in curves if re.fullmatch("rewards/.*/mean", key)}
    names = {key: name for key, name in PANELS.items() if key in curves} | parts
    rows = math.ceil(len(names) / 4) or 1  # no reward was ever finite
    with rc_context(STYLE):
        figure = Figure(figsize=(13, 2.4 * rows), layout="constrained")
        panels = figure.subplots(rows, 4, squeeze=False).flatten()
        for axes, (key, name) in zip(panels, names.items(), strict=False):
            draw(axes, curves[key], stages, limit=limits.get(key))
            axes.set_title(printable(name)[:30], loc="left", weight="bold")
            axes.set_title(number(curves[key].ends[1]), loc="right", color=COLORS["accent"])
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        figure.savefig(path, dpi=130)
