"""SECURITY.md's promises: whose code is run, where secrets end, and that text stays text.

That no line of ours evaluates or unpickles is ruff's to see (S in pyproject.toml).
"""

import json
import os
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_pickles import RAN, plant
from helpers_report import Page, add_kinds, page_of, watch, write_run
from helpers_runs import DEMO, LEARNS, ROOT
from helpers_samples import answered
from huggingface_hub import HfApi

import train_grpo
from examples import more_rewards
from grpo.__main__ import main as tool
from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.writing import remove
from grpo.preflight import preflight
from grpo.report import charts, contents, hub
from grpo.report.files import read_run
from grpo.report.report import write_page
from grpo.results import comparison, summary
from grpo.results.by_kind import by_kind
from grpo.results.printing import print_answers, print_summaries
from grpo.results.summary import summarize
from grpo.runs.directory import claim
from grpo.task import Task
from grpo.task.prompts import XML
from grpo.training import console

# --- Pickles: code that runs when a file is unpickled


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
RESUME = {**LEARNS, "resume_from_checkpoint": "auto", "max_steps": "3", "save_steps": "1", "stop_on_alarm": "true"}
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


@pytest.mark.parametrize(
    ("name", "raw"), [("optimizer.pt", True), ("scheduler.pt", True), ("scaler.pt", True), ("rng_state.pth", False)]
)
def test_a_checkpoint_runs_no_code_at_a_resume(name, raw, tiny_run, learned, capfd):
    run = learned.copy()
    shutil.rmtree(run / "checkpoint-2")
    plant(run / "checkpoint-1" / name, raw)
    plant(run / "checkpoint-1" / "training_args.bin", raw=True)  # is not read
    assert train_grpo.main(tiny_run(**RESUME)) == 2
    line = one_error(capfd)
    assert not RAN.exists() and "checkpoint-1 does not load" in line and "weights_only" not in line


SHARDED = {"DeepSpeed": "global_step2/mp_rank_00_model_states.pt", "FSDP2": "optimizer_0/.metadata"}


def plant_sharded(kind, checkpoint):
    """What the library would run, whichever launcher is used (tests/policy/test_sharding.py: that it would)."""
    file = checkpoint / SHARDED[kind]
    file.parent.mkdir(parents=True)
    plant(file, raw=kind == "FSDP2")
    (checkpoint / "latest").write_text("global_step2")


@pytest.mark.parametrize("kind", SHARDED)
def test_a_sharded_checkpoint_runs_no_code_at_a_resume(kind, tiny_run, learned, capfd):
    """Nor does `auto` take the one before it instead."""
    run = learned.copy()
    plant_sharded(kind, run / "checkpoint-2")
    assert train_grpo.main(tiny_run(**RESUME)) == 2
    line = one_error(capfd)
    assert not RAN.exists() and f"{SHARDED[kind]} names io.open" in line and "none of it was run" in line
    assert "--model_name_or_path run/checkpoint-2" in line
    assert json.loads((run / "run.json").read_text())["step"] == 2


def test_a_best_checkpoint_that_holds_code_is_refused_before_training(tiny_run, learned, capfd):
    run = learned.copy()
    best = Path(shutil.copytree(run / "checkpoint-1", "theirs/checkpoint-7"))
    plant_sharded("DeepSpeed", best)
    state = json.loads((run / "checkpoint-2/trainer_state.json").read_text())
    state["best_model_checkpoint"] = str(best)  # whatever `best_global_step` says
    (run / "checkpoint-2/trainer_state.json").write_text(json.dumps(state))
    keep = {"load_best_model_at_end": "true", "metric_for_best_model": "accuracy_lenient", "eval_every": "1"}
    assert train_grpo.main(tiny_run(**RESUME, **keep)) == 2
    assert str(best) in one_error(capfd) and not RAN.exists()


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


# --- Files of others: accidents, and run directories that somebody sent

PROJECT = ["README.md", "config.json", "metrics.jsonl", "report.html", "source/thesis.tex", "train.py", "keys.txt"]


def files_in(directory):
    """The contents of all files below a directory; of a link, what it points to."""
    paths = sorted(Path(directory).rglob("*"))
    return {
        str(path): path.is_file() and (os.readlink(path) if path.is_symlink() else path.read_bytes()) for path in paths
    }


