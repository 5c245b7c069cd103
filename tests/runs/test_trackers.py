"""grpo/runs/trackers.py: what cannot work is found before training; without a key it is logged offline, unasked."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
from helpers_commands import command
from helpers_runs import ROOT, SECRETS

from grpo.core.errors import UserError
from grpo.runs import trackers

VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "HF_TOKEN")


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def settings(report_to, **others):
    return {"report_to": report_to, "trackio_space_id": None, **others}


def training(*names):
    return SimpleNamespace(report_to=list(names), run_name="x")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (settings("wandb,notebook"), "'notebook' is not a tracker; use none, wandb"),
        (settings("none,wandb"), "'none' cannot be combined"),
    ],
)
def test_what_cannot_be_logged_to_is_named(given, told):
    with pytest.raises(UserError, match=f"report_to: .*{told}"):
        trackers.check(given)


def test_no_tracker_is_no_trouble():
    values = settings(None)
    assert trackers.check(values) == [] and values["report_to"] == ["none"]


def test_a_missing_tracker_is_named_with_its_package(monkeypatch):
    """A recipe's is dropped instead."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "swanlab" else find_spec(name))
    with pytest.raises(UserError, match="swanlab is not installed; pip install swanlab"):
        trackers.check(settings("swanlab,tensorboard"))
    values = settings("swanlab,tensorboard")
    (note,) = trackers.check(values, asked=False)
    assert "swanlab is not installed" in note and values["report_to"] == ["tensorboard"]


def test_without_a_key_it_logs_offline_and_never_asks(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))  # a terminal that cannot be read
    (note,) = trackers.check(settings("wandb"))
    assert "logs offline" in note and "--report_to none" in note
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert trackers.check(settings("wandb")) == []  # somebody has decided


def test_a_key_in_the_environment_is_a_login(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    with pytest.raises(UserError, match="W&B refuses its key"):
        trackers.check(settings("wandb"))
    monkeypatch.setattr(wandb, "login", lambda **_: True)  # with a key like its own it would ask a server
    assert trackers.check(settings("wandb")) == []


def test_a_server_that_refuses_is_one_line(monkeypatch):
    def refuse(mode, **_):
        assert mode == "online"
        raise wandb.errors.CommError("timed out\nmore of it")

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("wandb.init", refuse)
    with pytest.raises(UserError, match=r"refuses this run \(timed out more of it\).*_MODE=offline"):
        trackers.start(training("wandb"))


ACCURACY = "train/eval/accuracy_lenient"


@pytest.mark.slow
def test_a_run_logs_to_both_without_a_key(tiny_run):
    """A real command at home in an empty directory; of the secrets in its environment, no file holds one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    secrets = {name: value for name, value in SECRETS.items() if name != "WANDB_API_KEY"}
    argv = tiny_run(report_to="wandb,tensorboard", run_name="a-name-of-its-own", eval_every="1", eval_samples="2")
    done = command(
        ROOT / "train_grpo.py", argv, real=True, HOME=str(Path("home").absolute()), **secrets
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
