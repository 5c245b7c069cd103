"""Causes of a run that learned nothing, by its logs and answers, each with the setting that changes it.

Figures are means over the whole run, the parts before it was resumed included: one unlucky step decides nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from grpo.core.text import short_name
from grpo.runs.charts import Curve
from rewards import REWARD_FUNCS

PENALTIES = {"style_reward_func", "soft_overlong_punishment_reward", "repetition_penalty_reward"}

NEEDS_NONE = ("got_better", "no_accuracy")  # verdicts of which no cause is sought
MOST = 2  # causes that are named
MOSTLY = 75  # per cent
LOGGED = {  # the figures that are means of logged shares, in per cent
    "cut": "completions/clipped_ratio",
    "all_right": "groups/all_right",
    "all_wrong": "groups/all_wrong",
    "all_same": "frac_reward_zero_std",
}
# A figure, the value from which on it is a cause, and what is said then; the most important one first
RULES: tuple[tuple[str, float, str], ...] = (
    (
        "cut",
        50,
        "{cut:.0f} % of the sampled completions were cut off before their end; raise max_completion_length (num_shots "
        "1 helps where they ramble on)",
    ),
    (
        "all_right",
        MOSTLY,
        "in {all_right:.0f} % of the groups every completion was right, which leaves little to learn; use harder "
        "questions (dataset_name), or stop here",
    ),
    (
        "easy",
        90,
        "{easy:.0f} % of the held-out questions were right before, which leaves little to gain; use harder questions "
        "(dataset_name)",
    ),
    (
        "unchanged",
        MOSTLY,
        "{same} of {n} answers {which}are word for word those from before: the policy hardly moved; raise "
        "learning_rate (docs/reading-curves.md#which-learning-rate), or max_steps",
    ),
    (
        "all_wrong",
        MOSTLY,
        "in {all_wrong:.0f} % of the groups no completion was right, so there was none to learn from; use easier "
        "questions (dataset_name), num_shots 1 or a larger num_generations",
    ),
    (
        "none_right",
        1,
        "none of {asked} held-out answers was right, before or after; use easier questions (dataset_name), num_shots "
        "1 or a larger model",
    ),
    (
        "alike",
        MOSTLY,
        "in {alike:.0f} % of the groups all completions earned the same, which teaches nothing; add a reward to "
        "reward_funcs that tells them apart",
    ),
    (
        "dead",
        1,
        "no completion earned anything from {names}, which taught nothing; show what it asks for (num_shots 1), fix "
        "it, or take it out of reward_funcs",
    ),
    (
        "misled",
        95,
        "completions earn at least {misled:.0f} % of what a perfect one does from each reward that pays for it, and "
        "are not right; let reward_funcs pay for right answers (correctness_reward_func, judge_reward_func)",
    ),
    (
        "astray",
        2,
        "the reward rose, from {first:.3g} in the first tenth of the run to {last:.3g} in the last, but right answers "
        "became fewer; drop rewards that pay for wrong ones from reward_funcs, or raise the reward_weights of others",
    ),
    (
        "fall",
        2,
        "the reward fell, from {first:.3g} in the first tenth of the run to {last:.3g} in the last; halve "
        "learning_rate",
    ),
)


def causes(
    curves: Mapping[str, Curve],
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
    perfect: Mapping[str, float],
    wrong: Mapping[str, float],
) -> list[str]:
    """Sentences that may explain why a run did not get better, at most MOST; empty where nothing stands out.

    Args:
        curves: what was logged, by key.
        before, after: the records of two evaluations of the same questions.
        perfect, wrong: what each reward gives for a perfect completion, and for one like it with a wrong answer, as
            far as that is known.
    """
    seen = _figures(curves, before, after, perfect, wrong)
    found = [text for name, least, text in RULES if seen.get(name, 0) >= least]
    return [text.format(**seen) for text in found[:MOST]]


def _figures(
    curves: Mapping[str, Curve],
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
    perfect: Mapping[str, float],
    wrong: Mapping[str, float],
) -> dict[str, Any]:
    """The figures of RULES, and what their sentences mention; those that nobody can know are missing."""
    seen: dict[str, Any] = {name: fmean(curves[key].values) for name, key in LOGGED.items() if key in curves}
    explained = max(seen.get("all_right", 0), seen.get("all_wrong", 0)) >= MOSTLY
    if not explained:
        seen["alike"] = seen.get("all_same", 0)
    judged = "lenient" in before[0]
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if not old.get("lenient")]
    if judged:
        seen["easy"] = 100 * (1 - len(pairs) / len(before))
        if "all_wrong" not in seen and not any(record.get("lenient") for record in (*before, *after)):
            seen |= {"none_right": 1, "asked": len(before)}
    seen |= {"n": len(pairs), "which": "that were wrong " if judged else ""}
    seen["same"] = sum(old["completion"] == new["completion"] for old, new in pairs)
    if pairs and seen.get("all_same", 0) < MOSTLY:  # otherwise there was no gradient, and the rate is not the cause
        seen["unchanged"] = 100 * seen["same"] / seen["n"]
    # a reward for right answers pays nothing while there are none
    for_right = [name for name, value in perfect.items() if value > wrong.get(name, value)]
    dead = [name for name in _unearned(curves, perfect) if not (explained and name in for_right)]
    seen |= {"dead": len(dead), "names": " and ".join(map(short_name, dead))}
    few = judged and sum(map(bool, (new.get("lenient") for new in after))) < len(after) / 2
    if few and not for_right and not _may_pay_for_right(curves, (*before, *after)):
        seen["misled"] = _earned(curves, perfect)
    seen |= _change_of_reward(curves)
    changes = [bool(new.get("lenient")) - bool(old.get("lenient")) for old, new in zip(before, after, strict=True)]
    if -sum(changes) > 2 * sum(map(abs, changes)) ** 0.5:  # more became wrong than chance explains
        seen["astray"] = -seen.get("fall", 0)
    return seen


def _may_pay_for_right(curves: Mapping[str, Curve], records: Sequence[dict[str, Any]]) -> bool:
    """Whether a reward pays right answers more than wrong ones, or is the user's own, which may do so."""
    names = {key[8:-5] for key in curves if key.startswith("rewards/") and key.endswith("/mean")}
    if names - {*REWARD_FUNCS, *PENALTIES}:
        return True
    for name in {name for record in records for name in record.get("rewards", {})}:
        paid: dict[bool, list[float]] = {True: [], False: []}
        for record in records:
            if (value := record.get("rewards", {}).get(name)) is not None:
                paid[bool(record["lenient"])].append(value)
        largest = max(map(abs, (*paid[True], *paid[False])), default=0.0)
        # right answers may by chance be a little more often in the format
        if paid[True] and paid[False] and fmean(paid[True]) - fmean(paid[False]) > 0.1 * largest:
            return True
    return False


