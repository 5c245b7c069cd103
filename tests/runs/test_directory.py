"""grpo/run_directory.py: a run is never overwritten by accident."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_checkpoints import cut, make_checkpoint
from helpers_runs import ROOT

import train_grpo
from grpo.core.errors import UserError
from grpo.runs import directory as run_directory


def make_run(name, checkpoints=(), **record):
    Path(name).mkdir(parents=True)
    (Path(name) / "run.json").write_text(json.dumps(record))
    for step in checkpoints:
        make_checkpoint(name, step)


def test_an_unset_directory_takes_the_next_free_number_and_creates_nothing():
    assert run_directory.claim(None, "out/X", None, False) == ("out/X", None, ())
    make_run("out/X")
    assert run_directory.claim(None, "out/X", None, False) == ("out/X-2", None, ())
    make_run("out/X-2")
    assert run_directory.claim(None, "out/X", None, False) == ("out/X-3", None, ())
    assert not Path("out/X-3").exists()
    assert run_directory.claim(None, "out/X", None, True) == ("out/X", None, ())


def test_a_given_directory_that_holds_a_run_is_refused_with_three_ways_out():
    make_run("mine")
    with pytest.raises(UserError) as caught:
        run_directory.claim("mine", "unused", None, False)
    for way in ("--resume_from_checkpoint auto", "another name", "--overwrite_run true"):
        assert way in str(caught.value)
    assert run_directory.claim("mine", "unused", None, True) == ("mine", None, ())


def test_a_directory_with_other_files_is_free():
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("hello")
    assert run_directory.claim("mine", "unused", None, False) == ("mine", None, ())


def test_auto_resumes_the_newest_checkpoint_of_the_newest_run():
    make_run("out/X", [5, 10])
    make_run("out/X-2", [9, 100, 20])
    assert run_directory.claim(None, "out/X", "auto", False) == ("out/X-2", "out/X-2/checkpoint-100", ())
    assert run_directory.claim("out/X", "unused", "auto", False) == ("out/X", "out/X/checkpoint-10", ())


def test_an_explicit_checkpoint_names_its_run():
    make_run("out/X", [5])
    assert run_directory.claim(None, "unused", "out/X/checkpoint-5", False) == ("out/X", "out/X/checkpoint-5", ())
    with pytest.raises(UserError, match="not the name of a checkpoint"):
        run_directory.claim(None, "unused", "out/X", False)


def test_a_file_in_the_way_is_named():
    Path("file").write_text("x")
    for name in ("file", "file/run"):
        with pytest.raises(UserError, match=r"output_dir.*file. is in the way"):
            run_directory.refuse_unwritable(Path(name))
    run_directory.refuse_unwritable(Path("new/deep/run"))
    assert not Path("new").exists()


@pytest.mark.parametrize("model", ["assets/demo/model", "outputs/demo-GRPO", "outputs/demo-GRPO-2"])
def test_a_run_that_goes_on_from_another_is_called_like_it(model):
    assert run_directory.default_names(model, "train.jsonl") == ("outputs/demo-GRPO", "demo-GRPO-train")


def test_an_evaluation_alone_is_called_after_the_whole_model():
    assert run_directory.default_names("outputs/demo-GRPO", "d.jsonl", eval_only=True)[0] == "outputs/demo-GRPO-eval"
    assert run_directory.default_names("a/Qwen2.5-1.5B-Instruct", "d", True)[0] == "outputs/Qwen2.5-1.5B-Instruct-eval"


def test_auto_says_which_checkpoints_it_left_out_and_why():
    make_run("run", [5, 10, 15])
    cut(Path("run/checkpoint-15"), "model.safetensors")
    (Path("run/checkpoint-10/complete.json")).unlink()
    claim = run_directory.claim("run", "unused", "auto", False)
    assert claim.checkpoint == "run/checkpoint-5" and len(claim.notes) == 2
    assert "run/checkpoint-15: model.safetensors has" in claim.notes[0] and claim.notes[0].endswith("left out")
    assert "run/checkpoint-10: its writing was not finished" in claim.notes[1]


def test_an_explicit_checkpoint_that_is_damaged_is_refused():
    make_run("run", [5, 10])
    cut(Path("run/checkpoint-10"), "optimizer.pt")
    with pytest.raises(UserError, match=r"'run/checkpoint-10' cannot be gone on from: optimizer.pt has .*; give auto"):
        run_directory.claim(None, "unused", "run/checkpoint-10", False)


def test_a_run_whose_checkpoints_are_all_damaged_is_left_alone():
    make_run("run", [5, 10], status="running", sessions=[{}])
    for step in (5, 10):
        cut(Path(f"run/checkpoint-{step}"), "optimizer.pt")
    with pytest.raises(
        UserError, match=r"no complete checkpoint \(run/checkpoint-10: .*checkpoint-5.*--overwrite_run true"
    ):
        run_directory.claim("run", "unused", "auto", False)


@pytest.mark.parametrize("status", ["running", "interrupted by SIGTERM", "failed: the disk is full"])
def test_a_run_that_was_killed_before_its_first_checkpoint_was_whole_starts_again(status):
    make_run("run", status=status, sessions=[{}])
    make_checkpoint("run", 3, sealed=False)
    claim = run_directory.claim("run", "unused", "auto", False)
    assert claim[:2] == ("run", None) and "starts from its beginning" in claim.notes[0]


@pytest.mark.parametrize("record", [{"status": "finished", "sessions": [{}]}, {"status": "running"}, {}])
def test_auto_never_begins_again_what_ended_well_or_another_version_has_written(record):
    make_run("run", **record)
    with pytest.raises(UserError, match="'run' holds no checkpoint; drop the flag"):
        run_directory.claim("run", "unused", "auto", False)
    make_checkpoint("run", 3, sealed=False)
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        run_directory.claim("run", "unused", "auto", False)


def test_weights_that_a_run_without_checkpoints_has_trained_are_not_trained_again():
    """With save_strategy no, a run that is interrupted in its last evaluation has them and nothing else."""
    make_run("run", status="interrupted by SIGTERM", sessions=[{}])
    Path("run/model.safetensors").write_bytes(b"trained")
    with pytest.raises(
        UserError, match=r"'run' holds no checkpoint, but weights that were trained to the end; .*eval"
    ):
        run_directory.claim("run", "unused", "auto", False)


def test_a_run_that_went_on_from_another_one_does_so_again_until_it_has_a_checkpoint():
    make_run("first", [5], status="finished", sessions=[{}])
    make_run("run", status="running", sessions=[{}, {}], settings={"resume_from_checkpoint": "first/checkpoint-5"})
    claim = run_directory.claim("run", "unused", "auto", False)
    assert claim[:2] == ("run", "first/checkpoint-5") and "it goes on from first/checkpoint-5" in claim.notes[0]
    cut(Path("first/checkpoint-5"), "optimizer.pt")
    with pytest.raises(UserError, match=r"first/checkpoint-5.* cannot be gone on from: optimizer.pt has"):
        run_directory.claim("run", "unused", "auto", False)


def test_going_on_from_an_older_checkpoint_would_mix_two_runs():
    make_run("run", [5, 10, 15])
    cut(Path("run/checkpoint-15"), "optimizer.pt")
    with pytest.raises(UserError, match=r"'run/checkpoint-5' is not the newest of its run, checkpoint-10 is"):
        run_directory.claim(None, "unused", "run/checkpoint-5", False)
    assert run_directory.claim("other", "unused", "run/checkpoint-5", False) == ("other", "run/checkpoint-5", ())
    assert run_directory.claim("run", "unused", "run/checkpoint-10", False)[:2] == ("run", "run/checkpoint-10")
    make_run("taken")
    with pytest.raises(UserError, match="'taken' already holds another run"):
        run_directory.claim("taken", "unused", "run/checkpoint-5", False)


# --- One process a run

HOLD = """
import sys, time
from pathlib import Path
from grpo.runs import directory as run_directory
with run_directory.held(Path("run")):
    Path("run/run.json").write_text('{"process": {"id": 4711, "host": "there"}}')
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_directory_is_written_by_one_process_and_free_when_that_is_killed(tiny_run, capfd):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=Path.cwd(), env={"PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == "held\n"
        for attempt in (lambda: run_directory.refuse_in_use(Path("run")), run_directory.held(Path("run")).__enter__):
            with pytest.raises(
                UserError, match=r"'run' is being written by another run \(process 4711 on there\); wait"
            ):
                attempt()
        before = {path: path.read_bytes() for path in Path("run").iterdir()}
        for way in ("--overwrite_run", "true"), ("--resume_from_checkpoint", "auto"):
            assert train_grpo.main([*tiny_run(), *way]) == 2
        (line, _) = capfd.readouterr().err.splitlines()
        assert line.startswith("error: output_dir: 'run' is being written by another run (process 4711")
        assert {path: path.read_bytes() for path in Path("run").iterdir()} == before
        other.kill()
        other.wait()
    run_directory.refuse_in_use(Path("run"))
    with run_directory.held(Path("run")):
        pass
    assert Path("run/run.json").exists()


def test_a_directory_in_which_nothing_was_written_is_gone_again():
    with pytest.raises(KeyError), run_directory.held(Path("new/deep/run")):
        (Path("new/deep/run/completions")).mkdir()
        raise KeyError
    assert not Path("new").exists()
    Path("mine").mkdir()
    with run_directory.held(Path("mine")):
        pass
    assert Path("mine").exists()
    with run_directory.held(Path("kept/run")):
        Path("kept/run/metrics.jsonl").write_text("{}")
    assert Path("kept/run/metrics.jsonl").exists()


def test_the_other_processes_of_a_run_leave_the_lock_to_the_first(monkeypatch):
    with run_directory.held(Path("run")):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("LOCAL_RANK", "1")
        with run_directory.held(Path("run")):
            pass


def test_looking_whether_a_directory_is_in_use_writes_nothing():
    run_directory.refuse_in_use(Path("run"))
    assert not Path("run").exists()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_files_cannot_be_locked_a_run_goes_on_without(monkeypatch, number, capsys):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        with run_directory.held(Path("run")):
            Path("run/run.json").write_text("{}")
        run_directory.refuse_in_use(Path("run"))
        assert "note: files in 'run' cannot be locked" in capsys.readouterr().out


def test_a_lock_that_may_not_be_opened_is_one_line(monkeypatch):
    opened = os.open

    def refuse(path, *args, **kwargs):
        if Path(path).name == run_directory.LOCK:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"output_dir: 'run/run.lock' cannot be written \(Permission denied\)"):
        run_directory.held(Path("run")).__enter__()


def test_what_another_run_has_written_since_the_directory_was_claimed_is_not_overwritten():
    """Two that start at once claim the same free directory, and the first to be there may have ended already."""
    seen = run_directory.written(Path("run"))
    with run_directory.held(Path("run"), seen):
        Path("run/run.json").write_text("{}")
    with pytest.raises(UserError, match="'run' was written by another run since this one began"):
        run_directory.held(Path("run"), seen).__enter__()
    with run_directory.held(Path("run"), run_directory.written(Path("run"))):
        pass
    assert Path("run/run.json").exists()
