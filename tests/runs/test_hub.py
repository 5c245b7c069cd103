"""grpo/runs/hub.py: a model is pushed with our card and no checkpoints; what the Hub refuses is found before."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import HfApi

import train_grpo
from grpo.core.errors import UserError
from grpo.runs import hub

PUSHES = {"push_to_hub": "true", "hub_model_id": "me/x"}


@pytest.fixture
def uploads(monkeypatch):
    """A Hub that takes everything, and what it was sent: the message, what was in the card, and what was left out."""
    taken = []

    def upload_folder(self, repo_id, folder_path, commit_message, ignore_patterns=None, **_):
        sent = {path.name: path.read_bytes() for path in Path(folder_path).iterdir() if path.is_file()}
        taken.append((repo_id, commit_message, sent, ignore_patterns))
        return SimpleNamespace(done=lambda: True, result=lambda: None)

    monkeypatch.setattr(HfApi, "whoami", lambda self, **_: {"name": "me"})
    monkeypatch.setattr(HfApi, "create_repo", lambda self, name, **_: SimpleNamespace(repo_id=name))
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return taken


def error_line(capfd):
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.slow
def test_every_checkpoint_updates_the_hub_with_our_card(tiny_run, uploads, capfd):
    assert train_grpo.main(tiny_run(**PUSHES, save_steps="1")) == 0
    assert "me/x, as me" in " ".join(capfd.readouterr().out.split())
    assert [(repository, message) for repository, message, _, _ in uploads] == [
        ("me/x", "Training in progress, step 1"),
        ("me/x", "Training in progress, step 2"),
        ("me/x", "End of training"),
    ]
    assert all("checkpoint-*" in ignored and b"trl" in sent["README.md"] for _, _, sent, ignored in uploads)
    _, _, sent, _ = uploads[-1]
    assert sent["README.md"] == Path("run/README.md").read_bytes() and b"held-out" in sent["README.md"]
    assert {"model.safetensors", "tokenizer.json", "report.html", "comparison.json", "run.json"} <= set(sent)


def test_without_network_nothing_is_left_behind(tiny_run, monkeypatch, capfd):
    monkeypatch.setattr("huggingface_hub.hf_api.get_token", lambda: "hf_planted")
    before = sorted(Path.cwd().rglob("*"))
    assert train_grpo.main(tiny_run(**PUSHES, dry_run="true")) == 2  # the tests are offline
    line = error_line(capfd)
    assert line.startswith("error: push_to_hub: ") and "HF_TOKEN" in line and "hf_planted" not in line
    assert sorted(Path.cwd().rglob("*")) == before


def refused(*_, **__):
    answer = SimpleNamespace(headers={}, request=None, status_code=403)
    raise huggingface_hub.errors.HfHubHTTPError("403 Forbidden\nmore of it", response=answer)


def test_a_refused_repository_is_one_line_before_training(tiny_run, uploads, monkeypatch, capfd):
    monkeypatch.setattr(HfApi, "create_repo", refused)
    before = sorted(Path.cwd().rglob("*"))
    assert train_grpo.main(tiny_run(**PUSHES)) == 2
    assert "403 Forbidden" in error_line(capfd)
    assert sorted(Path.cwd().rglob("*")) == before


def test_an_upload_that_fails_in_the_end_says_how_to_repeat_it(monkeypatch):
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir="run"), hub_model_id="me/x", push_to_hub=refused)
    with pytest.raises(UserError, match=r"403 Forbidden.*complete in run; to upload it: hf upload me/x run"):
        hub.push(trainer)
