"""grpo/training/causes.py: chance raises no alarm, and a run that learned nothing gets at most two causes."""

import math
from dataclasses import replace

import pytest
from helpers_samples import answered

from grpo.task import given
from grpo.training.causes import CAUSES, DEAD_AFTER, IN_A_ROW, History, _dead_reward, collapse, explain


def seen(*rollouts, **fields):
    history = History(**fields)
    for metrics in rollouts:
        history.add({"warm": 1.0, **metrics}, False)
    return history


def series(key, *values):
    """Rollouts with these values of a metric."""
    return seen(*({key: value} for value in values))


def check(name, history):
    """The sentence of an alarm, or None; the first one where several causes raise it."""
    return next((said for cause in CAUSES if cause.name == name and (said := cause.check(history))), None)


def test_the_names_that_others_rely_on():
    assert {cause.name for cause in CAUSES} >= {
        "all_truncated", "zero_variance", "dead_reward", "mode_collapse", "kl_runaway", "entropy_collapse",
        "entropy_runaway", "nonfinite_gradient", "weights_unchanged", "vllm_out_of_sync",
    }  # fmt: skip
    assert all(cause.remedy for cause in CAUSES)
    assert [cause.check for cause in CAUSES if not cause.stops] == [_dead_reward]


def test_nothing_seen_raises_nothing():
    assert not any(cause.check(History()) for cause in CAUSES)


def read(*answers):
    """These answers to twenty questions, of which the first eight have the gold answer a."""
    golds = [*"aaaaaaaabbbbccccdddd"]
    return [
        answered(completion=f"{at}", read=answer, answer=gold)
        for at, (answer, gold) in enumerate(zip(answers, golds, strict=True))
    ]


@pytest.mark.parametrize(
    ("after", "told"), [("a" * 19 + "c", True), ("a" * 20, True), ("aaaaaaaabbbbccccdddd", False)]
)
def test_one_answer_to_everything_is_a_cause(after, told):
    history = History(answers=list(zip(read(*"ab" * 10), read(*after), strict=True)))
    found = check("mode_collapse", history)
    assert bool(found) is told
    if told:
        assert '% of the answers are "a", the gold answer of 40 % of the questions; before it was 50 %' in found


@pytest.mark.parametrize(("before", "rate"), [("a" * 20, "raise"), ("ab" * 10, "lower")])
def test_one_answer_from_the_start_is_not_the_rates_fault(before, rate):
    """Found as two causes of one run, the first to lower learning_rate, the second to raise it."""
    before, after = ([replace(one, text=one.verdict.read) for one in read(*text)] for text in (before, "a" * 20))
    said = " ".join(explain(History(), [], before, after, {}))
    assert f"{rate} learning_rate" in said and "name the answers in the prompt" in said
    assert ("lower learning_rate" in said) != ("raise learning_rate" in said)


@pytest.mark.parametrize(
    ("rollouts", "told"),
    [
        ([("a" * 8, "abcdabcd")] * 3, True),
        ([("a" * 8, "abcdabcd")] * 2, False),  # chance
        ([("a" * 8, "abcdabcd"), ("abababab", "abcdabcd"), ("a" * 8, "abcdabcd")], False),
        ([("a" * 8, "a" * 8)] * 3, False),  # right
        ([("abcdabcd", "abcdabcd")] * 3, False),
        ([("aa", "ab")] * 6, True),  # rollouts of two questions
        ([("aa", "ab")] * 5, False),
    ],
)
def test_one_answer_to_everything_is_an_alarm(rollouts, told):
    history = History()
    for answers, golds in rollouts:
        history.add({"warm": 1.0}, False, given.tally([*answers], [*golds]))
    assert bool(check("mode_collapse", history)) is told


# --- While training


@pytest.mark.parametrize(
    ("shares", "raised"), [([0.9, 1, 1, 1], True), ([1, 1], False), ([1, 1, 0.99], False), ([1, 1, 1, 0.5], False)]
)
def test_all_truncated_takes_three_rollouts_in_a_row(shares, raised):
    assert bool(check("all_truncated", series("completions/clipped_ratio", *shares))) is raised


def test_a_rollout_that_serves_five_steps_is_enough_to_be_truncated():
    one = {"completions/clipped_ratio": 1.0}
    assert "100 % of the completions were" in check("all_truncated", seen(one, steps=5))
    assert check("all_truncated", seen(one, steps=4)) is None
    assert check("all_truncated", seen({"completions/clipped_ratio": 0.9}, one, steps=9)) is None


