"""Pairs of answers give the published p-values and intervals, which agree, and the verdict that they support."""

import itertools
import math

import pytest
import scipy
from helpers_samples import answered

from grpo.core.errors import UserError
from grpo.results import comparison
from grpo.results.comparison import compare, mcnemar, tango


def rows(*flags):
    """Answers from strings: s strict, l lenient, f format."""
    letters = {"strict": "s", "lenient": "l", "format_strict": "f", "format_soft": "f"}
    return [
        answered(str(index), **{name: letter in flag for name, letter in letters.items()})
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


def test_interval_and_p_agree_on_every_small_sample():
    for n, fixed, broken in itertools.product(range(1, 31), range(31), range(31)):
        if fixed + broken <= n:
            low, high = tango(fixed, broken, n)
            assert -1 <= low <= (fixed - broken) / n <= high <= 1
            assert (low > 0 or high < 0) == (mcnemar(fixed, broken) < 0.05)


VERDICTS = [  # before, after, the verdict
    ([""] * 40 + ["slf"] * 60, ["slf"] * 95 + [""] * 5, "got_better"),
    (["l"] * 60 + [""] * 40, ["slf"] * 60 + ["f"] * 40, "learned_the_tags"),
    (["l"] * 10 + [""] * 10, ["slf"] * 11 + ["f"] * 9, "learned_the_tags"),
    (["lf"] * 60, ["slf"] * 60, "learned_the_tags"),
    (["slf"] * 60 + [""] * 40, ["slf"] * 20 + [""] * 80, "got_worse"),
    (["l"] * 60, ["f"] * 40 + ["slf"] * 20, "got_worse"),
    (["slf"] * 3 + [""], ["slf"] * 4, "too_small_to_tell"),
    ([""] * 5 + ["slf"] * 15, ["slf"] * 20, "too_small_to_tell"),  # p = 0.025, but a coin does that in 1 of 16 cases
    ([""] * 6 + ["slf"] * 14, ["slf"] * 20, "got_better"),
    (["slf"] * 5 + [""] * 15, [""] * 20, "too_small_to_tell"),
    (["l"] * 20, ["slf"] * 5 + ["l"] * 15, "too_small_to_tell"),
    (["l"] * 10, ["l"] * 10, "too_small_to_tell"),
    (["l"] * 1319, ["l"] * 1319, "no_change"),
    (["l"] * 3000 + [""] * 10, ["l"] * 2995 + [""] * 5 + ["l"] * 6 + [""] * 4, "no_change"),  # 6 fixed, 5 broken
]


@pytest.mark.parametrize(("before", "after", "verdict"), VERDICTS)
def test_the_verdict_is_what_the_pairs_support(before, after, verdict):
    assert compare(rows(*before), rows(*after))["verdict"] == verdict


def labelled(*answers):
    """Answers to tickets, of which the first 8 are about a and the next ones about b, c and d."""
    golds = [*"aaaaaaaabbbbccccdddd"]
    return [
        answered(str(at), gold, read=read, lenient=read == gold, strict=read == gold)
        for at, (gold, read) in enumerate(zip(golds, answers, strict=True))
    ]


@pytest.mark.parametrize(
    ("after", "verdict"),
    [("a" * 20, "learned_one_answer"), ("a" * 19 + "d", "learned_one_answer"), ("aaaaaaaabbbbccccdddd", "got_better")],
)
def test_one_answer_for_everything_is_no_better_model(after, verdict):
    """Also without a format, which leaves strict and lenient accuracy alone."""
    found = compare(labelled(*"x" * 20), labelled(*after))
    assert found["verdict"] == verdict and "format_soft" not in found
    if verdict == "learned_one_answer":
        assert '"a", the gold answer of 40 % of the questions' in found["sentence"]


def test_numbers_below_zero_have_a_minus_sign():
    sentence = compare(rows(*["slf"] * 20), rows(*[""] * 10, *["slf"] * 10))["sentence"]
    assert "(−50.0 points, 95 % interval −" in sentence and "-5" not in sentence
    sentence = compare(paid(-1.0, -1.1, -0.9), paid(-2.0, -2.2, -1.8))["sentence"]
    assert "mean reward −1.00 before and −2.00 after (−1.00, 95 % interval −" in sentence


def test_the_sentence_has_the_figures():
    sentence = compare(rows(*[""] * 40, *["l"] * 60), rows(*["l"] * 95, *[""] * 5))["sentence"]
    for figure in ("60.0 %", "95.0 %", "+35.0", "+23.4", "+46.0", "40 fixed", "5 broken"):
        assert figure in sentence


def test_a_judge_that_raised_leaves_no_accuracy_to_compare():
    unjudged = [answered(one.question, format_strict=one.format.strict) for one in rows("slf", "f")]
    found = compare(unjudged, rows("slf", "slf"), "judge mine.f raises KeyError: 'x'")
    assert found["verdict"] == "no_accuracy" and "judge mine.f raises KeyError: 'x'" in found["sentence"]
    assert found["format_strict"]["both"] == 2 and "lenient" not in found


@pytest.mark.parametrize(("before", "after"), [(["l"], ["l", "l"]), ([], [])])
def test_other_questions_cannot_be_compared(before, after):
    with pytest.raises(UserError):
        compare(rows(*before), rows(*after))


def test_pairs_are_counted_and_the_way_back_is_the_opposite():
    before, after = rows("l", "l", "l", "", "", "sl"), rows("l", "", "", "sl", "", "")
    forth, back = compare(before, after)["lenient"], compare(after, before)["lenient"]
    assert [forth[key] for key in ("both", "fixed", "broken", "neither")] == [1, 1, 3, 1]
    assert (forth["before"], forth["after"], forth["difference"]) == (4 / 6, 2 / 6, -2 / 6)
    assert (back["difference_low"], back["p_value"]) == (-forth["difference_high"], forth["p_value"])


@pytest.mark.parametrize("count", [2, 3, 5, 8, 12, 20, 300])
def test_intervals_of_means_are_students_or_a_little_wider(count):
    values = [math.sin(number) for number in range(count)]
    low, high = scipy.stats.t.interval(0.95, count - 1, sum(values) / count, scipy.stats.sem(values))
    mean, lower, upper = comparison.mean_interval(values)
    assert mean - lower == pytest.approx(upper - mean) and 0.999 * (high - low) < upper - lower < 1.07 * (high - low)


def paid(*values):
    return [answered(str(at), format_strict=True, reward=value) for at, value in enumerate(values)]


def test_the_smallest_change_is_the_first_that_is_significant():
    assert (
        min(f - b for f in range(60) for b in range(60) if f > b and comparison.is_significant(f, b))
        == comparison.FEWEST
    )


def test_each_reward_is_compared_over_the_questions_on_which_it_worked():
    def evaluated(*values, lenient=True):
        names = [dict(zip(("year", "style"), pair, strict=True)) for pair in values]
        return [answered(str(at), lenient=lenient, rewards=given) for at, given in enumerate(names)]

    found = compare(evaluated((0.0, 1.0), (0.5, None), (0.0, 1.0)), evaluated((0.5, 1.0), (0.5, 9.0), (1.0, 1.0)))
    year, style = found["rewards"].values()
    assert list(found["rewards"]) == ["year", "style"] and "lenient" in found
    assert (year["n"], style["n"]) == (3, 2) and year["difference"] == 0.5 and style["difference"] == 0.0
    assert year["difference_low"] < 0 < year["difference_high"]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0], "got_better"),
        ([2.0, 2.2, 1.8, 2.0], [1.0, 1.1, 0.9, 1.0], "got_worse"),
        ([1.0, 2.0, 3.0], [2.0, 1.0, 3.1], "too_small_to_tell"),
        ([1.0, None, 2.0], [2.0, 5.0, None], "too_small_to_tell"),  # one pair
        ([1.0, None], [None, 1.0], "too_small_to_tell"),
        ([1.0, 2.0], [1.0, 2.0], "no_change"),
    ],
)
def test_without_gold_answers_the_reward_gives_the_verdict(before, after, verdict):
    found = compare(paid(*before), paid(*after))
    assert found["verdict"] == verdict and "lenient" not in found
