"""grpo/evaluation/side_by_side.py: gains of several runs, their spread, and what the page and the terminal show."""

import json
import math
import re
from pathlib import Path

import pytest
import scipy
from helpers_report import HOSTILE, Page, write_run
from helpers_runs import examples
from hypothesis import given
from hypothesis import strategies as st

from grpo.core.errors import UserError
from grpo.evaluation import comparison, side_by_side
from grpo.evaluation.side_by_side import spread


def write(name, before="1100", after="1111", **settings):
    """A finished run whose questions were answered so (1: right), with these settings besides its own."""
    run = write_run(Path(name))
    change(run, run_name=name, output_dir=name, **settings)
    answered = {}
    for when, rights in (("before", before), ("after", after)):
        answered[when] = [
            {"question": f"q{place}", "answer": "7", **dict.fromkeys(comparison.MEASURES, right == "1")}
            for place, right in enumerate(rights)
        ]
        save(run, when, answered[when])
    (run / "comparison.json").write_text(json.dumps(comparison.compare(*answered.values())))
    return run


def save(run, when, records):
    summary = json.loads((run / f"eval_{when}.json").read_text()) | {"n": len(records)}
    for measure in ("lenient", "strict"):
        summary[f"accuracy_{measure}"] = sum(record[measure] for record in records) / len(records)
    (run / f"eval_{when}.json").write_text(json.dumps(summary))
    (run / f"completions_{when}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def spoil_numbers(path):
    known = json.loads(path.read_text())
    path.write_text(json.dumps({key: math.nan if isinstance(each, float) else each for key, each in known.items()}))


def change(run, status="finished", **settings):
    record = json.loads((run / "run.json").read_text())
    record["settings"] |= settings
    (run / "run.json").write_text(json.dumps(record | {"status": status}))


def compare(*runs):
    return side_by_side.compare(side_by_side.read(list(runs)))


def page(compared):
    return Page(side_by_side.write(compared, Path("compare.html")))


@examples(20)
@given(st.lists(st.integers(-1000, 1000).map(lambda tenths: tenths / 10), min_size=2, max_size=40, unique=True))
def test_mean_and_interval_equal_scipys(gains):
    found = spread(gains)
    reference = scipy.stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    close = {"rel": 1e-9, "abs": 1e-9}
    assert (found.mean, found.deviation) == pytest.approx((sum(gains) / len(gains), scipy.stats.tstd(gains)), **close)
    assert (found.low, found.high) == pytest.approx(tuple(reference), **close)
    assert (found.count, found.lowest, found.highest) == (len(gains), min(gains), max(gains))


def test_one_run_has_no_spread():
    assert spread([12.5]) is None and spread([]) is None


def test_gains_are_those_of_the_runs_with_their_intervals():
    compared = compare(write("a"), write("b", after="1101"), write("c", after="0011"))
    first, second, third = compared["runs"]
    low, high = comparison.tango(2, 0, 4)
    assert first.gains["lenient"] == side_by_side.Estimate(50.0, 100 * low, 100 * high)
    assert [run.gains["strict"].value for run in (second, third)] == [25.0, 0.0]
    assert compared["spreads"]["lenient"] == spread([50.0, 25.0, 0.0])
    assert (first.before["lenient"].value, first.after["lenient"].value, first.n, first.steps) == (50.0, 100.0, 4, 24)
    assert compared["warnings"] == []


def test_final_answers_are_paired_with_the_first_runs():
    compared = compare(write("a", after="1110"), write("b", after="0011"), write("c", after="1110"))
    assert set(compared["paired"]) == {"b", "c"}
    difference, found = compared["paired"]["b"]
    low, high = comparison.tango(1, 2, 4)
    assert difference == side_by_side.Estimate(-25.0, 100 * low, 100 * high)
    assert (found["fixed"], found["broken"], found["p_value"]) == (1, 2, comparison.mcnemar(1, 2))
    assert compared["paired"]["c"][0].value == 0


def test_the_order_of_the_questions_does_not_matter():
    first, second = write("a", after="1110"), write("b", after="0111")
    lines = (second / "completions_after.jsonl").read_text().splitlines(keepends=True)
    (second / "completions_after.jsonl").write_text("".join(reversed(lines)))
    assert compare(first, second)["paired"]["b"][1]["fixed"] == 1


def test_other_questions_are_not_paired_and_said(capsys):
    first, second = write("a"), write("b", before="11000", after="11111")
    compared = compare(first, second)
    assert compared["paired"] == {}
    side_by_side.print_all(compared)
    line = "the runs did not answer the same held-out questions, so their answers are not compared one by one"
    assert f"warning: {line}\n" in capsys.readouterr().out and line in page(compared).text
    records = [json.loads(line) for line in (first / "completions_after.jsonl").read_text().splitlines()]
    save(first, "after", [record | {"question": "another"} for record in records])
    assert compare(first, write("b"))["warnings"] == [line]  # as many, and different


def test_an_unfinished_run_is_shown_without_its_gain():
    runs = write("a"), write("b", after="1110"), write("c")
    for name in ("eval_after.json", "completions_after.jsonl", "comparison.json"):
        (runs[2] / name).unlink()
    change(runs[2], status="interrupted")
    compared = compare(*runs)
    assert compared["spreads"]["lenient"].count == 2 and compared["warnings"] == ["c is not finished (interrupted)"]
    assert "c 7 24" not in (text := page(compared).text) and "c – 24 50.0 → – 50.0 → –" in text


@pytest.mark.parametrize("picks", [{}, {"keep_best": True}, {"load_best_model_at_end": True}])
def test_runs_that_were_watched_differently_are_repeats(picks):
    """Unless what was measured or saved picked the checkpoint."""
    one = write("a", seed=1, eval_every=10, save_steps=5, **picks)
    other = write("b", seed=2, eval_every=20, save_steps=9, **picks)
    compared = compare(one, other)
    assert compared["repeats"] is not bool(picks) and bool(compared["warnings"]) is bool(picks)
    assert compared["differing"]["eval_every"] == [10, 20]


def test_a_repeat_needs_another_seed():
    """The same seed gives the same run, whatever was measured meanwhile."""
    compared = compare(write("a", seed=1, eval_every=10), write("b", seed=2), write("c", seed=1, eval_every=20))
    assert not compared["repeats"]
    assert compared["warnings"] == ["a and c are one experiment that counts twice: they have the same seed"]
    assert not compare(write("a", seed=1, data_seed=None), write("b", seed=1, data_seed=1))["repeats"]
    assert compare(write("a", seed=1, data_seed=1), write("b", seed=1, data_seed=2))["repeats"]


def test_equal_gains_tell_no_spread():
    for name, seed in (("a", 1), ("b", 2)):
        write(name, seed=seed)
    compared = side_by_side.compare(side_by_side.read([Path("a"), Path("b")]))
    assert compared["repeats"] and compared["spreads"] == {}
    assert "rose" not in page(compared).text


def test_runs_of_unknown_settings_are_no_repeats():
    for name in ("a", "b"):
        run = write(name, after="1111" if name == "a" else "1110")
        record = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**record, "settings": None}))
    compared = side_by_side.compare(side_by_side.read([Path("a"), Path("b")]))
    assert not compared["repeats"] and "the settings of a are unknown" in compared["warnings"][0]


