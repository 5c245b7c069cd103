"""What goes wrong in GRPO runs, each with its cause and its remedy: functions of what has been observed so far.

A check looks at an `Observed` and returns a sentence, or None while all is well. `ALARMS`, at the end, names them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

Finding = str | None
IN_A_ROW = 3  # rollouts or optimizer steps that must look alike: one may be chance
NEVER = 10  # rollouts after which a reward that has never fired is called dead
WINDOW = 5  # optimizer steps over which entropies are averaged
MOVES = 5  # optimizer steps with a learning rate above 0 after which some weight must differ


@dataclass(frozen=True)
class Rollout:
    """One rollout of all processes, group by group.

    `rewards` holds each reward's weighted values, None where it returned none.
    """

    prompts: list[Any]
    completions: list[str]
    rewards: dict[str, list[float | None]]
    group: int  # completions per group

    def groups(self) -> Iterator[slice]:
        return (slice(start, start + self.group) for start in range(0, len(self.prompts), self.group))

    def spread(self, name: str, group: slice) -> float:
        values = [value for value in self.rewards[name][group] if value is not None]
        return max(values) - min(values) if values else 0.0

    def totals(self, group: slice) -> list[float]:
        columns = [self.rewards[name][group] for name in self.rewards]
        return [sum(value or 0.0 for value in row) for row in zip(*columns, strict=True)]


@dataclass
class Observed:
    """What a run has shown so far; a check reads it, the callback in monitoring.py writes it."""

    scaled_by_group: bool = True  # advantages are divided by the group's standard deviation
    chat_template_unused: bool = False  # the tokenizer has a chat template, and the prompts are bare text
    metrics: dict[str, list[float]] = field(default_factory=dict)  # TRL's, the mean of each optimizer step
    rollouts: list[Rollout] = field(default_factory=list)  # the last IN_A_ROW
    rollouts_seen: int = 0
    highest: dict[str, float] = field(default_factory=dict)  # of each reward's weighted values, in the whole run
    lowest: dict[str, float] = field(default_factory=dict)
    gradient_finite: bool = True
    moves: int = 0  # optimizer steps with a learning rate above 0
    weights_moved: bool | None = None  # None before it is known

    def add(self, rollout: Rollout) -> None:
        self.rollouts = [*self.rollouts[1 - IN_A_ROW :], rollout]
        self.rollouts_seen += 1
        for name, values in rollout.rewards.items():
            known = [value for value in values if value is not None]
            self.highest[name] = max([self.highest.get(name, -math.inf), *known])
            self.lowest[name] = min([self.lowest.get(name, math.inf), *known])

    def last(self, key: str) -> list[float]:
        """The metric of the last IN_A_ROW optimizer steps; empty before there are so many."""
        values = self.metrics.get(key, [])
        return values[-IN_A_ROW:] if len(values) >= IN_A_ROW else []

    @property
    def settled(self) -> bool:
        return len(self.rollouts) == IN_A_ROW


def _correct(rollout: Rollout, group: slice) -> list[bool] | None:
    """Which completions of a group are right; None where no reward says so."""
    names = [name for name in rollout.rewards if "correct" in name]
    if not names:
        return None
    return [
        all((value or 0) > 0 for value in row) for row in zip(*(rollout.rewards[n][group] for n in names), strict=True)
    ]


def all_truncated(seen: Observed) -> Finding:
    shares = seen.last("completions/clipped_ratio")
    if shares and min(shares) == 1:
        return f"every completion of the last {IN_A_ROW} optimizer steps was cut off before its end"
    return None


def no_chat_template(seen: Observed) -> Finding:
    if seen.chat_template_unused and all_truncated(seen):
        return "no completion stops, and the prompts are bare text although the model has a chat template"
    return None


def zero_variance(seen: Observed) -> Finding:
    if not seen.settled or any(
        max(rollout.totals(group)) - min(rollout.totals(group)) > 1e-8
        for rollout in seen.rollouts
        for group in rollout.groups()
    ):
        return None
    verdicts = [_correct(rollout, group) for rollout in seen.rollouts for group in rollout.groups()]
    right = sum(verdict is not None and all(verdict) for verdict in verdicts)
    wrong = sum(verdict is not None and not any(verdict) for verdict in verdicts)
    if None in verdicts:
        kind = "constant reward"
    elif right == len(verdicts):
        kind = "all right"
    elif wrong == len(verdicts):
        kind = "all wrong"
    else:
        kind = f"{wrong} groups all wrong, {right} all right"
    return (
        f"within each group of the last {IN_A_ROW} rollouts all completions earned the same ({kind}), so every "
        "advantage and the gradient were 0"
    )


def dead_rewards(seen: Observed) -> dict[str, str]:
    """Each reward that has never fired, by name."""
    if seen.rollouts_seen < NEVER:
        return {}
    dead = [name for name, high in seen.highest.items() if high <= 0 and high == seen.lowest[name]]
    return {
        name: f"{name} has been {seen.highest[name]:g} for every completion of {seen.rollouts_seen} rollouts"
        for name in dead
    }


def tiny_variance(seen: Observed) -> Finding:
    """Dividing by the group's standard deviation blows a thousandth up to a full advantage."""
    if not seen.settled or not seen.scaled_by_group:
        return None
    scale = max(max(abs(seen.highest[name]), abs(seen.lowest[name])) for name in seen.highest)
    deciders: set[str] = set()
    for rollout in seen.rollouts:
        live = [group for group in rollout.groups() if max(rollout.totals(group)) - min(rollout.totals(group)) > 1e-8]
        tiny = [group for group in live if max(rollout.totals(group)) - min(rollout.totals(group)) < 0.02 * scale]
        if not live or 2 * len(tiny) < len(live):
            return None
        deciders |= {name for name in rollout.rewards for group in tiny if rollout.spread(name, group) > 0}
    return (
        f"for {IN_A_ROW} rollouts, in at least half of the groups with any variance, differences below 2 % of the "
        f"rewards' size ({scale:g}) decided the advantage alone; they came from {', '.join(sorted(deciders))}"
    )


