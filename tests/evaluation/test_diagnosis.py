"""A run that learned nothing gets at most two causes, by its logs and answers, each with the setting to change."""

import pytest

from grpo.evaluation.diagnosis import causes, why_nothing_was_learned
from grpo.runs.charts import read_curves

DEAD = "rewards/strict_format_reward_func"
RISES = [0.5, 0.7, 0.6, 0.9, 1.0, 0.9, 1.2, 1.3, 1.2, 1.5]
HEALTHY = {
    "completions/clipped_ratio": 0.02,
    "frac_reward_zero_std": 0.2,
    "groups/all_right": 0.2,
    "groups/all_wrong": 0.3,
    "groups/mixed": 0.5,
    f"{DEAD}/mean": 0.25,
    f"{DEAD}/std": 0.2,
    "rewards/correctness_reward_func/mean": 0.4,
    "rewards/style_reward_func/mean": 0.0,
    "rewards/style_reward_func/std": 0.0,
}


def found(rewards=RISES, unchanged=3, perfect=None, right=(), wrong=None, paid=None, **logged):
    """The causes of a run that logged these rewards, and at each log HEALTHY with what is given instead.

    Args:
        right: how many answers are right before and after.
        paid: whether the recorded rewards pay for right answers; None: there are none.
    """
    if wrong is None:
        wrong = {name: value for name, value in (perfect or {}).items() if "correctness" not in name}
    logged = HEALTHY | {key.replace("__", "/"): value for key, value in logged.items()}
    metrics = [{"step": step, "reward": reward, **logged} for step, reward in enumerate(rewards, 1)]
    before = [{"completion": f"a{place}"} for place in range(30)]
    after = [{"completion": f"{'a' if place < unchanged else 'b'}{place}"} for place in range(30)]
    for records, count in zip((before, after), right, strict=False):
        for place, record in enumerate(records):
            record["lenient"] = place < count
            if paid is not None:
                record["rewards"] = {"correctness_reward_func": 2.0 * (paid and place < count), "failed": None}
    return causes(read_curves(metrics), before, after, perfect or {}, wrong or {})


def test_a_healthy_run_gives_no_cause():
    assert found() == [] and causes({}, [{"completion": "a"}], [{"completion": "b"}], {}, {}) == []


CASES = [  # what the run shows, and of each cause, in their order, its figure and the setting to change
    ({"unchanged": 27}, [("27 of 30", "learning_rate")]),
    ({"groups__all_wrong": 0.8}, [("80 %", "num_generations")]),
    ({"groups__all_right": 0.9, "frac_reward_zero_std": 0.9, "unchanged": 29}, [("90 %", "dataset_name")]),
    ({"completions__clipped_ratio": 0.6}, [("60 %", "max_completion_length")]),
    ({"frac_reward_zero_std": 0.95, "unchanged": 30}, [("95 %", "reward_funcs")]),
    ({f"{DEAD}/mean": 0.0, f"{DEAD}/std": 0.0}, [("strict_format", "reward_funcs")]),
    ({"rewards/own/mean": 0.0, "perfect": {"own": 0.0}}, [("own", "reward_funcs")]),
    ({f"{DEAD}/mean": 0.0, f"{DEAD}/std": 0.0, "perfect": {"strict_format_reward_func": 0.0}}, []),
    ({"rewards": RISES[::-1]}, [("from 1.5", "halve learning_rate")]),
    ({"rewards": RISES[:3:-1]}, []),  # too short to tell
    ({"rewards": RISES[::-1], "reward_weights/strict_format_reward_func": 0.5}, []),  # stages: other sums
    ({"unchanged": 29, "right": (28, 28)}, [("93 %", "dataset_name")]),
    ({"unchanged": 27, "right": (9, 9)}, [("18 of 21", "learning_rate")]),
    ({"right": (0, 0), "groups__all_wrong": 0.5}, []),
    ({"unchanged": 12, "right": (9, 9)}, []),  # right answers may stay as they are
    ({"right": (0, 0), "perfect": {"strict_format_reward_func": 0.2}}, [("125 %", "judge_reward_func")]),
    (  # what pays nothing for a perfect completion is not compared, so the sentence may not mean all rewards
        {"right": (0, 0), "perfect": {"strict_format_reward_func": 0.2, "style_reward_func": 0.0}},
        [("from each reward that pays for it", "judge_reward_func")],
    ),
    (
        {"right": (0, 0), "paid": False, "perfect": {"strict_format_reward_func": 0.2}},
        [("125 %", "judge_reward_func")],
    ),
    # rewards that pay for right answers: by preflight, by the recorded completions, and the user's own
    (
        {"right": (0, 0), "perfect": {"strict_format_reward_func": 0.2}, "wrong": {"strict_format_reward_func": 0.1}},
        [],
    ),
    ({"right": (3, 3), "paid": True, "perfect": {"strict_format_reward_func": 0.2}}, []),
    ({"right": (0, 0), "perfect": {"strict_format_reward_func": 0.2}, "rewards/own/mean": 0.1}, []),
    ({"right": (20, 8)}, [("from 0.5", "reward_weights")]),  # and the reward rose
    ({"right": (20, 19)}, []),
    # two at most, the important ones first
    (
        {"unchanged": 27, "groups__all_wrong": 0.8, "rewards": RISES[::-1]},
        [("27 of 30", "learning_rate"), ("80 %", "num_generations")],
    ),
    (
        {"completions__clipped_ratio": 1, "groups__all_wrong": 1, "unchanged": 27, "frac_reward_zero_std": 1},
        [("100 %", "max_completion_length"), ("100 %", "num_generations")],
    ),
]