def test_runs_that_ended_at_different_steps_are_noted():
    """Though max_steps is the same."""
    one, other = write("a"), write("b")
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line).get("step", 0) <= 20))
    assert compare(one, other)["warnings"] == ["the runs ended after different numbers of steps (20, 24)"]
    change(other, status="stopped by SIGTERM")
    assert len(compare(one, other)["warnings"]) == 2
    change(other, max_steps=20)
    assert compare(one, other)["warnings"] == [
        "mean and spread are over different experiments: the runs differ in max_steps"
    ]


def test_settings_that_differ_are_named_but_not_names():
    one = write("a", learning_rate=1e-4, seed=1, report_to=["wandb"], beta=0.0, reward_funcs=["x"])
    other = write("b", learning_rate=2e-4, seed=1, report_to=[], beta=0.0, reward_funcs=["x", "y"], new=None)
    wanted = {"learning_rate": [1e-4, 2e-4], "reward_funcs": [["x"], ["x", "y"]]}
    assert compare(one, other)["differing"] == wanted
    assert compare(one, other)["warnings"] == [
        "mean and spread are over different experiments: the runs differ in learning_rate, reward_funcs"
    ]
    text = page(compare(one, other)).text
    assert (
        "reward_funcs x x, y" in text and "learning_rate 0.0001 0.0002" in text and "Lenient accuracy rose" not in text
    )
    (other / "run.json").unlink()  # nothing is known of its settings
    assert compare(one, other)["differing"] == {}


