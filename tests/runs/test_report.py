"""grpo/runs/report.py reads a run's files and shows them, whatever is missing and whatever a model wrote."""

import base64
import itertools
import json
import platform
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers_report import PARTS, Page, write_run
from matplotlib.figure import Figure

from grpo.__main__ import main as tool
from grpo.core.errors import UserError
from grpo.runs import charts, directory, report


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


def change_record(run, **changed):
    """In run.json; `settings` are added to those that it has."""
    record = json.loads((run / "run.json").read_text())
    changed["settings"] = record["settings"] | changed.get("settings", {})
    (run / "run.json").write_text(json.dumps(record | changed))


def test_a_step_that_was_logged_twice_counts_once(write_jsonl, tmp_path):
    lines = [
        {"step": 2, "reward": 1.5},
        {"step": 1, "reward": 1.0},
        {"step": 2, "reward": 1.6},
        {"step": 2, "loss": 0},
    ]
    write_jsonl(lines, "metrics.jsonl")
    assert report.read_metrics(tmp_path) == [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 1.6}]


@pytest.mark.parametrize("tail", [b'{"step": 26, "rew', b'{"step": 26, "t": "\xe2\x80'])
def test_a_half_written_last_line_is_ignored(run, tail, undrawn):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    assert len(report.read_metrics(run)) == 12
    assert report.write(run).exists()


def test_another_broken_line_is_named_by_file_and_number(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], '{"step": 3, "rew{"step": 3}', *lines[2:]]) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 3 is"):
        report.read_metrics(run)


