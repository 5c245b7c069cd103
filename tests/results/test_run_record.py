"""A run's record is read and written by one class, whichever version wrote it."""

import json
from pathlib import Path

import pytest

from grpo.core.errors import UserError
from grpo.results.record import RunRecord, status_of

OLDER = {"status": "finished", "settings": {"seed": 1}, "geometry": None, "colour": {"of": "another version"}}


def write(**values):
    Path("run.json").write_text(json.dumps(values))


def test_a_record_is_written_as_it_was_read(learned):
    text = (learned.copy() / "run.json").read_text()
    RunRecord.read(Path("run")).write(Path())
    assert json.loads(Path("run.json").read_text()) == json.loads(text) != {}


def test_a_run_from_python_without_git_keeps_its_nulls():
    values = {"launcher": None, "commit": None, "code": {}, "program": "train_grpo.py", "argv": [], "shots": []}
    write(**values)
    assert RunRecord.read(Path()).to_json() == values


def test_what_another_version_wrote_is_read_and_kept():
    write(**OLDER)
    record = RunRecord.read(Path())
    assert (record.world_size, record.fingerprint, record.pattern, record.changes) == (1, None, "xml", [])
    assert record.command is None and record.how_to_resume(Path()) is None and not record.weights_of_best
    assert record.to_json() == {key: value for key, value in OLDER.items() if value is not None}


def test_a_missing_record_is_an_empty_one():
    assert RunRecord.read(Path()) == RunRecord.known(Path()) == RunRecord() and status_of(Path()) is None


def test_a_broken_record_is_one_line_or_an_empty_one():
    write(status="finished", sessions=[{"changed": "x"}])
    with pytest.raises(UserError, match=r"^run.json: sessions\[0\].from_step is missing; correct it"):
        RunRecord.read(Path())
    assert RunRecord.known(Path()) == RunRecord() and status_of(Path()) == "finished"


def test_a_run_is_ended_in_its_last_session_and_by_all_their_seconds():
    record = RunRecord(status="running", sessions=[{"from_step": 0, "seconds": 10.0}, {"from_step": 4}], planned=9)
    ended = record.ended("finished", 5.04, 6, 0, 4)
    assert ended.sessions == [record.sessions[0], {"from_step": 4, "seconds": 5.0, "status": "finished"}]
    assert (ended.status, ended.seconds, ended.step, ended.planned, ended.best_step) == ("finished", 15.0, 6, 9, 4)