def train(**flags):
    return lambda tiny_run: train_grpo.main(tiny_run(**flags))


def use(*words):
    return lambda _: tool(list(words))


ACCIDENTS = {  # each ends with one line, and leaves all files as they were
    "a dry run": train(output_dir="project", dry_run="true"),
    "a run": train(output_dir="project"),
    "a run in this directory": train(output_dir="."),
    "an evaluation": train(output_dir="project", **EVALUATE),
    "auto": train(output_dir="project", resume_from_checkpoint="auto"),
    "a checkpoint moved to a project": train(**LEARNS, resume_from_checkpoint="moved/checkpoint-2", output_dir=None),
    "a run in a file": train(output_dir="project/train.py", dry_run="true"),
    "a run below a file": train(output_dir="project/train.py/run", dry_run="true"),
    "report": use("report", "project"),
    "report of figures alone": use("report", "figures"),
    "another program's record": train(output_dir="figures", resume_from_checkpoint="auto"),
    "report of a merged file": use("report", "project/train.py"),
    "publish": use("publish", "project", "me/x"),
    "merge over a project": use("merge", "adapter", "--output", "project"),
    "merge over a link": use("merge", "adapter", "--output", "linked"),
    "new over a file": use("new", "project/train.py"),
    "new over a script": use("new", "scripts"),
    "new through a link": use("new", "half"),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_what_is_not_a_runs_stays_as_it_is(accident, tiny_run, learned, learned_adapter, monkeypatch, capfd):
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: pytest.fail("it is sent"))
    for name in PROJECT:
        Path("project", name).parent.mkdir(parents=True, exist_ok=True)
        Path("project", name).write_text('{"step": 1}\n')
    Path("project/model.safetensors").write_bytes(b"weights")
    learned_adapter.copy("adapter")
    shutil.copytree("project", "moved")
    Path("figures").mkdir()
    for name, text in {
        "metrics.jsonl": '{"step": 1, "loss": 2}\n',
        "report.html": "",
        "run.json": '{"status": "x"}',
    }.items():
        Path("figures", name).write_text(text)
    shutil.copytree(learned.path / "checkpoint-2", "moved/checkpoint-2")
    for folder in ("half", "scripts"):
        Path(folder).mkdir()
    Path("scripts/rewards.py").write_text("mine")
    Path("half/recipes").symlink_to(Path("project").absolute())
    Path("linked").symlink_to("nowhere")
    before = files_in(".")
    assert ACCIDENTS[accident](tiny_run) == 2
    assert one_error(capfd) and files_in(".") == before


def test_a_merge_removes_nothing(learned_adapter):
    learned_adapter.copy("adapter")
    for folder in ("mine.partial", "adapter/merged.partial", "adapter/.merge-1"):
        Path(folder).mkdir()
        Path(folder, "thesis.tex").write_text("mine")
    assert tool(["merge", "adapter", "--output", "mine"]) == tool(["merge", "adapter"]) == 0
    assert sorted(path.parent.name for path in Path.cwd().rglob("thesis.tex")) == [
        ".merge-1",
        "merged.partial",
        "mine.partial",
    ]


TOOLS = [
    ["publish", "run", "me/x"],
    ["report", "run"],
    ["compare", "run", "other"],
    ["xray", "run"],
    ["ask", "run", "2 + 2?"],
    ["merge", "run"],
]
FOLDERS = ("completions", "source", ".source.part", "merged", "merged.partial", "checkpoint-9", "_ended-at-step-2")


def names_in(run):
    """Every name that a run, a resumed run or a tool writes in a run's directory."""
    known = [file.name.replace("*", "before.json") for file in contents.FILES if file.name not in FOLDERS]
    files = [path.name for path in run.iterdir() if path.is_file()]
    parts = [f".{name}.part" for name in known]
    inside = [str(path.relative_to(run)) for path in run.glob("checkpoint-2/*") if path.is_file()]
    return list(dict.fromkeys([*known, *files, *parts, "completions/completions_00003.parquet", *inside]))


