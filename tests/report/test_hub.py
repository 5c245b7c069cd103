"""A run goes to the Hub without what is nobody's business, and one that does not get there is complete on the disk."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
from helpers_hub import LocalHub
from helpers_runs import LEARNS, ROOT
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import http_backoff
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import train_grpo
from grpo.__main__ import main as tool
from grpo.core import commands
from grpo.report import charts, contents, hub, public

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
    shown = capfd.readouterr().out
    assert "Uploaded to" in shown and "Bearer hf_planted" in server.tokens
    (name, files), run = *server.files.items(), Path("run")
    (line,) = re.findall(r"Uploading 14 files, .*", shown)
    assert set(re.findall(r"[:,] ([\w.]+) [\d.]+ [kM]B", line)) == files.keys() and "model.safetensors 6.7 MB" in line
    assert name == "me/x" and files.keys() == {"model.safetensors", *MODEL, *RECORDS, *PAGES}
    for same in files.keys() - {"run.json", "README.md", "report.html"}:
        assert files[same] == (run / same).read_bytes(), same
    asked = [json.loads(text) for text in (files["run.json"], (run / "run.json").read_bytes())]
    assert asked[0]["status"] == "finished" and asked[0]["prompt"] == asked[1]["prompt"]
    # a new key of run.json is added to one of these
    assert asked[1].keys() - asked[0].keys() == {"process", "started_in"} and asked[0].keys() <= set(public.RECORD)
    assert asked[1]["sessions"][0].keys() - asked[0]["sessions"][0].keys() == {"command"}
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("name", "full"), [("me/y", "me/y"), ("an-organization/y", "an-organization/y"), ("y", "me/y")]
)
def test_the_uploaded_card_loads_the_published_model(name, full, learned, server):
    """Found with TRL's `your-name/…`, which is nobody's."""
    card = learned.copy() / "README.md"
    quick_start = 'pipeline("text-generation", model="{}", device_map="auto")'
    assert "pipeline(" in card.read_text()
    assert tool(["publish", "run", name]) == 0
    (files,) = server.files.values()
    published = quick_start.format(full)
    assert published in files["README.md"].decode() and published not in card.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "local"), [("/srv/base", True), ("assets/demo/model", True), ("run", True), ("me/base", False)]
)
def test_an_adapter_whose_base_is_a_directory_is_published_with_a_line(base, local, learned_adapter, server, capfd):
    path = learned_adapter.copy() / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))
    assert tool(["publish", "run", "me/y"]) == 0
    said = f"note: the adapter's base model {base!r} is on this machine only"
    assert (said in capfd.readouterr().out) is local


def test_an_adapter_names_its_model_and_not_where_it_is(learned_adapter, server):
    learned_adapter.copy()
    assert tool(["publish", "run", "me/y"]) == 0
    files = server.files["me/y"]
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "model"


def test_without_a_model_there_is_nothing_to_publish(learned, capfd):
    (learned.copy() / "model.safetensors").unlink()
    assert tool(["publish", "run", "me/x"]) == 2
    assert "'run' holds no trained model" in error_of(capfd)


# --- Only what is the run's


@pytest.mark.parametrize(
    "record", [None, "", "{}", "[]", '{"status": 1}', '{"name": "my-app", "scripts": {}}', "link", "folder"]
)
def test_only_runs_and_merged_models_are_published(record, learned, server, capfd):
    run, path = learned.copy(), Path("run/run.json")
    if record == "link":
        path.rename("elsewhere.json")
        path.symlink_to(Path("elsewhere.json").absolute())
    else:
        path.unlink()
        path.mkdir() if record == "folder" else record is None or path.write_text(record)
    before = {file: file.lstat().st_atime_ns for file in run.iterdir() if file.name != "run.json"}
    assert tool(["publish", "run", "me/x"]) == 2
    assert "publish: 'run' is neither a run nor a merged model" in error_of(capfd) and not server.tokens
    assert {file: file.lstat().st_atime_ns for file in before} == before
    assert tool(["publish", "nowhere", "me/x"]) == 2 and "'nowhere' is neither" in error_of(capfd)


def test_a_merged_model_is_published(learned, server):
    run = learned.copy()
    record = json.loads((run / "run.json").read_text())
    asked = {"status": "merged", "prompt": record["prompt"], "shots": [], "settings": {"dtype": "float32"}}
    for path in [path for path in run.iterdir() if path.name not in {*MODEL, "model.safetensors"} and path.is_file()]:
        path.unlink()
    (run / "run.json").write_text(json.dumps(asked))
    assert tool(["publish", "run", "me/x"]) == 0
    files = server.files["me/x"]
    assert files.keys() == {"model.safetensors", "run.json", *MODEL} and json.loads(files["run.json"]) == asked


# Of a project that has become a run's directory
FOREIGN = (
    "keys.txt", "credentials.json", "my_private_rows.json", "train_grpo.py", "rewards.py", "README2.md", ".env",
    "eval_rows.json", "model_notes.txt", "secret.model", "notes.safetensors", "vocab.csv", "rows.jsonl",
    "model-1.safetensors.txt", "chat.jinja", "configs.json", "training_args.bin", "faults.jsonl", "completions_x.csv",
)  # fmt: skip


def test_files_that_are_not_the_runs_stay_here(learned, server):
    run = learned.copy()
    for name in FOREIGN:
        (run / name).write_text("AKIA")
    (run / "tokenizer.model").write_text("a model's")
    (run / "vocab.json").mkdir()
    assert tool(["publish", "run", "me/x"]) == 0
    files = server.files["me/x"]
    assert files.keys() == {"model.safetensors", "tokenizer.model", *MODEL, *RECORDS, *PAGES}
    assert not [name for name, content in files.items() if b"AKIA" in content]


def test_no_link_is_followed(learned, server):
    """Neither one with the name of a file of a run, nor one with a name of a model's file."""
    run = learned.copy()
    Path("secret").write_text('{"secret": "AKIA"}')
    Path("folder").mkdir()
    names = {file.name for file in contents.FILES} - {"run.json", "completions_*", "merged"}
    names |= {
        *public.CONFIGS,
        *public.VOCABULARIES,
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "code.py",
    }
    (run / "config.json").unlink()
    (run / "config.json").write_text('{"auto_map": {"AutoConfig": "code.Configuration"}}')
    for name in names - {"config.json"}:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(Path("secret").absolute())
    (run / "adapter_model.safetensors").symlink_to(Path("folder").absolute())
    (run / "vocab.txt").unlink()
    (run / "vocab.txt").symlink_to("nowhere")
    assert tool(["publish", "run", "me/x"]) == 0
    assert server.files["me/x"].keys() == {"run.json", "config.json", "model.safetensors"}


