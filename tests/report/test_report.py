"""The report shows the numbers of a run's files, whichever there are, and needs nothing else."""

import base64
import itertools
import json
import re
from xml.etree import ElementTree

import pytest
from helpers_report import PARTS, Page, add_kinds, add_metrics, change, page_of, watch, write_run
from matplotlib import rc_context
from matplotlib.figure import Figure

from grpo.core.errors import UserError
from grpo.report import charts, contents, report
from grpo.report.curves import Curve
from grpo.report.files import read_run
from grpo.results.comparison import tango


@pytest.fixture
def no_picture(monkeypatch):
    """A report without curves.png, which takes a second to draw."""
    monkeypatch.setattr(charts, "draw_curves", lambda *_: None)


@pytest.fixture
def undrawn(no_picture, monkeypatch):
    """A report without any curve."""
    monkeypatch.setattr(charts, "image", lambda *_, **__: "")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


# --- The page


def test_a_full_run_shows_the_numbers_of_its_files(run, no_picture):
    page = page_of(run)
    for words in (
        "finished 24 of 24 optimizer steps",
        "Too small to tell. Plain.",
        "it hardly moved plain; raise learning_rate.",
        "Accuracy, lenient 50.0 → 62.5 %",
        "zero_variance at step 4 It fell: plain Do: plain",
        "Reward 0.2 → 2.4",
        "Loss −1e-5 → −1e-5",
        "Duration 1 h 2 min",
        "max_steps 24 flag run_name nplain script",
        "Prompt Respond so: ``` plain plain {question} plain",
        "Code of plain def plain(completions): return plain",
    ):
        assert words in page.text
    assert page.text.count("question ") == 3 + 2  # fixed, broken


