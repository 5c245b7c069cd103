"""A model is pushed with our card and without checkpoints, and a Hub that refuses is found before training."""

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


@pytest.mark.slow
def test_every_checkpoint_updates_the_hub_with_our_card(tiny_run, uploads):
    assert train_grpo.main(tiny_run(**PUSHES, save_steps="1")) == 0
    assert [repository for repository, *_ in uploads] == ["me/x"] * 3  # after each step, and in the end
    assert all("checkpoint-*" in ignored and b"trl" in sent["README.md"] for _, _, sent, ignored in uploads)
    _, _, sent, _ = uploads[-1]
    assert sent["README.md"] == Path("run/README.md").read_bytes() and b"held-out" in sent["README.md"]
    assert {"model.safetensors", "tokenizer.json", "report.html", "comparison.json", "run.json"} <= set(sent)


def refused(*_, **__):
    answer = SimpleNamespace(headers={}, request=None, status_code=403)
    raise huggingface_hub.errors.HfHubHTTPError("403 Forbidden\nmore of it", response=answer)


@pytest.mark.parametrize(("refuses", "named"), [(None, "push_to_hub: "), ("create_repo", "403 Forbidden")])
def test_a_refusal_is_one_line_before_training(refuses, named, tiny_run, request, monkeypatch, capfd):
    """None: the tests are offline, with a token."""
    monkeypatch.setattr("huggingface_hub.hf_api.get_token", lambda: "hf_planted")
    if refuses:
        request.getfixturevalue("uploads")
        monkeypatch.setattr(HfApi, refuses, refused)
    before = sorted(Path.cwd().rglob("*"))
    assert train_grpo.main(tiny_run(**PUSHES)) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert named in line and "hf_planted" not in line
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(("role", "status"), [("read", "error"), ("write", "ok")])
def test_a_token_that_may_only_read_is_an_error(role, status, monkeypatch):
    user = {"name": "me", "auth": {"accessToken": {"role": role}}}
    monkeypatch.setattr(HfApi, "whoami", lambda self, **_: user)
    assert hub.check(SimpleNamespace(hub_model_id="me/x")).status == status


def test_an_upload_that_fails_in_the_end_says_how_to_repeat_it():
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir="run"), hub_model_id="me/x", push_to_hub=refused)
    with pytest.raises(UserError, match=r"403 Forbidden.*hf upload me/x run"):
        hub.push(trainer)
