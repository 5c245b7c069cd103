"""One list of reasons why a run learns nothing, or the wrong thing, each with its remedy: `CAUSES`.

Each check reads a `History` and returns a sentence, or None while all is well. The callback `Watch` asks all of them
after each optimizer step: the answer is an alarm. When a run that did not get better has ended, `explain` asks them
once more, about everything that was logged and the held-out answers: the answer is a likely cause.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from transformers import TrainerState

from grpo.core.text import counted

ENTROPY_WINDOW = 5  # rollouts over which entropies are averaged
IN_A_ROW = 3  # rollouts that must look alike before an alarm: one may be chance
DEAD_AFTER = 20  # rollouts after warm-up (before, the policy hardly moves) without any value above 0
MIN_UPDATES = 5  # optimizer steps after which some weight must differ, and some completion must have ended
OFTEN, MOSTLY, NEARLY_ALL = 0.5, 0.75, 0.9  # shares of a whole run
MOST = 2  # likely causes that are named
NO_CAUSE_NEEDED = ("got_better", "no_accuracy")  # verdicts
# How far vLLM's log-probabilities may be from the policy's, on average over the sampled tokens: nats, and a multiple
# of the entropy. Ten times what rounding makes (0.004 at an entropy of 0.12, 0.04 at 1.88); weights of SmolLM2 with
# noise of 3 % of their standard deviation are 0.21 away
MAX_LOGPROB_GAP = 0.02, 0.2
LOGPROB_GAP = "sampling/sampling_logp_difference/mean"

Metrics = dict[str, Any]
Record = dict[str, Any]
Collapse = tuple[bool, bool]  # across prompts, within groups


@dataclass
class History:
    """The evidence: a run's rollouts so far, or, when it has ended, all its logs and its held-out answers.

    Every checkpoint holds it.

    Attributes:
        rollouts: TRL's metrics of the first and the last ones, with those of groups, as they are when a rollout's
            first optimizer step ends; `warm` says whether the learning rate had risen by then. At the end, all logs.
        collapsed: `collapse` of the last IN_A_ROW.
        steps: optimizer steps.
        updates: those with a learning rate above 0.
        skipped: whether the last optimizer step was skipped for its gradient.
        weights_moved: None until it is known.
        perfect, wrong: the value of each reward, by its logged name, for a perfect completion and for one like it with
            a wrong answer, where preflight could measure it.
        penalties: logged names of rewards that never pay more than 0.
        answers: the records of each held-out question before and after training; empty until the end.
    """

    rollouts: list[Metrics] = field(default_factory=list)
    collapsed: list[Collapse] = field(default_factory=list)
    steps: int = 0
    updates: int = 0
    skipped: bool = False
    weights_moved: bool | None = None
    perfect: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, float] = field(default_factory=dict)
    penalties: list[str] = field(default_factory=list)
    answers: list[tuple[Record, Record]] = field(default_factory=list)

    def add(self, metrics: Metrics, collapsed: Collapse) -> None:
        """Note a rollout."""
        self.rollouts.append(metrics)
        if len(self.rollouts) > ENTROPY_WINDOW + DEAD_AFTER:
            del self.rollouts[ENTROPY_WINDOW]
        self.collapsed = [*self.collapsed, collapsed][-IN_A_ROW:]

    @property
    def ended(self) -> bool:
        return bool(self.answers)

    @property
    def period(self) -> str:
        """The time that `values` cover, in words."""
        return "of the run" if self.ended else f"of the last {counted(min(len(self.rollouts), IN_A_ROW), 'rollout')}"

    def logged(self, key: str) -> list[float]:
        """All values of a metric."""
        return [line[key] for line in self.rollouts if line.get(key) is not None and not math.isnan(line[key])]

    def values(self, key: str) -> list[float]:
        """The metric in the last IN_A_ROW rollouts, empty before there are as many; at the end, in all logs."""
        values = self.logged(key)
        return values if self.ended else values[-IN_A_ROW:] if len(values) >= IN_A_ROW else []

    def mean(self, key: str) -> float:
        """The mean of `values`; NaN, which reaches no threshold, where there are none."""
        values = self.values(key)
        return fmean(values) if values else math.nan

    def change(self, key: str) -> tuple[float, float, float]:
        """Means of a held-out record's figure before and after, and the rise in standard errors; NaN if unknown."""
        pairs = [(old[key], new[key]) for old, new in self.answers if None not in (old.get(key), new.get(key))]
        if len(pairs) < 2:
            return math.nan, math.nan, math.nan
        before, after = (fmean(side) for side in zip(*pairs, strict=True))
        error = stdev(new - old for old, new in pairs) / len(pairs) ** 0.5
        return before, after, (after - before) / (error or 1e-9)