def test_each_picture_is_the_curve_that_its_title_names(run, monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(charts, "draw", lambda axes, curve, **_: drawn.setdefault(axes, curve))
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    add_metrics(run, {"step": 24, "eval/accuracy_lenient": 0.625, "eval/accuracy_strict": 0.5})
    found = read_run(run)
    charts.draw_curves(tmp_path / "curves.png", found.curves, found.held_out_curves, {})
    curves = {axes.get_title("left"): curve for axes, curve in drawn.items()}
    for measure in found.held_out_curves:
        title = f"Held out: {measure.words}{', %' * measure.is_share}"
        assert curves[title[:30]] is found.curves[measure.logged]
    assert len(found.held_out_curves) == 2 and curves["Reward, all together"] is found.curves["reward"]


def test_each_reward_has_a_row_with_its_paired_change(run, undrawn):
    paired = {"n": 8, "before": 0.25, "after": 0.75, "difference": 0.5, "difference_low": 0.1, "difference_high": 0.9}
    change(run, "eval_before.json", reward_date_reward_func=0.25, reward=1.0)
    change(run, "eval_after.json", reward_date_reward_func=0.75, reward=1.5)
    steady = {**paired, "difference": 0.0, "difference_low": 0.0, "difference_high": 0.0}
    change(run, "comparison.json", rewards={"date_reward_func": paired}, reward=steady)
    text = page_of(run).text
    assert "weighted sum 1.00 1.50 +0.00 Learning" in text  # no interval without any variation
    assert "date 0.25 0.75 +0.50 +0.10 to +0.90" in text


TICKETS = ["billing"] * 8 + ["account"] * 6 + ["broken"] * 6


def label_run(run, after, pattern="text", golds=TICKETS, **record):
    """Answers to twenty tickets before and after training, without a format."""
    answers = {"before": ["billing"] * 20, "after": after}
    for when, texts in answers.items():
        rows = [
            {"question": f"ticket {at}", "answer": gold, "completion": text, "read": text, "truncated": False}
            | {"strict": text == gold, "lenient": text == gold}
            for at, (gold, text) in enumerate(zip(golds, texts, strict=True))
        ]
        (run / f"completions_{when}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = json.loads((run / f"eval_{when}.json").read_text())
        kept = {key: value for key, value in summary.items() if not key.startswith("format")} | record
        (run / f"eval_{when}.json").write_text(json.dumps(kept))
    prompt = {"system": "", "opening": "", "chat": True, "question": "{question}", "completion": "{answer}"}
    change(run, prompt=prompt | {"pattern": pattern})
    return page_of(run).text


def test_labels_are_read_whole_and_their_shares_shown(run, undrawn):
    text = label_run(run, ["billing"] * 8 + ["account"] * 9 + ["odd"] * 3)
    assert "Always answering “billing” would be right on 40.0 %." in text
    for row in ("billing 40.0 100.0 40.0", "account 30.0 0.0 45.0", "broken 30.0 0.0 0.0", "odd 0.0 0.0 15.0"):
        assert row in text
    assert "answer read: billing" in text and "nothing marks" not in text and "Format" not in text
    assert "Accuracy, strict" in text and "exactly the gold answer" in text and "in its place" not in text


def test_strict_is_not_shown_where_it_is_the_judges_verdict_again(run, undrawn):
    text = label_run(run, ["billing"] * 20, judge="mine.f")
    assert "right by mine.f" in text and "Accuracy, strict" not in text


def test_always_answering_names_an_answer_and_never_the_others_together(run, undrawn):
    text = label_run(run, ["odd"] * 20, golds=["24"] * 4 + [str(n) for n in (1, 2, 3, 4, 5, 6, 7, 8) for _ in "ab"])
    assert "Always answering “24” would be right on 20.0 %." in text and "4 others" in text


def test_numbers_that_happen_to_recur_are_no_labels(run, undrawn):
    assert "Always answering" not in page_of(run).text


def test_kinds_of_questions_have_a_row_each(run, undrawn):
    """With the interval of the change, and what does not follow from it; before training and alone, too."""
    add_kinds(run, ["algebra", "algebra", "<b>sets</b>", None])
    text = page_of(run).text
    assert "Accuracy, lenient, by subject" in text
    low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in tango(3, 1, 4))
    assert f"algebra (4) 25.0 4.6 to 69.9 75.0 30.1 to 95.4 +50.0 {low} to {high} too few to tell" in text
    assert "<b>sets</b> (2)" in text and "(none) (2)" in text
    for name in ("eval_after.json", "comparison.json", "completions_after.jsonl"):
        (run / name).unlink()
    text = page_of(run).text
    assert "algebra (4) 25.0 4.6 to 69.9 (none) (2)" in text and "too few to tell" not in text


def test_without_the_setting_no_kinds_are_shown(run, undrawn):
    add_kinds(run, ["algebra"])
    change(run, settings={"eval_by": None})
    assert "algebra" not in page_of(run).text


def test_a_rewards_own_numbers_have_curves_and_none_is_missing(run, no_picture):
    logged = ({"step": step, "loss": 0.1, "share_of_dates": step / 24, "clip_ratio/low_mean": 0.0} for step in (2, 24))
    add_metrics(run, *logged)
    page = page_of(run)
    assert "Logged by your rewards share_of_dates 0.0833 → 1" in page.text
    assert "Everything else that was logged" in page.text and "clip_ratio/low_mean" in page.text
    assert " step 2 → 24" not in page.text
    titles = [attrs["alt"] for name, attrs in page.elements if name == "img"]
    assert len(titles) == len({title.partition(":")[0] for title in titles})  # none twice


def test_any_subset_of_the_files_makes_a_report(tmp_path, undrawn):
    for kept in [kept for count in (1, 5) for kept in itertools.combinations(PARTS, count)]:
        run = write_run(tmp_path / "run")
        for name in set(PARTS) - set(kept):
            (run / name).unlink()
        (run / "report.html").unlink(missing_ok=True)  # the last one's: without a record, it may be another's
        if set(kept) <= {"eval_after.json", "comparison.json", "alarms.jsonl"}:
            with pytest.raises(UserError):
                contents.draw(run)
            continue
        text = page_of(run).text
        assert ("Learning curves" in text) == ("metrics.jsonl" in kept)
        assert ("held-out questions" in text) == bool({"eval_before.json", "eval_after.json"} & set(kept))
        assert ("it was killed, or still trains" in text) == ("run.json" not in kept)


def test_the_page_needs_nothing_else(run, no_picture):
    page = page_of(run)
    addresses = [attrs.get("src") or attrs.get("href") for _, attrs in page.elements if {"src", "href"} & attrs.keys()]
    assert len(addresses) > 5 and all(address.startswith("data:image/svg+xml;base64,") for address in addresses)
    assert not re.search(r"https?:|url\(|@import|<link|<base", (run / "report.html").read_text())


def titles(page):
    """What is above the answers to the first watched question."""
    found = re.findall(r"(Before, step 0|Step \d+|After, step \d+)", page.text)
    return found[: len(set(found))]


def test_the_same_questions_are_shown_at_each_evaluation(run, undrawn):
    watch(run, 8, 16)
    page = page_of(run)
    assert titles(page) == ["Before, step 0", "Step 8", "Step 16", "After, step 24"]
    assert page.text.count("at step 8") == page.text.count("at step 16") == 4
    assert "4 of the held-out questions, evenly spaced among them, at 4 evaluations." in page.text
    assert "answer read: plain · paid: 1.5 (own 2)" in page.text
    for at in (0, 2, 4, 6):
        assert page.text.count(f"question {at} plain") == 1  # not among those fixed and broken once more
    assert "Fixed (2 of 5)" in page.text and "Broken (1 of 2)" in page.text


def test_of_many_evaluations_a_few_are_shown_and_all_are_named(run, undrawn):
    watch(run, *range(1, 24))
    page = page_of(run)
    assert titles(page) == ["Before, step 0", "Step 5", "Step 10", "Step 14", "Step 19", "After, step 24"]
    assert "at 6 of 25 evaluations." in page.text and "The others are in completions_during.jsonl." in page.text
    for name in ("eval_after.json", "comparison.json"):
        change(run, name, step=3)
    change(run, best_step=3)
    shown = ["Before, step 0", "After, step 3", *(f"Step {step}" for step in (5, 9, 14, 18, 23))]
    assert titles(page_of(run)) == shown


def test_a_run_that_trains_shows_the_answers_so_far(run, undrawn):
    watch(run, 8)
    change(run, status="running")
    for name in ("eval_after.json", "comparison.json", "completions_after.jsonl"):
        (run / name).unlink()
    assert report.refresh(run, steps=48) == ""
    assert titles(Page(run / "report.html")) == ["Before, step 0", "Step 8"]
    (run / "completions_during.jsonl").unlink()
    assert report.refresh(run, steps=48) == "" and titles(Page(run / "report.html")) == ["Before, step 0"]


def test_answers_of_another_measure_are_not_mixed(run, undrawn):
    watch(run, 8)
    watch(run, 16, measure="of other questions")
    assert titles(page_of(run)) == ["Before, step 0", "Step 8", "After, step 24"]


def test_without_evaluations_while_training_none_are_shown(run, undrawn):
    change(run, settings={"eval_strategy": "no"})
    assert titles(page_of(run)) == [] and "Fixed (3 of 5)" in page_of(run).text


# --- Of a run that trains


@pytest.mark.parametrize("status", ["running", "finished"])
def test_only_the_page_of_a_run_that_trains_reloads_itself(run, status, undrawn):
    change(run, status=status)
    assert report.refresh(run, steps=48) == ""
    page = Page(run / "report.html")
    live = status == "running"
    assert any(attrs.get("http-equiv") == "refresh" for _, attrs in page.elements) == live
    assert ("24 of 48 optimizer steps" in page.text) == live
    assert not (run / "curves.png").exists()  # it is left to the end
    contents.draw(run)  # the user's command, of a run that was perhaps killed
    assert 'http-equiv="refresh"' not in (run / "report.html").read_text()


# --- Charts


def test_accuracy_has_a_curve_with_its_interval(run):
    def measured(step, share):
        ends = {
            f"eval/accuracy_lenient{end}": share + add for end, add in (("", 0), ("_low", -0.125), ("_high", 0.125))
        }
        return {"step": step, "eval/n": 8, **ends}

    add_metrics(run, measured(0, 0.5), measured(12, 0.625), measured(24, 0.75), measured(12, 0.25))  # resumed at 11
    curve = read_run(run).curves["eval/accuracy_lenient"]
    assert (curve.steps, curve.values) == ([0, 12, 24], [50, 25, 75])
    assert (curve.lows, curve.highs) == ([37.5, 12.5, 62.5], [62.5, 37.5, 87.5])


def test_a_run_whose_rewards_were_never_numbers_has_a_report(run):
    for name in ("eval_after.json", "eval_before.json", "comparison.json", "metrics.jsonl"):
        (run / name).unlink()
    add_metrics(run, {"step": 1, "reward": None, "rewards/own/mean": None, "loss": 0.5})
    assert "Learning curves" in page_of(run).text and (run / "curves.png").exists()


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [-0.5], [1e-9, 2e-9], [-3.0, 1e6]])
def test_any_numbers_can_be_drawn(values):
    curve = Curve([*range(len(values))], values, values, values)
    picture = base64.b64decode(charts.image(curve, 330, 165).partition("base64,")[2])
    assert ElementTree.fromstring(picture).tag.endswith("svg") and b"nan" not in picture.lower()


