"""A run is never overwritten by accident, `auto` resumes the newest whole checkpoint, and one process writes a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_checkpoints import make_checkpoint
from helpers_runs import ROOT

import train_grpo
from grpo.core.errors import UserError
from grpo.core.settings import CHECKPOINT, LEARNING, LENGTH
from grpo.runs.differences import Difference
from grpo.runs.directory import claim, default_names, locked


def make_run(name, checkpoints=(), **record):
    Path(name).mkdir(parents=True)
    (Path(name) / "run.json").write_text(json.dumps({"status": "finished", "settings": {}} | record))
    for step in checkpoints:
        make_checkpoint(name, step)


# --- Which directory


@pytest.mark.parametrize(
    ("model", "data", "eval_only", "names"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", "openai/gsm8k", False, ("Llama-1B-GRPO", "Llama-1B-GRPO-gsm8k")),
        ("outputs/demo-GRPO-sums-2", "sums.csv", False, ("demo-GRPO-sums", "demo-GRPO-sums")),
        ("outputs/demo-GRPO-sums-2/checkpoint-40", "sums.csv", False, ("demo-GRPO-sums", "demo-GRPO-sums")),
        ("outputs/demo-GRPO/checkpoint-4/merged", "d.jsonl", False, ("demo-GRPO-d", "demo-GRPO-d")),
        ("../checkpoint-4", "d.jsonl", False, ("checkpoint-4-GRPO-d", "checkpoint-4-GRPO-d")),
        ("outputs/my-adapter/merged", "d.jsonl", False, ("my-adapter-GRPO-d", "my-adapter-GRPO-d")),
        (
            "outputs/demo-GRPO/checkpoint-40",
            "d.jsonl",
            True,
            ("demo-GRPO-checkpoint-40-eval", "demo-GRPO-checkpoint-40-eval-d"),
        ),
        ("assets/demo/model", "d.jsonl", True, ("demo-eval", "demo-eval-d")),
        ("outputs/demo-GRPO", "d.jsonl", True, ("demo-GRPO-eval", "demo-GRPO-eval-d")),
    ],
)
def test_names_follow_from_model_and_data(model, data, eval_only, names):
    assert default_names(model, data, eval_only) == (f"outputs/{names[0]}", names[1])


def test_names_leave_out_a_recipes_own_data_and_fit_a_file_system():
    assert default_names("assets/demo/model", "train.jsonl", of_recipe=True)[0] == "outputs/demo-GRPO"
    directory, _ = default_names("assets/demo/model", f"{'long' * 60}.csv")
    assert len(Path(directory).name) < 200


def test_an_unset_directory_takes_the_next_free_number():
    assert claim(None, "out/X", None) == ("out/X", None, ())
    make_run("out/X")
    assert claim(None, "out/X", None) == ("out/X-2", None, ())
    make_run("out/X-2")
    assert claim(None, "out/X", None) == ("out/X-3", None, ())
    assert not Path("out/X-3").exists()
    with locked(Path("out/X-3")):  # a run that has only begun
        assert claim(None, "out/X", None)[0] == "out/X-4"


def test_a_default_name_that_another_run_took_meanwhile_is_given_up():
    """The other one has ended, too."""
    chosen = claim(None, "out/X", None).output_dir
    make_run(chosen, status="finished")
    before = Path(chosen, "run.json").read_bytes()
    with locked(Path(chosen), default_dir="out/X") as taken:
        assert taken != Path(chosen) and taken.is_dir()
    assert Path(chosen, "run.json").read_bytes() == before


def test_a_directory_that_holds_a_run_is_refused():
    make_run("mine")
    with pytest.raises(UserError) as caught:
        claim("mine", "unused", None)
    for way in ("--resume_from_checkpoint auto", "another name", "delete it"):
        assert way in str(caught.value)
    Path("empty").mkdir()
    assert claim("empty", "unused", None) == ("empty", None, ())


# What may lie in a directory that a run takes: nothing, a run, or what one leaves that was killed before its record
OURS = [[], ["run.lock"], ["run.lock", ".run.json.part", "completions/"], ["run.json", "notes.txt", "source/"]]
THEIRS = [
    ["thesis.tex"], [".hidden"], ["source/thesis.tex"], ["README.md", "run.lock"], ["completions/mine.parquet"],
    ["run.lock/"], ["checkpoint-5", "a"], ["empty folder/"], ["run.json of another program", "run.json"],
]  # fmt: skip


def lay(names, directory="place"):
    Path(directory).mkdir()
    for name in names:
        path = Path(directory, name)
        path.parent.mkdir(exist_ok=True)
        text = (
            '{"status": "RUNNING", "id": 3}'
            if "another program" in names[0]
            else '{"status": "running", "settings": {}}'
        )
        path.mkdir() if name.endswith("/") else path.write_text(text)
    return sorted(Path(directory).rglob("*"))


@pytest.mark.parametrize("names", OURS, ids=str)
def test_an_empty_directory_and_what_a_run_leaves_are_taken(names):
    lay(names)
    assert claim("place", "unused", "auto")[:2] == ("place", None)
    with locked(Path("place")):
        pass


@pytest.mark.parametrize("resume", [None, "auto", "other/checkpoint-5"])
@pytest.mark.parametrize("names", THEIRS, ids=str)
def test_a_directory_of_others_is_refused(names, resume):
    before = lay(names)
    make_run("other", [5, 6])
    with pytest.raises(UserError, match=r"^output_dir: 'place' ") as caught:
        claim("place", "unused", resume)
    assert names[0].partition("/")[0] in str(caught.value) or "already holds" in str(caught.value)
    with pytest.raises(UserError, match=r"^output_dir: 'place' "), locked(Path("place")):
        pytest.fail("it is held")
    assert sorted(Path("place").rglob("*")) == before


def test_a_checkpoint_among_files_of_others_is_resumed_elsewhere():
    make_checkpoint("place", 5)
    assert claim(None, "unused", "place/checkpoint-5") == ("place", "place/checkpoint-5", ())
    Path("place/README.md").write_text("mine")
    for broken in (None, "", "{}"):
        if broken is not None:
            Path("place/run.json").write_text(broken)
        with pytest.raises(UserError, match=r"^output_dir: 'place' .*README\.md") as caught:
            claim(None, "unused", "place/checkpoint-5")
        assert "--resume_from_checkpoint place/checkpoint-5 --output_dir place/run" in str(caught.value)
    assert claim("new", "unused", "place/checkpoint-5").output_dir == "new"


def test_a_default_name_skips_directories_of_others():
    Path("out").mkdir()
    lay(["notes.txt"], "out/X")
    assert claim(None, "out/X", None).output_dir == claim(None, "out/X", "auto").output_dir == "out/X-2"
    with locked(Path("out/X-2"), default_dir="out/X") as taken:
        assert taken == Path("out/X-2")


@pytest.mark.parametrize("name", ["file", "file/run", "broken", "x" * 300])
def test_a_place_that_cannot_be_a_directory_is_refused(name):
    Path("file").write_text("x")
    Path("broken").symlink_to("nowhere")
    with pytest.raises(UserError, match=f"^output_dir: '{name}' cannot be"):
        claim(name, "unused", None)
    with pytest.raises(UserError, match=f"^output_dir: '{name}' cannot be"), locked(Path(name)):
        pytest.fail("it is held")
    assert sorted(os.listdir()) == ["broken", "file"]


DISK = {"f_flag": 0, "f_bavail": 10**9, "f_frsize": 1, "f_files": 9, "f_favail": 9}


@pytest.mark.parametrize(
    ("patched", "value", "said"),
    [
        ("os.access", lambda *_: False, "permission denied"),
        ("os.statvfs", lambda _: SimpleNamespace(**DISK | {"f_bavail": 9}), r"its disk is full \(0.0 kB free\)"),
        ("os.statvfs", lambda _: SimpleNamespace(**DISK | {"f_favail": 0}), "no room for another file"),
    ],
)
@pytest.mark.parametrize("name", ["new/run", "."])
def test_a_place_without_room_or_permission_is_refused(patched, value, said, name, monkeypatch):
    monkeypatch.setattr(f"grpo.core.directories.{patched}", value)
    with pytest.raises(UserError, match=f"^output_dir: '{name}' cannot be written.*{said}"):
        claim(name, "unused", None)
    assert os.listdir() == []


LINKS = ["checkpoint-1", "checkpoint-9", "completions", "source", "run.lock", "metrics.jsonl", ".report.html.part"]


@pytest.mark.parametrize("name", [*LINKS, "completions/completions_00001.parquet", "model.safetensors"])
def test_no_run_resumes_in_a_directory_with_links(name):
    """Libraries would write through them."""
    make_run("run", [5])
    Path("elsewhere").mkdir()
    link = Path("run", name)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(Path("elsewhere").absolute())
    for resume in ("auto", "run/checkpoint-5"):
        with pytest.raises(UserError, match=f"^output_dir: 'run' contains a link \\({name}\\)"):
            claim("run", "unused", resume)
    assert claim("new", "unused", "run/checkpoint-5").output_dir == "new"
    Path("linked").symlink_to("run")  # the name that the user gives may be one
    link.unlink()
    assert claim("linked", "unused", "auto").checkpoint == "linked/checkpoint-5"


# --- Which checkpoint


def test_auto_takes_the_newest_checkpoint_of_the_newest_run():
    make_run("out/X", [5, 10])
    make_run("out/X-2", [9, 100, 20])
    with locked(Path("out/X-3")):  # a run that has only begun
        assert claim(None, "out/X", "auto") == ("out/X-2", "out/X-2/checkpoint-100", ())
    assert claim("out/X", "unused", "auto") == ("out/X", "out/X/checkpoint-10", ())


LONGER, SEED = Difference("max_steps", LENGTH, True, 4, 9), Difference("seed", CHECKPOINT, True, 1, 2)
RATE, CODE = Difference("learning_rate", LEARNING, True, "1e-4", "3e-4"), Difference("code of f", LEARNING)


def test_auto_takes_the_last_run_of_the_same_experiment():
    """Or else the last one that differs in its length alone; it never takes another experiment."""
    for number, name in enumerate(("out/X", "out/X-2", "out/X-3", "out/X-4"), 1):
        make_run(name, [number])
    differ = {"out/X": [], "out/X-2": [LONGER], "out/X-3": [], "out/X-4": [SEED]}

    def claimed():
        return claim(None, "out/X", "auto", lambda run: differ[str(run)]).output_dir

    assert claimed() == "out/X-3"
    differ["out/X-3"] = differ["out/X"] = [CODE]
    assert claimed() == "out/X-2"
    differ["out/X-2"] = [RATE, SEED]
    with pytest.raises(UserError) as caught:
        claimed()
    said = str(caught.value)
    assert "out/X-2 differs in learning_rate 1e-4 → 3e-4, seed 1 → 2" in said
    assert all(f"{name} differs in" in said for name in differ) and "--output_dir out/X-4" in said


def test_auto_names_the_nearest_run_that_can_be_resumed():
    make_run("out/X", [5])
    make_run("out/X-2", [7])
    make_run("out/X-3", status="finished")  # of another script, without a checkpoint
    differ = {"out/X": [CODE], "out/X-2": [RATE, SEED], "out/X-3": [SEED]}
    with pytest.raises(UserError, match=r"--output_dir out/X,"):
        claim(None, "out/X", "auto", lambda run: differ[str(run)])
    for number in ("", "-2"):
        Path(f"out/X{number}/checkpoint-{5 if not number else 7}/optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"\); drop the flag to start a new one"):
        claim(None, "out/X", "auto", lambda run: differ[str(run)])


@pytest.mark.parametrize("output_dir", [None, "mine"])
def test_auto_on_a_first_start_begins_a_run(output_dir):
    """A queue repeats the same command."""
    directory, checkpoint, (note,) = claim(output_dir, "out/Y", "auto", lambda run: pytest.fail("there is none"))
    assert (directory, checkpoint) == (output_dir or "out/Y", None) and "begins one" in note.finding


def test_auto_names_the_checkpoints_it_skips():
    make_run("run", [5, 15])
    Path("run/checkpoint-15/rng_state.pth").unlink()
    found = claim("run", "unused", "auto")
    assert found.checkpoint == "run/checkpoint-5"
    (note,) = found.notes
    assert "run/checkpoint-15" in note.finding and "rng_state.pth" in note.finding


def test_auto_restarts_a_run_killed_before_its_first_one():
    """A branch restarts from the other run's checkpoint that it had been told to start from."""
    make_run("run", status="running")
    make_checkpoint("run", 3, sealed=False)
    assert claim("run", "unused", "auto")[:2] == ("run", None)
    make_run("first", [5])
    make_run("branch", status="running", settings={"resume_from_checkpoint": "first/checkpoint-5"})
    assert claim("branch", "unused", "auto")[:2] == ("branch", "first/checkpoint-5")


