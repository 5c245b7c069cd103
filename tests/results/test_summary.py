"""Summaries have exact shares with their intervals; their table has only what an evaluation measured and means."""

import pytest
import scipy
from helpers_samples import answered

from grpo.results.summary import meanings, summarize, table_rows, wilson


@pytest.mark.parametrize("n", [1, 7, 200, 1319])
def test_wilson_intervals_equal_scipys(n):
    for successes in {0, 1, n // 3, n - 1, n}:
        reference = scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")
        assert wilson(successes, n) == pytest.approx((reference.low, reference.high), abs=1e-9)


def test_the_summary_has_the_contracts_keys_and_their_shares():
    def answer(strict, lenient, length):
        flags = dict.fromkeys(("format_strict", "format_soft"), lenient)
        return answered(strict=strict, lenient=lenient, truncated=length == 40, tokens=length, **flags)

    summary = summarize([answer(True, True, 10), answer(False, True, 10), answer(False, False, 40)])
    shares = ("accuracy_strict", "accuracy_lenient", "format_strict", "format_soft", "truncated")
    bounds = {f"{share}_{bound}" for share in shares for bound in ("low", "high")}
    assert set(summary) >= {"n", "mean_length", *shares, *bounds} and summary["mean_length"] == 20
    assert [summary[share] for share in shares] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert all(summary[f"{share}_low"] < summary[share] < summary[f"{share}_high"] for share in shares)


# --- The table

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
    table = table_rows({"before": summary, "after": summary}, {})
    assert meanings(summary).get("accuracy_strict") == meant and len(table) == named
    assert meanings(summary).keys() == {key for key in table if key.startswith("accuracy")}
    assert ("reward" in meanings(summary | {"reward": 1.0})) == ("accuracy_lenient" not in summary)
    if "accuracy_lenient" in table:
        assert "judge" not in summary or meanings(summary)["accuracy_lenient"] == "right by mine.f"


def test_answers_that_are_not_understood_have_a_row_above_a_tenth():
    """They say how far lenient accuracy can be trusted."""
    few, many = ({**ACCURACIES, "not_understood": share} for share in (0.1, 0.25))
    assert "not_understood" not in table_rows({"before": few, "after": few}, {})
    name, cells = table_rows({"before": many, "after": few}, {})["not_understood"]
    assert name == "Not understood by the judge" and [value for value, _ in cells] == ["25.0", "10.0", "−15.0"]


def test_answers_that_are_not_computed_have_a_row_above_a_hundredth():
    """A policy that learns to leave its arithmetic to the judge is seen early."""
    few, many = ({**ACCURACIES, "not_computed": share} for share in (0.01, 0.02))
    assert "not_computed" not in table_rows({"before": few, "after": few}, {})
    name, cells = table_rows({"before": few, "after": many}, {})["not_computed"]
    assert name == "Right, but not computed" and [value for value, _ in cells] == ["1.0", "2.0", "+1.0"]


def test_zero_has_no_sign_and_others_have_a_minus():
    one, two = ({"reward_cost": value, "reward": value} for value in (-4.0, -0.001))
    cells = [[value for value, _ in cells] for _, cells in table_rows({"before": one, "after": two}, {}).values()]
    assert cells == [["−4.00", "0.00", "+4.00"]] * 2
