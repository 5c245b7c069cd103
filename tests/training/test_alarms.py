"""grpo/training/alarms.py: each alarm is raised by its cause, not by one rollout that chance made."""

import math

import pytest

from grpo.training.alarms import ALARMS, DEAD_AFTER, History, collapse


def seen(*rollouts, **facts):
    history = History(**facts)
    for rollout in rollouts:
        history.add({"warm": 1.0, **rollout}, (False, False))
    return history


def each(key, *values):
    """Rollouts with these values of a metric."""
    return seen(*({key: value} for value in values))


def check(name, history):
    return ALARMS[name].check(history)


def test_the_names_that_others_rely_on():
    assert list(ALARMS) == [
        "all_truncated", "zero_variance", "dead_reward", "mode_collapse", "kl_runaway", "entropy_collapse",
        "entropy_runaway", "nonfinite_gradient", "weights_unchanged", "vllm_out_of_sync",
    ]  # fmt: skip
    assert all(alarm.remedy for alarm in ALARMS.values())


def test_nothing_seen_raises_nothing():
    assert not any(check(name, History()) for name in ALARMS)


@pytest.mark.parametrize(
    ("shares", "raised"), [([0.9, 1, 1, 1], True), ([1, 1], False), ([1, 1, 0.99], False), ([1, 1, 1, 0.5], False)]
)
def test_all_truncated_takes_three_rollouts_in_a_row(shares, raised):
    assert bool(check("all_truncated", each("completions/clipped_ratio", *shares))) is raised


def test_a_rollout_that_serves_five_steps_is_enough_to_be_truncated():
    one = {"completions/clipped_ratio": 1.0}
    assert "first 5 optimizer steps" in check("all_truncated", seen(one, steps=5))
    assert check("all_truncated", seen(one, steps=4)) is None
    assert check("all_truncated", seen({"completions/clipped_ratio": 0.9}, one, steps=9)) is None


@pytest.mark.parametrize(
    ("values", "alarm"),
    [
        ([0.4] * 25 + [0.03] * 5, "entropy_collapse"),
        ([0.4] * 25 + [0.05] * 5, None),
        ([0.4] * 25 + [1.3] * 5, "entropy_runaway"),
        ([0.05] * 5 + [0.3] * 5, None),  # from hardly any to little
        ([0.4] * 5 + [0.0] * 4, None),
    ],
)
def test_entropies_are_compared_with_the_first_ones(values, alarm):
    history = each("entropy", *values)
    assert [name for name in ("entropy_collapse", "entropy_runaway") if check(name, history)] == [alarm] * bool(alarm)


def test_one_spike_of_the_kl_is_no_runaway():
    assert check("kl_runaway", each("kl", 0.1, 9.0, 0.1)) is None
    assert "rollouts: 0.80" in check("kl_runaway", each("kl", 0.1, 0.6, 0.7, 0.8))


def test_what_is_not_finite_and_what_never_moved_is_named():
    assert "NaN or infinity" in check("nonfinite_gradient", seen(skipped=True))
    assert "in 5 optimizer steps" in check("weights_unchanged", seen(weights_moved=False, updates=5))
    assert not check("weights_unchanged", seen(weights_moved=True, updates=5))


@pytest.mark.parametrize(("gap", "raised"), [(0.01, False), (0.3, False), (0.5, True)])
def test_vllm_with_other_weights_is_further_than_rounding(gap, raised):
    """At an entropy of 1.88 SmolLM2's rounding makes 0.04."""
    rollout = {"sampling/sampling_logp_difference/mean": gap, "entropy": 1.88}
    assert bool(check("vllm_out_of_sync", seen(rollout, rollout, rollout))) is raised
    once = {**rollout, "sampling/sampling_logp_difference/mean": 0.01}
    assert check("vllm_out_of_sync", seen(rollout, once, rollout)) is None


# --- Groups without differences


def rollout(**shares):
    return {"frac_reward_zero_std": 1.0, **{f"groups/{name}": share for name, share in shares.items()}}