@pytest.mark.parametrize("text", ["[]", "[" * 100_000])
def test_json_that_is_no_object_is_named_by_its_file(run, text):
    (run / "metrics.jsonl").write_text(f"{{}}\n{text}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not a JSON object"):
        report.read_metrics(run)
    (run / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json is not a JSON object"):
        report.write(run)


def test_a_full_run_shows_the_numbers_of_its_files(run, no_picture):
    page = Page(report.write(run))
    for words in (
        "finished 24 of 24 optimizer steps",
        "Too small to tell: plain. Likely cause: it hardly moved plain; raise learning_rate.",
        "Lenient accuracy 50.0 → 62.5 %",
        "zero_variance at step 4 It fell: plain Do: plain",
        "Reward 0.2 → 2.4",
        "Loss −1e-5 → −1e-5",
        "Duration 1 h 2 min",
        "learning_rate 5e-06 0.0001",
    ):
        assert words in page.text
    assert page.text.count("question ") == 3 + 2  # fixed, broken


def test_a_curve_has_its_points_and_its_band():
    logs = [{"step": 10, "reward": 1.0, "reward_std": 2.0}, {"step": 30, "reward": 3.0, "reward_std": 1}]
    reward = charts.read_curves(logs)["reward"]
    assert (reward.steps, reward.values) == ([10, 30], [1.0, 3.0])
    assert (reward.lows, reward.highs) == ([-1.0, 2.0], [3.0, 4.0]) and reward.window == 1
    assert reward.ends == (1.0, 3.0)
    logs = [{"step": step, "reward": float(step % 2)} for step in range(29)]
    assert charts.read_curves(logs)["reward"].ends == (0.5, 0.5)  # single values would say 0 → 0


def add_metrics(run, *lines):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def measured(step, share):
    shares = {f"eval/accuracy_lenient{end}": share + add for end, add in (("", 0), ("_low", -0.125), ("_high", 0.125))}
    return {"step": step, "eval/n": 8, **shares, "eval/accuracy_strict": share / 2, "time/evaluation": 1.5}


def test_accuracy_while_training_is_a_curve_with_its_interval(run, no_picture):
    page = Page(report.write(run)).text
    assert "Lenient accuracy 50 →" not in page
    add_metrics(run, measured(0, 0.5), measured(12, 0.625), measured(24, 0.75), measured(12, 0.25))  # resumed at 11
    curves = report.read_facts(run)["curves"]
    curve = curves["eval/accuracy_lenient"]
    assert (curve.steps, curve.values) == ([0, 12, 24], [50, 25, 75])
    assert (curve.lows, curve.highs) == ([37.5, 12.5, 62.5], [62.5, 37.5, 87.5])
    assert curves["eval/accuracy_strict"].values == [25, 12.5, 37.5] and curves["reward"].steps[-1] == 24
    change_record(run, settings={"eval_every": 12})
    page = Page(report.write(run)).text
    assert "Lenient accuracy 50 → 75 per cent of 8 held-out questions, every 12 steps" in page


def test_a_judge_that_raised_is_named(run, undrawn):
    for name in ("eval_after.json", "comparison.json"):
        (run / name).unlink()
    (run / "eval_before.json").write_text('{"n": 8, "judge_error": "judge mine.f raises KeyError: 1"}')
    assert "No accuracy: judge mine.f raises KeyError: 1." in Page(report.write(run)).text


def test_without_gold_answers_the_reward_has_the_curve(run, undrawn):
    add_metrics(run, {"step": 0, "eval/n": 8, "eval/format_strict": 0.5, "eval/reward": 2.5})
    page = Page(report.write(run)).text
    assert "Reward of greedy answers 2.5 → 2.5 8 held-out questions" in page


@pytest.mark.slow
def test_any_subset_of_the_files_makes_a_report(tmp_path, undrawn):
    for kept in [kept for count in (1, 5) for kept in itertools.combinations(PARTS, count)]:
        run = write_run(tmp_path / "run")
        for name in set(PARTS) - set(kept):
            (run / name).unlink()
        if set(kept) <= {"comparison.json", "alarms.jsonl"}:
            with pytest.raises(UserError, match="holds no run"):
                report.write(run)
            continue
        text = Page(report.write(run)).text
        assert ("Learning curves" in text) == ("metrics.jsonl" in kept)
        assert ("held-out questions" in text) == bool({"eval_before.json", "eval_after.json"} & set(kept))
        assert ("not finished: it was killed, or still trains" in text) == ("run.json" not in kept)


def test_the_page_needs_nothing_and_fits_phones_and_the_dark(run, no_picture):
    page = Page(report.write(run))
    html = (run / "report.html").read_text()
    addresses = [attrs.get("src") or attrs.get("href") for _, attrs in page.elements if {"src", "href"} & attrs.keys()]
    assert len(addresses) > 5 and all(address.startswith("data:image/svg+xml;base64,") for address in addresses)
    assert not re.search(r"https?:|url\(|@import|<link|<base", html)
    assert 'name="viewport" content="width=device-width' in html and "prefers-color-scheme: dark" in html


@pytest.mark.parametrize("status", ["running", "finished"])
def test_only_the_page_of_a_run_that_trains_reloads_itself(run, status, undrawn):
    change_record(run, status=status)
    assert report.refresh(run, steps=48) == ""
    page = Page(run / "report.html")
    live = status == "running"
    assert [attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs] == ["30"] * live
    assert ("running 24 of 48 optimizer steps As of " in page.text) == live
    assert not (run / "curves.png").exists()  # it is left to the end
    report.write(run)  # the user's command, of a run that was perhaps killed
    assert "http-equiv" not in (run / "report.html").read_text()


def test_a_page_that_cannot_be_written_leaves_the_one_before(run, undrawn, monkeypatch):
    assert report.refresh(run) == ""
    before, here = (run / "report.html").read_bytes(), {path.name for path in run.iterdir()}

    def full(part, text, **kwargs):
        part.write_bytes(text.encode()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert report.refresh(run) == "[Errno 28] No space left on device"
    assert (run / "report.html").read_bytes() == before and {path.name for path in run.iterdir()} == here
    (run / "metrics.jsonl").write_bytes(b"{\n{}\n")
    assert "line 1 is not a JSON object" in report.refresh(run)


def test_a_run_that_was_killed_is_told_from_one_that_trains(run, undrawn):
    change_record(run, status="running", process={"id": 1, "host": platform.node()}, resume="python train_grpo.py")
    (run / "checkpoint-4").mkdir()
    with directory.locked(run):
        assert "killed optimizer" not in (text := Page(report.write(run)).text) and "or still trains" in text
        report.refresh(run)
        assert "http-equiv" in (run / "report.html").read_text()
    text = Page(report.write(run)).text
    assert " killed 24 of 24 optimizer steps" in text and "To resume: python train_grpo.py" in text
    change_record(run, process={"id": 1, "host": "another machine"})  # whose locks are not seen here
    assert "To resume, if it was killed: python train_grpo.py" in Page(report.write(run)).text


def test_two_reports_of_one_run_are_the_same(run):
    first, second = ([report.write(run).read_bytes(), (run / "curves.png").read_bytes()] for _ in range(2))
    assert first == second


def test_curves_are_a_picture_without_an_evaluation_too(run):
    for name in ("eval_after.json", "eval_before.json"):
        (run / name).unlink()
        report.write(run)
        picture = (run / "curves.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_a_run_whose_rewards_were_never_numbers_has_a_report(run):
    for name in ("eval_after.json", "eval_before.json", "comparison.json", "metrics.jsonl"):
        (run / name).unlink()
    add_metrics(run, {"step": 1, "reward": None, "rewards/own/mean": None, "loss": 0.5})
    assert "Learning curves" in Page(report.write(run)).text and (run / "curves.png").exists()


def test_the_picture_has_the_accuracies_at_both_ends(run, undrawn, monkeypatch):
    drawn = []
    monkeypatch.setattr(charts, "draw_curves", lambda path, curves, *_: drawn.append(curves))
    report.write(run)
    curve = drawn[0]["eval/accuracy_lenient"]
    assert (curve.steps, curve.values, curve.lows) == ([0, 24], [50, 62.5], [43.75, 56.25])
    add_metrics(run, measured(0, 0.5), measured(12, 0.625), measured(24, 0.75))
    report.write(run)
    assert drawn[1]["eval/accuracy_lenient"].steps == [0, 12, 24]


def test_a_chart_holds_what_it_is_given():
    curve = charts.Curve([10, 20, 30], [0.1, 0.3, 0.2], [0, 0.2, 0.1], [0.2, 0.4, 0.3])
    stages, alarms = [{"first_step": 20}], [{"step": 25}, {"step": 500}, {"step": "?"}]
    axes = Figure().add_subplot()
    charts.draw(axes, curve, stages, alarms, limit=2, beside=[(curve, "good")])
    assert axes.get_xlim() == (10, 30) and axes.get_ylim() == (0, 2)
    assert sorted(float(line.get_xdata()[0]) for line in axes.lines) == [0, 10, 10, 20, 25]  # 0: the limit, across


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [-0.5], [1e-9, 2e-9], [-3.0, 1e6]])
def test_any_numbers_can_be_drawn(values):
    curve = charts.Curve([*range(len(values))], values, values, values)
    picture = base64.b64decode(charts.image(curve, 330, 165).partition("base64,")[2])
    assert ElementTree.fromstring(picture).tag.endswith("svg") and b"nan" not in picture.lower()


# --- The command line ---------------------------------------------------------------------------------------------


def test_another_directory_is_one_line_and_status_2(capsys):
    assert tool(["report", "none"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1 and not out


def test_a_broken_file_is_one_line_that_names_it(run, capsys):
    (run / "run.json").write_text('{"n": 3,')
    assert tool(["report", str(run)]) == 2
    err = capsys.readouterr().err
    assert "run.json" in err and err.count("\n") == 1
