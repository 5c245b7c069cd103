"""A file of a run is one line of FILES, which a run's end, a resumed run, `report` and `publish` read."""

import json
from pathlib import Path

import pytest
from helpers_checkpoints import make_checkpoint
from helpers_report import add_kinds, change, write_run

from grpo.__main__ import main as tool
from grpo.core.jsonfiles import write_lines
from grpo.report import contents
from grpo.report import public as public_copy
from grpo.report.contents import RunFile
from grpo.results.record import RunRecord
from grpo.runs import record


def labels(run, path):
    path.write_text("\n".join(label for label, _ in run.results.values()))


@pytest.fixture
def with_files(monkeypatch):
    new = RunFile("labels.csv", labels, is_result=True), RunFile("gaps.jsonl", is_log=True, is_private=True)
    for module in (contents, record):
        monkeypatch.setattr(module, "FILES", (*contents.FILES, *new))


def test_a_new_file_is_drawn_moved_cut_and_published(with_files, tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert tool(["report", str(run)]) == 0
    assert str(run / "labels.csv") in capsys.readouterr().out.split()
    assert "Accuracy, lenient\n" in (run / "labels.csv").read_text()
    write_lines(run / "gaps.jsonl", [{"step": 4}, {"step": 6}])
    (public := tmp_path / "public").mkdir()
    public_copy.copy(run, public)
    assert (public / "labels.csv").exists() and not (public / "gaps.jsonl").exists()
    record._set_aside(run, make_checkpoint(run, 4), RunRecord(step=24))
    assert not (run / "labels.csv").exists() and (run / "_ended-at-step-24" / "labels.csv").exists()


def test_a_resumed_run_shows_no_result_of_its_last_end(tmp_path):
    run = write_run(tmp_path / "run")
    results = {"eval_after.json", "completions_after.jsonl", "comparison.json", "curves.png", "README.md"}
    for name in results:
        (run / name).touch()
    record._set_aside(run, make_checkpoint(run, 4), RunRecord(step=24))
    assert {path.name for path in (run / "_ended-at-step-24").iterdir()} >= results
    assert (run / "eval_before.json").exists() and not any((run / name).exists() for name in results)


def test_cells_of_the_data_stay_here(tmp_path):
    """Kinds of questions, which a run's report and comparison.json name."""
    run, copy = add_kinds(write_run(tmp_path / "run"), ["secret kind"]), tmp_path / "public"
    change(run, "comparison.json", by={"column": "subject", "kinds": [{"kind": "secret kind", "n": 8}]})
    contents.draw(run)
    assert "secret kind" in (run / "report.html").read_text()
    copy.mkdir()
    public_copy.copy(run, copy)
    texts = {path.name: path.read_text() for path in copy.iterdir() if path.suffix != ".png"}
    assert {"comparison.json", "report.html", "run.json"} <= texts.keys()
    assert [name for name, text in texts.items() if "secret kind" in text] == []
    assert json.loads(texts["comparison.json"])["lenient"]["fixed"] == 2


@pytest.mark.parametrize(
    ("name", "public"),
    [("metrics.jsonl", True), ("faults.jsonl", False), ("completions_only.jsonl", False), ("training_args.bin", False),
     ("completions_during.jsonl", False),
     ("notes.jsonl", False), (".env.json", False), ("tokenizer.json", True)],
)  # fmt: skip
def test_questions_pickles_and_foreign_files_stay_here(name, public, tmp_path):
    run, copy = write_run(tmp_path / "run"), tmp_path / "public"
    (run / name).write_text("{}")
    copy.mkdir()
    public_copy.copy(run, copy)
    assert (copy / name).exists() == public
    assert Path(copy / "report.html").exists() == (run / "report.html").exists()
