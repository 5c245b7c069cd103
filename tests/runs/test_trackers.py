"""A tracker that cannot work is found before training; without a key W&B logs offline, unasked."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
from helpers_commands import command
from helpers_runs import ROOT, SECRETS

import train_grpo
from grpo.core.errors import UserError
from grpo.runs import trackers

VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "HF_TOKEN")


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set meanwhile is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def settings(report_to):
    return {"report_to": report_to}


@pytest.mark.parametrize(("given", "named"), [("wandb,notebook", "notebook"), ("comet", "did you mean comet_ml")])
def test_names_that_are_no_trackers_are_refused(given, named):
    with pytest.raises(UserError, match=f"report_to: .*{named}"):
        trackers.check(settings(given))


def test_a_missing_tracker_is_named():
    """A default or a recipe's is dropped instead."""
    with pytest.raises(UserError, match=r"report_to: dvclive is not installed"):
        trackers.check(settings("dvclive,tensorboard"))
    values = settings("dvclive,tensorboard")
    (note,) = trackers.check(values, asked=False)
    assert "dvclive" in note.finding and values["report_to"] == ["tensorboard"]


def test_without_a_key_it_logs_offline_and_never_asks(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))  # a terminal that cannot be read
    (note,) = trackers.check(settings("wandb"))
    assert note.name == "report_to" and os.environ["WANDB_MODE"] == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert trackers.check(settings("wandb")) == [] and os.environ["WANDB_MODE"] == "disabled"  # the user has decided


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
        trackers.check(settings("wandb"))
    monkeypatch.setattr(wandb, "login", lambda **_: True)  # with a key like its own it would ask a server
    assert trackers.check(settings("wandb")) == [] and "WANDB_MODE" not in os.environ


@pytest.mark.slow
def test_a_server_that_refuses_is_one_line(tiny_run, monkeypatch, capfd):
    def refuse(**_):
        raise wandb.errors.CommError("timed out\nmore of it")

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "init", refuse)
    assert train_grpo.main(tiny_run(report_to="wandb")) == 2
    err = capfd.readouterr().err
    assert "error: report_to: " in err and "timed out" in err and "Traceback" not in err


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
    content = b"".join(path.read_bytes() for path in offline.rglob("*") if path.is_file())
    for word in ("a-name-of-its-own", "train/reward", "train/rewards/correctness_reward_func/mean", ACCURACY):
        assert word.encode() in content, word
    (events,) = Path("run/runs").iterdir()
    events = EventAccumulator(str(events))
    events.Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in events.Scalars(ACCURACY)] == [0, 1, 2]  # the last one before trackers end
    assert not [path for path in Path.cwd().rglob("*") if path.is_file() and b"planted-" in path.read_bytes()]
