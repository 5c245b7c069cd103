"""A tracker that cannot work is found before training; without a key W&B logs offline, unasked."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
from helpers_commands import command
from helpers_runs import ROOT, SECRETS
from trl.extras import profiling
from trl.trainer import grpo_trainer

import train_grpo
from grpo.core.errors import UserError
from grpo.core.settings import Settings
from grpo.report import trackers

VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "HF_TOKEN")


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set meanwhile is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def settings(report_to, source="flag"):
    values = Settings({"report_to": "none"})
    values.set("report_to", report_to, source)
    return values


def noted(values):
    """The notes about a run's trackers."""
    trackers.drop_missing(values)
    return values.notes


@pytest.mark.parametrize(("given", "named"), [("wandb,notebook", "notebook"), ("comet", "did you mean comet_ml")])
def test_names_that_are_no_trackers_are_refused(given, named):
    with pytest.raises(UserError, match=f"report_to: .*{named}"):
        trackers.drop_missing(settings(given))


def test_a_missing_tracker_is_named():
    """A default or a recipe's is dropped instead."""
    with pytest.raises(UserError, match=r"report_to: dvclive is not installed"):
        trackers.drop_missing(settings("dvclive,tensorboard"))
    values = settings("dvclive,tensorboard", "recipe")
    (note,) = noted(values)
    assert "dvclive" in note.finding and values["report_to"] == "tensorboard"
    assert values.origin["report_to"] == "machine"


def test_without_a_key_it_logs_offline_and_never_asks(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))  # a terminal that cannot be read
    (note,) = noted(settings("wandb"))
    assert note.name == "report_to" and os.environ["WANDB_MODE"] == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert noted(settings("wandb")) == [] and os.environ["WANDB_MODE"] == "disabled"  # the user has decided


def test_swanlab_has_a_run_before_transformers_asks(monkeypatch):
    def init(**_):
        if "SWANLAB_MODE" not in os.environ:
            raise RuntimeError("there is no key\nmore of it")
        begun.append(1)

    begun = []
    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(init=init))
    ours, another = (SimpleNamespace(report_to=[name], run_name="mine") for name in ("swanlab", "none"))
    with pytest.raises(UserError, match=r"report_to: there is no key; export SWANLAB_API_KEY"):
        trackers.start(ours)
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    trackers.start(another)
    assert begun == []
    trackers.start(ours)
    assert begun == [1]


def test_a_key_in_the_environment_is_a_login(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    with pytest.raises(UserError, match="report_to: "):
        trackers.drop_missing(settings("wandb"))
    monkeypatch.setattr(wandb, "login", lambda **_: True)  # with a key like its own it would ask a server
    assert noted(settings("wandb")) == [] and "WANDB_MODE" not in os.environ


def test_a_tracker_that_fails_anywhere_is_dropped_in_one_line(monkeypatch, capsys):
    """By transformers' callback, by TRL's table of completions and by TRL's timings; the other trackers go on."""

    class Tensorboard(trackers.INTEGRATION_TO_CALLBACK["tensorboard"]):
        def on_log(self, *args, **kwargs):
            calls.append("tensorboard")

    class Wandb(trackers.INTEGRATION_TO_CALLBACK["wandb"]):
        def on_log(self, *args, **kwargs):
            calls.append("wandb")
            fail("the server is down")

    def fail(reason="no room"):
        raise ValueError(f"{reason}\nmore of it")

    calls, both = [], [Tensorboard(), Wandb()]
    fake = SimpleNamespace(run=3, Table=lambda **_: fail(), log=lambda _: calls.append("log"))
    monkeypatch.setattr(profiling, "wandb", fake, raising=False)
    monkeypatch.setattr(grpo_trainer, "wandb", fake, raising=False)
    with trackers.dropping_failed(both):
        assert grpo_trainer.wandb.run == 3
        profiling.wandb.log({})
        grpo_trainer.wandb.log({"completions": grpo_trainer.wandb.Table(dataframe=1)})
        for _ in range(2):
            for callback in both:
                callback.on_log(None, None, None)
    assert grpo_trainer.wandb is fake and calls == ["log", "tensorboard", "tensorboard"]
    assert capsys.readouterr().out == "note: report_to: wandb failed (no room); the run continues without it\n"
    with trackers.dropping_failed([again := Wandb()]):
        again.on_log(None, None, None)
    assert "wandb failed (the server is down)" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["WANDB_DATA_DIR", "TENSORBOARD_LOGGING_DIR"])
