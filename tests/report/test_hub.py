"""A run goes to the Hub without what is nobody's business, and one that does not get there is complete on the disk."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_hub import LocalHub
from helpers_runs import LEARNS, ROOT
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import http_backoff

import train_grpo
from grpo.__main__ import main as tool
from grpo.core import commands
from grpo.report import charts, hub

PUSHES = {"push_to_hub": "true", "hub_model_id": "me/x", "eval_samples": "2"}
MODEL = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
RECORDS = {"run.json", "metrics.jsonl", "eval_before.json", "eval_after.json", "comparison.json"}
PAGES = {"README.md", "report.html", "curves.png"}
OWN = """
def brevity(completions, **kwargs):
    folders = "/srv/my data/rows", '/srv/keys'
    return [-len(completion[0]["content"]) / 1000 for completion in completions]
"""


@pytest.fixture
def server(monkeypatch):
    """The Hub of HF_ENDPOINT, which huggingface_hub has read before; there, it is not waited for between two tries."""
    with LocalHub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_TOKEN", "hf_planted")
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        monkeypatch.setitem(http_backoff.__kwdefaults__, "base_wait_time", 0)
        yield server
        server.shutdown()


def error_of(capfd):
    err = capfd.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "hf_planted" not in err and "Traceback" not in err
    return line


def test_an_upload_holds_model_card_report_and_records(tiny_run, rows_file, server, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(charts, "draw_curves", lambda path, *_: path.write_bytes(b"drawn"))
    Path("own.py").write_text(OWN)
    own = {"reward_funcs": "own.brevity", "allow_custom_rewards": "true", "dataset_name": rows_file}
    assert train_grpo.main(tiny_run(**LEARNS | PUSHES | own, save_steps="1")) == 0
    assert "Uploaded to" in capfd.readouterr().out and "Bearer hf_planted" in server.tokens
    (name, files), run = *server.files.items(), Path("run")
    assert name == "me/x" and files.keys() == {"model.safetensors", *MODEL, *RECORDS, *PAGES}
    for same in files.keys() - {"run.json", "README.md", "report.html"}:
        assert files[same] == (run / same).read_bytes(), same
    asked = [json.loads(text) for text in (files["run.json"], (run / "run.json").read_bytes())]
    assert asked[0]["status"] == "finished" and asked[0]["prompt"] == asked[1]["prompt"] and not asked[0]["process"]
    assert asked[0]["settings"]["model_name_or_path"] == "model"
    assert b"# Model Card" in files["README.md"] and b"held-out" in files["README.md"]

    texts = {name: content.decode() for name, content in files.items() if name != "model.safetensors"}
    report, local = texts["report.html"], (run / "report.html").read_text()
    assert 'class="example"' in local and 'class="example"' not in report and "Before and after" in report
    assert f"python {ROOT / 'grpo'} report {run.resolve()}" in local and "directory.</p></footer>" in report
    for secret in ("hf_planted", str(tmp_path), str(ROOT), "/srv/", asked[1]["process"]["host"]):
        assert not [name for name, text in texts.items() if secret in text], secret
        assert secret == "hf_planted" or secret in (run / "run.json").read_text()
    named = re.findall(r"[\w./-]+\.(?:jsonl?|png|html|parquet|bin)\b", texts["README.md"] + report)
    assert set(named) <= files.keys() | {"rows.jsonl"}

    downloaded = Path("downloaded")
    downloaded.mkdir()
    for name, content in files.items():
        (downloaded / name).write_bytes(content)
    answers = set()
    for directory in (run, downloaded):
        assert tool(["ask", str(directory), "Mia has 3 boxes with 4 pens in each. How many pens are there?"]) == 0
        answers.add(capfd.readouterr().out.removeprefix(f"{directory} answers:"))
    assert len(answers) == 1 and "<answer>" in answers.pop()


REFUSALS = {"preupload": [401, 500], "commit": [403, None]}


@pytest.mark.parametrize(("where", "status"), [(where, each) for where in REFUSALS for each in REFUSALS[where]])
def test_a_run_that_fails_to_upload_is_complete_on_the_disk(where, status, tiny_run, server, capfd):
    server.fails[where] = status
    assert train_grpo.main(tiny_run(**PUSHES, max_steps="1")) == 2
    line = error_of(capfd)
    assert (str(status) if status else "disconnected") in line and not server.files["me/x"]
    assert json.loads(Path("run/run.json").read_text())["status"] == "finished"
    server.fails.clear()
    words = line.partition(f"to upload it: {commands.tool()} ")[2].split()
    assert tool(words) == 0 and {"model.safetensors", "README.md", "report.html"} <= server.files["me/x"].keys()


@pytest.mark.parametrize(
    ("where", "status", "reason"),
    [("whoami", 401, "Invalid user token"), ("create", 403, "403 Forbidden"), ("create", None, "disconnected")],
)
def test_a_refusal_before_training_is_one_line(where, status, reason, tiny_run, server, capfd):
    server.fails[where] = status
    before = sorted(Path.cwd().rglob("*"))
    assert train_grpo.main(tiny_run(**PUSHES)) == 2
    line = error_of(capfd)
    assert line.startswith("error: push_to_hub: ") and reason in line
    assert sorted(Path.cwd().rglob("*")) == before


def test_offline_is_one_line_before_training(tiny_run, capfd):
    assert train_grpo.main(tiny_run(**PUSHES)) == 2
    assert "push_to_hub: " in error_of(capfd)


def test_an_adapter_names_its_model_and_not_where_it_is(learned_adapter, server):
    learned_adapter.copy()
    assert tool(["publish", "run", "me/y"]) == 0
    files = server.files["me/y"]
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "model"


def test_without_a_model_there_is_nothing_to_publish(capfd):
    assert tool(["publish", "run", "me/x"]) == 2
    assert "'run' holds no trained model" in error_of(capfd)


@pytest.mark.parametrize("name", ["bad name", "me/bad name", "a/b/c", "me/-x", "me/x.git"])
def test_a_name_that_the_hub_does_not_take_is_an_error_at_once(name, learned, tiny_run, capfd):
    learned.copy()
    assert tool(["publish", "run", name]) == 2
    assert "error: publish: " in (line := error_of(capfd)) and name in line and "python -m" not in line
    assert train_grpo.main(tiny_run(**PUSHES | {"hub_model_id": name, "output_dir": "other"})) == 2
    assert "error: hub_model_id: " in (line := error_of(capfd)) and "auth login" not in line


def test_uploads_at_checkpoints_are_refused(tiny_run, capfd):
    assert train_grpo.main(tiny_run(**PUSHES, hub_strategy="checkpoint")) == 2
    assert "hub_strategy: 'checkpoint'" in error_of(capfd)


@pytest.mark.parametrize(("role", "status"), [("read", "error"), ("write", "ok")])
def test_a_token_that_may_only_read_is_an_error(role, status, monkeypatch):
    user = {"name": "me", "auth": {"accessToken": {"role": role}}}
    monkeypatch.setattr(HfApi, "whoami", lambda self, **_: user)
    assert hub.check_access(SimpleNamespace(hub_model_id="me/x")).status == status