def test_runs_of_different_code_are_noted():
    runs = []
    for commit, torch in (("1" * 40, "2.13.0"), ("1" * 40 + "+", "2.13.0"), (None, "2.11.0")):
        runs.append(write(f"run-{len(runs)}"))
        record = runs[-1] / "run.json"
        code = {"commit": commit, "versions": {"torch": torch}}
        record.write_text(json.dumps(json.loads(record.read_text()) | code))
    assert compare(*runs[:2])["warnings"] == ["the runs are of different code: commit 1111111, 1111111+"]
    assert compare(runs[0], runs[2])["warnings"] == ["the runs are of different code: torch 2.13.0, 2.11.0"]


def test_runs_of_one_name_are_told_apart_by_their_paths():
    for name in ("x", "y"):
        Path(name).mkdir()
    found = side_by_side.read([write("x/run"), write("y/run"), write("other")])
    assert [run.name for run in found] == ["x/run", "y/run", "other"]


def test_evaluations_alone_are_compared_by_their_answers():
    runs = write("a", after="1100"), write("b", after="1111")
    for run in runs:
        change(run, status="evaluated")
        for name in ("eval_before.json", "comparison.json", "metrics.jsonl"):
            (run / name).unlink()
        (run / "eval_after.json").rename(run / "eval_only.json")
        (run / "completions_after.jsonl").rename(run / "completions_only.jsonl")
    compared = compare(*runs)
    assert compared["spreads"] == {} and compared["warnings"] == [] and compared["paired"]["b"][0].value == 50.0
    assert "– → 50.0" in page(compared).text


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda run: [path.unlink() for path in run.iterdir()], "'b' holds no run"),
        (lambda run: (run / "run.json").write_text("{"), r"b/run\.json is not a JSON object"),
        (lambda run: (run / "comparison.json").write_text("[]"), r"b/comparison\.json is not a JSON object"),
        (lambda run: (run / "metrics.jsonl").write_text("nan\n"), r"b/metrics\.jsonl, line 1 is not"),
        (lambda run: (run / "completions_after.jsonl").write_text("{\n{}\n"), r"completions_after\.jsonl, line 1 is"),
        (lambda run: [path.unlink() for path in run.glob("eval_*.json")], "'b' holds no evaluation"),
        (lambda run: [path.write_text('{"n": 4}') for path in run.glob("eval_*.json")], "'b' holds no evaluation"),
        (lambda run: [spoil_numbers(path) for path in run.glob("eval_*.json")], "'b' holds no evaluation"),
    ],
)
def test_what_cannot_be_read_is_one_line(spoil, reason):
    runs = write("a"), write("b")
    spoil(runs[1])
    with pytest.raises(UserError, match=reason):
        compare(*runs)


def test_the_page_shows_what_the_terminal_does(capsys):
    runs = write("a", seed=1), write("b", after="1101", seed=2), write("c", after="1111", seed=3)
    compared = compare(*runs)
    side_by_side.print_all(compared)
    shown, text = " ".join(capsys.readouterr().out.split()), page(compared).text
    for words in ("50.0 -> 100.0", "+50.0", "+25.0 to +50.0", "a 1 24", "standard deviation 14.4"):
        assert words in shown
    for words in (
        "3 runs a, b, c Lenient accuracy rose: on average +41.7 points over 3 runs",
        "a 1 24 50.0 → 100.0 +50.0",
        "b 2 24 50.0 → 75.0 +25.0",
        "Mean gain +41.7 +41.7 95 % interval (t) +5.8 … +77.5 +5.8 … +77.5 Standard deviation 14.4 14.4",
        "Range +25.0 … +50.0",
        "mean of 3",
        "Final answers against those of a",
        "b −25.0",
        "Settings that differ setting a b c seed 1 2 3",
    ):
        assert words in text
    assert "→" not in shown and "seed: 1 | 2 | 3" in shown and "b: -25.0 (" in shown