def test_a_directory_that_cannot_be_written_costs_only_the_tracker(tiny_run, variable):
    name = variable.partition("_")[0].lower()
    done = command(ROOT / "train_grpo.py", tiny_run(report_to=name, max_steps="1"), **{variable: "/proc/nowhere"})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout.count(f"note: report_to: {name} failed (") == 1


def test_a_server_that_refuses_costs_only_the_tracker(tiny_run, monkeypatch, capfd):
    def refuse(**_):
        raise wandb.errors.CommError("timed out\nmore of it")

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "init", refuse)
    assert train_grpo.main(tiny_run(report_to="wandb")) == 0
    assert "note: report_to: wandb failed (timed out); the run continues" in " ".join(capfd.readouterr().out.split())


def test_a_resumed_run_keeps_its_wandb_run(monkeypatch, tmp_path):
    """Elsewhere it is another run; the user's own id wins."""

    def training(output="run", checkpoint=None, report_to=("wandb",)):
        return SimpleNamespace(output_dir=str(output), resume_from_checkpoint=checkpoint, report_to=report_to)

    Path("run").mkdir()
    Path("run/run.json").write_text('{"wandb_id": "first"}')
    assert trackers.wandb_id(training(report_to=["none"])) is None
    assert trackers.wandb_id(training(checkpoint="run/checkpoint-2")) == "first"
    new = {trackers.wandb_id(training()), trackers.wandb_id(training("elsewhere", "run/checkpoint-2"))}
    assert len(new) == 2 and "first" not in new
    for foreign in ("../../elsewhere", "a/b", "", 7, ["x"]):  # W&B names a folder after it
        Path("run/run.json").write_text(json.dumps({"wandb_id": foreign}))
        assert trackers.wandb_id(training(checkpoint="run/checkpoint-2")).isalnum()
    Path("run/run.json").write_text('{"wandb_id": "first"}')
    monkeypatch.setenv("WANDB_MODE", "offline")
    with trackers.resuming_wandb("first"):
        assert os.environ["WANDB_RUN_ID"] == "first" and "WANDB_RESUME" not in os.environ
    monkeypatch.setenv("WANDB_MODE", "online")
    with trackers.resuming_wandb("first"):
        assert os.environ["WANDB_RESUME"] == "allow"
    assert not {"WANDB_RUN_ID", "WANDB_RESUME"} & os.environ.keys()
    monkeypatch.setattr(wandb, "finish", lambda: monkeypatch.setattr(wandb, "run", None))
    for run_id, kept in (("first", False), ("the user's", True)):  # left by an earlier run of this process
        monkeypatch.setattr(wandb, "run", SimpleNamespace(id=run_id))
        assert (trackers.wandb_id(training(checkpoint="run/checkpoint-2")) == "first") is not kept
        assert (trackers.wandb_id(training()) == run_id) is kept and (wandb.run is not None) is kept
    monkeypatch.setattr(wandb, "run", None)
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert trackers.wandb_id(training(checkpoint="run/checkpoint-2")) == "mine"


ACCURACY = "train/eval/accuracy_lenient"


@pytest.mark.slow
def test_a_run_logs_to_both_without_a_key(tiny_run):
    """A real command at home in an empty directory; of the secrets in its environment, no file holds one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    secrets = {name: value for name, value in SECRETS.items() if name != "WANDB_API_KEY"}
    argv = tiny_run(report_to="wandb,tensorboard", run_name="a-name-of-its-own", eval_every="1", eval_samples="2")
    done = command(
        ROOT / "train_grpo.py", argv, HOME=str(Path("home").absolute()), **secrets
    )  # trackers write at the exit
    assert done.returncode == 0, done.stderr[-3000:]
    (offline,) = Path("wandb").glob("offline-run-*")
    assert offline.name.endswith(json.loads(Path("run/run.json").read_text())["wandb_id"])
    content = b"".join(path.read_bytes() for path in offline.rglob("*") if path.is_file())
    for word in ("a-name-of-its-own", "train/reward", "train/rewards/correctness_reward_func/mean", ACCURACY):
        assert word.encode() in content, word
    (events,) = Path("run/runs").iterdir()
    events = EventAccumulator(str(events))
    events.Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in events.Scalars(ACCURACY)] == [0, 1, 2]  # the last one before trackers end
    assert not [path for path in Path.cwd().rglob("*") if path.is_file() and b"planted-" in path.read_bytes()]
    argv = [*argv, "--max_steps", "3", "--report_to", "wandb", "--resume_from_checkpoint", "auto"]
    assert command(ROOT / "train_grpo.py", argv, HOME=str(Path("home").absolute())).returncode == 0
    both = [path.name.rpartition("-")[2] for path in Path("wandb").glob("offline-run-*")]
    assert len(both) == 2 and len(set(both)) == 1
