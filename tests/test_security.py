"""SECURITY.md's promises: whose code is run, where secrets end, and that text stays text.

That no line of ours evaluates or unpickles is ruff's to see (S in pyproject.toml).
"""

import json
import pickle
import re
import shutil
import uuid
from pathlib import Path

import pytest
import torch
from helpers_report import Page, page_of, write_run
from helpers_runs import DEMO, ROOT

import train_grpo
from examples import more_rewards
from grpo.__main__ import main as tool
from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.preflight import preflight
from grpo.report import charts, hub
from grpo.report.files import read_run
from grpo.report.report import write_page
from grpo.results import comparison, summary
from grpo.results.answer import Answer
from grpo.results.printing import print_answers, print_summaries
from grpo.results.summary import summarize
from grpo.task import Task
from grpo.task.prompts import XML
from grpo.training import console

RAN = Path("the-payload-ran")

# --- Pickles: code that runs when a file is unpickled


class Payload:
    """Unpickled without restriction, it makes the file RAN."""

    def __reduce__(self):
        return open, (str(RAN.absolute()), "w")


def plant(path, raw=False):
    if raw:  # as torch saved before 1.6
        Path(path).write_bytes(pickle.dumps(Payload()))
    else:
        torch.save({"state": Payload()}, path)


@pytest.fixture
def copy_model(tmp_path):
    """Make a copy of the demo's model in this test's directory."""
    return lambda name="model": Path(shutil.copytree(DEMO / "model", tmp_path / name))


def test_the_payload_would_run():
    plant("x.bin")
    torch.load("x.bin", weights_only=False)
    assert RAN.exists()


def one_error(capfd):
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


EVALUATE = {"eval_only": "true", "eval_samples": "2"}
PICKLES = ("pytorch_model.bin", "training_args.bin", "adapter_model.bin", "optimizer.pt", "rng_state.pth")


def test_weights_that_hold_code_are_refused_and_other_pickles_not_opened(copy_model, tiny_run, capfd):
    model = copy_model()
    for name in PICKLES:
        plant(model / name, raw=True)
    assert train_grpo.main(tiny_run(model_name_or_path=str(model), **EVALUATE)) == 0
    (model / "model.safetensors").unlink()
    for raw in (True, False):
        plant(model / "pytorch_model.bin", raw)
        assert train_grpo.main(tiny_run(model_name_or_path=str(model), output_dir="other")) == 2
        line = one_error(capfd)
        assert not RAN.exists() and str(model) in line and "weights_only" not in line


@pytest.mark.parametrize(("name", "raw"), [("optimizer.pt", True), ("scheduler.pt", True), ("rng_state.pth", False)])
def test_a_checkpoint_runs_no_code_at_a_resume(name, raw, tiny_run, learned, capfd):
    run = learned.copy()
    shutil.rmtree(run / "checkpoint-2")
    plant(run / "checkpoint-1" / name, raw)
    plant(run / "checkpoint-1" / "training_args.bin", raw=True)  # is not read
    resume = tiny_run(model_name_or_path=str(DEMO / "model"), resume_from_checkpoint="auto", eval_samples="2")
    assert train_grpo.main(resume) == 2
    line = one_error(capfd)
    assert not RAN.exists() and "checkpoint-1" in line and "weights_only" not in line


def test_an_adapter_that_holds_code_is_refused(learned_adapter, tiny_run):
    run = learned_adapter.copy("adapter")
    plant(run / "adapter_model.bin")
    (run / "adapter_model.safetensors").unlink()
    assert tool(["merge", "adapter"]) == 2 and tool(["ask", "adapter", "What is 2 + 2?"]) == 2
    assert train_grpo.main(tiny_run(model_name_or_path="adapter")) == 2
    assert not RAN.exists()


# --- A model's own code


CODE = """
open({ran!r}, "w").close()
from transformers import {config}, {model}
class Configuration({config}):
    model_type = "theirs"
class Model({model}):
    config_class = Configuration
"""


@pytest.fixture
def model_with_code(copy_model):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(DEMO / "model")
    # a name of its own: transformers keeps the modules that it has imported
    model = copy_model(f"theirs{uuid.uuid4().hex}")
    (architecture,) = config.architectures
    names = {"config": type(config).__name__, "model": architecture}
    (model / "code.py").write_text(CODE.format(ran=str(RAN.absolute()), **names))
    written = json.loads((model / "config.json").read_text()) | {
        "model_type": "theirs",
        "auto_map": {"AutoConfig": "code.Configuration", "AutoModelForCausalLM": "code.Model"},
    }
    (model / "config.json").write_text(json.dumps(written))
    return model


