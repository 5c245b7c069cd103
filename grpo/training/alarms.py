"""What goes wrong in GRPO runs: what a run has shown so far, and what each alarm concludes from it, with a remedy.

`Watch` (callbacks.py) fills an `Observed`; the checks below, all listed in `ALARMS`, are pure functions of it. A check
returns a sentence, or None while all is well.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any, NamedTuple

ENTROPY_WINDOW = 5  # optimizer steps over which entropies are averaged
IN_A_ROW = 3  # rollouts or optimizer steps that must look alike before an alarm: one may be chance
DEAD_AFTER = 20  # rollouts after warm-up (before, the policy hardly moves) without any value above 0
MIN_UPDATES = 5  # optimizer steps with a learning rate above 0 after which some weight must differ
WARN_ONLY = ("dead_reward",)  # the run still learns from its other rewards: no reason to stop it


# --- What a run has shown so far


@dataclass(frozen=True)
class Rollout:
    """One rollout of all processes, group by group.

    `rewards` holds each reward's weighted values, None where it returned none; rewards of weight 0 are in `others`.
    A completion without any value (the reward guard excludes it) is not part of its group.
    """

    prompts: list[Any]
    completions: list[str]
    rewards: dict[str, list[float | None]]
    group: int  # completions per group
    weights: dict[str, float] = field(default_factory=dict)  # of each reward; 1 where missing
    others: dict[str, list[float | None]] = field(default_factory=dict)  # unweighted values of rewards of weight 0

    def groups(self) -> Iterator[slice]:
        return (slice(start, start + self.group) for start in range(0, len(self.prompts), self.group))

    def scored(self, group: slice) -> list[bool]:
        """For each completion whether any reward returned a value."""
        columns = [values[group] for values in (*self.rewards.values(), *self.others.values())]
        return [any(value is not None for value in row) for row in zip(*columns, strict=True)]

    def totals(self, group: slice) -> list[float]:
        """The weighted sum of each completion that any reward scored; a single 0 where none did."""
        columns = zip(*(self.rewards[name][group] for name in self.rewards), strict=True)
        rows = [row for row, scored in zip(columns, self.scored(group), strict=True) if scored]
        return [sum(value or 0.0 for value in row) for row in rows] or [0.0]

    def differs(self, group: slice) -> float:
        """The largest difference between two totals of a group; 0 where its advantages are 0."""
        totals = self.totals(group)
        difference = max(totals) - min(totals)
        return difference if difference > 1e-8 else 0.0

    def correct(self, group: slice) -> list[bool] | None:
        """Which completions of a group are right; None where no reward judges that."""
        known = self.rewards | self.others  # a reward of another stage judges it, too
        columns = [values[group] for name, values in known.items() if re.search(r"(^|_)(correct|accura)", name)]
        rows = zip(zip(*columns, strict=True), self.scored(group), strict=True) if columns else ()
        return [all((value or 0) > 0 for value in row) for row, scored in rows if scored] or None


@dataclass
class Observed:
    """What a run has shown so far. Every checkpoint holds it, so that a resumed run raises what the whole would."""

    metrics: dict[str, list[float]] = field(default_factory=dict)  # TRL's: means of the first and the last steps
    rollouts: list[Rollout] = field(default_factory=list)  # the last IN_A_ROW
    rollouts_seen: dict[str, int] = field(default_factory=dict)  # by reward: those in which its weight was not 0
    rollouts_after_warmup: dict[str, int] = field(default_factory=dict)
    # of each reward's values at a weight of 1 or -1, in the whole run: weights may change
    highest: dict[str, float] = field(default_factory=dict)
    lowest: dict[str, float] = field(default_factory=dict)
    nonfinite: str = ""  # "the gradient holds" or "the loss is" in a step that was skipped
    updates: int = 0  # optimizer steps with a learning rate above 0
    weights_moved: bool | None = None  # None until it is known

    @classmethod
    def restored(cls, found: dict[str, Any]) -> "Observed":
        """From a checkpoint (`dataclasses.asdict`, through JSON)."""
        rollouts = [Rollout(**rollout) for rollout in found["rollouts"]]
        known = {field.name for field in fields(cls)} & found.keys()  # a checkpoint of another version has others
        return cls(**{**{key: found[key] for key in known}, "rollouts": rollouts})

    def note(self, key: str, value: float) -> None:
        """The mean of a metric in an optimizer step; of many steps the first and last ENTROPY_WINDOW are kept."""
        values = self.metrics.setdefault(key, [])
        values.append(value)
        if len(values) > 2 * ENTROPY_WINDOW:
            del values[ENTROPY_WINDOW]

    def add(self, rollout: Rollout, after_warmup: bool = True) -> None:
        self.rollouts = [*self.rollouts[1 - IN_A_ROW :], rollout]
        for name, values in rollout.rewards.items():
            self.rollouts_seen[name] = self.rollouts_seen.get(name, 0) + 1
            self.rollouts_after_warmup[name] = self.rollouts_after_warmup.get(name, 0) + after_warmup
            size = abs(rollout.weights.get(name, 1.0))
            if known := [value / size for value in values if value is not None]:
                self.highest[name] = max([self.highest.get(name, -math.inf), *known])
                self.lowest[name] = min([self.lowest.get(name, math.inf), *known])

    def last(self, key: str) -> list[float]:
        """The metric in the last IN_A_ROW optimizer steps; empty before there are as many."""
        values = self.metrics.get(key, [])
        return values[-IN_A_ROW:] if len(values) >= IN_A_ROW else []

    @property
    def has_enough_rollouts(self) -> bool:
        return len(self.rollouts) == IN_A_ROW


# --- The alarms


Check = Callable[[Observed], str | None]


class Alarm(NamedTuple):
    check: Check
    remedy: str


ALARMS: dict[str, Alarm] = {}


def alarm(remedy: str) -> Callable[[Check], Check]:
    """List a check in ALARMS under its own name."""

    def register(check: Check) -> Check:
        ALARMS[check.__name__] = Alarm(check, remedy)
        return check

    return register


@alarm(
    "raise max_completion_length; if the completions ramble on, the model does not stop by itself: show it the format "
    "(num_shots 1) or use an instruct model"
)
def all_truncated(seen: Observed) -> str | None:
    shares = seen.last("completions/clipped_ratio")
    if shares and min(shares) == 1:
        return f"every completion of the last {IN_A_ROW} optimizer steps was cut off before its end"
    return None


def _kind(verdict: list[bool] | None) -> str:
    """Why the completions of a group earned the same."""
    if verdict is None or (any(verdict) and not all(verdict)):  # where rewards cancel out, some are right
        return "constant reward"
    return "all right" if all(verdict) else "all wrong"


@alarm(
    "all wrong: easier questions, num_shots 1, a longer max_completion_length or a larger num_generations; all right: "
    "harder questions, or stop here; constant reward: add a reward that distinguishes completions"
)
def zero_variance(seen: Observed) -> str | None:
    groups = [(rollout, group) for rollout in seen.rollouts for group in rollout.groups()]
    if not seen.has_enough_rollouts or any(rollout.differs(group) for rollout, group in groups):
        return None
    kinds = Counter(_kind(rollout.correct(group)) for rollout, group in groups)
    kind = next(iter(kinds)) if len(kinds) == 1 else ", ".join(f"{n} groups {kind}" for kind, n in kinds.items())
    return (
        f"within each group of the last {IN_A_ROW} rollouts all completions earned the same ({kind}), so every "
        "advantage and the gradient were 0"
    )


@alarm(
    "look at a few completions (python -m grpo xray); if they cannot earn it yet, num_shots 1 shows the format; if "
    "they never should, drop the reward"
)
def dead_reward(seen: Observed) -> str | None:
    dead = [
        f"{name} has been {high:g} for every completion of {seen.rollouts_seen[name]} rollouts"
        for name, high in seen.highest.items()
        # not equal: a weight that changes leaves rounding errors
        if seen.rollouts_after_warmup[name] >= DEAD_AFTER
        and high <= 0
        and math.isclose(high, seen.lowest[name], rel_tol=1e-6)
    ]
    return "; ".join(dead) or None


@alarm(
    "lower learning_rate, raise temperature towards 1, or hold the policy back (beta 0.04); resume from an earlier "
    "checkpoint"
)
def mode_collapse(seen: Observed) -> str | None:
    if not seen.has_enough_rollouts:
        return None
    across, within = [], []
    for rollout in seen.rollouts:
        texts, several = rollout.completions, len({str(prompt) for prompt in rollout.prompts}) > 1
        across.append(several and max(Counter(texts).values()) >= 0.9 * len(texts))
        # identical right answers are what training is for
        unsolved = [group for group in rollout.groups() if not all(rollout.correct(group) or [False])]
        within.append(bool(unsolved) and all(len(set(texts[group])) == 1 for group in unsolved))
    if all(across):
        return f"for {IN_A_ROW} rollouts at least 90 % of the completions were the same text, whatever the prompt"
    if all(within):
        return f"for {IN_A_ROW} rollouts all completions of a group were identical wherever they were not all right"
    return None


@alarm("halve learning_rate, or raise beta; resume from an earlier checkpoint")
def kl_runaway(seen: Observed) -> str | None:
    values = seen.last("kl")  # logged only where it is computed: beta > 0
    if values and min(values) > 0.5:
        return f"the KL divergence from the reference model was above 0.5 for {IN_A_ROW} steps, now {values[-1]:.2f}"
    return None


def _entropies(seen: Observed) -> tuple[float, float] | None:
    """Means of the first and the last ENTROPY_WINDOW steps."""
    values = seen.metrics.get("entropy", [])
    if len(values) < 2 * ENTROPY_WINDOW:
        return None
    return fmean(values[:ENTROPY_WINDOW]), fmean(values[-ENTROPY_WINDOW:])


@alarm("lower learning_rate, raise temperature, or set entropy_coef above 0")
def entropy_collapse(seen: Observed) -> str | None:
    entropies = _entropies(seen)
    if entropies and entropies[1] < 0.1 * entropies[0]:
        return f"entropy fell from {entropies[0]:.3f} to {entropies[1]:.4f} nats a token: the policy stopped exploring"
    return None


@alarm("halve learning_rate, or hold the policy back with beta 0.04")
def entropy_runaway(seen: Observed) -> str | None:
    entropies = _entropies(seen)
    if entropies and entropies[1] > max(3 * entropies[0], entropies[0] + 0.5):
        first, last = entropies
        return f"entropy rose from {first:.2f} to {last:.2f} nats a token: the policy drifts towards noise"
    return None


@alarm("lower learning_rate, or resume from an earlier checkpoint; on fp16 use bf16")
def nonfinite_gradient(seen: Observed) -> str | None:
    return f"{seen.nonfinite} NaN or infinity; the step was skipped" if seen.nonfinite else None


@alarm(
    "look at grad_norm: 0 means that no reward differed within a group; otherwise "
    "learning_rate is too small for the weights' precision (optim stable_adamw, or dtype float32), or the trained "
    "parameters are frozen"
)
def weights_unchanged(seen: Observed) -> str | None:
    if seen.weights_moved is False:
        return f"no sampled weight has changed in {seen.updates} optimizer steps with a learning rate above 0"
    return None
