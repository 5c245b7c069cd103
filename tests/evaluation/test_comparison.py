"""grpo/evaluation/comparison.py: counts, p-values and intervals, and a sentence that says what was learned."""

import math

import pytest
import scipy
from helpers_runs import examples
from hypothesis import given
from hypothesis import strategies as st

from grpo.core.errors import UserError
from grpo.evaluation import comparison
from grpo.evaluation.comparison import compare, mcnemar, tango


def rows(*flags):
    """Records from strings: s strict, l lenient, f format."""
    return [
        {
            "question": str(index),
            "strict": "s" in flag,
            "lenient": "l" in flag,
            "format_strict": "f" in flag,
            "format_soft": "f" in flag,
        }
        for index, flag in enumerate(flags)
    ]


@pytest.mark.parametrize(
    ("fixed", "broken", "n", "p", "low", "high"),
    [
        (1, 7, 21, 0.034, -0.517, -0.026),  # Bentur et al. 2009, computed by Fagerland et al. 2014
        (9, 3, 32, 0.083, -0.027, 0.390),  # Karacan et al. 1976, by Tango 1998
        (0, 0, 100, 1.0, -0.037, 0.037),
        (5, 0, 5, 0.025, 0.131, 1.0),
    ],
)
def test_p_and_interval_are_the_published_ones(fixed, broken, n, p, low, high):
    assert mcnemar(fixed, broken) == pytest.approx(p, abs=5e-4)
    assert tango(fixed, broken, n) == pytest.approx((low, high), abs=5e-4)


TABLES = [(b, c, n) for n in range(1, 31) for b in range(n + 1) for c in range(n - b + 1)]


def test_interval_and_p_agree_on_every_small_sample():
    for fixed, broken, n in TABLES:
        low, high = tango(fixed, broken, n)
        assert -1 <= low <= (fixed - broken) / n <= high <= 1
        assert (low > 0 or high < 0) == (mcnemar(fixed, broken) < 0.05)


@examples(30)
@given(st.sampled_from(TABLES))
def test_the_interval_is_the_score_test_inverted(table):
    """Each end of it is where the score test, with shares found by numerical search, begins to reject."""
    fixed, broken, n = table

    def rejected(difference):
        def unlikely(share):
            cells = [(fixed, share + difference), (broken, share), (n - fixed - broken, 1 - difference - 2 * share)]
            return -sum(count * math.log(max(part, 1e-300)) for count, part in cells if count)

        ends = max(0, -difference), (1 - difference) / 2
        share = scipy.optimize.minimize_scalar(unlikely, bounds=ends, method="bounded", options={"xatol": 1e-10}).x
        variance = n * (2 * share + difference * (1 - difference))
        return abs(fixed - broken - n * difference) > scipy.stats.norm.ppf(0.975) * variance**0.5

    low, high = tango(fixed, broken, n)
    for outside, inside in ((low - 0.002, low + 0.002), (high + 0.002, high - 0.002)):
        assert not -1 < outside < 1 or rejected(outside)
        assert not rejected(inside)


def test_without_a_change_the_verdict_depends_on_n_alone():
    assert compare(rows(*["l"] * 1319), rows(*["l"] * 1319))["verdict"] == "no_change"
    assert compare(rows(*["l"] * 10), rows(*["l"] * 10))["verdict"] == "too_small_to_tell"


