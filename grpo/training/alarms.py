"""Alarms: GRPO runs that go wrong, recognized from TRL's metrics and the judge's verdicts, each with a fix.

`Watch` (callbacks.py) fills a `History`; the checks below, all listed in `ALARMS`, are pure functions of it. A check
returns a sentence, or None while all is well.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

PENALTIES = {"style_reward_func", "soft_overlong_punishment_reward", "repetition_penalty_reward"}

ENTROPY_WINDOW = 5  # rollouts over which entropies are averaged
IN_A_ROW = 3  # rollouts that must look alike before an alarm: one may be chance
DEAD_AFTER = 20  # rollouts after warm-up (before, the policy hardly moves) without any value above 0
MIN_UPDATES = 5  # optimizer steps after which some weight must differ, and some completion must have ended
WARN_ONLY = ("dead_reward",)  # the run still learns from its other rewards: no reason to stop it
# How far vLLM's log-probabilities may be from the policy's, on average over the sampled tokens: nats, and a multiple
# of the entropy. Ten times what rounding makes (0.004 at an entropy of 0.12, 0.04 at 1.88); weights of SmolLM2 with
# noise of 3 % of their standard deviation are 0.21 away
MAX_LOGPROB_GAP = 0.02, 0.2

Metrics = dict[str, float]
Collapse = tuple[bool, bool]  # across prompts, within groups


@dataclass
class History:
    """A run's rollouts so far, which every checkpoint holds.

    Attributes:
        rollouts: TRL's metrics of the first and the last ones, with those of groups, as they are when a rollout's
            first optimizer step ends; `warm` says whether the learning rate had risen by then.
        collapsed: `collapse` of the last IN_A_ROW.
        cut: whether all completions so far were cut off.
        steps: optimizer steps.
        updates: those with a learning rate above 0.
        skipped: whether the last optimizer step was skipped for its gradient.
        weights_moved: None until it is known.
    """

    rollouts: list[Metrics] = field(default_factory=list)
    collapsed: list[Collapse] = field(default_factory=list)
    cut: bool = True
    steps: int = 0
    updates: int = 0
    skipped: bool = False
    weights_moved: bool | None = None

    def add(self, metrics: Metrics, collapsed: Collapse) -> None:
        """Note a rollout."""
        self.rollouts.append(metrics)
        if len(self.rollouts) > ENTROPY_WINDOW + DEAD_AFTER:
            del self.rollouts[ENTROPY_WINDOW]
        self.collapsed = [*self.collapsed, collapsed][-IN_A_ROW:]
        self.cut &= metrics.get("completions/clipped_ratio") == 1

    def last(self, key: str) -> list[float]:
        """The metric in the last IN_A_ROW rollouts; empty where one of them lacks it."""
        values = [metrics[key] for metrics in self.rollouts[-IN_A_ROW:] if key in metrics]
        return values if len(values) == IN_A_ROW else []


def collapse(prompts: Sequence[Any], texts: Sequence[str], solved: Sequence[float], group: int) -> Collapse:
    """Whether a rollout's completions are the same whatever the prompt, and within each group that is not all right.

    Args:
        solved: the share of each group's completions that is right; NaN where nobody can tell.
        group: completions of a group.
    """
    across = len(set(map(str, prompts))) > 1 and max(Counter(texts).values()) >= 0.9 * len(texts)
    # identical right answers are what training is for
    unsolved = [texts[at * group : (at + 1) * group] for at, share in enumerate(solved) if share != 1]
    return across, bool(unsolved) and all(len(set(completions)) == 1 for completions in unsolved)


# --- The alarms


Check = Callable[[History], str | None]


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
def all_truncated(seen: History) -> str | None:
    shares = seen.last("completions/clipped_ratio")
    if shares and min(shares) == 1:
        return f"every completion of the last {IN_A_ROW} rollouts was cut off before its end"
    if seen.cut and seen.rollouts and seen.steps >= MIN_UPDATES:  # a rollout may serve several steps
        return f"every completion of the first {seen.steps} optimizer steps was cut off before its end"
    return None


@alarm(
    "all wrong: easier questions, num_shots 1, a longer max_completion_length or a larger num_generations; all right: "
    "harder questions, or stop here; constant reward: add a reward that distinguishes completions"
)
def zero_variance(seen: History) -> str | None:
    shares = seen.last("frac_reward_zero_std")
    if not shares or min(shares) < 1:
        return None
    kinds = {name: seen.last(f"groups/{name.replace(' ', '_')}") for name in ("all right", "all wrong")}
    known = [f"{100 * fmean(values):.0f} % of them {name}" for name, values in kinds.items() if values and any(values)]
    kind = next((name for name, values in kinds.items() if values and min(values) == 1), ", ".join(known))
    return (
        f"within each group of the last {IN_A_ROW} rollouts all completions earned the same "
        f"({kind or 'constant reward'}), so every advantage and the gradient were 0"
    )


@alarm(
    "look at a few completions (python -m grpo xray); if they cannot earn it yet, num_shots 1 shows the format; if "
    "they never should, drop the reward"
)
def dead_reward(seen: History) -> str | None:
    last, dead = seen.rollouts[-DEAD_AFTER:], []
    if len(last) < DEAD_AFTER or not all(metrics["warm"] for metrics in last):
        return None
    for name in [key[8:-5] for key in last[-1] if key.startswith("rewards/") and key.endswith("/mean")]:
        means = [metrics.get(f"rewards/{name}/mean", math.nan) for metrics in last]
        stds = [metrics.get(f"rewards/{name}/std", 0.0) for metrics in last]
        in_use = all(metrics.get(f"reward_weights/{name}") != 0 for metrics in last)  # otherwise another stage's
        idle = name in PENALTIES and means[-1] == 0  # there was nothing to punish
        if in_use and not idle and len(set(means)) == 1 and not any(stds) and means[0] <= 0:
            dead.append(
                f"the reward {name} has been {means[0]:g} for every completion of the last {DEAD_AFTER} rollouts"
            )
    return "; ".join(dead) or None


@alarm(
    "lower learning_rate, raise temperature towards 1, or hold the policy back (beta 0.04); resume from an earlier "
    "checkpoint"
)
def mode_collapse(seen: History) -> str | None:
    if len(seen.collapsed) < IN_A_ROW:
        return None
    if all(across for across, _ in seen.collapsed):
        return f"for {IN_A_ROW} rollouts at least 90 % of the completions were the same text, whatever the prompt"
    if all(within for _, within in seen.collapsed):
        return f"for {IN_A_ROW} rollouts all completions of a group were identical wherever they were not all right"
    return None


@alarm("halve learning_rate, or raise beta; resume from an earlier checkpoint")
def kl_runaway(seen: History) -> str | None:
    values = seen.last("kl")  # logged only where it is computed: beta > 0
    if values and min(values) > 0.5:
        return f"the KL divergence from the reference model was above 0.5 for {IN_A_ROW} rollouts: {values[-1]:.2f}"
    return None


def _entropies(seen: History) -> tuple[float, float]:
    """Means of the first and the last ENTROPY_WINDOW rollouts; NaN before there are as many."""
    values = [metrics["entropy"] for metrics in seen.rollouts if "entropy" in metrics]
    if len(values) < 2 * ENTROPY_WINDOW:
        return math.nan, math.nan
    return fmean(values[:ENTROPY_WINDOW]), fmean(values[-ENTROPY_WINDOW:])


@alarm("lower learning_rate, raise temperature, or set entropy_coef above 0")
def entropy_collapse(seen: History) -> str | None:
    first, last = _entropies(seen)
    if last < 0.1 * first:
        return f"entropy fell from {first:.3f} to {last:.4f} nats a token: the policy stopped exploring"
    return None


@alarm("halve learning_rate, or hold the policy back with beta 0.04")
def entropy_runaway(seen: History) -> str | None:
    first, last = _entropies(seen)
    if last > max(3 * first, first + 0.5):
        return f"entropy rose from {first:.2f} to {last:.2f} nats a token: the policy drifts towards noise"
    return None


@alarm("lower learning_rate, or resume from an earlier checkpoint; on fp16 use bf16")
def nonfinite_gradient(seen: History) -> str | None:
    return "the gradient holds NaN or infinity; the step was skipped" if seen.skipped else None


@alarm(
    "look at grad_norm: 0 means that no reward differed within a group; otherwise "
    "learning_rate is too small for the weights' precision (use dtype float32), or the trained parameters are frozen"
)
def weights_unchanged(seen: History) -> str | None:
    if seen.weights_moved is False:
        return f"no sampled weight has changed in {seen.updates} optimizer steps with a learning rate above 0"
    return None


@alarm("check that vLLM serves this model in a version that TRL supports, or use --use_vllm false")
def vllm_out_of_sync(seen: History) -> str | None:
    gaps, entropies = seen.last("sampling/sampling_logp_difference/mean"), seen.last("entropy") or [0.0] * IN_A_ROW
    nats, share = MAX_LOGPROB_GAP
    if gaps and all(gap > nats + share * entropy for gap, entropy in zip(gaps, entropies, strict=True)):
        return (
            f"vLLM's log-probabilities of the sampled tokens have been {min(gaps):.3f} nats or more from the policy's "
            f"for {IN_A_ROW} rollouts, more than rounding explains: it samples with other weights"
        )
    return None