@pytest.mark.parametrize(
    ("shares", "kind"),
    [
        ({"all_right": 1.0, "all_wrong": 0.0}, "(all right)"),
        ({"all_right": 0.0, "all_wrong": 1.0}, "(all wrong)"),
        ({"all_right": 0.25, "all_wrong": 0.75}, "(25 % of them all right, 75 % of them all wrong)"),
        ({"all_right": 0.0, "all_wrong": 0.0}, "(constant reward)"),  # right and wrong earn the same
        ({}, "(constant reward)"),  # nobody knows what is right
    ],
)
def test_zero_variance_says_what_the_judge_found(shares, kind):
    one = rollout(**shares)
    assert kind in check("zero_variance", seen(one, one, one))
    assert check("zero_variance", seen(one, one)) is None
    assert check("zero_variance", seen(one, {**one, "frac_reward_zero_std": 0.9}, one)) is None


# --- Rewards that never fire


def earned(mean, std=0.0, name="some", **others):
    return {f"rewards/{name}/mean": mean, f"rewards/{name}/std": std, **others}


@pytest.mark.parametrize(
    ("one", "dead"),
    [
        (earned(0.0, name="soft_overlong_punishment_reward"), False),  # there was nothing to punish
        (earned(0.0, name="repetition_penalty_reward"), False),
        (earned(0.0), True),
        (earned(-1.0), True),
        (earned(0.0, std=0.5), False),
        (earned(1.0), False),
        (earned(0.0, name="style_reward_func"), False),  # a penalty, and nothing to punish
        (earned(-0.5, name="style_reward_func"), True),
    ],
)
def test_a_dead_reward_is_constant_and_not_above_zero(one, dead):
    assert check("dead_reward", seen(*[one] * (DEAD_AFTER - 1))) is None
    message = check("dead_reward", seen(*[one] * DEAD_AFTER))
    assert bool(message) is dead and (not dead or f"for every completion of the last {DEAD_AFTER}" in message)
    if dead:
        once = {**one, **{key: 1.0 for key in one if key.endswith("mean")}}
        assert check("dead_reward", seen(*[one] * 10, once, *[one] * (DEAD_AFTER - 1))) is None


def test_rollouts_of_the_warm_up_do_not_count_as_dead():
    rollouts = [{**earned(0.0), "warm": 0.0}] * 2 + [earned(0.0)] * (DEAD_AFTER - 1)
    assert check("dead_reward", seen(*rollouts)) is None
    assert check("dead_reward", seen(*rollouts, earned(0.0)))


def test_a_reward_is_dead_after_rollouts_of_its_own_stage():
    off, on = (earned(0.0, **{"reward_weights/some": weight}) for weight in (0.0, 1.0))
    assert check("dead_reward", seen(*[off] * DEAD_AFTER, *[on] * (DEAD_AFTER - 1))) is None
    assert "some has been 0 " in check("dead_reward", seen(*[off] * DEAD_AFTER, *[on] * DEAD_AFTER))


def test_a_history_holds_the_first_rollouts_and_the_last():
    history = each("entropy", *range(1000))
    assert [metrics["entropy"] for metrics in history.rollouts] == [*range(5), *range(980, 1000)]


# --- Collapse


def test_one_text_for_every_prompt_is_collapse():
    assert collapse(["1", "1", "2", "2"], ["x"] * 4, [0.0, 0.0], 2) == (True, True)
    assert collapse(["1", "1", "1", "1"], ["x"] * 4, [0.0, 0.0], 2)[0] is False  # one prompt
    assert "whatever the prompt" in check("mode_collapse", seen(collapsed=[(True, True)] * 3))
    assert check("mode_collapse", seen(collapsed=[(True, True), (False, False), (True, True)])) is None


@pytest.mark.parametrize(("share", "collapsed"), [(1.0, False), (0.0, True), (math.nan, True)])
def test_identical_answers_collapse_only_if_not_right(share, collapsed):
    """As the judge says, whatever the rewards are called."""
    assert collapse(["1", "1", "2", "2"], ["x", "x", "y", "y"], [share] * 2, 2) == (False, collapsed)
    assert bool(check("mode_collapse", seen(collapsed=[(False, collapsed)] * 3))) is collapsed
