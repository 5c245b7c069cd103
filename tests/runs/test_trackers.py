"""grpo/runs/trackers.py: what cannot work is found before training, and all take real runs without a network."""

import importlib.util
import os
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import swanlab
import wandb
from helpers_commands import command
from helpers_runs import ROOT

from grpo.core.errors import UserError
from grpo.runs import trackers

VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "SWANLAB_MODE", "SWANLAB_API_KEY", "TRACKIO_SPACE_ID", "HF_TOKEN")


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is restored, whatever is set below
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))


def settings(report_to):
    return {"report_to": report_to, "trackio_space_id": None}


def test_no_tracker_is_no_trouble():
    values = settings(None)
    assert trackers.check(values) == [] and values["report_to"] == ["none"]


def test_what_is_no_tracker_is_named():
    with pytest.raises(UserError, match="report_to: 'notebook' is not a tracker; use none, wandb"):
        trackers.check(settings("wandb,notebook"))


def test_a_recipes_missing_tracker_is_dropped_with_a_note(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "swanlab" else find_spec(name))
    values = settings("swanlab,tensorboard")
    (note,) = trackers.check(values, asked=False)
    assert "swanlab is not installed" in note and "pip install swanlab" in note
    assert values["report_to"] == ["tensorboard"]
    values = settings("swanlab")
    trackers.check(values, asked=False)
    assert values["report_to"] == ["none"]


@pytest.mark.parametrize("tracker", trackers.TRACKERS)
def test_a_missing_tracker_is_named_with_its_package(monkeypatch, tracker):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"{tracker} is not installed; pip install {tracker}"):
        trackers.check(settings(tracker))


def test_a_key_that_wandb_refuses_is_one_line(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    with pytest.raises(UserError, match="W&B refuses its key"):
        trackers.check(settings("wandb"))
    monkeypatch.delenv("WANDB_API_KEY")  # the next run of this process does not go on with it
    assert "W&B" in trackers.check(settings("wandb"))[0]


LOGINS = [("wandb", "W&B", "WANDB_MODE"), ("swanlab", "SwanLab", "SWANLAB_MODE")]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(("tracker", "name", "variable"), LOGINS)
def test_without_a_key_it_logs_offline_and_never_asks(tracker, name, variable, terminal, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    (note,) = trackers.check(settings(tracker))
    assert variable not in os.environ  # it is set when the run starts
    assert note.startswith(f"note: {name} is not logged in, so it logs offline") and "--report_to none" in note
    training = SimpleNamespace(report_to=[tracker], output_dir="run", trackio_space_id=None)
    assert trackers.describe(training) == f"{tracker} (offline)"
    monkeypatch.setenv(variable, "disabled")
    assert trackers.check(settings(tracker)) == []  # somebody has decided
    assert trackers.describe(training) == f"{tracker} (disabled)"


@pytest.mark.slow
def test_a_key_in_the_environment_is_a_login(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("SWANLAB_API_KEY", "abc")
    assert trackers.check(settings("wandb,swanlab")) == []
    training = SimpleNamespace(report_to=["wandb", "swanlab"], output_dir="run", trackio_space_id=None)
    assert trackers.describe(training) == "wandb (online), swanlab (online)"


def test_a_space_for_trackio_needs_a_token(monkeypatch):
    assert trackers.check(settings("trackio")) == []
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match="Space 'me/curves' without a token; export HF_TOKEN"):
        trackers.check(settings("trackio") | {"trackio_space_id": "me/curves"})
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/curves")
    with pytest.raises(UserError, match="me/curves"):
        trackers.check(settings("trackio"))


def test_preflight_shows_where_they_write():
    training = SimpleNamespace(report_to=["tensorboard", "trackio"], output_dir="run", trackio_space_id=None)
    told = trackers.describe(training)
    assert told.startswith("tensorboard (in run/runs), trackio (in ") and told.endswith("trackio)")


@pytest.mark.parametrize(
    ("tracker", "name", "start", "error"),
    [
        ("wandb", "W&B", "wandb.init", wandb.errors.CommError("timed out\nmore of it")),
        ("swanlab", "SwanLab", "swanlab.init", swanlab.exceptions.AuthenticationError("check the key")),
    ],
)
@pytest.mark.slow
def test_a_server_that_refuses_is_one_line(tracker, name, start, error, monkeypatch):
    def refuse(**_):
        raise error

    for variable in ("WANDB_API_KEY", "SWANLAB_API_KEY"):
        monkeypatch.setenv(variable, "a" * 40)
    monkeypatch.setattr(start, refuse)
    training = SimpleNamespace(report_to=[tracker], run_name="x", resume_from_checkpoint=None)
    with pytest.raises(UserError, match=f"{name} does not take this run .*_MODE=offline") as raised:
        trackers.start(training)
    assert "\n" not in str(raised.value)


# --- Real runs, as commands


SECRETS = {
    name: f"planted-{index}-0123456789abcdef"
    for index, name in enumerate(("HF_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY", "MY_SECRET", "SMTP_PASSWORD"))
}


def train(argv, **environment):
    """The command without network, at home in an empty directory."""
    surroundings = {"HOME": str(Path("home").absolute()), "HF_HOME": str(Path("home/hf").absolute())}
    return command(ROOT / "train_grpo.py", argv, **surroundings, **environment)


def holds(paths, *words):
    content = b"".join(path.read_bytes() for path in paths if path.is_file())
    return all(word.encode() in content for word in words)


@pytest.mark.slow
def test_a_run_without_login_logs_offline_under_its_name(tiny_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = train(tiny_run(report_to="wandb,swanlab,tensorboard", run_name="a-name-of-its-own"))
    assert done.returncode == 0, done.stderr[-3000:]
    for name, runs in (("W&B", "wandb/offline-run-*"), ("SwanLab", "swanlog/run-*")):
        assert f"{name} is not logged in, so it logs offline" in " ".join(done.stdout.split())
        (run,) = Path.cwd().glob(runs)
        assert holds(run.rglob("*"), "a-name-of-its-own", "train/reward", "train/rewards/correctness_reward_func/mean")
    (run,) = Path("run/runs").iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2]


@pytest.mark.slow
def test_trackio_has_one_run_a_training_resumed_or_not(tiny_run):
    flags = {"report_to": "trackio", "run_name": "mine", "save_steps": "1"}
    for overrides in ({}, {"output_dir": "other"}, {"max_steps": "3", "resume_from_checkpoint": "auto"}):
        done = train(tiny_run(**flags, **overrides))
        assert done.returncode == 0, done.stderr[-3000:]
        renamed = "trackio already has a run mine; this one is called mine-2" in " ".join(done.stdout.split())
        assert renamed == ("output_dir" in overrides)
    with sqlite3.connect("home/hf/trackio/huggingface.db") as database:
        logged = database.execute("SELECT run_name FROM metrics WHERE instr(metrics, '\"train/reward\"')").fetchall()
    assert sorted(name for (name,) in logged) == ["mine"] * 3 + ["mine-2"] * 2


@pytest.mark.slow
def test_no_secret_of_the_environment_reaches_a_tracker(tiny_run):
    offline = {"WANDB_MODE": "offline", "SWANLAB_MODE": "offline"}
    done = train(tiny_run(report_to="wandb,swanlab,trackio,tensorboard"), **SECRETS, **offline)
    assert done.returncode == 0, done.stderr[-3000:]
    files = [path for path in Path.cwd().rglob("*") if path.is_file()]
    written = {"wandb", "swanlog", "run", "home"}
    assert written <= {path.relative_to(Path.cwd()).parts[0] for path in files}
    for path in files:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in SECRETS.values()), path