GONE = {"status": "running", "settings": {"resume_from_checkpoint": "gone/checkpoint-5"}}


@pytest.mark.parametrize("record", [{"status": "finished"}, {"status": None}, GONE])
def test_auto_never_restarts_a_finished_or_foreign_run(record):
    make_run("run", **record)
    make_checkpoint("run", 3, sealed=False)
    with pytest.raises(UserError, match=r"resume_from_checkpoint|is not a run's directory"):
        claim("run", "unused", "auto")


@pytest.mark.parametrize("checkpoints", [[5], []])
def test_auto_never_restarts_over_trained_weights(checkpoints):
    """As save_only_model leaves them, or save_strategy no in a run that is interrupted in its last evaluation."""
    make_run("run", checkpoints, status="interrupted by SIGTERM")
    if checkpoints:
        Path("run/checkpoint-5/optimizer.pt").unlink()
    else:
        Path("run/model.safetensors").write_bytes(b"trained")
    with pytest.raises(UserError, match="resume_from_checkpoint"):
        claim("run", "unused", "auto")


def test_a_checkpoint_names_its_run():
    make_run("out/X", [5])
    assert claim(None, "unused", "out/X/checkpoint-5") == ("out/X", "out/X/checkpoint-5", ())
    with pytest.raises(UserError, match="resume_from_checkpoint"):
        claim(None, "unused", "out/X")