def _earned(curves: Mapping[str, Curve], perfect: Mapping[str, float]) -> float:
    """The least share of a perfect completion's rewards that the last completions earned, in per cent."""
    least = [
        100 * curves[f"rewards/{name}/mean"].ends[1] / value
        for name, value in perfect.items()
        if value > 0 and f"rewards/{name}/mean" in curves
    ]
    return min(least, default=0.0)


def _unearned(curves: Mapping[str, Curve], perfect: Mapping[str, float]) -> list[str]:
    """The rewards that gave the same, and not above 0, for every completion, and might have paid."""
    found = []
    for name in [key[8:-5] for key in curves if key.startswith("rewards/") and key.endswith("/mean")]:
        values, spread = curves[f"rewards/{name}/mean"].values, curves.get(f"rewards/{name}/std")
        constant = len(set(values)) == 1 and not (spread and any(spread.values))
        # a penalty that is 0 had nothing to punish, and some of the project's rewards have nothing to pay for here
        pays = perfect.get(name, 1.0) > 0 if name in REWARD_FUNCS else perfect.get(name, -1.0) >= 0
        if constant and values[0] <= 0 and pays and name not in PENALTIES:
            found.append(name)
    return found


def why_nothing_was_learned(curves: Mapping[str, Curve]) -> str:
    """The logs' reason why a run learned nothing from its rewards; empty where they show none.

    A KL term or an entropy bonus has a gradient also where no group's completions earned differently.
    """
    same, norms = curves.get("frac_reward_zero_std"), curves.get("grad_norm")
    no_signal = same is not None and min(same.values) == 100
    no_gradient = norms is not None and max(norms.values) == 0
    reasons = ["in every group all completions earned the same"] if no_signal else []
    if no_gradient:
        return f"nothing was learned, since {' and '.join([*reasons, 'every gradient was 0'])}"
    return f"no reward could be learned, since {reasons[0]}" if reasons else ""


def _change_of_reward(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Its means in the first and the last tenth of the run, and by how many standard errors it fell."""
    reward = curves.get("reward")
    if reward is None or len(reward.values) < 10 or any(key.startswith("reward_weights/") for key in curves):
        return {}  # with other weights it is another sum
    first, last = reward.ends
    # of a single log, from neighbouring ones: what rises or falls for long hardly shows in them
    variance = fmean((new - old) ** 2 for old, new in pairwise(reward.values)) / 2
    error = (2 * variance / reward.tenth) ** 0.5
    return {"first": first, "last": last, "fall": (first - last) / error if error else 0.0}