def test_the_page_has_the_reports_look_and_its_curves_and_legend():
    runs = write("a"), write("b")
    lines = [{"step": step, "eval/n": 4, "eval/accuracy_lenient": step / 100} for step in (0, 24)]
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    found = page(compare(*runs))
    html = Path("compare.html").read_text()
    style = Path(side_by_side.report.__file__).with_name("templates") / "style.css"
    assert style.read_text().strip() in html and "prefers-color-scheme: dark" in html
    assert not [attrs for _, attrs in found.elements if {"src", "href"} & attrs.keys()] and "http" not in html
    assert not re.search(r"#[0-9a-f]{6}", html.partition("</style>")[2])
    labels = [attrs["aria-label"] for name, attrs in found.elements if name == "svg" and "aria-label" in attrs]
    assert labels == ["Reward: a 2.4 at step 24, b 2.4 at step 24"] * 2 + ["Lenient accuracy: a 24 at step 24"] * 2
    swatches = [attrs for name, attrs in found.elements if attrs.get("class") == "swatch"]
    assert len(swatches) == 4  # in the table and in the legend


def test_what_runs_hold_is_text_in_page_and_terminal(capsys):
    hostile = HOSTILE + "\x1b[31m[red]"
    runs = write("<u>\x1b[31m[red]"), write("b", **{hostile: hostile}, seed=hostile)
    change(runs[0], status=hostile)
    compared = compare(*runs)
    side_by_side.print_all(compared)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "[red]" in shown and r"\x1b[31m" in shown
    found = page(compared)
    assert "script" not in found.names and "img" not in found.names and "<script>alert(1)</script>" in found.text
    assert "{{ 7 * 6 }}" in found.text and "u" not in found.names and "<u>" in found.text


@pytest.mark.parametrize(
    ("intervals", "ticks"),
    [
        ([(50, 43, 58), (52, 45, 59)], [0, 10, 20, 30, 40, 50, 60]),
        ([(1, -3, 4)], [-5, 0, 5]),
        ([(-80, -100, -60), (90, 80, 100)], [-100, -50, 0, 50, 100]),
        ([(0, 0, 0)], [0, 5]),
    ],
)
def test_gains_lie_on_a_scale_with_few_ticks(intervals, ticks):
    runs = [write(name) for name in "ab"][:1] * len(intervals)
    found = [side_by_side.read_run(run, "r") for run in runs]
    for run, interval in zip(found, intervals, strict=True):
        run.gains["lenient"] = side_by_side.Estimate(*interval)
    assert side_by_side.bars({"runs": found, "spreads": {}, "measures": ["lenient"]})["ticks"] == ticks


def test_runs_without_gold_answers_are_compared_by_reward(capsys):
    runs = write("a", seed=1), write("b", seed=2)
    earned = {"before": [0.5, 0.25, 0.0, 0.25], "after": [1.0, 0.5, 0.75, 0.75]}
    for run, more in zip(runs, (0.0, 0.25), strict=True):
        answers = {
            when: [
                {"question": str(at), "answer": None, "reward": value + more * (when == "after")} for at, value in row
            ]
            for when, row in ((when, enumerate(values)) for when, values in earned.items())
        }
        for when, records in answers.items():
            mean, low, high = comparison.mean_interval([record["reward"] for record in records])
            summary = {"n": 4, "reward": mean, "reward_low": low, "reward_high": high}
            (run / f"eval_{when}.json").write_text(json.dumps(summary))
            (run / f"completions_{when}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
        (run / "comparison.json").write_text(json.dumps(comparison.compare(*answers.values())))
    compared = compare(*runs)
    assert compared["measures"] == ["reward"] and compared["runs"][0].before["reward"].value == 0.25
    reference = scipy.stats.ttest_1samp([0.5, 0.25, 0.75, 0.5], 0).confidence_interval(0.95)
    gain = compared["runs"][0].gains["reward"]
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.5, *reference))
    assert compared["spreads"] == {"reward": spread([0.5, 0.75])} and compared["paired"]["b"][0].value == 0.25
    side_by_side.print_all(compared)
    shown, text = " ".join(capsys.readouterr().out.split()), page(compared).text
    assert "Mean reward (95 % interval)" in shown and "0.25 -> 0.75" in shown and "b: +0.25 (+0.25 to +0.25)" in shown
    assert (
        "Mean reward did not clearly change: on average +0.62 over 2 runs" in text and "accuracy" not in text.lower()
    )
    assert "a 1 24 0.25 → 0.75 +0.50" in text and "Gain in mean reward" in text