@pytest.mark.parametrize(
    ("values", "alarm"),
    [
        ([0.4] * 25 + [0.03] * 5, None),  # the groups are not known to be alike
        ([0.4] * 25 + [1.3] * 5, "entropy_runaway"),
        ([0.05] * 5 + [0.3] * 5, None),  # from hardly any to little
        ([0.4] * 5 + [0.0] * 4, None),
    ],
)
def test_entropies_are_compared_with_the_first_ones(values, alarm):
    history = series("entropy", *values)
    assert [name for name in ("entropy_collapse", "entropy_runaway") if check(name, history)] == [alarm] * bool(alarm)


@pytest.mark.parametrize(
    ("entropies", "alike", "right", "told"),
    [
        ([0.4] * 25 + [0.03] * 5, [0.1] * 25 + [0.9] * 5, [0.0] * 30, True),
        ([0.4] * 25 + [0.03] * 5, [0.1] * 25 + [1.0] * 5, [None] * 30, True),  # nobody judges
        ([0.4] * 25 + [0.03] * 5, [0.1] * 25 + [1, 1, 0.5, 0.8, 1], [0.1] * 30, True),
        ([0.4] * 25 + [0.05] * 5, [1.0] * 30, [0.0] * 30, False),
        ([0.4] * 25 + [0.03] * 5, [0.1] * 30, [0.4] * 30, False),  # groups differ: it still explores
        ([0.4] * 25 + [0.03] * 5, [0.9] * 25 + [0.5] * 5, [0.0] * 30, False),
        ([0.4] * 25 + [0.03] * 5, [0.1] * 25 + [1.0] * 5, [0.0] * 25 + [0.9] * 5, False),  # it has learned all
        ([0.4] * 25 + [0.03] * 5, [0.1] * 25 + [0.78] * 5, [0.0] * 25 + [0.7] * 5, False),  # the others differ
        ([0.4] * 25 + [0.03] * 5, [0.1] * 25 + [0.95] * 5, [0.0] * 25 + [0.7] * 5, True),
        ([0.4] * 25 + [0.03] * 5, [None] * 30, [0.0] * 30, False),
    ],
)
def test_a_sure_policy_has_collapsed_only_where_groups_no_longer_differ(entropies, alike, right, told):
    """Found as "stopped exploring" at step 47 of a run that gained 14 points after it."""
    keys = ("entropy", "frac_reward_zero_std", "groups/all_right")
    history = seen(*(dict(zip(keys, values, strict=True)) for values in zip(entropies, alike, right, strict=True)))
    said = check("entropy_collapse", history) or ""
    assert bool(said) is told is ("of the groups all completions earned the same" in said)


def test_one_spike_of_the_kl_is_no_runaway():
    assert check("kl_runaway", series("kl", 0.1, 9.0, 0.1)) is None
    assert "rollouts: 0.80" in check("kl_runaway", series("kl", 0.1, 0.6, 0.7, 0.8))


def test_skipped_steps_and_weights_that_never_moved_are_named():
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
    none = {"sampling/sampling_logp_difference/mean": None, "entropy": None}
    assert check("vllm_out_of_sync", seen(rollout, none, rollout)) is None


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ({"all_right": 1.0, "all_wrong": 0.0}, "every completion was right"),
        ({"all_right": 0.0, "all_wrong": 1.0}, "no completion was right"),
        ({"all_right": 0.25, "all_wrong": 0.75}, "in 75 % of the groups no completion"),
        ({"all_right": 0.0, "all_wrong": 0.0}, "earned the same"),  # right and wrong ones, in the same group
        ({}, "earned the same"),  # nobody knows what is right
    ],
)
def test_zero_variance_says_whether_groups_are_right(shares, reason):
    one = {"frac_reward_zero_std": 1.0, **{f"groups/{name}": share for name, share in shares.items()}}
    assert reason in check("zero_variance", seen(one, one, one))
    assert check("zero_variance", seen(one, one)) is None
    assert check("zero_variance", seen(one, {**one, "frac_reward_zero_std": 0.9}, one)) is None
    replaced = {**one, "dynamic_sampling/live": 0.5}
    assert check("zero_variance", seen(replaced, replaced, replaced)) is None
    assert check("zero_variance", seen(*[{**one, "dynamic_sampling/live": 0.0}] * 3))
    assert check("zero_variance", seen(replaced, one, one, one))  # a run that was resumed without it