def test_without_a_reward_that_knows_what_is_right_the_held_out_answers_tell():
    wrong = [{"completion": "a", "lenient": False}] * 30
    (cause,) = causes({}, wrong, [{"completion": "b", "lenient": False}] * 30, {}, {})
    assert "none of 30" in cause and "dataset_name" in cause
    assert causes({}, wrong, [{"completion": "b", "lenient": True}] * 30, {}, {}) == []


@pytest.mark.parametrize(("shown", "causes"), CASES)
def test_each_cause_is_named_with_its_setting(shown, causes):
    for text, (figure, setting) in zip(found(**shown), causes, strict=True):
        assert figure in text and setting in text


SAME = "in every group all completions earned the same"


@pytest.mark.parametrize(
    ("same", "norms", "why"),
    [
        ((1.0, 1.0), (0.0, 0.0), f"nothing was learned, since {SAME} and every gradient was 0"),
        ((1.0, 1.0), (0.0, 0.2), f"no reward could be learned, since {SAME}"),  # an entropy bonus, a KL term
        ((1.0, 1.0), (None, None), f"no reward could be learned, since {SAME}"),
        ((1.0, 0.5), (0.0, 0.0), "nothing was learned, since every gradient was 0"),  # all were cut off, and masked
        ((1.0, 0.5), (0.0, 0.1), ""),
        ((0.5, 0.5), (None, None), ""),
        ((None, None), (None, None), ""),
    ],
)
def test_a_run_without_a_signal_or_a_gradient_says_so(same, norms, why):
    pairs = zip(same, norms, strict=True)
    lines = [{"step": step, "frac_reward_zero_std": one, "grad_norm": norm} for step, (one, norm) in enumerate(pairs)]
    assert why_nothing_was_learned(read_curves(lines)) == why


def test_a_reward_is_dead_only_if_it_can_be_earned():
    never = {"rewards/own/mean": 0.0, "rewards/own/std": 0.0}
    assert found(**never) == found(**never, perfect={"own": -1.0}) == []  # it may be a penalty
    assert "own" in found(**never, perfect={"own": 1.0})[0]
    assert found(**{**never, "rewards/own/std": 0.1}, perfect={"own": 1.0}) == []
    none_right = {**never, "groups__all_wrong": 1.0, "perfect": {"own": 1.0}}
    assert len(found(**none_right)) == len(found(**none_right, wrong={"own": 1.0})) == 2  # one for the format
    assert len(found(**none_right, wrong={"own": 0.0})) == 1  # one for right answers: the first cause says it already