def mode_collapse(seen: Observed) -> Finding:
    if not seen.settled:
        return None
    across, within = [], []
    for rollout in seen.rollouts:
        texts, several = rollout.completions, len({str(prompt) for prompt in rollout.prompts}) > 1
        across.append(several and max(Counter(texts).values()) >= 0.9 * len(texts))
        # identical right answers are what training is for
        unsolved = [group for group in rollout.groups() if not all(_correct(rollout, group) or [False])]
        within.append(bool(unsolved) and all(len(set(texts[group])) == 1 for group in unsolved))
    if all(across):
        return f"for {IN_A_ROW} rollouts at least 90 % of the completions were the same text, whatever the prompt"
    if all(within):
        return f"for {IN_A_ROW} rollouts all completions of a group were identical wherever they were not all right"
    return None


def kl_runaway(seen: Observed) -> Finding:
    values = seen.last("kl")  # logged only where it is computed: beta > 0
    if values and min(values) > 0.5:
        return f"the KL divergence from the reference model was above 0.5 for {IN_A_ROW} steps, now {values[-1]:.2f}"
    return None


def _entropies(seen: Observed) -> tuple[float, float] | None:
    values = seen.metrics.get("entropy", [])
    return (fmean(values[:WINDOW]), fmean(values[-WINDOW:])) if len(values) >= 2 * WINDOW else None


def entropy_collapse(seen: Observed) -> Finding:
    entropies = _entropies(seen)
    if entropies and entropies[1] < 0.1 * entropies[0]:
        return f"entropy fell from {entropies[0]:.3f} to {entropies[1]:.4f} nats a token: the policy stopped exploring"
    return None


def entropy_runaway(seen: Observed) -> Finding:
    entropies = _entropies(seen)
    if entropies and entropies[1] > max(3 * entropies[0], entropies[0] + 0.5):
        return (
            f"entropy rose from {entropies[0]:.2f} to {entropies[1]:.2f} nats a token: the policy drifts towards noise"
        )
    return None


def nonfinite_gradient(seen: Observed) -> Finding:
    return None if seen.gradient_finite else "the gradient holds NaN or infinity"


def weights_unchanged(seen: Observed) -> Finding:
    if seen.weights_moved is False:
        return f"no sampled weight has changed in {seen.moves} optimizer steps with a learning rate above 0"
    return None


# name: (check, remedy)
ALARMS: dict[str, tuple[Callable[[Observed], Finding | dict[str, str]], str]] = {
    "all_truncated": (
        all_truncated,
        "raise max_completion_length; if the completions ramble on, the model does not stop by itself: show it the "
        "format (num_shots 1) or take an instruct model",
    ),
    "no_chat_template": (no_chat_template, "give the prompts as chat messages, so that the chat template is applied"),
    "zero_variance": (
        zero_variance,
        "all wrong: easier questions, num_shots 1, a longer max_completion_length or a larger num_generations; all "
        "right: harder questions, or stop here; constant reward: add a reward that tells completions apart",
    ),
    "dead_reward": (
        dead_rewards,
        "look at a few completions (python -m grpo.xray); if they cannot earn it yet, num_shots 1 shows the format; "
        "if they never should, drop the reward",
    ),
    "tiny_variance": (
        tiny_variance,
        "give that reward a smaller say (reward_weights), or scale_rewards none or batch, so that the size of a "
        "difference counts",
    ),
    "mode_collapse": (
        mode_collapse,
        "lower learning_rate, raise temperature towards 1, or hold the policy back (beta 0.04); go on from an earlier "
        "checkpoint",
    ),
    "kl_runaway": (kl_runaway, "halve learning_rate, or raise beta; go on from an earlier checkpoint"),
    "entropy_collapse": (entropy_collapse, "lower learning_rate, raise temperature, or set entropy_coef above 0"),
    "entropy_runaway": (entropy_runaway, "halve learning_rate, or hold the policy back with beta 0.04"),
    "nonfinite_gradient": (
        nonfinite_gradient,
        "lower learning_rate; on fp16 use bf16; look for rewards that return NaN or infinity",
    ),
    "weights_unchanged": (
        weights_unchanged,
        "look at grad_norm: 0 means that no reward differed within a group; otherwise learning_rate is too small for "
        "the weights' precision (optim stable_adamw, or dtype float32), or the trained parameters are frozen",
    ),
}
