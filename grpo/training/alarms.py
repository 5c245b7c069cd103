"""What goes wrong in GRPO runs, each with its cause and its remedy: functions of what has been observed so far.

A check looks at an `Observed` and returns a sentence, or None while all is well. `ALARMS`, at the end, names them.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from statistics import fmean

from grpo.training.observed import IN_A_ROW, WINDOW, Observed, Rollout

Finding = str | None
NEVER = 20  # rollouts after warm-up (before, the policy hardly moves) when a reward that never fired is called dead
MOVES = 5  # optimizer steps with a learning rate above 0 after which some weight must differ
GOES_ON = ("dead_reward", "tiny_variance")  # the run still learns from its other rewards: no reason to stop it


def _correct(rollout: Rollout, group: slice) -> list[bool] | None:
    """Which completions of a group are right; None where no reward says so."""
    said = rollout.rewards | rollout.others  # a reward of another stage knows it too
    columns = [values[group] for name, values in said.items() if re.search(r"(^|_)(correct|accura)", name)]
    rows = zip(zip(*columns, strict=True), rollout.scored(group), strict=True) if columns else ()
    return [all((value or 0) > 0 for value in row) for row, scored in rows if scored] or None


def all_truncated(seen: Observed) -> Finding:
    shares = seen.last("completions/clipped_ratio")
    if shares and min(shares) == 1:
        return f"every completion of the last {IN_A_ROW} optimizer steps was cut off before its end"
    return None


def no_chat_template(seen: Observed) -> Finding:
    if seen.chat_template_unused and all_truncated(seen):
        return "no completion stops, and the prompts are bare text although the model has a chat template"
    return None


def _kind(seen: Observed, rollout: Rollout, group: slice) -> str:
    """Why the completions of a group earned the same."""
    verdict, (low, high) = _correct(rollout, group), seen.totals or (0.0, 0.0)
    if verdict is None and low < high:  # no reward says what is right: the best and the worst seen so far do
        total = rollout.totals(group)[0]
        verdict = [total == high] if total in (low, high) else None
    if verdict is None or (any(verdict) and not all(verdict)):  # where rewards cancel out, some are right
        return "constant reward"
    return "all right" if all(verdict) else "all wrong"


def zero_variance(seen: Observed) -> Finding:
    if not seen.settled or any(
        max(rollout.totals(group)) - min(rollout.totals(group)) > 1e-8
        for rollout in seen.rollouts
        for group in rollout.groups()
    ):
        return None
    groups = [(rollout, group) for rollout in seen.rollouts for group in rollout.groups()]
    kinds = Counter(_kind(seen, rollout, group) for rollout, group in groups)
    kind = next(iter(kinds)) if len(kinds) == 1 else ", ".join(f"{n} groups {kind}" for kind, n in kinds.items())
    return (
        f"within each group of the last {IN_A_ROW} rollouts all completions earned the same ({kind}), so every "
        "advantage and the gradient were 0"
    )


def dead_rewards(seen: Observed) -> dict[str, str]:
    """Each reward that has never fired, by name."""
    return {
        name: f"{name} has been {high:g} for every completion of {seen.rollouts_seen[name]} rollouts"
        for name, high in seen.highest.items()
        # a weight that changes leaves its rounding errors
        if seen.rollouts_after_warmup[name] >= NEVER
        and high <= 0
        and math.isclose(high, seen.lowest[name], rel_tol=1e-6)
    }


def _size(values: list[float | None]) -> float:
    """How large a reward usually is: nine in ten values are not larger."""
    sizes = sorted(abs(value) for value in values if value is not None)
    return sizes[int(0.9 * (len(sizes) - 1))] if sizes else 0.0


def tiny_variance(seen: Observed) -> Finding:
    """Dividing by the group's standard deviation blows a thousandth up to a full advantage."""
    if not seen.settled or not seen.scaled_by_group:
        return None
    scale = max(_size(rollout.rewards[name]) for rollout in seen.rollouts for name in rollout.rewards)
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
    return f"{seen.nonfinite} NaN or infinity; the step was skipped" if seen.nonfinite else None


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
        "look at a few completions (python -m grpo xray); if they cannot earn it yet, num_shots 1 shows the format; "
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
        "lower learning_rate, or go on from an earlier checkpoint; on fp16 use bf16",
    ),
    "weights_unchanged": (
        weights_unchanged,
        "look at grad_norm: 0 means that no reward differed within a group; otherwise learning_rate is too small for "
        "the weights' precision (optim stable_adamw, or dtype float32), or the trained parameters are frozen",
    ),
}
