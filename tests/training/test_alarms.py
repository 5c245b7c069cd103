"""grpo/training/alarms.py: each alarm is a pure function of what was observed."""

import dataclasses
import json

import pytest

from grpo.training.alarms import ALARMS, DEAD_AFTER, Observed, Rollout


def rollout(texts, group=2, prompts=None, **columns):
    return Rollout(prompts or [str(index // group) for index in range(len(texts))], texts, columns, group)


def observed(*rollouts, **facts):
    seen = Observed(**facts)
    for one in rollouts:
        seen.add(one)
    return seen


def check(name, seen):
    return ALARMS[name].check(seen)


def test_the_names_that_others_rely_on():
    assert list(ALARMS) == [
        "all_truncated", "zero_variance", "dead_reward", "mode_collapse",
        "kl_runaway", "entropy_collapse", "entropy_runaway", "nonfinite_gradient", "weights_unchanged",
    ]  # fmt: skip
    assert all(alarm.remedy for alarm in ALARMS.values())


def test_nothing_observed_raises_nothing():
    assert not any(check(name, Observed()) for name in ALARMS)


# --- From metrics


@pytest.mark.parametrize(
    ("shares", "raised"), [([0.9, 1, 1, 1], True), ([1, 1], False), ([1, 1, 0.99], False), ([1, 1, 1, 0.5], False)]
)
def test_all_truncated_takes_three_steps_in_a_row(shares, raised):
    metrics = {"completions/clipped_ratio": shares}
    assert bool(check("all_truncated", observed(metrics=metrics))) is raised


@pytest.mark.parametrize(
    ("values", "alarm"),
    [
        ([0.4] * 5 + [0.03] * 5, "entropy_collapse"),
        ([0.4] * 5 + [0.05] * 5, None),
        ([0.4] * 5 + [1.3] * 5, "entropy_runaway"),
        ([0.05] * 5 + [0.3] * 5, None),  # from hardly any to little
        ([0.4] * 5 + [0.0] * 4, None),
    ],
)
def test_entropies_are_compared_with_the_first_ones(values, alarm):
    seen = observed()
    for value in [*values[:5], *([0.4] * 20 if len(values) == 10 else []), *values[5:]]:  # the first five are kept
        seen.note("entropy", value)
    assert [name for name in ("entropy_collapse", "entropy_runaway") if check(name, seen)] == [alarm] * bool(alarm)


def test_one_spike_of_the_kl_is_no_runaway():
    assert check("kl_runaway", observed(metrics={"kl": [0.1, 9.0, 0.1]})) is None
    assert "now 0.80" in check("kl_runaway", observed(metrics={"kl": [0.1, 0.6, 0.7, 0.8]}))


def test_what_is_not_finite_and_what_never_moved_is_named():
    assert check("nonfinite_gradient", observed(nonfinite="the loss is")).startswith("the loss is NaN or infinity")
    assert "in 5 optimizer steps" in check("weights_unchanged", observed(weights_moved=False, updates=5))
    assert not check("weights_unchanged", observed(weights_moved=True, updates=5))


# --- No differences, or tiny ones


def test_zero_variance_counts_right_and_wrong_groups():
    mixed = rollout(list("abcd"), correctness_reward_func=[2.0, 2.0, 0.0, 0.0])
    assert "3 groups all right, 3 groups all wrong" in check("zero_variance", observed(mixed, mixed, mixed))
    assert check("zero_variance", observed(mixed, mixed)) is None
    live = rollout(list("abcd"), correctness_reward_func=[2.0, 0.0, 0.0, 0.0])
    assert check("zero_variance", observed(mixed, mixed, live)) is None


def test_rewards_that_cancel_out_are_no_variance():
    opposed = rollout(list("ab"), one=[1.0, 0.0], other=[0.0, 1.0])
    assert "constant reward" in check("zero_variance", observed(opposed, opposed, opposed))


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("accuracy_reward", [1.0, 1.0], "all right"),
        ("accuracy_reward", [0.0, 0.0], "all wrong"),
        ("incorrect_penalty", [0.0, 0.0], "constant reward"),  # says nothing about what is right
    ],
)
def test_right_and_wrong_are_what_a_correctness_reward_says(name, values, kind):
    now = rollout(list("ab"), **{name: values})
    assert f"({kind})" in check("zero_variance", observed(now, now, now))


def test_a_completion_without_rewards_is_not_in_its_group():
    right = rollout(list("abcd"), correctness_reward_func=[2.0, None, 2.0, 2.0], format=[0.5, None, 0.5, 0.5])
    assert "(all right)" in check("zero_variance", observed(right, right, right))
    nobody = rollout(list("abcd"), correctness_reward_func=[0.0, 0.0, None, None])
    assert "all wrong" in check("zero_variance", observed(nobody, nobody, nobody))
    silent = rollout(list("abcd"), correctness_reward_func=[2.0, None, 2.0, 2.0], format=[0.5] * 4)  # None from one: 0
    assert check("zero_variance", observed(silent, silent, silent)) is None
    for name in ALARMS:
        check(name, observed(*[rollout(list("abcd"), correctness_reward_func=[None, 2.0, None, None])] * 3))


# --- Rewards that never fire


@pytest.mark.parametrize(
    ("values", "dead"), [([0.0, 0.0], True), ([-1.0, -1.0], True), ([0.0, -0.5], False), ([1.0, 1.0], False)]
)
def test_a_dead_reward_is_constant_and_not_above_zero(values, dead):
    one = rollout(list("ab"), some=values, none=[None, None])
    assert check("dead_reward", observed(*[one] * (DEAD_AFTER - 1))) is None
    seen = observed(*[one] * DEAD_AFTER)
    message = check("dead_reward", seen)
    assert bool(message) is dead and (not dead or message.startswith("some has been"))


def test_rollouts_of_the_warm_up_do_not_count_as_dead():
    seen, one = Observed(), rollout(list("ab"), some=[0.0, 0.0])
    for number in range(DEAD_AFTER + 2):
        assert check("dead_reward", seen) is None
        seen.add(one, after_warmup=number >= 2)
    assert f"of {DEAD_AFTER + 2} rollouts" in check("dead_reward", seen)


def test_a_reward_is_dead_after_rollouts_of_its_own():
    off = rollout(list("ab"), format=[0.5, 0.0])
    seen = observed(*[off] * DEAD_AFTER)
    for index in range(DEAD_AFTER):
        assert check("dead_reward", seen) is None  # it was switched on with the last stage
        weight = 1.2**index  # whatever its weight comes to
        seen.add(Rollout(["0", "0"], ["a", "b"], {"answers": [-weight, -weight]}, 2, {"answers": weight}))
    message = check("dead_reward", seen)
    assert f"answers has been -1 for every completion of {DEAD_AFTER} rollouts" in message


def test_a_negative_weight_is_judged_by_what_it_adds():
    always = Rollout(["0", "0"], ["a", "b"], {"long": [-0.5, -0.5]}, 2, {"long": -0.5})
    assert "long has been -1 " in check("dead_reward", observed(*[always] * DEAD_AFTER))


# --- Collapse


def test_one_text_for_every_prompt_is_mode_collapse():
    same = rollout(["x"] * 20, correctness_reward_func=[0.0] * 20)
    assert "whatever the prompt" in check("mode_collapse", observed(same, same, same))
    lonely = rollout(["x", "x"], prompts=["p", "p"], correctness_reward_func=[2.0, 2.0])
    assert check("mode_collapse", observed(lonely, lonely, lonely)) is None  # one prompt, answered right


@pytest.mark.parametrize(("value", "raised"), [(2.0, False), (0.0, True)])
@pytest.mark.parametrize(
    "stage", ["rewards", "others"]
)  # a stage that does not pay for right answers judges them, too
def test_identical_answers_collapse_only_if_not_right(stage, value, raised):
    correct = {"correctness_reward_func": [value] * 4}
    one = rollout(["x", "x", "y", "y"], format=[1.0] * 4)
    one = dataclasses.replace(one, **{stage: {**getattr(one, stage), **correct}})
    assert bool(check("mode_collapse", observed(one, one, one))) is raised


def test_what_a_checkpoint_kept_is_restored():
    seen = observed(rollout(list("ab"), some=[0.0, 1.0]), updates=3, weights_moved=True)
    seen.note("kl", 0.1)
    kept = json.loads(json.dumps(dataclasses.asdict(seen)))
    assert Observed.restored(kept) == seen
    del kept["updates"]  # as another version may
    assert Observed.restored(kept | {"moves": 3}).updates == 0