@pytest.mark.parametrize("most", [1.0, 786.0, 9.9e3, 277729.0, 5e6, 9.9e6, 4.2e9])
def test_the_labels_of_an_axis_have_room(most):
    """Found as a cut-off "300,000" beside the tokens of the demo."""
    with rc_context(charts.STYLE):
        figure = Figure(figsize=(330 / 72, 165 / 72))
        axes = figure.add_axes((44 / 330, 22 / 165, 1 - 58 / 330, 1 - 30 / 165))  # as `image` does
        charts.draw(axes, Curve([0, 1], [0.0, most], [0.0, most], [0.0, most]))
        figure.draw_without_rendering()
        assert all(label.get_window_extent().x0 >= 0 for label in axes.get_yticklabels())


@pytest.mark.parametrize("with_curve", [True, False])
def test_the_rewards_chart_has_another_beside_it(run, undrawn, with_curve):
    """The held-out accuracy, or else the groups by their answers; each chart is on the page once."""
    add_metrics(run, *({"step": step, "loss": 0.1, "groups/mixed": 0.5, "groups/all_right": 0.5} for step in (2, 24)))
    if with_curve:
        add_metrics(run, *({"step": step, "eval/n": 8, "eval/accuracy_lenient": 0.5} for step in (0, 24)))
    charts = [attrs for name, attrs in page_of(run).elements if name == "img"]
    large = [attrs["alt"].partition(":")[0] for attrs in charts if attrs["width"] == "440"]
    assert large == (["Accuracy, lenient", "Reward"] if with_curve else ["Reward", "Mixed groups"])
    assert [attrs["alt"].partition(":")[0] for attrs in charts].count("Mixed groups") == 1
