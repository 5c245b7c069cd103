"""Rows of the table of results: only what an evaluation measured and means, with one sign for numbers below 0."""

import pytest

from grpo.results.table import meanings, rows

ACCURACIES = {"accuracy_lenient": 0.5, "accuracy_strict": 0.25}
FORMATS = {"format_strict": 1.0, "format_soft": 1.0}


@pytest.mark.parametrize(
    ("summary", "meant", "named"),
    [
        (ACCURACIES | FORMATS, "exactly the gold answer, in its place", 4),
        (ACCURACIES, "exactly the gold answer", 2),
        (ACCURACIES | FORMATS | {"judge": "mine.f"}, "that, and exactly in the format", 4),
        (ACCURACIES | {"judge": "mine.f"}, None, 1),  # without a format strict is lenient again
        ({"judge": "mine.f", "judge_error": "it raises", **FORMATS}, None, 2),
    ],
)
def test_rows_and_their_meanings_are_those_of_the_evaluation(summary, meant, named):
    table = rows({"before": summary, "after": summary}, {})
    assert meanings(summary).get("accuracy_strict") == meant and len(table) == named
    assert meanings(summary).keys() == {key for key in table if key.startswith("accuracy")}
    if "accuracy_lenient" in table:
        assert "judge" not in summary or meanings(summary)["accuracy_lenient"] == "right by mine.f"


def test_answers_that_are_not_understood_have_a_row_above_a_tenth():
    """They say how far lenient accuracy can be trusted."""
    few, many = ({**ACCURACIES, "not_understood": share} for share in (0.1, 0.25))
    assert "not_understood" not in rows({"before": few, "after": few}, {})
    name, cells = rows({"before": many, "after": few}, {})["not_understood"]
    assert name == "Not understood by the judge" and [value for value, _ in cells] == ["25.0", "10.0", "−15.0"]


def test_zero_has_no_sign_and_others_have_a_minus():
    one, two = ({"reward_cost": value, "reward": value} for value in (-4.0, -0.001))
    cells = [[value for value, _ in cells] for _, cells in rows({"before": one, "after": two}, {}).values()]
    assert cells == [["−4.00", "0.00", "+4.00"]] * 2
