"""grpo/evaluation/comparison.py: counts, exact p-values and intervals, and a sentence that says what was learned."""

import pytest
import scipy
from helpers_runs import examples
from hypothesis import given
from hypothesis import strategies as st

from grpo.core.errors import UserError
from grpo.evaluation import comparison
from grpo.evaluation.comparison import bootstrap, compare, mcnemar


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


@pytest.mark.parametrize(("fixed", "broken"), [(0, 0), (1, 0), (0, 7), (8, 1), (10, 10), (300, 250)])
def test_mcnemar_is_scipys_exact_binomial_test(fixed, broken):
    expected = scipy.stats.binomtest(fixed, fixed + broken).pvalue if fixed + broken else 1.0
    assert mcnemar(fixed, broken) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(fixed, broken) == mcnemar(broken, fixed)


def test_without_a_change_the_interval_depends_on_n_alone():
    low, high = bootstrap(fixed=0, broken=0, n=100)
    assert -low == high == pytest.approx(scipy.stats.binomtest(0, 100, alternative="less").proportion_ci().high)
    assert compare(rows(*["l"] * 1319), rows(*["l"] * 1319))["verdict"] == "no_change"
    assert compare(rows(*["l"] * 10), rows(*["l"] * 10))["verdict"] == "too_small_to_tell"


def test_the_bootstrap_equals_scipys():
    outcomes = [1] * 30 + [-1] * 10 + [0] * 160
    reference = scipy.stats.bootstrap((outcomes,), lambda x, axis: x.mean(axis), method="percentile", rng=0)
    interval = reference.confidence_interval
    assert bootstrap(30, 10, 200) == pytest.approx((interval.low, interval.high), abs=0.006)
    assert bootstrap(30, 10, 200) == bootstrap(30, 10, 200)  # seeded


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
        # the two are drawn apart, so that the ends may differ by some questions
        assert one["difference_low"] == pytest.approx(-other["difference_high"], abs=0.1 + 2 / len(flags))
    assert {forth["verdict"], back["verdict"]} != {"got_better"} != {"got_worse"}
