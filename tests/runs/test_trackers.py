"""grpo/runs/trackers.py: what cannot work is found before training; without a key it is logged offline, unasked."""

import contextlib
import importlib.util
import json
import os
import pty
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
from helpers_commands import command
from helpers_runs import ROOT, SECRETS

from grpo.core.errors import UserError
from grpo.runs import trackers

VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "SWANLAB_MODE", "SWANLAB_API_KEY", "HF_TOKEN")


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
        (settings("trackio", trackio_space_id="me/curves"), "Space needs a token; export HF_TOKEN"),
    ],
)
def test_what_cannot_be_logged_to_is_named(given, told, monkeypatch):
    monkeypatch.setattr(trackers, "get_token", lambda: None)
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


@pytest.mark.parametrize(("name", "label"), [("wandb", "W&B"), ("swanlab", "SwanLab")])
def test_without_a_key_it_logs_offline_and_never_asks(name, label, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))  # a terminal that cannot be read
    (note,) = trackers.check(settings(name))
    assert note.startswith(f"note: {label} is not logged in, so it logs offline") and "--report_to none" in note
    assert trackers.describe(training(name, "trackio")) == f"{name} (offline), trackio"
    monkeypatch.setenv(f"{name.upper()}_MODE", "disabled")
    assert trackers.check(settings(name)) == []  # somebody has decided
    assert trackers.mode(name) == "disabled"


def test_a_key_in_the_environment_is_a_login(monkeypatch):
    monkeypatch.setenv("SWANLAB_API_KEY", "abc")
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    with pytest.raises(UserError, match="W&B refuses its key"):
        trackers.check(settings("wandb"))
    monkeypatch.setattr(wandb, "login", lambda **_: True)  # with a key like its own it would ask a server
    assert trackers.check(settings("wandb,swanlab")) == []


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_server_that_refuses_is_one_line(name, monkeypatch):
    def refuse(mode, **_):
        assert mode == "online"
        raise wandb.errors.CommError("timed out\nmore of it")

    monkeypatch.setenv(f"{name.upper()}_MODE", "online")
    monkeypatch.setattr(f"{name}.init", refuse)
    with pytest.raises(UserError, match=r"refuses this run \(timed out more of it\).*_MODE=offline"):
        trackers.start(training(name))


def test_trackio_has_one_run_a_training_resumed_or_not(monkeypatch, capsys):
    """It would continue a run of the same name."""
    taken = []
    monkeypatch.setattr("trackio.Api", lambda: SimpleNamespace(runs=lambda project: taken))
    for output, checkpoint, name in (
        ("run", None, "x"),
        ("other", None, "x-2"),
        ("other", "other/checkpoint-1", "x-2"),
        ("run", "run/checkpoint-1", "x"),
        ("third", "run/checkpoint-1", "x-3"),
    ):
        settings = training("trackio")
        settings.output_dir, settings.resume_from_checkpoint, settings.project = output, checkpoint, "huggingface"
        trackers.start(settings)
        assert settings.run_name == name
        Path(output).mkdir(exist_ok=True)
        Path(output, "run.json").write_text(json.dumps({"settings": {"run_name": name}}))
        taken.append(SimpleNamespace(name=name))
    assert capsys.readouterr().out.count("note: trackio already has a run x; this one is called x-") == 2


ACCURACY = "train/eval/accuracy_lenient"


@pytest.mark.slow
def test_a_run_logs_to_all_of_them_without_a_key(tiny_run):
    """A real command at home in an empty directory; of the secrets in its environment, no file holds one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    secrets = {name: value for name, value in SECRETS.items() if name != "WANDB_API_KEY"}
    home = {"HOME": str(Path("home").absolute()), "HF_HOME": str(Path("home/hf").absolute())}
    trackers = "wandb,swanlab,trackio,tensorboard"
    argv = tiny_run(report_to=trackers, run_name="a-name-of-its-own", eval_every="1", eval_samples="2")
    done = command(ROOT / "train_grpo.py", argv, real=True, **home, **secrets)  # trackers write at the exit
    assert done.returncode == 0, done.stderr[-3000:]
    for label in ("W&B", "SwanLab"):
        assert f"{label} is not logged in, so it logs offline" in " ".join(done.stdout.split())
    for pattern in ("wandb/offline-run-*", "swanlog/run-*", "home/hf/trackio/*.db*"):
        files = [path for found in Path.cwd().glob(pattern) for path in (found, *found.rglob("*")) if path.is_file()]
        content = b"".join(path.read_bytes() for path in files)
        for word in ("a-name-of-its-own", "train/reward", "train/rewards/correctness_reward_func/mean", ACCURACY):
            assert word.encode() in content, (pattern, word)
    (events,) = Path("run/runs").iterdir()
    events = EventAccumulator(str(events))
    events.Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in events.Scalars(ACCURACY)] == [0, 1, 2]  # the last one before trackers end
    assert not [path for path in Path.cwd().rglob("*") if path.is_file() and b"planted-" in path.read_bytes()]


@pytest.mark.slow
def test_wandb_asks_nothing_in_a_terminal():
    code = (
        "from types import SimpleNamespace as S; from grpo.runs import trackers as t;"
        "print(t.check({'report_to': 'wandb'})); t.start(S(report_to=['wandb'], run_name='x'))"
    )
    process, terminal = pty.fork()
    if not process:
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    with contextlib.suppress(OSError):  # Linux' end of file
        while part := os.read(terminal, 4096):  # would wait for an answer
            shown += part
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert shown.count(b"\n") == 1 and b"so it logs offline" in shown
    assert list(Path("wandb").glob("offline-run-*"))