def at_end(state: TrainerState, before: Sequence[Record], after: Sequence[Record]) -> History:
    """The history of a run that has ended, by the trainer's state and the records of two evaluations."""
    kept: Any = state.stateful_callbacks
    history = History(**kept["watch"]["seen"])
    return replace(history, rollouts=state.log_history, answers=list(zip(before, after, strict=True)))


def explain(seen: History) -> list[str]:
    """Likely causes that a run did not get better, each with its remedy; at most MOST, the most important first."""
    sentences: dict[str, str] = {}
    for name, check, remedy, _ in CAUSES:
        if name not in sentences and (message := check(seen)):
            sentences[name] = f"{message}; {remedy}"
    return list(sentences.values())[:MOST]


def why_nothing_was_learned(seen: History) -> str:
    """The logs' reason why a run learned nothing from its rewards; empty where they show none.

    A KL term or an entropy bonus has a gradient also where no group's completions earned differently.
    """
    no_signal = min(seen.logged("frac_reward_zero_std"), default=0) == 1
    no_gradient = max(seen.logged("grad_norm"), default=1) == 0
    reasons = ["in every group all completions earned the same"] if no_signal else []
    if no_gradient:
        return f"nothing was learned, since {' and '.join([*reasons, 'every gradient was 0'])}"
    return f"no reward could be learned, since {reasons[0]}" if reasons else ""


def collapse(prompts: Sequence[Any], texts: Sequence[str], solved: Sequence[float], group: int) -> Collapse:
    """Whether a rollout's completions are the same whatever the prompt, and within each group that is not all right.

    Args:
        solved: the share of each group's completions that is right; NaN where nobody can tell.
        group: completions of a group.
    """
    across = len(set(map(str, prompts))) > 1 and max(Counter(texts).values()) >= 0.9 * len(texts)
    # identical right answers are what training is for
    unsolved = [texts[index * group : (index + 1) * group] for index, share in enumerate(solved) if share != 1]
    return across, bool(unsolved) and all(len(set(completions)) == 1 for completions in unsolved)


# --- The checks


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _all_truncated(seen: History) -> str | None:
    values = seen.values("completions/clipped_ratio")
    if not values and seen.steps >= MIN_UPDATES:  # a rollout may serve several steps
        values = seen.logged("completions/clipped_ratio")
    if values and fmean(values) >= (OFTEN if seen.ended else 1):
        return f"{_percent(fmean(values))} of the completions {seen.period} were cut off before their end"
    return None


def _without_signal(seen: History, key: str, what: str) -> str | None:
    """A sentence if the metric, a share of the groups, is large, and while training no group had a difference."""
    share = seen.mean(key)
    if not share >= MOSTLY or not (seen.ended or seen.mean("frac_reward_zero_std") == 1):
        return None
    zero = "" if seen.ended else "; within each group all completions earned the same, so every advantage was 0"
    return f"in {_percent(share)} of the groups {seen.period} {what}{zero}"


def _all_right(seen: History) -> str | None:
    before, _, _ = seen.change("lenient")
    if before >= NEARLY_ALL and not seen.mean("groups/all_right") >= MOSTLY:
        return f"{_percent(before)} of the held-out questions were right before, which leaves little to gain"
    return _without_signal(seen, "groups/all_right", "every completion was right, which leaves little to learn")


def _all_wrong(seen: History) -> str | None:
    if math.isnan(seen.mean("groups/all_wrong")) and seen.change("lenient")[:2] == (0, 0):
        return f"none of {len(seen.answers)} held-out answers was right, before or after"
    return _without_signal(seen, "groups/all_wrong", "no completion was right, so there was none to learn from")


def _all_alike(seen: History) -> str | None:
    return _without_signal(seen, "frac_reward_zero_std", "all completions earned the same, which teaches nothing")


