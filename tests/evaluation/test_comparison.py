"""grpo/evaluation/comparison.py: counts, p-values and intervals, and a sentence that says what was learned."""

import itertools
import math

import pytest
import scipy

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


def test_interval_and_p_agree_on_every_small_sample():
    for n, fixed, broken in itertools.product(range(1, 31), range(31), range(31)):
        if fixed + broken <= n:
            low, high = tango(fixed, broken, n)
            assert -1 <= low <= (fixed - broken) / n <= high <= 1
            assert (low > 0 or high < 0) == (mcnemar(fixed, broken) < 0.05)


VERDICTS = [  # before, after, the verdict, words of the sentence
    ([""] * 40 + ["slf"] * 60, ["slf"] * 95 + [""] * 5, "got_better", "It got better: the right answer in 60.0 %"),
    (["l"] * 60 + [""] * 40, ["slf"] * 60 + ["f"] * 40, "learned_the_tags", "It learned the tags, not to answer"),
    (
        ["l"] * 10 + [""] * 10,
        ["slf"] * 11 + ["f"] * 9,
        "learned_the_tags",
        "20 questions are too few",
    ),
    (["lf"] * 60, ["slf"] * 60, "learned_the_tags", "the exact answer in its tag in 0.0 %"),
    (["slf"] * 60 + [""] * 40, ["slf"] * 20 + [""] * 80, "got_worse", "It got worse: the right answer"),
    (["l"] * 60, ["f"] * 40 + ["slf"] * 20, "got_worse", "although it learned the tags"),
    (["slf"] * 3 + [""], ["slf"] * 4, "too_small_to_tell", "The sample of 4 is too small to tell"),
    (["l"] * 10, ["l"] * 10, "too_small_to_tell", "p = 1)"),
    (["l"] * 1319, ["l"] * 1319, "no_change", "No change: the right answer in 100.0 %"),
    (["l"] * 3000 + [""] * 10, ["l"] * 2995 + [""] * 5 + ["l"] * 6 + [""] * 4, "no_change", "6 fixed, 5 broken"),
]


@pytest.mark.parametrize(("before", "after", "verdict", "words"), VERDICTS)
def test_the_verdict_and_its_sentence_say_what_was_learned(before, after, verdict, words):
    found = compare(rows(*before), rows(*after))
    assert found["verdict"] == verdict and words in found["sentence"]


def test_a_judge_that_raised_leaves_no_accuracy_to_compare():
    unjudged = [{key: row[key] for key in ("question", "format_strict")} for row in rows("slf", "f")]
    found = compare(unjudged, rows("slf", "slf"), "judge mine.f raises KeyError: 'x'")
    assert found["verdict"] == "no_accuracy" and found["sentence"] == "No accuracy: judge mine.f raises KeyError: 'x'."
    assert found["format_strict"]["both"] == 2 and not {"lenient", "reward"} & found.keys()


@pytest.mark.parametrize(("before", "after"), [(["l"], ["l", "l"]), ([], [])])
def test_other_questions_cannot_be_compared(before, after):
    with pytest.raises(UserError, match="different questions"):
        compare(rows(*before), rows(*after))


def test_pairs_are_counted_and_the_way_back_is_the_opposite():
    before, after = rows("l", "l", "l", "", "", "sl"), rows("l", "", "", "sl", "", "")
    forth, back = compare(before, after)["lenient"], compare(after, before)["lenient"]
    assert [forth[key] for key in ("both", "fixed", "broken", "neither")] == [1, 1, 3, 1]
    assert (forth["before"], forth["after"], forth["difference"]) == (4 / 6, 2 / 6, -2 / 6)
    assert (back["difference_low"], back["p_value"]) == (-forth["difference_high"], forth["p_value"])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 11, 12, 20, 300])
def test_intervals_of_means_are_students_or_a_little_wider(count):
    values = [math.sin(number) for number in range(count)]
    low, high = scipy.stats.t.interval(0.95, count - 1, sum(values) / count, scipy.stats.sem(values))
    mean, lower, upper = comparison.mean_interval(values)
    assert mean - lower == pytest.approx(upper - mean) and 0.999 * (high - low) < upper - lower < 1.07 * (high - low)


def paid(*values):
    return [{"question": str(at), "format_strict": True, "reward": value} for at, value in enumerate(values)]


REWARDS = [  # before, after, the verdict, words of the sentence
    ([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0], "got_better", "mean reward 1.00 before and 2.00 after (+1.00, 95 %"),
    ([2.0, 2.2, 1.8, 2.0], [1.0, 1.1, 0.9, 1.0], "got_worse", "after (-1.00, 95 % interval -1."),
    ([1.0, 2.0, 3.0], [2.0, 1.0, 3.1], "too_small_to_tell", "3 questions"),
    ([1.0, None, 2.0], [2.0, 5.0, None], "too_small_to_tell", "1.00 before and 2.00 after (+1.00, 1 questions)"),
    ([1.0, None], [None, 1.0], "too_small_to_tell", "a reward failed on every answer"),
    ([1.0, 2.0], [1.0, 2.0], "no_change", "1.50 before and 1.50 after"),
]


def test_the_smallest_change_is_the_first_that_is_significant():
    assert comparison.smallest_change(30) == 4 / 30
    assert comparison.smallest_change(3) > 1 and comparison.smallest_change(0) > 1
    assert comparison.mcnemar(4, 0) < 0.05 < comparison.mcnemar(3, 0)
    assert min(f - b for f in range(60) for b in range(60) if f > b and comparison.mcnemar(f, b) < 0.05) == 4


@pytest.mark.parametrize(("before", "after", "verdict", "words"), REWARDS)
def test_without_gold_answers_the_reward_gives_the_verdict(before, after, verdict, words):
    found = compare(paid(*before), paid(*after))
    assert found["verdict"] == verdict and words in found["sentence"] and "lenient" not in found