def test_a_models_own_code_runs_only_if_asked_for(model_with_code, tiny_run, monkeypatch, capfd):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(Path("modules").absolute()))
    argv = tiny_run(model_name_or_path=str(model_with_code), **EVALUATE)
    assert train_grpo.main(argv) == 2
    assert "contains custom code" in one_error(capfd) and not RAN.exists()
    assert train_grpo.main([*argv, "--trust_remote_code", "true"]) == 0
    assert RAN.exists()


@pytest.mark.parametrize("of_the_base", [False, True])
def test_an_adapter_imports_no_module_that_it_names(
    of_the_base, learned_adapter, copy_model, tiny_run, monkeypatch, capfd
):
    """PEFT imports what begins with `megatron.`: a folder of that name, where a command starts, has the adapter's."""
    monkeypatch.syspath_prepend(Path.cwd())
    Path("megatron").mkdir()
    adapter = learned_adapter.copy("megatron/ad")
    (adapter / "evil.py").write_text(f"open({str(RAN.absolute())!r}, 'w').close()\n")
    hostile = {"megatron_config": {"x": 1}, "megatron_core": "megatron.ad.evil"}
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text())
    if of_the_base:  # transformers would load an adapter from the base model's directory
        base = copy_model("base")
        (base / path.name).write_text(json.dumps(config | hostile))
        shutil.copy(adapter / "adapter_model.safetensors", base)
        config, hostile = config | {"base_model_name_or_path": str(base)}, {}
    path.write_text(json.dumps(config | hostile))
    for command in (
        lambda: train_grpo.main(tiny_run(model_name_or_path=str(adapter))),
        lambda: tool(["ask", "megatron/ad", "What is 2 + 2?"]),
        lambda: tool(["merge", "megatron/ad"]),
    ):
        assert command() == 2
        assert "megatron_config" in one_error(capfd) and not RAN.exists()


def test_rewards_of_other_files_run_only_if_asked_for(tiny_run, capfd):
    Path("theirs.py").write_text(
        f"open({str(RAN.absolute())!r}, 'w').close()\n"
        "def pay(completions, **kwargs):\n    return [1.0] * len(completions)\n"
    )
    argv = tiny_run(reward_funcs="theirs.pay", dry_run="true")
    assert train_grpo.main(argv) == 2
    assert "--allow_custom_rewards true" in one_error(capfd) and not RAN.exists()
    assert train_grpo.main([*argv, "--allow_custom_rewards", "true"]) == 0
    assert RAN.exists()


def test_data_are_read_without_the_code_beside_them(tiny_run):
    """`datasets` once ran `<name>/<name>.py`."""
    Path("theirs").mkdir()
    Path("theirs/theirs.py").write_text(f"open({str(RAN.absolute())!r}, 'w').close()\n")
    assert train_grpo.main(tiny_run(dataset_name="theirs", dry_run="true")) == 2
    assert not RAN.exists()
    plant("rows.pkl", raw=True)
    assert train_grpo.main(tiny_run(dataset_name="rows.pkl", dry_run="true")) == 2
    assert not RAN.exists()


# --- Secrets: settings hold none (tests/config/test_configure.py), and the environment's reach no file


def test_no_secret_reaches_a_file_or_the_console(learned):
    """Trackers: tests/report/test_trackers.py."""
    files = [path for path in learned.path.parent.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"run.json", "report.html", "README.md", "training_args.bin", "trainer_state.json"} <= names
    assert not [path for path in files if b"planted-" in path.read_bytes()]
    assert "planted-" not in learned.shown


# --- Text stays text