VERDICTS = {  # how many of 100 questions change, and how
    "got_better": ([""] * 40 + ["slf"] * 60, ["slf"] * 95 + [""] * 5),
    "learned_the_tags": (["l"] * 60 + [""] * 40, ["slf"] * 60 + ["f"] * 40),
    "got_worse": (["slf"] * 60 + [""] * 40, ["slf"] * 20 + [""] * 80),
    "too_small_to_tell": (["slf"] * 3 + [""], ["slf"] * 4),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict_tells_learned_the_tags_from_got_better(verdict):
    before, after = VERDICTS[verdict]
    found = compare(rows(*before), rows(*after))
    assert found["verdict"] == verdict and verdict.replace("_", " ") in found["sentence"]


def test_many_questions_without_a_net_change_are_no_change():
    before, after = ["slf"] * 3000 + [""] * 10, ["slf"] * 2995 + [""] * 5 + ["slf"] * 6 + [""] * 4
    assert compare(rows(*before), rows(*after))["verdict"] == "no_change"


def test_tags_that_came_with_worse_answers_are_no_progress():
    found = compare(rows(*["l"] * 60), rows(*["f"] * 40 + ["slf"] * 20))
    assert found["verdict"] == "got_worse" and "learned the tags" in found["sentence"]


def test_learned_tags_say_where_the_sample_leaves_room_for_more():
    found = compare(rows(*["l"] * 10 + [""] * 10), rows(*["slf"] * 11 + ["f"] * 9))
    assert found["verdict"] == "learned_the_tags" and "20 questions are too few" in found["sentence"]


@pytest.mark.parametrize(("before", "after"), [(["l"], ["l", "l"]), ([], [])])
def test_other_questions_cannot_be_compared(before, after):
    with pytest.raises(UserError, match="same questions"):
        compare(rows(*before), rows(*after))


FLAGS = st.lists(st.tuples(*[st.booleans()] * 8), min_size=1, max_size=30)


@examples(30)
@given(FLAGS)
def test_a_comparison_counts_pairs_and_is_symmetric(flags):
    sides = [
        [
            dict(zip(comparison.MEASURES, row[start : start + 4], strict=True)) | {"question": str(number)}
            for number, row in enumerate(flags)
        ]
        for start in (0, 4)
    ]
    forth, back = comparison.compare(*sides), comparison.compare(*reversed(sides))
    for measure in comparison.MEASURES:
        one, other = forth[measure], back[measure]
        before, after = (sum(row[measure] for row in side) for side in sides)
        assert one["both"] + one["fixed"] + one["broken"] + one["neither"] == forth["n"] == len(flags)
        assert one["both"] + one["broken"] == before and one["both"] + one["fixed"] == after
        assert one["difference"] == pytest.approx((after - before) / len(flags)) == pytest.approx(-other["difference"])
        assert (one["fixed"], one["p_value"]) == (other["broken"], other["p_value"]) and 0 < one["p_value"] <= 1
        assert -1 <= one["difference_low"] <= one["difference"] + 1e-12
        assert one["difference"] - 1e-12 <= one["difference_high"] <= 1
        assert one["difference_low"] == -other["difference_high"]
    assert {forth["verdict"], back["verdict"]} != {"got_better"} != {"got_worse"}


@pytest.mark.parametrize("count", [2, 12, 300])
def test_intervals_of_means_are_students(count):
    values = [math.sin(number) for number in range(count)]
    reference = scipy.stats.t.interval(0.95, count - 1, sum(values) / count, scipy.stats.sem(values))
    assert comparison.mean_interval(values)[1:] == pytest.approx(reference, rel=1e-9)


def paid(*values):
    return [
        {"question": str(at), "format_strict": True, "rewards": {"f": value}, "reward": value}
        for at, value in enumerate(values)
    ]


REWARDS = {  # before, after; the verdict, and what the sentence says
    "got_better": (
        [1.0, 1.1, 0.9, 1.0],
        [2.0, 2.2, 1.8, 2.0],
        "the reward rose from 1.00 to 2.00 (+1.00, 95 % interval +",
    ),
    "got_worse": ([2.0, 2.2, 1.8, 2.0], [1.0, 1.1, 0.9, 1.0], "the reward fell from 2.00 to 1.00 (-1.00"),
    "too_small_to_tell": ([1.0, 2.0, 3.0], [2.0, 1.0, 3.1], "3 questions"),
    "no_change": ([1.0, 2.0], [1.0, 2.0], "each of 2 answers earns what it did before, 1.50 on average"),
}


@pytest.mark.parametrize("verdict", REWARDS)
def test_without_gold_answers_the_reward_gives_the_verdict(verdict):
    before, after, says = REWARDS[verdict]
    found = compare(paid(*before), paid(*after))
    assert found["verdict"] == verdict and says in found["sentence"] and "lenient" not in found
    assert found["reward"]["difference"] == pytest.approx(sum(after) / len(after) - sum(before) / len(before))


def test_answers_on_which_a_reward_failed_are_not_compared():
    found = compare(paid(1.0, None, 2.0), paid(2.0, 5.0, None))
    assert (found["reward"]["n"], found["reward"]["difference"]) == (1, 1.0)
    assert found["reward"]["difference_low"] is None and found["verdict"] == "too_small_to_tell"