def test_a_models_own_code_is_uploaded_as_auto_map_names_it(learned, server):
    run = learned.copy()
    auto_map = {
        "AutoConfig": "own_config.Configuration",
        "AutoModel": "other/repository--remote.Model",
        "AutoModelForCausalLM": "../above.Model",
        "AutoTokenizer": ["folder.own.Tokenizer", None],
        "AutoProcessor": 3,
    }
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"auto_map": auto_map}))
    tokens = json.loads((run / "tokenizer_config.json").read_text())
    (run / "tokenizer_config.json").write_text(json.dumps(tokens | {"auto_map": {"A": ["tokens.Slow", None]}}))
    for name in ("own_config", "helper", "tokens", "remote", "above", "folder", "own", "other"):
        (run / f"{name}.py").write_text(
            "from .helper import x\n" if name == "own_config" else "from .tokens import y\n"
        )
    Path("above.py").write_text("")
    assert tool(["publish", "run", "me/x"]) == 0
    own = {name for name in server.files["me/x"] if name.endswith(".py")}
    assert own == {"own_config.py", "helper.py", "tokens.py"}


def test_the_names_of_vocabularies_are_the_libraries():
    """Those of the tokenizers of causal models; encoders, encoder-decoders and masked models cannot be trained."""
    refused = {"bert", "roc_bert", "roformer", "cpmant", "marian", "prophetnet", "whisper"}
    found = set()
    for file in Path(transformers.__file__).parent.glob("models/*/tokenization*.py"):
        if file.parent.name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - refused:
            for text in re.findall(r"VOCAB_FILES_NAMES[^=]*=\s*\{(.*?)\}", file.read_text(), re.DOTALL):
                found |= set(re.findall(r':\s*"([^"]+)"', text))
    assert {"vocab.json", "merges.txt", "spiece.model"} <= found <= {*public.VOCABULARIES, *public.CONFIGS}


# --- Nobody's names and folders