def _weights_unchanged(seen: History) -> str | None:
    if seen.ended and seen.mean("frac_reward_zero_std") >= MOSTLY:  # there was no gradient: the rate is not the cause
        return None
    if seen.weights_moved is False:
        return f"no sampled weight has changed in {seen.updates} optimizer steps with a learning rate above 0"
    # right answers may stay as they are
    completions = [(old["completion"], new["completion"]) for old, new in seen.answers if not old.get("lenient")]
    same = sum(before == after for before, after in completions)
    if completions and same >= MOSTLY * len(completions):
        which = "that were wrong " if "lenient" in seen.answers[0][0] else ""
        return (
            f"{same} of {len(completions)} answers {which}are word for word those from before: the policy hardly moved"
        )
    return None


def _dead_reward(seen: History) -> str | None:
    window, least = (seen.rollouts, 1) if seen.ended else (seen.rollouts[-DEAD_AFTER:], DEAD_AFTER)
    dead = []
    for name in sorted({key[8:-5] for line in window for key in line if re.fullmatch("rewards/.*/mean", key)}):
        mean, std, weight = f"rewards/{name}/mean", f"rewards/{name}/std", f"reward_weights/{name}"
        # weight 0: the reward belongs to another stage
        lines = [line for line in window if mean in line and line.get("warm", 1) and line.get(weight) != 0]
        values = {line[mean] for line in lines}
        constant = len(values) == 1 and len(lines) >= least and not any(line.get(std) for line in lines)
        if constant and (value := values.pop()) <= 0 and _might_pay(seen, name, value):
            dead.append(f"{name} has been {value:g}")
    period = "of the run" if seen.ended else f"of the last {DEAD_AFTER} rollouts"
    return f"the reward {' and '.join(dead)} for every completion {period}" if dead else None


def _might_pay(seen: History, name: str, value: float) -> bool:
    """Whether a reward that gave this value for all completions might have paid more."""
    if value == 0 and name in seen.penalties:  # there was nothing to punish
        return False
    solved = max(seen.mean("groups/all_right"), seen.mean("groups/all_wrong")) >= MOSTLY
    if seen.ended and solved and seen.perfect.get(name, 0) > seen.wrong.get(name, math.inf):
        return False  # it pays for right answers: the groups say already that there were none
    # one that nobody could measure may be a penalty: while training a warning costs little, as a cause it is a guess
    return seen.perfect.get(name, -1 if seen.ended else 0) >= 0


def _wrong_is_paid(seen: History) -> str | None:
    _, right, _ = seen.change("lenient")
    scores = [new.get("rewards", {}) for _, new in seen.answers if right < OFTEN]
    names = {name for values in scores for name in values if name not in seen.penalties}
    # one that nobody could measure may pay for right answers
    if any(name not in seen.perfect or seen.perfect[name] > seen.wrong.get(name, math.inf) for name in names):
        return None
    paid = {name: fmean(values.get(name) or 0.0 for values in scores) for name in names}
    least = min((paid[name] / seen.perfect[name] for name in names if seen.perfect[name] > 0), default=0)
    if least < NEARLY_ALL:
        return None
    return (
        f"completions earn at least {_percent(least)} of what a perfect one does from each reward that pays for it, "
        "and are not right"
    )


def _led_astray(seen: History) -> str | None:
    before, after, rise = seen.change("reward")
    if rise >= 2 and seen.change("lenient")[2] <= -2:
        return f"the reward of held-out answers rose from {before:.3g} to {after:.3g}, but fewer of them are right"
    return None


def _reward_fell(seen: History) -> str | None:
    before, after, rise = seen.change("reward")
    return f"the reward of held-out answers fell from {before:.3g} to {after:.3g}" if rise <= -2 else None


def _mode_collapse(seen: History) -> str | None:
    if len(seen.collapsed) < IN_A_ROW:
        return None
    if all(across for across, _ in seen.collapsed):
        return f"for {IN_A_ROW} rollouts at least 90 % of the completions were the same text, whatever the prompt"
    if all(within for _, within in seen.collapsed):
        return f"for {IN_A_ROW} rollouts all completions of a group were identical wherever they were not all right"
    return None


def _kl_runaway(seen: History) -> str | None:
    values = seen.values("kl")[-IN_A_ROW:]  # logged only where it is computed: beta > 0
    if min(values, default=0) > 0.5:
        return f"the KL divergence from the reference model was above 0.5 for {IN_A_ROW} rollouts: {values[-1]:.2f}"
    return None