def test_a_checkpoint_of_stock_trl_is_refused_with_the_way_to_use_it():
    directory = make_checkpoint("trl", 10, sealed=False)
    with pytest.raises(UserError, match=rf"complete.json.*--model_name_or_path {directory}"):
        claim(None, "unused", str(directory))


def test_an_older_checkpoint_needs_a_directory_of_its_own():
    make_run("run", [5, 10, 15])
    Path("run/checkpoint-15/optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"run/checkpoint-5.*checkpoint-10"):
        claim(None, "unused", "run/checkpoint-5")
    assert claim("other", "unused", "run/checkpoint-5") == ("other", "run/checkpoint-5", ())
    assert claim("run", "unused", "run/checkpoint-10")[:2] == ("run", "run/checkpoint-10")
    make_run("taken")
    with pytest.raises(UserError, match="'taken' already holds another run"):
        claim("taken", "unused", "run/checkpoint-5")


# --- One process a run


def test_one_process_writes_until_it_is_killed(tiny_run, capfd):
    words = [sys.executable, ROOT / "tests/programs/hold_run.py"]
    own = {"env": {"PYTHONPATH": str(ROOT)}, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **own) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=r"output_dir: 'run'.*4711 on there"):
            locked(Path("run")).__enter__()
        before = {path: path.read_bytes() for path in Path("run").iterdir()}
        assert train_grpo.main([*tiny_run(), "--resume_from_checkpoint", "auto"]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("error: output_dir: 'run'") and "4711" in line
        assert {path: path.read_bytes() for path in Path("run").iterdir()} == before
        other.kill()
        other.wait()
    with locked(Path("run")):
        pass
    assert Path("run/run.json").exists()


def test_a_run_that_finished_meanwhile_is_not_overwritten():
    assert claim("run", "unused", None).output_dir == "run"
    make_run("run", [5], status="finished")
    with pytest.raises(UserError, match="output_dir: 'run'"):
        locked(Path("run")).__enter__()
    with locked(Path("run"), checkpoint="run/checkpoint-5"):
        pass


def test_a_directory_without_a_new_file_is_removed_again():
    with pytest.raises(KeyError), locked(Path("new")):
        Path("new/completions").mkdir()
        raise KeyError
    assert not Path("new").exists()
    Path("mine").mkdir()
    with locked(Path("mine")):
        pass
    assert Path("mine").exists()
    with locked(Path("kept/run")):
        Path("kept/run/metrics.jsonl").write_text("{}")
    assert Path("kept/run/metrics.jsonl").exists()