HOSTILE = {
    "script": "<script>alert(1)</script></title></style></pre></td></svg>--><a href='javascript:alert(1)'>x",
    "terminal": "\x1b[31mred\x1b]0;title\x07\x1b]8;;http://x\x1b\\ \x9b31m\x90q\x9c a\x00b\x08\x7f"
    "\u202eabc\u2066\u200f a\r\nb\x0bc\x85d\u2028e half \ud800 a pair",
    "rich": "[red]x[/red] [/nope] [link=http://x]y[/link] [bold \\[x]\\\\[/bold]\\ {{ 7 * 6 }}",
}


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The report of a run whose every text is harmless."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(charts, "draw_curves", lambda *_: None)
        return page_of(write_run(tmp_path_factory.mktemp("harmless") / "run"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_report_has_the_same_elements_whatever_it_says(kind, harmless, tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "draw_curves", lambda *_: None)  # a picture, which takes a second
    page = page_of(write_run(tmp_path / "hostile", HOSTILE[kind]))
    assert [(tag, sorted(attrs)) for tag, attrs in page.elements] == [
        (tag, sorted(attrs)) for tag, attrs in harmless.elements
    ]
    names = {name for _, attrs in page.elements for name in attrs}
    assert not names & {"href", "action", "formaction", "srcdoc"}  # where javascript: could be followed
    images = [attrs["src"] for _, attrs in page.elements if "src" in attrs]
    assert all(image.startswith("data:image/svg+xml;base64,") for image in images)  # an image runs no script
    assert kind != "script" or page.text.count(HOSTILE[kind]) > 20  # it is shown, as the text that it is


def test_a_browser_would_run_no_script_of_the_report_and_load_nothing(harmless):
    (policy,) = [
        attrs["content"] for _, attrs in harmless.elements if attrs.get("http-equiv", "").startswith("Content")
    ]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    first = [attrs for tag, attrs in harmless.elements if tag == "meta"][:2]
    assert first[1].get("content") == policy  # behind the encoding, before anything that it is about
    assert not harmless.names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert not [name for _, attrs in harmless.elements for name in attrs if name.startswith("on")]


def test_a_style_of_the_report_has_numbers_alone(tmp_path, monkeypatch):
    """Whatever the evaluations hold, also if nothing had checked them."""
    monkeypatch.setattr(charts, "draw_curves", lambda *_: None)
    run = read_run(write_run(tmp_path / "run"))
    before, after = run.evaluations["before"], run.evaluations["after"]
    before["accuracy_lenient_low"] = after["accuracy_strict"] = after["accuracy_strict_high"] = "0;background:url(//x)"
    after["accuracy_strict_low"] = None
    rows = dict.fromkeys(after, ("", [("", "")] * 3))
    monkeypatch.setattr(summary, "table_rows", lambda *_: rows)  # it would not format them
    styles = [attrs["style"] for _, attrs in Page(write_page(run)).elements if "style" in attrs]
    assert len(styles) > 10 and all(re.fullmatch(r"(left:-?[\d.]+%;?)?(right:-?[\d.]+%)?", style) for style in styles)


def shown_raw(text):
    """The characters of a text that would steer a terminal."""
    return re.findall(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text
    )


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_console_obeys_nobody_but_us(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    text = HOSTILE[kind]
    one = Answer(text, text, f"{text}<answer>{text}", text, strict=True, lenient=True, truncated=False, tokens=1)
    print_answers("before", [one])
    preflight.print_checks([Check("ok", text, text, text)])
    preflight.print_example(text, text)
    console.Progress([], {text: text}, Task(XML)).show_samples(
        [text], [[{"role": "assistant", "content": text}]], {"x": [1.0]}, [0.0], 1
    )
    compared = comparison.compare([one], [one], text)
    print_summaries(dict.fromkeys(("before", "after"), summarize([one])), compared)
    state = type("State", (), {"global_step": 10})()
    more_rewards.debug_reward_func([text], answer=[text], prompts=[text], trainer_state=state)
    print(UserError(text))
    out = capsys.readouterr().out
    assert not shown_raw(out)
    if kind != "terminal":
        assert out.count(text) >= 10  # nothing was taken for markup


NAMED = "a\x1b]0;title\x07\x1b[31m\x9bb\u202e"


def test_no_tool_obeys_the_name_of_a_file_or_directory(learned, learned_adapter, monkeypatch, capsys):
    monkeypatch.setattr(hub, "publish", lambda run, name, revision=None: str(run))
    monkeypatch.setattr("grpo.tools.publish.publish", lambda run, name: str(run))
    run, adapter, file = learned.copy(NAMED), learned_adapter.copy(f"adapter{NAMED}"), Path(f"{NAMED}.jsonl")
    answers = [json.loads(line) for line in (run / "completions_after.jsonl").read_text().splitlines()]
    for row in answers:  # a reward's name, too, is from a file
        row |= {"answer": NAMED, "rewards": {NAMED: 1.0}, "completion": f"<answer>{NAMED}"}
    (run / "completions_after.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    file.write_text(json.dumps({"completion": f"<answer>1</answer><answer>{NAMED}", "answer": NAMED}) + "\n")
    Path(f"broken{NAMED}").write_text("{")
    works = [
        *(["report", run], ["compare", run, learned.path], ["xray", run], ["xray", file]),
        *(["merge", adapter], ["ask", adapter, f"{NAMED}?"], ["new", f"new{NAMED}"], ["publish", run, "me/x"]),
    ]
    fails = [
        *(["xray", f"broken{NAMED}"], ["merge", adapter], ["new", f"new{NAMED}"], ["report", NAMED * 2], [NAMED]),
        *(["compare", run, NAMED * 2], ["ask", f"no{NAMED}", "?"], ["merge", run], ["report", run, NAMED]),
    ]
    for status, commands in ((0, works), (2, fails)):
        for words in commands:
            assert tool(list(map(str, words))) == status, words
            out, err = capsys.readouterr()
            assert not shown_raw(out + err) and r"\x1b]0;title" in out + err, words


# --- What runs elsewhere


def test_every_action_of_ci_is_a_commit():
    used = [use for path in (ROOT / ".github").rglob("*.yml") for use in re.findall(r"uses:\s*(.*)", path.read_text())]
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", use) for use in used)