def test_a_published_record_names_no_user_host_or_folder(learned, server, monkeypatch, tmp_path):
    run, home = learned.copy(), "/home/alice"
    monkeypatch.setattr(public.platform, "node", lambda: "gpu07.lab.example")
    monkeypatch.setattr(public.getpass, "getuser", lambda: "carol")
    monkeypatch.setattr(public.Path, "home", lambda: Path("/Users/dave"))
    (rows := tmp_path / "my folder").mkdir()
    paths = [
        home,
        f"{home}/(x)/q",
        f"file://{home}/x",
        "see </home/alice/y> on erin-pc",
        "~/depths/z",
        f"PATH=/usr/bin:{home}/b",
    ]
    texts = [*paths, "https://carol:pw@hub/a/b", r"C:\Users\robert\depths\x", "carol, dave and robert on gpu07"]
    record = json.loads((run / "run.json").read_text())
    record["settings"] |= {
        "output_dir": home,
        "model_name_or_path": "carols/m",
        "dataset_name": str(rows),
        "note": texts,
    }
    record["settings"]["deepspeed"] = "../depths/zero3.json"
    record |= {"argv": ["--output_dir=/home/alice", "--dataset_name", "my folder", "--run_name", "/think", *texts]}
    record |= {
        "started_in": str(tmp_path),
        "program": f"{home}/depths/train_grpo.py",
        "process": {"id": 1, "host": "erin-pc"},
    }
    record["prompt"]["question"] = "/home/alice/rows: {question}"
    record["sessions"][0] |= {"changed": texts, "command": f"python {home}/x.py"}
    record["code"]["own"] = "\n".join(map(repr, texts))
    (run / "run.json").write_text(json.dumps(record))
    for name in ("comparison.json", "eval_before.json", "adapter_config.json", "config.json", "tokenizer_config.json"):
        values = json.loads((run / name).read_text()) if (run / name).exists() else {}
        named = {"_name_or_path": f"{home}/depths/my model", "name_or_path": "./depths/model"}
        values |= named if "config" in name else {"sentence": "; ".join(texts), "diagnosis": texts, f"{home}/key": 1}
        (run / name).write_text(json.dumps(values))
    line = {"step": 2, "name": "x", "message": "; ".join(texts), "remedy": ""}
    (run / "alarms.jsonl").write_text(json.dumps(line) + "\n" + '{"half')
    with (run / "README.md").open("a") as card:
        card.write("\n\n" + "\n".join(texts))
    assert tool(["publish", "run", "me/x"]) == 0
    files = {
        name: content.decode()
        for name, content in server.files["me/x"].items()
        if not name.endswith((".png", "tensors"))
    }
    shown = json.loads(files["run.json"])
    assert shown["prompt"] == record["prompt"] and shown["settings"]["model_name_or_path"] == "carols/m"
    assert shown["settings"]["output_dir"] == "~" and shown["settings"]["dataset_name"] == "my folder"
    assert shown["argv"][:5] == ["--output_dir=~", "--dataset_name", "my folder", "--run_name", "/think"]
    del shown["prompt"]
    files["run.json"] = json.dumps(shown)
    assert "Mia" not in files["report.html"] and "/home/alice/rows: {question}" in files["report.html"]  # the prompt
    files["report.html"] = files["report.html"].replace("/home/alice/rows: {question}", "")
    hidden = ["alice", "robert", "carol", "dave", "erin", "gpu07", "pw@", "depths", "/(x)", "/usr", "home/", "Users"]
    for name in files:
        text = files[name].replace("carols/m", "")
        assert not [each for each in hidden if each in text], name
    assert json.loads(files["config.json"])["_name_or_path"] == "my model"


def test_a_name_that_the_repository_has_is_public(learned, server):
    run = learned.copy()
    record = json.loads((run / "run.json").read_text())
    record["settings"] |= {"dataset_name": "alice/sums", "run_name": "alice, bobby"}
    (run / "run.json").write_text(json.dumps(record | {"argv": ["/home/alice/x", "/home/bobby/y"]}))
    assert tool(["publish", "run", "me/x"]) == 0
    shown = json.loads(server.files["me/x"]["run.json"])
    assert shown["settings"]["dataset_name"] == "alice/sums" and shown["settings"]["run_name"] == "alice, user"
    assert shown["argv"] == ["x", "y"]


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
