"""Read the logged numbers of a run as curves over its optimizer steps."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo.core.kinds import is_number
from grpo.results import measures
from grpo.results.measures import is_of_evaluation

# Besides measures of the evaluation
PER_CENT = r"completions/clipped_ratio|frac_reward_zero_std|groups/.*|dynamic_sampling/live"
TOTALS = r"num_tokens|num_input_tokens_seen|total_flos|epoch|skipped_steps"  # counted since the start of the run
# Names that TRL, transformers and this program log; rewards log all others (TRL's log_metric)
LOGGED_BY_LIBRARIES = re.compile(
    r"step|epoch|((policy|aux)_)?loss|grad_norm|learning_rate|entropy(_coef)?|kl|reward|reward_std|num_tokens"
    r"|num_input_tokens_seen|seconds|step_time|skipped_steps|frac_reward_zero_std|cispo_clip_ratio"
    r"|(eval|train)_.*|total_flos|runtime|(samples|steps)_per_second|(model_preparation|jit_compilation)_time"
    r"|(completions|vespo|rewards|clip_ratio|sampling|time|groups|dynamic_sampling|eval|alarms|tools)/.*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Curve:
    """A logged number by optimizer step, with a band around it (`lows` … `highs`); `is_total`: a running total."""

    steps: list[int]
    values: list[float]
    lows: list[float]
    highs: list[float]
    is_total: bool = False

    @property
    def tenth(self) -> int:
        """The number of logs in a tenth of the run, at least one."""
        return max(1, len(self.values) // 10)

    @property
    def ends(self) -> tuple[float, float]:
        """Means over the first and the last tenth of the run, since single values jump; of a total the values."""
        if self.is_total:
            return self.values[0], self.values[-1]
        return fmean(self.values[: self.tenth]), fmean(self.values[-self.tenth :])

    @property
    def window(self) -> int:
        """The number of logs in the running mean that smooths a long run; 1: no smoothing."""
        return 1 if self.is_total else 2 * min(len(self.values) // 40, 50) + 1

    @property
    def running_mean(self) -> list[float]:
        half = self.window // 2
        parts = [self.values[max(0, at - half) : at + half + 1] for at in range(len(self.values))]
        return [fmean(part) for part in parts]


def read_curves(lines: Iterable[dict[str, Any]]) -> dict[str, Curve]:
    """Read a curve for each logged number, by key. The reward, the mean length and accuracies have a band."""
    factors = {measure.logged: measure.factor for measure in measures.MEASURES}
    points: dict[str, list[tuple[int, float, float, float]]] = {}  # step, value, low, high
    for line in _with_seconds(_by_step(lines)):
        numbers = {key: item for key, item in line.items() if is_number(item)}
        for key, value in numbers.items():
            spread = numbers.get("reward_std", 0) if key == "reward" else 0
            low, high = numbers.get(f"{key}_low", value - spread), numbers.get(f"{key}_high", value + spread)
            if key == "completions/mean_length":
                low, high = (numbers.get(f"completions/{end}_length", value) for end in ("min", "max"))
            factor = factors.get(re.sub("_(low|high)$", "", key)) or (100 if re.fullmatch(PER_CENT, key) else 1)
            points.setdefault(key, []).append((line["step"], factor * value, factor * low, factor * high))
    curves = {}
    for key, points_of_key in points.items():
        steps, values, lows, highs = map(list, zip(*points_of_key, strict=True))
        curves[key] = Curve(steps, values, lows, highs, is_total=re.fullmatch(TOTALS, key) is not None)
    return curves


def _by_step(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the log into one line per step, in order. Later values win; a session's summary is skipped.

    So are evaluations with another `measure` than the last one: other questions, code, or settings of answering.
    """
    lines, steps = list(lines), dict[int, dict[str, Any]]()
    last = next((line["measure"] for line in reversed(lines) if "measure" in line), None)
    for line in lines:
        if "train_runtime" not in line:
            same = line.get("measure") == last
            values = {key: value for key, value in line.items() if same or not is_of_evaluation(key)}
            steps[line["step"]] = steps.get(line["step"], {}) | values
    return [steps[step] for step in sorted(steps)]


def _with_seconds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add `seconds`, the time of all optimizer steps since the previous log; TRL logs their mean."""
    last = 0
    for line in lines:
        if line.get("step_time"):
            line["seconds"] = (line["step"] - last) * line["step_time"]
            last = line["step"]
    return lines


def is_a_rewards_own(key: str) -> bool:
    """True if a reward logged this number with `log_metric`.

    >>> is_a_rewards_own("share_of_dates"), is_a_rewards_own("rewards/int_reward_func/mean")
    (True, False)
    """
    return LOGGED_BY_LIBRARIES.fullmatch(key) is None
