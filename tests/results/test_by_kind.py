"""Accuracy by kind of question is that of the samples with a value in a column, paired as the whole evaluation is."""

import datetime
import json
import math

import pytest
from helpers_samples import answered

from grpo.results.by_kind import MOST, TOO_FEW, by_kind, counts_of, value_of
from grpo.results.comparison import compare
from grpo.results.printing import print_summaries
from grpo.results.summary import summarize
from grpo.scoring.sample import Sample


def asked(kinds, right, **line):
    """Answers to a question of each of these kinds, in the column `subject`."""
    return [
        answered(str(at), "7", lenient=is_right, strict=is_right, row={"subject": kind}, **line)
        for at, (kind, is_right) in enumerate(zip(kinds, right, strict=True))
    ]


KINDS = ["algebra"] * 8 + ["sets"] * 5
BEFORE, AFTER = asked(KINDS, [False] * 13), asked(KINDS, [True] * 13)


def test_each_kind_has_its_share_and_the_paired_change_of_its_questions():
    found = by_kind("subject", {"before": BEFORE, "after": AFTER})
    assert [(kind.label, kind.note) for kind in found.kinds] == [("algebra (8)", ""), ("sets (5)", TOO_FEW)]
    for kind, part in zip(found.kinds, (slice(0, 8), slice(8, 13)), strict=True):
        compared = compare(BEFORE[part], AFTER[part])["lenient"]
        assert kind.change == compared and kind.n == len(BEFORE[part])
        (before, _), (after, interval), (change, paired) = kind.cells
        low, high = (100 * summarize(AFTER[part])[f"accuracy_lenient_{end}"] for end in ("low", "high"))
        assert (before, after, change, interval) == ("0.0", "100.0", "+100.0", f"{low:.1f} to {high:.1f}")
        assert paired == f"+{100 * compared['difference_low']:.1f} to +100.0"
    assert found.to_json()["kinds"][1] == {"kind": "sets", "n": 5, "lenient": found.kinds[1].change}


def test_the_lines_of_the_file_give_what_the_samples_give():
    cells = ["a", 3, 0.5, True, None, math.nan, datetime.date(2026, 1, 2), ["x", "y"], {"b": 1, "a": None}, " a\n", ""]
    samples = asked(cells, [True] * len(cells))
    lines = [Sample.from_json(json.loads(json.dumps(one.to_json(), default=str))) for one in samples]
    assert by_kind("subject", {"only": samples}) == by_kind("subject", {"only": lines})
    assert [value_of(cell) for cell in cells[3:6]] == ["true", "(none)", "(none)"]
    assert value_of(" a\n") == "a" and value_of("") == "(none)"


def test_one_evaluation_has_no_change_and_no_word_about_it():
    (algebra, sets) = by_kind("subject", {"only": AFTER, "after": []}).kinds
    assert [len(kind.cells) for kind in (algebra, sets)] == [1, 1] and algebra.note == sets.note == ""


def test_a_column_that_no_row_has_has_no_kinds():
    assert by_kind("level", {"only": AFTER}) is None and by_kind(None, {"only": AFTER}) is None
    assert by_kind("subject", {"before": [], "after": []}) is None


def test_without_verdicts_the_reward_is_compared():
    before, after = (
        [answered(str(at), reward=float(at % 2 + extra), row={"subject": "a"}) for at in range(6)] for extra in (0, 1)
    )
    found = by_kind("subject", {"before": before, "after": after})
    assert found.title == "Reward, weighted sum, by subject" and found.kinds[0].cells[2][0] == "+1.00"
    assert found.kinds[0].note == ""  # each answer earns 1 more
    for count in (1, 5):
        (few,) = by_kind("subject", {"before": before[:count], "after": after[:count]}).kinds
        assert few.note == TOO_FEW


def test_other_questions_after_training_are_not_paired():
    found = by_kind("subject", {"before": BEFORE, "after": AFTER[::-1]})
    assert all(kind.change == {} and kind.note == "" for kind in found.kinds)


@pytest.mark.parametrize("count", [MOST, MOST + 1, 300])
def test_the_smallest_of_many_kinds_are_one_row(count):
    values = [f"level {at}" for at in range(count) for _ in range(count - at)]
    table = counts_of(values)
    rest = [name for name in table if name.startswith("others (")]
    assert len(table) == MOST and sum(table.values()) == len(values)
    assert [*table][:3] == ["level 0", "level 1", "level 2"] and [*table][10] == "level 10"  # not by letters
    assert rest == ([] if count == MOST else [[*table][-1]]) and ("others (2 kinds)" in rest) == (count == MOST + 1)
    samples = asked(values, [True] * len(values))
    found = by_kind("subject", {"only": samples}).kinds
    assert {kind.name: kind.n for kind in found} == table


def test_questions_without_a_value_come_last():
    assert [*counts_of(["(none)", "a", "Z", "10", "9"])] == ["9", "10", "a", "Z", "(none)"]


@pytest.mark.parametrize("value", ["9" * 9000, "²", "٣", "[red]x[/red] | <b>y</b>" * 300])
def test_any_text_has_a_place_and_a_short_name(value):
    (kind, _) = by_kind("subject", {"only": asked([value, "\x00"], [True, False])}).kinds
    assert len(kind.label) <= 40 + len(" (1)")


def test_the_console_has_a_row_for_each_kind(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    hostile = asked(["[red]x[/red]", "\x1b[31m"], [True, False])
    for before, after in ((BEFORE, AFTER), (hostile, hostile)):
        kinds = by_kind("subject", {"before": before, "after": after})
        summaries = {"before": summarize(before), "after": summarize(after)}
        print_summaries(summaries, compare(before, after), kinds)
    out = " ".join(capsys.readouterr().out.split())
    low = 100 * compare(BEFORE[:8], AFTER[:8])["lenient"]["difference_low"]
    assert "Accuracy, lenient, by subject" in out and f"+100.0 (+{low:.1f} to +100.0)" in out
    assert "│ sets (5) │ 0.0 (0.0-43.4) │ 100.0 (56.6-100.0) │ +100.0 too few to tell │" in out
    assert "│ [red]x[/red] (1) │" in out and "\x1b" not in out
