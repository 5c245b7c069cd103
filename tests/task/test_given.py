"""How an answer was read, how often each is given, and when a policy gives one answer to everything."""

import pytest

from grpo.task.given import distribution, how_read, one_answer, repeat, tally

LABELS = ["A"] * 40 + ["B"] * 30 + ["C"] * 30


@pytest.mark.parametrize(
    ("text", "read", "pattern", "said"),
    [
        ("billing ", "billing", "text", "billing"),
        ('{"total": 5}', '{"total": 5}', "text", '{"total": 5}'),
        ("", "", "text", "nothing"),
        ("<answer>7</answer>", "7", "xml", "7"),
        ("<answer>7", "7", "xml", "7"),
        ("7</answer> so", "7", "xml", "7"),
        ("It is 7.", "It is 7.", "xml", "the whole completion, as nothing marks the answer"),
        ("It is 7.", "It is 7.", "boxed", "the whole completion, as nothing marks the answer"),
        (r"So \boxed{}", "", "boxed", "nothing"),
    ],
)
def test_an_answer_is_the_one_marked_or_all_of_a_plain_one(text, read, pattern, said):
    assert how_read(text, read, pattern) == said


@pytest.mark.parametrize(
    ("golds", "repeats"),
    [
        (LABELS, True),
        (["yes", "No.", "no"] * 5, True),
        (["same"] * 9, False),  # nothing to compare with
        (list(map(str, range(100))), False),
        ([str(n % 40) for n in range(100)], False),  # numbers that happen to occur again
        ([*LABELS, None], False),
        ([], False),
    ],
)
def test_labels_repeat_and_numbers_do_not(golds, repeats):
    assert repeat(golds) is repeats


def test_shares_are_of_the_gold_answers_first_then_of_others():
    shares = distribution(LABELS, {"before": ["a"] * 50 + ["x"] * 50, "after": LABELS})
    assert [share.answer for share in shares] == ["A", "B", "C", "x"]
    assert [share.gold for share in shares] == [0.4, 0.3, 0.3, 0.0]
    assert shares[0].given == {"before": 0.5, "after": 0.4} and shares[3].given == {"before": 0.5, "after": 0.0}


def test_many_answers_are_cut_to_the_most_frequent_and_the_rest():
    golds = [str(n % 20) for n in range(100)]
    shares = distribution(golds, {"after": ["odd"] * 90 + golds[:10]})
    assert len(shares) == 8 and shares[-1].answer == "14 others" and "odd" in [share.answer for share in shares]
    assert sum(share.gold for share in shares) == pytest.approx(1) == sum(share.given["after"] for share in shares)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"after": ["odd"] * 100},
        {"after": [f"odd {n % 9}" for n in range(100)]},  # each more often than any gold answer
    ],
)
def test_the_most_frequent_gold_answer_is_shown_and_none_of_the_others_is_an_answer(given):
    golds = ["24"] * 10 + [str(n % 45) for n in range(100, 190)]
    shares = distribution(golds, given)
    assert [bool(share.others) for share in shares] == [False] * 7 + [True]
    assert shares[-1].gold > shares[0].gold and shares[0].answer == "24"


def test_any_alternative_counts_as_the_same_answer():
    shares = distribution([["4", "four"], "5", ["4", "four"]], {"after": ["four", "5", "4"]})
    assert [(share.answer, share.given["after"]) for share in shares] == [("4", 2 / 3), ("5", 1 / 3)]


@pytest.mark.parametrize(
    ("given", "golds", "collapsed"),
    [
        (["A"] * 97 + ["B"] * 3, LABELS, True),
        (["a."] * 50 + ["A"] * 50, LABELS, True),
        (["neither"] * 100, LABELS, True),
        ([""] * 100, LABELS, True),
        (["A"] * 85 + ["B"] * 15, LABELS, False),
        (LABELS, LABELS, False),
        (["A"] * 100, ["A"] * 95 + ["B"] * 5, False),  # so are the gold answers
        (["B"] * 100, ["A"] * 95 + ["B"] * 5, False),
        (["A"] * 100, ["A"] * 80 + ["B"] * 20, False),
        (["0"] * 100, list(map(str, range(100))), True),  # numbers, which need not repeat
        (["A"] * 10, LABELS[35:45], False),  # too few
    ],
)
def test_one_answer_for_everything_is_told_from_right_answers(given, golds, collapsed):
    assert one_answer([tally(given, golds)]).for_everything is collapsed


def test_without_gold_answers_nothing_is_said():
    assert one_answer([tally(["A"], [None])]) is None and one_answer([]) is None


def test_rollouts_of_few_questions_are_counted_together():
    """A rollout of one question has one right answer, which is no collapse."""
    rollouts = [tally([label.lower()] * 8, [label] * 8, group=8) for label in LABELS[::7]]
    assert not one_answer(rollouts).for_everything
    rollouts = [tally(["a"] * 8, [label] * 8, group=8) for label in LABELS[::7]]
    most = one_answer(rollouts)
    assert most.for_everything and (most.answer, most.questions, most.given) == ("A", 15, 1.0)
    assert str(most) == '100 % of the answers are "A", the gold answer of 40 % of the questions'
