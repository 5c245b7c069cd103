"""`CAUSES`: reasons why a run learns nothing, or the wrong thing, each with a check and a fix.

Each check reads a `History` and returns a sentence, or None if all is well. The callback `Watch` runs all checks after
each optimizer step and raises their sentences as alarms. After a run that did not get better, `explain` runs them once
more, on all logs and the held-out answers, and returns likely causes.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from grpo.core.text import reward_key, rewarded
from grpo.policy.templates import ADD_END
from grpo.results.comparison import change_of
from grpo.results.measures import LENIENT, REWARD, Measure
from grpo.results.samples import most_given
from grpo.scoring.sample import Sample
from grpo.task.given import MOSTLY, NEARLY_ALL, QUESTIONS, OneAnswer, one_answer, same_text

ENTROPY_WINDOW = 5  # rollouts over which entropies are averaged
IN_A_ROW = 3  # an alarm needs this many similar rollouts, since one may be chance
DEAD_AFTER = 20  # rollouts without any value above 0, after warm-up, since the policy hardly moves before
MIN_UPDATES = 5  # after these optimizer steps some weight must have changed, and some completion ended
OFTEN = 0.5  # a share, as MOSTLY and NEARLY_ALL
MAX_CAUSES = 2  # likely causes to report
NO_CAUSE_NEEDED = ("got_better", "no_accuracy")  # verdicts
# Largest mean gap between vLLM's log-probabilities and the policy's, over the sampled tokens: in nats, and as a
# multiple of the entropy. Rounding makes a tenth of it (0.004 at an entropy of 0.12, 0.04 at 1.88). Noise of 3 % of
# their standard deviation on SmolLM2's weights makes 0.21
MAX_LOGPROB_GAP = 0.02, 0.2
LOGPROB_GAP = "sampling/sampling_logp_difference/mean"
DEAD = "dead"  # the share of groups without a difference among those that were trained on

Metrics = dict[str, Any]  # None if a metric has no value


@dataclass
class History:
    """The evidence: a run's rollouts so far or, after its end, all logs and the held-out answers.

    It is part of every checkpoint.

    Attributes:
        rollouts: metrics of the first and the last rollouts (TRL's, and those of groups) after their first optimizer
            step; `warm` is True after warm-up. At the end, all logs.
        collapsed: `collapse` of the last IN_A_ROW rollouts.
        given: answers and gold answers of the last rollouts, as `given.tally` counts them.
        steps: optimizer steps.
        updates: optimizer steps with a learning rate above 0.
        skipped: True if the last optimizer step was skipped for its gradient.
        weights_moved: None if not yet known.
        perfect: each reward's value for a perfect completion, by logged name, if preflight measured it.
        penalties: logged names of rewards that never pay more than 0.
        unended: how the chat template ends an answer, if not with an end token; else "".
        answers: the answers to each held-out question before and after training; empty until the end.
        comparison: the content of comparison.json; empty until the end.
        refused: the gold answers that the judge does not accept, in a sentence; empty until the end.
    """

    rollouts: list[Metrics] = field(default_factory=list)
    collapsed: list[bool] = field(default_factory=list)
    given: list[dict[str, Any] | None] = field(default_factory=list)
    steps: int = 0
    updates: int = 0
    skipped: bool = False
    weights_moved: bool | None = None
    perfect: dict[str, float] = field(default_factory=dict)
    penalties: list[str] = field(default_factory=list)
    unended: str = ""
    answers: list[tuple[Sample, Sample]] = field(default_factory=list)
    comparison: dict[str, Any] = field(default_factory=dict)
    refused: str = ""

    def add(self, metrics: Metrics, collapsed: bool, given: dict[str, Any] | None = None) -> None:
        """Add a rollout."""
        self.rollouts.append(metrics)
        if len(self.rollouts) > ENTROPY_WINDOW + DEAD_AFTER:
            del self.rollouts[ENTROPY_WINDOW]
        self.collapsed = [*self.collapsed, collapsed][-IN_A_ROW:]
        self.given = [*self.given, given][-QUESTIONS:]  # each has a question at least

    def resume(self, earlier: Mapping[str, Any]) -> None:
        """Take over the attributes of a checkpoint's history, but for `unended`: that may have been repaired since."""
        for name in vars(self).keys() & earlier.keys() - {"unended"}:
            setattr(self, name, earlier[name])

    @property
    def ended(self) -> bool:
        return bool(self.answers)

    def figure(self, measure: Measure, key: str) -> float:
        """Return a figure of the comparison; NaN, which is below every threshold, without one."""
        value = change_of(measure, self.comparison).get(key)
        return math.nan if value is None else value

    def logged(self, key: str) -> list[float]:
        """Return all values of a metric."""
        values = (_value(line, key) for line in self.rollouts)
        return [value for value in values if value is not None and _is_value(value)]

    def values(self, key: str) -> list[float]:
        """Return the metric in the last IN_A_ROW rollouts, or [] if there are fewer; at the end, in all logs."""
        values = self.logged(key)
        return values if self.ended else values[-IN_A_ROW:] if len(values) >= IN_A_ROW else []

    def mean(self, key: str) -> float:
        """Return the mean of `values`; NaN, which is below every threshold, without values."""
        values = self.values(key)
        return fmean(values) if values else math.nan


def explain(
    history: History,
    log: list[Metrics],
    before: Sequence[Sample],
    after: Sequence[Sample],
    comparison: dict[str, Any],
    refused: str = "",
) -> list[str]:
    """Return up to MAX_CAUSES likely causes why a run did not get better, each with a fix, most important first.

    Args:
        history: the run's, with its last rollouts.
        log: the metrics of all its logs.
        refused: the held-out gold answers that the judge does not accept, in a sentence.
    """
    answers = list(zip(before, after, strict=True))
    seen = replace(history, rollouts=log, answers=answers, comparison=comparison, refused=refused)
    sentences: dict[str, str] = {}
    for name, check, remedy, _ in CAUSES:
        if name not in sentences and (message := check(seen)):
            sentences[name] = f"{message}; {remedy}"
    return list(sentences.values())[:MAX_CAUSES]


def collapse(texts: Sequence[str], solved: Sequence[float], group: int) -> bool:
    """True if the completions in each group are nearly identical, except in groups that are all right.

    Identical right answers are the aim of training.

    Args:
        solved: the share of right completions in each group; NaN if unknown.
        group: the number of completions in a group.
    """
    unsolved = [texts[index * group : (index + 1) * group] for index, share in enumerate(solved) if share != 1]
    most = [max(Counter(completions).values()) for completions in unsolved]
    return bool(most) and min(most) >= NEARLY_ALL * group


# --- The checks


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _all_truncated(seen: History) -> str | None:
    values = seen.values("completions/clipped_ratio")
    if not values and seen.steps >= MIN_UPDATES:  # a rollout may serve several steps
        values = seen.logged("completions/clipped_ratio")
    if values and fmean(values) >= (OFTEN if seen.ended else 1):
        return f"{_percent(fmean(values))} of the completions were cut off before their end"
    return None


def _never_ended(seen: History) -> str | None:
    message = _all_truncated(seen)
    return f"{message}, and {seen.unended}" if message and seen.unended else None


def _without_signal(seen: History, key: str, what: str) -> str | None:
    """Return a sentence if this share of the groups is large and, while training, no group had a difference."""
    share = seen.mean(key)
    if not share >= MOSTLY or not (seen.ended or seen.mean(DEAD) == 1):
        return None
    return f"in {_percent(share)} of the groups {what}"


def _all_right(seen: History) -> str | None:
    before = seen.figure(LENIENT, "before")
    if before >= NEARLY_ALL and not seen.mean("groups/all_right") >= MOSTLY:
        return f"{_percent(before)} of the held-out questions were right before, which leaves little to gain"
    return _without_signal(seen, "groups/all_right", "every completion was right, which leaves little to learn")


def _golds_refused(seen: History) -> str | None:
    return seen.refused or None


def _all_wrong(seen: History) -> str | None:
    return _without_signal(seen, "groups/all_wrong", "no completion was right, so there was none to learn from")


def _all_alike(seen: History) -> str | None:
    return _without_signal(seen, "frac_reward_zero_std", "all completions earned the same, which teaches nothing")


def _weights_unchanged(seen: History) -> str | None:
    if seen.ended and (_no_value(seen) or seen.mean(DEAD) >= MOSTLY):  # the rate is not the cause
        return None
    if seen.weights_moved is False:
        return f"no sampled weight has changed in {seen.updates} optimizer steps with a learning rate above 0"
    # right answers need not change
    same = [not old.verdict.lenient for old, new in seen.answers if old.text == new.text]
    wrong = sum(not old.verdict.lenient for old, _ in seen.answers)
    if wrong and sum(same) >= MOSTLY * wrong:
        share = f", {sum(same)} of the {wrong} wrong ones among them" if wrong < len(seen.answers) else ""
        count = f"{len(same)} of {len(seen.answers)} answers are word for word those from before"
        return f"{count}{share}: the policy hardly moved"
    return None


def _reward_names(rollouts: Sequence[Metrics]) -> list[str]:
    return sorted({name for line in rollouts for key in line if (name := rewarded(key))})


def _value(line: Metrics, key: str) -> float | None:
    """Return a metric of a rollout, or DEAD, which dynamic sampling logs in its own way."""
    if key != DEAD:
        return line.get(key)
    live = line.get("dynamic_sampling/live")
    return line.get("frac_reward_zero_std") if live is None else 1 - live


def _is_value(number: float | None) -> bool:
    return number is not None and not math.isnan(number)


def _no_value(seen: History) -> str | None:
    window, least = (seen.rollouts, 1) if seen.ended else (seen.rollouts[-IN_A_ROW:], IN_A_ROW)
    names = _reward_names(window)
    values = [line.get(reward_key(name)) for line in window for name in names]
    if len(window) < least or not names or any(map(_is_value, values)):
        return None
    return f"the reward {' and '.join(names)} has returned None for every completion"


def _dead_reward(seen: History) -> str | None:
    window, least = (seen.rollouts, 1) if seen.ended else (seen.rollouts[-DEAD_AFTER:], DEAD_AFTER)
    dead = []
    for name in _reward_names(window):
        mean, std = reward_key(name), reward_key(name, "std")
        lines = [line for line in window if mean in line and line.get("warm", 1)]
        values = {line[mean] for line in lines if _is_value(line[mean])}
        if not values and len(lines) >= least:
            dead.append(f"{name} has returned None")
        constant = len(values) == 1 and len(lines) >= least and not any(line.get(std) for line in lines)
        if not constant or (value := values.pop()) > 0 or seen.perfect.get(name, 0) < 0:
            continue
        if value < 0 or name not in seen.penalties:  # otherwise there was nothing to punish
            dead.append(f"{name} has been {value:g}")
    return f"the reward {' and '.join(dead)} for every completion" if dead else None


def _led_astray(seen: History) -> str | None:
    if seen.figure(REWARD, "difference_low") > 0 > seen.figure(LENIENT, "difference_high"):
        return "the reward of held-out answers rose, but fewer of them are right"
    return None


def _reward_fell(seen: History) -> str | None:
    return "the reward of held-out answers fell" if seen.figure(REWARD, "difference_high") < 0 else None


def _mode_collapse(seen: History) -> str | None:
    if len(seen.collapsed) < IN_A_ROW or not all(seen.collapsed):
        return None
    return f"for {IN_A_ROW} rollouts the completions of a group were the same text wherever they were not all right"


def _one_answer(seen: History) -> str | None:
    if seen.ended:
        before, after = _most_given(seen)
        if not (after and after.for_everything):
            return None
        same = before and same_text(before.answer) == same_text(after.answer)
        return f"{after}{f'; before it was {100 * before.given:.0f} %' if before and same else ''}"
    for count in range(IN_A_ROW, len(seen.given) + 1):
        most = one_answer(seen.given[-count:])
        if most is None or most.questions >= QUESTIONS:
            last = f"in the last {count} rollouts"
            return f"{last}, {most}" if most and most.for_everything else None
    return None


def _one_answer_always(seen: History) -> str | None:
    before = _most_given(seen)[0] if seen.ended else None
    return _one_answer(seen) if before and before.for_everything else None


def _most_given(seen: History) -> list[OneAnswer | None]:
    """Return the most frequent held-out answer before and after training."""
    return [most_given(answers) for answers in zip(*seen.answers, strict=True)]


def _kl_runaway(seen: History) -> str | None:
    values = seen.values("kl")[-IN_A_ROW:]  # logged only where it is computed: beta > 0
    if min(values, default=0) > 0.5:
        return f"the KL divergence from the reference model was above 0.5 for {IN_A_ROW} rollouts: {values[-1]:.2f}"
    return None


def _entropies(seen: History) -> tuple[float, float]:
    """Return the means of the first and the last ENTROPY_WINDOW rollouts; NaN if there are fewer."""
    values = seen.logged("entropy")
    if len(values) < 2 * ENTROPY_WINDOW:
        return math.nan, math.nan
    return fmean(values[:ENTROPY_WINDOW]), fmean(values[-ENTROPY_WINDOW:])


def _entropy_collapse(seen: History) -> str | None:
    """Return a sentence if entropy fell and most groups that are not all right no longer differ.

    With mixed groups a run learns on, and groups that are all right have nothing more to explore.
    """
    first, last = _entropies(seen)
    alike, right = (_lately(seen, key) for key in (DEAD, "groups/all_right"))
    right = 0.0 if math.isnan(right) else right  # nobody judges
    if not last < 0.1 * first or right >= MOSTLY or not alike - right >= MOSTLY * (1 - right):
        return None
    return (
        f"entropy fell from {first:.3f} to {last:.4f} nats a token, and in {_percent(alike)} of the groups all "
        "completions earned the same: the policy stopped exploring"
    )


def _lately(seen: History, key: str) -> float:
    """Return the mean of the metric in the last ENTROPY_WINDOW rollouts; NaN without values."""
    values = seen.logged(key)[-ENTROPY_WINDOW:]
    return fmean(values) if values else math.nan


def _entropy_runaway(seen: History) -> str | None:
    first, last = _entropies(seen)
    if last > max(3 * first, first + 0.5):
        return f"entropy rose from {first:.2f} to {last:.2f} nats a token: the policy drifts towards noise"
    return None


def _nonfinite_gradient(seen: History) -> str | None:
    return "the gradient contains NaN or infinity; the step was skipped" if seen.skipped else None


def _vllm_out_of_sync(seen: History) -> str | None:
    nats, share = MAX_LOGPROB_GAP
    lines = [line for line in seen.rollouts if _is_value(line.get(LOGPROB_GAP))][-IN_A_ROW:]
    gaps = [line[LOGPROB_GAP] for line in lines if line[LOGPROB_GAP] > nats + share * (line.get("entropy") or 0.0)]
    if len(gaps) < IN_A_ROW:
        return None
    return (
        f"vLLM's log-probabilities of the sampled tokens are {min(gaps):.3f} nats or more from the policy's, "
        "which rounding does not explain: it samples with other weights"
    )


# --- The list


class Cause(NamedTuple):
    """A check with the name of its alarm and a fix; `stops` is True if `stop_on_alarm` ends a run for it."""

    name: str
    check: Callable[[History], str | None]
    remedy: str
    stops: bool = True


PAY_LESS = "no reward may pay as much for a frequent answer as for the right one"
NAME_ANSWERS = "name the answers in the prompt"

CAUSES = (  # the most important first
    Cause(
        "zero_variance",
        _golds_refused,
        "keep the answer alone in the gold answers, in a `prepare` (docs/your-own-task.md), or write a judge",
    ),
    Cause("dead_reward", _no_value, "return a number for each completion; None skips it"),
    Cause("all_truncated", _never_ended, ADD_END),
    Cause(
        "all_truncated",
        _all_truncated,
        "raise max_completion_length; if they ramble, show the format (num_shots 1), or use an instruct model",
    ),
    Cause(
        "vllm_out_of_sync",
        _vllm_out_of_sync,
        "check that vLLM serves this model in a version that TRL supports, or use --use_vllm false",
    ),
    Cause("mode_collapse", _one_answer_always, f"{NAME_ANSWERS}; {PAY_LESS}"),  # no rate made it
    Cause(
        "mode_collapse",
        _one_answer,
        f"lower learning_rate, or set beta 0.04, and resume from an earlier checkpoint; {PAY_LESS}; if it was so from "
        f"the start, {NAME_ANSWERS}",
    ),
    Cause("zero_variance", _all_right, "use harder questions (dataset_name) or dynamic_sampling, or stop here"),
    Cause(
        "weights_unchanged",
        _weights_unchanged,
        "raise learning_rate (docs/reading-curves.md#which-learning-rate) or max_steps; bfloat16 weights may "
        "lose their updates to rounding (#weights-in-bfloat16 there); if grad_norm is 0, no reward differed within a "
        "group, or the trained parameters are frozen",
    ),
    Cause(
        "zero_variance",
        _all_wrong,
        "use easier questions (dataset_name), num_shots 1, more num_generations or dynamic_sampling, or warm up "
        "(docs/warm-up.md)",
    ),
    Cause("zero_variance", _all_alike, "add a reward to reward_funcs that tells completions apart"),
    Cause(
        "dead_reward",
        _dead_reward,
        "read some completions (the X-ray, docs/evaluation.md); if they cannot earn it yet, num_shots 1 shows the "
        "format; otherwise fix it, or take it out of reward_funcs",
        stops=False,  # the run still learns from its other rewards
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
