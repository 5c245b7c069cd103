"""A measure is one line of MEASURES: files, console, report, curves, tracker, card and `compare` read it there."""

import html
import json
import shutil
from pathlib import Path

import pytest
from helpers_runs import LEARNS, ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train_grpo
from grpo.__main__ import main as tool
from grpo.report import charts
from grpo.results import measures
from grpo.results.measures import Measure
from grpo.results.summary import summarize
from grpo.scoring.sample import Sample
from grpo.task.task import Format, Verdict

NEW = Measure("one_line", "On one line", lambda sample: "\n" not in sample.text.strip(), curve=True)


RIGHT = Sample(verdict=Verdict("7", True, True))
VALUES = {  # a sample, and its value
    "accuracy_lenient": (Sample(verdict=Verdict("7", True, False)), True),
    "accuracy_strict": (Sample(verdict=Verdict("7", True, False)), False),
    "maj_k": (Sample(majority_right=False, draws=[RIGHT]), False),
    "pass_k": (Sample(majority_right=False, draws=[RIGHT]), True),
    "format_strict": (Sample(format=Format(False, True)), False),
    "format_soft": (Sample(format=Format(False, True)), True),
    "truncated": (Sample(truncated=True), True),
    "not_understood": (Sample(verdict=Verdict("x", False, False, why="not understood")), True),
    "not_computed": (Sample(verdict=Verdict("3 + 4", False, False, why="not computed")), True),
    "mean_length": (Sample(tokens=12), 12),
    "reward": (Sample(rewards={"own": 1.0}, reward=2.0), 2.0),
}


def test_each_measure_has_its_value_and_a_line_in_the_docs():
    assert list(VALUES) == [measure.key for measure in measures.MEASURES]
    docs = (ROOT / "docs/evaluation.md").read_text(encoding="utf-8")
    for measure, (sample, value) in zip(measures.MEASURES, VALUES.values(), strict=True):
        assert measure.of(sample) == value and f"`{measure.key}`" in docs


@pytest.mark.parametrize(
    "key", ["accuracy_lenient", "maj_k", "format_soft", "not_understood", "not_computed", "mean_length", "reward"]
)
def test_a_sample_without_a_value_does_not_count(key):
    (measure,) = [one for one in measures.MEASURES if one.key == key]
    assert measure.of(Sample()) is None and key not in summarize([Sample()])
    assert summarize([Sample(), VALUES[key][0]])[key] == VALUES[key][1]


def test_a_new_measure_is_everywhere(tiny_run, monkeypatch, capsys):
    monkeypatch.setattr(measures, "MEASURES", (*measures.MEASURES, NEW))
    panels = []
    monkeypatch.setattr(charts, "draw_curves", lambda path, curves, held_out, *_: panels.extend(held_out))
    settings = {"max_steps": "2", "eval_every": "1", "eval_samples": "6", "report_to": "tensorboard"}
    settings |= {"logging_steps": "1", "metric_for_best_model": "one_line"}
    assert train_grpo.main(tiny_run(**LEARNS | settings)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "by one_line, measured every 1 steps" in shown  # preflight, of the best checkpoint
    assert ", one line 0.0 % (0-39)" in shown or ", one line 100.0 % (61-100)" in shown
    assert "│ On one line │" in shown  # the table
    run = Path("run")
    for name in ("eval_before.json", "eval_after.json"):
        assert {"one_line", "one_line_low", "one_line_high"} < set(json.loads((run / name).read_text()))
    assert json.loads((run / "comparison.json").read_text())["one_line"].keys() >= {"fixed", "p_value"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval/one_line" in line] == [0, 1, 2]
    assert NEW in panels
    page = html.unescape((run / "report.html").read_text())
    assert '<th scope="row">On one line</th>' in page and 'alt="On one line: from ' in page
    assert "| On one line | " in (run / "README.md").read_text()
    events = EventAccumulator(str(next(run.rglob("events.out.tfevents.*")).parent)).Reload()
    assert [each.step for each in events.Scalars("train/eval/one_line")] == [0, 1, 2]
    shutil.copytree("run", "other")
    assert tool(["compare", "run", "other"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert " one line " in shown.partition("──")[0] and ", one line +0.0 points" in shown