def earned(mean, std=0.0, name="some", **others):
    return {f"rewards/{name}/mean": mean, f"rewards/{name}/std": std, **others}


@pytest.mark.parametrize(
    ("one", "dead"),
    [
        (earned(0.0), True),
        (earned(-1.0), True),
        (earned(0.0, std=0.5), False),
        (earned(1.0), False),
        (earned(0.0, name="penalty"), False),  # there was nothing to punish
        (earned(-0.5, name="penalty"), True),
        (earned(None, None) | earned(1.0, name="other"), True),  # as logs have it: no value for any completion
        (earned(math.nan, math.nan) | earned(1.0, name="other"), True),
    ],
)
def test_a_dead_reward_is_constant_and_not_above_zero(one, dead):
    facts = {"penalties": ["penalty"]}
    assert check("dead_reward", seen(*[one] * (DEAD_AFTER - 1), **facts)) is None
    message = check("dead_reward", seen(*[one] * DEAD_AFTER, **facts))
    assert bool(message) is dead
    if dead:
        once = {**one, **{key: 1.0 for key in one if key.endswith("mean")}}
        assert check("dead_reward", seen(*[one] * 10, once, *[one] * (DEAD_AFTER - 1), **facts)) is None


def test_answers_that_stayed_are_counted_among_all_of_them():
    """Also where most were right before, which need not change."""

    def answers(*kinds):
        return [
            (answered(completion="a", lenient=right), answered(completion="a" if same else "b"))
            for right, same in kinds
        ]

    ended = seen(answers=answers(*[(True, True)] * 6, (True, False), *[(False, True)] * 3, (False, False)))
    sentence = "9 of 11 answers are word for word those from before, 3 of the 4 wrong ones among them: the policy"
    assert sentence in check("weights_unchanged", ended)
    ended = seen(answers=answers(*[(False, True)] * 3, (False, False)))
    assert "3 of 4 answers are word for word those from before: the" in check("weights_unchanged", ended)
    assert check("weights_unchanged", seen(answers=answers(*[(True, True)] * 9, *[(False, False)] * 2))) is None


def test_rewards_that_return_only_none_are_the_cause_not_the_rate():
    """TRL logs no groups without a difference then; found as a traceback at a run's end."""
    answer = answered(completion="a", lenient=False)
    ended = seen(*[earned(None, None, grad_norm=0.0, frac_reward_zero_std=0.0)] * 4, answers=[(answer, answer)] * 9)
    assert "some has returned None for every completion" in check("dead_reward", ended)
    assert check("weights_unchanged", ended) is None
    none = earned(None, None)
    assert check("dead_reward", seen(*[none] * (IN_A_ROW - 1))) is None  # an alarm waits less than DEAD_AFTER
    assert "has returned None" in check("dead_reward", seen(*[none] * IN_A_ROW))
    assert check("dead_reward", seen(*[none] * IN_A_ROW, {**none, **earned(1.0, name="other")})) is None


def test_rollouts_of_the_warm_up_do_not_count_as_dead():
    rollouts = [{**earned(0.0), "warm": 0.0}] * 2 + [earned(0.0)] * (DEAD_AFTER - 1)
    assert check("dead_reward", seen(*rollouts)) is None
    assert check("dead_reward", seen(*rollouts, earned(0.0)))


def test_a_history_holds_the_first_rollouts_and_the_last():
    history = series("entropy", *range(1000))
    assert [metrics["entropy"] for metrics in history.rollouts] == [*range(5), *range(980, 1000)]


@pytest.mark.parametrize(("share", "collapsed"), [(1.0, False), (0.0, True), (math.nan, True)])
def test_identical_answers_collapse_only_if_not_right(share, collapsed):
    assert collapse(["x", "x", "y", "y"], [share] * 2, 2) is collapsed
    assert collapse(["x"] * 19 + ["y"], [share], 20) is collapsed
    assert collapse(["x", "x", "y", "z"], [share] * 2, 2) is False
    assert bool(check("mode_collapse", seen(collapsed=[collapsed] * 3))) is collapsed
    assert check("mode_collapse", seen(collapsed=[collapsed, False, collapsed])) is None


# --- At the end

HEALTHY = {
    "completions/clipped_ratio": 0.02,
    "frac_reward_zero_std": 0.2,
    "groups/all_right": 0.2,
    "groups/all_wrong": 0.3,
    "rewards/tags/mean": 0.25,
    "rewards/tags/std": 0.2,
    "rewards/right/mean": 0.4,
}
DEAD = {"rewards/tags/mean": 0.0, "rewards/tags/std": 0.0}