def plant_links(run, names):
    """Replace files by links to others outside of the run, with the same content where there was one."""
    outside = run.parent / "outside"
    for number, name in enumerate(names):
        path, target = run / name, outside / f"{number}-{Path(name).name}"
        outside.mkdir(exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        if name in FOLDERS:
            path.rename(target) if path.exists() else target.mkdir()
        elif path.exists():
            path.rename(target)
        else:
            target.write_text('{"n": 1}' if name.endswith(".json") else "")
        path.symlink_to(target.absolute())
    return outside


@pytest.mark.parametrize("kind", ["files", "folders", "record"])
def test_tools_write_through_no_link_of_a_run(kind, learned_adapter, monkeypatch, capfd):
    sent = []
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: SimpleNamespace(repo_id="me/x"))
    monkeypatch.setattr(HfApi, "upload_folder", lambda *_, folder_path, **__: sent.extend(os.listdir(folder_path)))
    learned_adapter.copy("other")
    run = learned_adapter.copy()
    names = {
        "files": [name for name in names_in(run) if name != "run.json"],
        "folders": FOLDERS,
        "record": ["run.json"],
    }
    outside = plant_links(run, names[kind])
    before = files_in(outside)
    for words in TOOLS:
        refused = kind in {"merge": ["folders"], "report": ["record"], "publish": ["record", "files"]}.get(
            words[0], []
        )
        assert tool(words) == (2 if refused else 0), capfd.readouterr().err
    assert files_in(outside) == before and not {*names[kind]} & {*sent}
    assert kind == "record" or not (run / "report.html").is_symlink()  # it is replaced, not followed


def test_a_run_with_links_is_not_resumed(tiny_run, learned, capfd):
    run = learned.copy()
    names = [name for name in (*names_in(run), *FOLDERS) if "checkpoint-2/" not in name]
    for name in names:
        existed = (run / name).exists()
        (target,) = plant_links(run, [name]).iterdir()
        for resume in ("auto", "run/checkpoint-2"):
            with pytest.raises(UserError, match=r"^output_dir: 'run' ") as caught:
                claim("run", "unused", resume)
            assert name in str(caught.value) or name == "run.json"
        (run / name).unlink()
        target.rename(run / name) if existed else remove(target)
    outside = plant_links(run, [name for name in names if not name.startswith("completions/")])
    before = files_in(outside)
    argv = tiny_run(**LEARNS, resume_from_checkpoint="auto", max_steps="3", save_steps="1")
    assert train_grpo.main(argv) == 2 and files_in(outside) == before
    assert one_error(capfd).startswith("error: output_dir: 'run' ")


def test_a_run_is_resumed_from_a_checkpoint_that_holds_links(tiny_run, learned):
    """Its files are only read, and it is deleted as a whole."""
    run = learned.copy()
    outside = plant_links(run, [name for name in names_in(run) if "checkpoint-2/" in name])
    before = files_in(outside)
    resume = {"resume_from_checkpoint": "auto", "max_steps": "3", "save_steps": "1", "save_total_limit": "1"}
    assert train_grpo.main(tiny_run(**LEARNS, **resume)) == 0
    assert files_in(outside) == before and not (run / "checkpoint-2").exists() and (run / "checkpoint-3").is_dir()


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


def write_all(run, text):
    """A run with kinds of questions, and answers while it trained."""
    column = text.encode(errors="replace").decode()
    return watch(add_kinds(write_run(run, text), [text, 2], column), 8, reward=text)


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The report of a run whose every text is harmless."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(charts, "draw_curves", lambda *_: None)
        return page_of(write_all(tmp_path_factory.mktemp("harmless") / "run", "plain"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_report_has_the_same_elements_whatever_it_says(kind, harmless, tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "draw_curves", lambda *_: None)  # a picture, which takes a second
    page = page_of(write_all(tmp_path / "hostile", HOSTILE[kind]))
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
    one = answered(text, text, f"{text}<answer>{text}", text, strict=True, lenient=True, truncated=False, tokens=1)
    print_answers("before", [one])
    preflight.print_checks([Check("ok", text, text, text)])
    preflight.print_example(text, text)
    console.Progress([], {text: text}, Task(XML)).show_samples(
        [text], [[{"role": "assistant", "content": text}]], {"x": [1.0]}, [0.0], 1
    )
    compared = comparison.compare([one], [one], text)
    of_kind = replace(one, row=dict(one.row) | {text: text})
    kinds = by_kind(text, {when: [of_kind] for when in ("before", "after")})
    print_summaries(dict.fromkeys(("before", "after"), summarize([one])), compared, kinds)
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