def _entropies(seen: History) -> tuple[float, float]:
    """Means of the first and the last ENTROPY_WINDOW rollouts; NaN before there are as many."""
    values = seen.logged("entropy")
    if len(values) < 2 * ENTROPY_WINDOW:
        return math.nan, math.nan
    return fmean(values[:ENTROPY_WINDOW]), fmean(values[-ENTROPY_WINDOW:])


def _entropy_collapse(seen: History) -> str | None:
    first, last = _entropies(seen)
    if last < 0.1 * first:
        return f"entropy fell from {first:.3f} to {last:.4f} nats a token: the policy stopped exploring"
    return None


def _entropy_runaway(seen: History) -> str | None:
    first, last = _entropies(seen)
    if last > max(3 * first, first + 0.5):
        return f"entropy rose from {first:.2f} to {last:.2f} nats a token: the policy drifts towards noise"
    return None


def _nonfinite_gradient(seen: History) -> str | None:
    return "the gradient holds NaN or infinity; the step was skipped" if seen.skipped else None


def _vllm_out_of_sync(seen: History) -> str | None:
    lines = [line for line in seen.rollouts if LOGPROB_GAP in line][-IN_A_ROW:]
    nats, share = MAX_LOGPROB_GAP
    if len(lines) < IN_A_ROW or any(line[LOGPROB_GAP] <= nats + share * line.get("entropy", 0.0) for line in lines):
        return None
    return (
        f"for {IN_A_ROW} rollouts vLLM's log-probabilities of the sampled tokens were "
        f"{min(line[LOGPROB_GAP] for line in lines):.3f} nats or more from the policy's, more than rounding explains: "
        "it samples with other weights"
    )


# --- The list


class Cause(NamedTuple):
    """A check with the name of its alarm and its remedy; `stops`: whether `stop_on_alarm` ends a run for it."""

    name: str
    check: Callable[[History], str | None]
    remedy: str
    stops: bool = True


CAUSES = (  # the most important first
    Cause(
        "all_truncated",
        _all_truncated,
        "raise max_completion_length; where they ramble on, show the format (num_shots 1), or use an instruct model",
    ),
    Cause(
        "vllm_out_of_sync",
        _vllm_out_of_sync,
        "check that vLLM serves this model in a version that TRL supports, or use --use_vllm false",
    ),
    Cause("zero_variance", _all_right, "use harder questions (dataset_name), or stop here"),
    Cause(
        "weights_unchanged",
        _weights_unchanged,
        "raise learning_rate (docs/reading-curves.md#which-learning-rate) or max_steps; 16-bit weights may need dtype "
        "float32; if grad_norm is 0, no reward differed within a group, or the trained parameters are frozen",
    ),
    Cause("zero_variance", _all_wrong, "use easier questions (dataset_name), num_shots 1 or more num_generations"),
    Cause("zero_variance", _all_alike, "add a reward to reward_funcs that tells completions apart"),
    Cause(
        "dead_reward",
        _dead_reward,
        "read some completions (python -m grpo xray); if they cannot earn it yet, num_shots 1 shows the format; "
        "otherwise fix it, or take it out of reward_funcs",
        stops=False,  # the run still learns from its other rewards
    ),
    Cause(
        "wrong_is_paid",
        _wrong_is_paid,
        "let reward_funcs pay for right answers (correctness_reward_func, judge_reward_func)",
    ),
    Cause(
        "led_astray",
        _led_astray,
        "drop rewards that pay for wrong answers from reward_funcs, or raise the reward_weights of others",
    ),
    Cause("reward_fell", _reward_fell, "halve learning_rate"),
    Cause(
        "mode_collapse",
        _mode_collapse,
        "lower learning_rate, raise temperature towards 1, or set beta 0.04; resume from an earlier checkpoint",
    ),
    Cause("kl_runaway", _kl_runaway, "halve learning_rate, or raise beta; resume from an earlier checkpoint"),
    Cause("entropy_collapse", _entropy_collapse, "lower learning_rate, raise temperature or entropy_coef"),
    Cause("entropy_runaway", _entropy_runaway, "halve learning_rate, or hold the policy back with beta 0.04"),
    Cause("nonfinite_gradient", _nonfinite_gradient, "lower learning_rate; on fp16 use bf16"),
)