def found(logged=(), unchanged=3, right=(), reward=(), **history):
    """The causes of a run that logged HEALTHY with these changes in each of twelve lines.

    Args:
        unchanged: how many of 30 held-out answers are the same before and after.
        right: how many of them are right before and after.
        reward: the ends of the interval of the reward's change.
    """
    before = [answered(completion=f"a{at}", lenient=at < right[0] if right else None) for at in range(30)]
    after = [replace(one, text=one.text if at < unchanged else "b") for at, one in enumerate(before)]
    compared = {"reward": dict(zip(("difference_low", "difference_high"), reward or (None, None), strict=True))}
    if right:
        change = (right[1] - right[0]) / 30
        compared["lenient"] = {"before": right[0] / 30, "difference_high": change + 0.1}
    log = [{"step": step, **HEALTHY, **dict(logged)} for step in range(1, 13)]
    return explain(History(**history), log, before, after, compared)


CASES = [  # the run, and of each of its causes, in their order, a figure and the setting to change
    ({}, []),
    ({"unchanged": 27}, [("27 of 30", "learning_rate")]),
    ({"weights_moved": False, "updates": 12}, [("12 optimizer steps", "learning_rate")]),
    ({"logged": {"groups/all_wrong": 0.8}}, [("80 %", "num_generations")]),
    ({"logged": {"groups/all_right": 0.9, "frac_reward_zero_std": 0.9}, "unchanged": 29}, [("90 %", "dataset_name")]),
    ({"logged": {"completions/clipped_ratio": 0.6}}, [("60 %", "max_completion_length")]),
    ({"logged": {"completions/clipped_ratio": 0.4}}, []),
    ({"logged": {"frac_reward_zero_std": 0.95}, "unchanged": 30}, [("95 %", "reward_funcs")]),
    ({"reward": (-1.5, -0.5)}, [("fell", "halve learning_rate")]),
    ({"unchanged": 29, "right": (28, 28)}, [("93 %", "dataset_name")]),
    ({"unchanged": 27, "right": (9, 9)}, [("18 of the 21", "learning_rate")]),
    ({"unchanged": 12, "right": (9, 9)}, []),  # right answers may stay as they are
    ({"right": (20, 8), "reward": (0.5, 1.5)}, [("fewer", "reward_weights")]),
    ({"right": (20, 19), "reward": (0.5, 1.5)}, []),
    ({"logged": DEAD}, [("tags has been 0", "reward_funcs")]),
    ({"logged": {**DEAD, "rewards/tags/std": 0.1}}, []),
    ({"logged": DEAD, "perfect": {"tags": -1.0}}, []),  # a penalty
    # two at most, the important ones first
    (
        {"unchanged": 27, "logged": {"groups/all_wrong": 0.8}, "reward": (-1.5, -0.5)},
        [("27 of 30", "learning_rate"), ("80 %", "num_generations")],
    ),
    (
        {
            "unchanged": 27,
            "logged": {"completions/clipped_ratio": 1, "groups/all_wrong": 1, "frac_reward_zero_std": 1},
        },
        [("100 %", "max_completion_length"), ("100 %", "num_generations")],
    ),
]


@pytest.mark.parametrize(("run", "causes"), CASES)
def test_each_cause_is_named_with_its_setting(run, causes):
    for text, (figure, setting) in zip(found(**run), causes, strict=True):
        assert figure in text and setting in text


def test_gold_answers_that_the_judge_refuses_are_the_cause_of_no_right_one():
    """At the end only; nothing else about right answers is said beside it."""
    one = {"frac_reward_zero_std": 1.0, "groups/all_wrong": 1.0, "groups/all_right": 0.0}
    answer = answered(completion="a", lenient=False, answer="['6', '6 pens']")
    other = answered(completion="b", lenient=False, answer="['6', '6 pens']")
    said = "50 of 50 gold answers are not accepted as completions give them: \"6\" for \"['6', '6 pens']\""
    causes = explain(History(), [one] * 9, [answer] * 9, [other] * 9, {}, said)
    assert causes[0].startswith(said) and "keep the answer alone" in causes[0]
    assert "easier questions" not in "".join(causes)
    assert "easier questions" in "".join(explain(History(), [one] * 9, [answer] * 9, [other] * 9, {}))
