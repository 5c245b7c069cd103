"""The report shows the numbers of a run's files, whichever there are, needs nothing else, and knows a killed run."""

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
from trl.trainer import grpo_trainer

from grpo.__main__ import main as tool
from grpo.core.errors import UserError
from grpo.rewarding import guard, stages
from grpo.runs import charts, directory, report
from grpo.training import callbacks, run_trainer


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
    """In run.json."""
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | changed))


def add_metrics(run, *lines):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


# --- Reading


def test_a_step_that_was_logged_twice_counts_once(write_jsonl, tmp_path):
    rewards = [{"step": 2, "reward": 1.5}, {"step": 1, "reward": 1.0}, {"step": 2, "reward": 1.6}]
    write_jsonl([*rewards, {"step": 2, "loss": 0}], "metrics.jsonl")
    assert report.read_metrics(tmp_path) == [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 1.6, "loss": 0}]


def off_policy(rollouts=3, steps=4, last=None):
    """Logs of rollouts that serve several optimizer steps, as TRL writes them: the reward once a rollout."""
    lines = []
    for step in range(1, (last or rollouts * steps) + 1):
        line = {"step": step, "loss": step / 100, "kl": step / 10, "step_time": 1.0}
        if step % steps == 1:
            line |= {"reward": 1.0, "num_tokens": 600 * (step // steps + 1), "step_time": 3.0}
        lines.append(line)
    return [*lines, {"step": len(lines), "train_runtime": 99.0, "step_time": 9.0}]


@pytest.mark.parametrize("last", [12, 10])  # the last rollout still serves steps
def test_every_optimizer_step_counts_where_a_rollout_serves_several(last):
    lines = off_policy(last=last)
    curves = charts.read_curves(report.by_step(lines))
    for key in ("loss", "kl", "step_time"):
        assert curves[key].steps == list(range(1, last + 1))
        assert curves[key].values == [line[key] for line in lines[:-1]]
    assert curves["reward"].steps == [1, 5, 9] and sum(curves["seconds"].values) == last + 2 * 3
    # 600 tokens in the 3 + 1 + 1 + 1 seconds of a rollout's steps
    speed = curves["tokens_per_second"]
    assert speed.values == [100.0] * (2 if last == 10 else 3) and speed.steps == [4, 8, 12][: len(speed.steps)]


def test_times_are_of_all_steps_since_the_log_before():
    lines = [{"step": step, "loss": 0.0, "step_time": 2.0, "num_tokens": 10 * step} for step in (5, 10, 12)]
    curves = charts.read_curves(lines)
    assert curves["seconds"].values == [10.0, 10.0, 4.0]
    assert curves["tokens_per_second"].values == [5.0, 5.0]  # the last has fewer steps


def test_a_steps_mean_time_is_over_the_steps_that_were_timed(run, undrawn):
    """Not those after the last log."""
    (run / "metrics.jsonl").write_text("")
    add_metrics(run, *off_policy(), {"step": 30, "train_runtime": 9.0})
    change_record(run, step=30)
    text = Page(report.write(run)).text
    assert "Time in optimizer steps 18 s An optimizer step, mean 1.5 s" in text and "Optimizer steps 30" in text


def change(run, name, **changed):
    (run / name).write_text(json.dumps(json.loads((run / name).read_text()) | changed))


def test_a_result_of_another_step_is_not_the_runs(run, undrawn):
    """As an earlier end leaves it, whatever has become of the run since."""
    for name in ("eval_after.json", "comparison.json"):
        change(run, name, step=24)
    (run / "_ended-at-step-12").mkdir()
    text = Page(report.write(run)).text
    assert "Too small to tell" in text and "After" in text and "_ended-at-step-12" not in text
    change_record(run, step=17, status="ended early at step 17 of 24")
    page = Page(report.write(run))
    assert "ended early at step 17 of 24 17 of 24 optimizer steps" in page.text
    assert "Too small to tell" not in page.text and "Change" not in page.text and "fixed" not in page.text
    assert "when it ended before is in _ended-at-step-12" in page.text
    assert list(report.read_facts(run)["evaluations"]) == ["before"]


@pytest.mark.parametrize("status", ["running", "interrupted by SIGTERM", "ended early at step 24 of 40"])
def test_only_a_finished_run_has_results_without_a_step(run, status):
    """As an earlier version wrote them."""
    assert "after" in report.read_facts(run)["evaluations"] and report.read_facts(run)["comparison"]
    change_record(run, status=status)
    facts = report.read_facts(run)
    assert list(facts["evaluations"]) == ["before"] and not facts["comparison"]


def test_a_comparison_of_another_step_than_the_evaluation_is_left_out(run):
    change(run, "eval_after.json", step=24)
    change(run, "comparison.json", step=12)
    facts = report.read_facts(run)
    assert "after" in facts["evaluations"] and not facts["comparison"]


def test_steps_are_those_of_the_record_or_of_the_logs(run):
    add_metrics(run, {"step": 26, "eval/n": 8}, {"step": 25, "loss": 0.5})
    assert report.read_facts(run)["steps"] == 25
    add_metrics(run, {"step": 29, "train_runtime": 9.0})  # logging_steps has left out the last
    assert report.read_facts(run)["steps"] == 29
    change_record(run, step=31)
    assert report.read_facts(run)["steps"] == 31


@pytest.mark.parametrize(("status", "shown"), [("finished", "24 of 24"), ("interrupted by Ctrl-C", "24")])
def test_a_run_of_epochs_says_its_steps_as_others_do(run, status, shown, undrawn):
    change_record(run, status=status, settings={"max_steps": -1})
    assert f"{status} {shown} optimizer steps" in Page(report.write(run)).text


def test_what_a_reward_logs_has_a_curve_and_nothing_is_left_out(run, no_picture):
    add_metrics(run, *({"step": step, "loss": 0.1, "share_of_dates": step / 24, "clip_ratio/low_mean": 0.0}
                       for step in (2, 24)))  # fmt: skip
    page = Page(report.write(run))
    assert "Logged by your rewards share_of_dates 0.0833 → 1" in page.text
    assert "Everything else that was logged" in page.text and "clip_ratio/low_mean" in page.text
    assert " step 2 → 24" not in page.text
    titles = [attrs["alt"] for name, attrs in page.elements if name == "img"]
    assert len(titles) == len({title.partition(":")[0] for title in titles})  # none twice


def test_no_number_of_trl_passes_for_a_rewards_own():
    """Those of its step, of transformers' trainer, and of this program, in training and in an evaluation."""
    places = [Path(module.__file__) for module in (grpo_trainer, run_trainer, stages, guard, callbacks)]
    keys = {
        re.sub(r"{.*?}", "x", key)
        for place in places
        for key in re.findall(
            r"""(?:[mM]etrics(?:\[[^]]*\])?(?:\[|\.setdefault\()|note\(|_timed\()f?["']([^"']+)""", place.read_text()
        )
    }
    keys -= {"train"}  # the key of those in training
    assert {"kl", "num_tokens", "step_time", "rewards/x/mean", "policy_loss", "skipped_steps", "groups/x"} <= keys
    logs = ("loss", "grad_norm", "learning_rate", "epoch", "runtime", "samples_per_second", "steps_per_second")
    keys |= {*logs, "seconds", "tokens_per_second", "eval/accuracy_lenient", "time/evaluation", "train_loss"}
    assert not [key for key in keys for prefix in ("", "eval_") if charts.is_a_rewards_own(prefix + key)]


def test_each_reward_has_a_row_with_its_paired_change(run, undrawn):
    paired = {"n": 8, "before": 0.25, "after": 0.75, "difference": 0.5, "difference_low": 0.1, "difference_high": 0.9}
    change(run, "eval_before.json", reward_date_reward_func=0.25, reward=1.0)
    change(run, "eval_after.json", reward_date_reward_func=0.75, reward=1.5)
    change(run, "comparison.json", rewards={"date_reward_func": paired}, reward=paired)
    steady = {**paired, "difference": 0.0, "difference_low": 0.0, "difference_high": 0.0}
    change(run, "comparison.json", reward=steady)  # no interval without any variation
    assert "weighted sum 1.00 1.50 +0.00 Learning" in Page(report.write(run)).text
    change(run, "comparison.json", reward=paired)
    text = Page(report.write(run)).text
    assert "date 0.25 0.75 +0.50 +0.10 to +0.90" in text and "Reward, weighted sum 1.00 1.50 +0.50" in text


@pytest.mark.parametrize("tail", [b'{"step": 26, "rew', b'{"step": 26, "t": "\xe2\x80'])
def test_a_half_written_last_line_is_ignored(run, tail, undrawn):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    assert len(report.read_metrics(run)) == 12
    assert report.write(run).exists()


@pytest.mark.parametrize("text", ['{"step": 3, "rew{"step": 3}', "[]", "[" * 100_000])
def test_a_broken_file_is_one_line_with_its_place(run, text, capsys):
    (run / "metrics.jsonl").write_text(f"{{}}\n{text}\n{{}}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        report.read_metrics(run)
    (run / "run.json").write_text(text)
    for path, named in ((run, "run.json"), ("none", "'none'")):
        assert tool(["report", str(path)]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: ") and err.count("\n") == 1 and named in err and not out


# --- The page


def test_a_full_run_shows_the_numbers_of_its_files(run, no_picture):
    page = Page(report.write(run))
    for words in (
        "finished 24 of 24 optimizer steps",
        "Too small to tell. Plain.",
        "it hardly moved plain; raise learning_rate.",
        "Lenient accuracy 50.0 → 62.5 %",
        "zero_variance at step 4 It fell: plain Do: plain",
        "Reward 0.2 → 2.4",
        "Loss −1e-5 → −1e-5",
        "Duration 1 h 2 min",
        "max_steps 24 flag run_name nplain script",
    ):
        assert words in page.text
    assert page.text.count("question ") == 3 + 2  # fixed, broken


@pytest.mark.slow
def test_any_subset_of_the_files_makes_a_report(tmp_path, undrawn):
    for kept in [kept for count in (1, 5) for kept in itertools.combinations(PARTS, count)]:
        run = write_run(tmp_path / "run")
        for name in set(PARTS) - set(kept):
            (run / name).unlink()
        if set(kept) <= {"comparison.json", "alarms.jsonl"}:
            with pytest.raises(UserError):
                report.write(run)
            continue
        text = Page(report.write(run)).text
        assert ("Learning curves" in text) == ("metrics.jsonl" in kept)
        assert ("held-out questions" in text) == bool({"eval_before.json", "eval_after.json"} & set(kept))
        assert ("it was killed, or still trains" in text) == ("run.json" not in kept)


def test_the_page_needs_nothing_else(run, no_picture):
    page = Page(report.write(run))
    addresses = [attrs.get("src") or attrs.get("href") for _, attrs in page.elements if {"src", "href"} & attrs.keys()]
    assert len(addresses) > 5 and all(address.startswith("data:image/svg+xml;base64,") for address in addresses)
    assert not re.search(r"https?:|url\(|@import|<link|<base", (run / "report.html").read_text())


def test_two_reports_of_one_run_are_the_same(run):
    first, second = ([report.write(run).read_bytes(), (run / "curves.png").read_bytes()] for _ in range(2))
    assert first == second and first[1].startswith(b"\x89PNG")


# --- Of a run that trains, or was killed


@pytest.mark.parametrize("status", ["running", "finished"])
def test_only_the_page_of_a_run_that_trains_reloads_itself(run, status, undrawn):
    change_record(run, status=status)
    assert report.refresh(run, steps=48) == ""
    page = Page(run / "report.html")
    live = status == "running"
    assert any("http-equiv" in attrs for _, attrs in page.elements) == live
    assert ("24 of 48 optimizer steps" in page.text) == live
    assert not (run / "curves.png").exists()  # it is left to the end
    report.write(run)  # the user's command, of a run that was perhaps killed
    assert "http-equiv" not in (run / "report.html").read_text()


def test_a_run_that_was_killed_is_told_from_one_that_trains(run, undrawn):
    change_record(run, status="running", process={"id": 1, "host": platform.node()}, resume="python train_grpo.py")
    (run / "checkpoint-4").mkdir()
    with directory.locked(run):
        assert "killed optimizer" not in (text := Page(report.write(run)).text) and "or still trains" in text
    text = Page(report.write(run)).text
    assert " killed 24 of 24 optimizer steps" in text and "To resume: python train_grpo.py" in text
    change_record(run, process={"id": 1, "host": "another machine"})  # whose locks are not seen here
    assert " killed 24" not in (text := Page(report.write(run)).text) and "python train_grpo.py" in text


def test_a_page_that_cannot_be_written_leaves_the_one_before(run, undrawn, monkeypatch):
    assert report.refresh(run) == ""
    before, here = (run / "report.html").read_bytes(), {path.name for path in run.iterdir()}

    def full(part, text, **kwargs):
        part.write_bytes(text.encode()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in report.refresh(run)
    assert (run / "report.html").read_bytes() == before and {path.name for path in run.iterdir()} == here


# --- Curves


def test_a_curve_has_its_points_and_its_band():
    logs = [{"step": 10, "reward": 1.0, "reward_std": 2.0}, {"step": 30, "reward": 3.0, "reward_std": 1}]
    reward = charts.read_curves(logs)["reward"]
    assert (reward.steps, reward.values) == ([10, 30], [1.0, 3.0])
    assert (reward.lows, reward.highs) == ([-1.0, 2.0], [3.0, 4.0]) and reward.window == 1
    assert reward.ends == (1.0, 3.0)
    logs = [{"step": step, "reward": float(step % 2)} for step in range(29)]
    assert charts.read_curves(logs)["reward"].ends == (0.5, 0.5)  # single values would say 0 → 0


def test_a_chart_shows_all_steps_of_its_curves():
    """A reward on held-out questions is measured before the first log."""
    axes = Figure().subplots()
    held_out, logged = (charts.Curve([*steps], *[[1.0, 2.0]] * 3) for steps in ((0, 20), (5, 15)))
    charts.draw(axes, logged, beside=[(held_out, "earlier")])
    assert axes.get_xlim() == (0, 20)


def test_accuracy_has_a_curve_with_its_interval_or_two_points(run, undrawn, monkeypatch):
    def measured(step, share):
        ends = {
            f"eval/accuracy_lenient{end}": share + add for end, add in (("", 0), ("_low", -0.125), ("_high", 0.125))
        }
        return {"step": step, "eval/n": 8, **ends, "eval/accuracy_strict": share / 2}

    drawn = []
    monkeypatch.setattr(charts, "draw_curves", lambda path, curves, *_: drawn.append(curves))
    report.write(run)
    add_metrics(run, measured(0, 0.5), measured(12, 0.625), measured(24, 0.75), measured(12, 0.25))  # resumed at 11
    report.write(run)
    two, three = (curves["eval/accuracy_lenient"] for curves in drawn)
    assert (two.steps, two.values, two.lows) == ([0, 24], [50, 62.5], [43.75, 56.25])
    assert (three.steps, three.values) == ([0, 12, 24], [50, 25, 75])
    assert (three.lows, three.highs) == ([37.5, 12.5, 62.5], [62.5, 37.5, 87.5])
    assert drawn[1]["eval/accuracy_strict"].values == [25, 12.5, 37.5] and drawn[1]["reward"].steps[-1] == 24


def test_a_run_whose_rewards_were_never_numbers_has_a_report(run):
    for name in ("eval_after.json", "eval_before.json", "comparison.json", "metrics.jsonl"):
        (run / name).unlink()
    add_metrics(run, {"step": 1, "reward": None, "rewards/own/mean": None, "loss": 0.5})
    assert "Learning curves" in Page(report.write(run)).text and (run / "curves.png").exists()


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [-0.5], [1e-9, 2e-9], [-3.0, 1e6]])
def test_any_numbers_can_be_drawn(values):
    curve = charts.Curve([*range(len(values))], values, values, values)
    picture = base64.b64decode(charts.image(curve, 330, 165).partition("base64,")[2])
    assert ElementTree.fromstring(picture).tag.endswith("svg") and b"nan" not in picture.lower()
