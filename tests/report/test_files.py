"""A run's files are read as far as they are valid for its present step, whatever has become of the run."""

import platform
import shlex
from pathlib import Path

import pytest
from helpers_report import add_metrics, change, write_run

from grpo.__main__ import main as tool
from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_lines, read_value
from grpo.report.files import read_run
from grpo.runs import directory


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


# --- What counts


def test_a_comparison_of_another_step_than_the_evaluation_is_left_out(run):
    change(run, "comparison.json", step=12)
    files = read_run(run)
    assert "after" in files.evaluations and files.samples("after") and not files.comparison
    change(run, "eval_after.json", step=12)
    files = read_run(run)
    assert list(files.evaluations) == ["before"] and files.samples("before") and not files.samples("after")


def test_steps_are_those_of_the_record_or_of_the_logs(run):
    add_metrics(run, {"step": 26, "eval/n": 8}, {"step": 25, "loss": 0.5})
    assert read_run(run).step == 25
    add_metrics(run, {"step": 29, "train_runtime": 9.0})  # logging_steps has left out the last
    assert read_run(run).step == 29
    change(run, step=31)
    assert read_run(run).step == 31


def test_a_run_that_was_killed_is_told_from_one_that_trains(run):
    change(
        run,
        status="running",
        process={"id": 1, "host": platform.node()},
        launcher="python",
        program="x.py",
        argv=["--seed", "3"],
    )
    assert read_run(run).resume is None
    (run / "checkpoint-4").mkdir()
    with directory.locked(run):
        assert read_run(run).status == "running"
    resume = f"python x.py --seed 3 --output_dir {run} --resume_from_checkpoint auto"
    assert (read_run(run).status, read_run(run).resume) == ("killed", resume)
    change(run, process={"id": 1, "host": "another machine"})  # whose locks are not seen here
    assert read_run(run).status == "running"


def test_a_moved_run_is_resumed_where_it_is(run, monkeypatch):
    """From another directory than it was started in, its path is absolute."""
    monkeypatch.chdir(run.parent)
    (run / "checkpoint-4").mkdir()
    started = {"launcher": "python", "program": "x.py", "argv": ["--output_dir", "run"]}
    change(run, **started, started_in=str(run.parent))
    run.rename("my run")
    assert shlex.split(read_run(Path("my run")).resume)[2:4] == ["--output_dir", "my run"]
    monkeypatch.chdir("my run")
    assert shlex.split(read_run(Path()).resume)[2:4] == ["--output_dir", str(run.with_name("my run"))]


# --- Broken files


@pytest.mark.parametrize("text", ['{"step": 3, "rew{"step": 3}', "[]", "[" * 100_000])
def test_a_broken_file_is_one_line_with_its_place(run, text, capsys):
    (run / "metrics.jsonl").write_text(f"{{}}\n{text}\n{{}}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        read_lines(run / "metrics.jsonl")
    (run / "run.json").write_text(text)
    assert read_value(run / "run.json", "status") is None
    for path, named in ((run, "run.json"), ("none", "'none'")):
        assert tool(["report", str(path)]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: ") and err.count("\n") == 1 and named in err and not out
