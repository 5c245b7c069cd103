"""Whatever is wrong with what a user gives: one line that says what and what would do, status 2, nothing written.

`MISTAKES` run through `main` in process and must be found before weights are loaded, save where a case says so, so that
`--dry_run` finds them too; `COMMANDS` are real ones. `ODD` is input that only looks wrong, and must be read rightly.
"""

# ruff: noqa: E501 - a case is a line

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from helpers_runs import DEMO, ROOT, ROWS
from safetensors.torch import load_file, save_file

import train_grpo
from grpo.config import preflight
from grpo.policy import loading

linux = pytest.mark.skipif(sys.platform != "linux", reason="files of /proc, and capabilities, are Linux's")
Content = str | bytes | Callable[[Path], Any] | None  # None: a directory


@dataclass(frozen=True)
class Case:
    says: str = ""  # in the line: the key or the file (and its line)
    flags: dict[str, str | None] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # flags that `flags` cannot say
    files: dict[str, Content] = field(default_factory=dict)
    model: Callable[[Path], Any] | None = None  # spoils the copy of the model that is given
    environment: dict[str, str] = field(default_factory=dict)
    patch: Callable[[pytest.MonkeyPatch], Any] | None = None
    loads: bool = False  # only the weights themselves show it
    marks: tuple[pytest.MarkDecorator, ...] = ()


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def data(content, says, name="given.jsonl", **flags):
    return Case(says, {"dataset_name": name, **flags}, files={name: content})


def recipe(content, says, **kwargs):
    return Case(says, {"config": "given.yaml"}, files={"given.yaml": content}, **kwargs)


def given(*words, says, **kwargs):
    return Case(says, words=words, **kwargs)


def own_reward(module, code, says):
    words = ("--reward_funcs", f"{module}.f", "correctness_reward_func", "--allow_custom_rewards", "true")
    return Case(says, words=words, files={f"{module}.py": code})


def put(name, content):
    """A change of a directory: this file with this content."""
    return lambda place: (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(name):
    return lambda place: (place / name).write_bytes((place / name).read_bytes()[:9000])


def config(**changed):
    def change(place):
        before = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(before | changed))

    return change


def weights(change):
    """A change of the model's tensors."""

    def rewrite(place):
        tensors = change(load_file(place / "model.safetensors"))
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})

    return rewrite


def adapter(weights=None, **changed):
    """The model's directory as that of an adapter."""

    def change(place):
        (place / "model.safetensors").unlink()
        record = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj"]}
        record |= {"base_model_name_or_path": str(DEMO / "model"), **changed}
        (place / "adapter_config.json").write_text(json.dumps(record))
        if weights is not None:
            (place / "adapter_model.safetensors").write_bytes(weights)

    return change


def sharded(place):
    names = list(load_file(place / "model.safetensors"))
    (place / "model.safetensors").rename(place / "model-00001-of-00002.safetensors")
    where = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def saved(*spoils):
    """A directory that save_to_disk wrote, and what is then done to it."""

    def write(place):
        DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:5])).save_to_disk(place)
        for spoil in spoils:
            spoil(place)

    return write


def not_installed(package):
    found = importlib.util.find_spec
    return lambda patch: patch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )


ROW = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'

FILES = {
    "empty": data("", "'given.jsonl'"),
    "missing": Case("'gone.jsonl'", {"dataset_name": "gone.jsonl"}),
    "missing csv": Case("'gone.csv'", {"dataset_name": "gone.csv"}),
    "missing parquet": Case("'gone.parquet'", {"dataset_name": "gone.parquet"}),
    "missing evaluation file": Case("'gone.csv'", {"eval_dataset_name": "gone.csv"}),
    "directory as file": data(None, "'given.jsonl'"),
    "UTF-16": data(lines(ROWS).encode("utf-16"), "'given.jsonl'"),
    "other suffix": data("hello", "'given.txt'", name="given.txt"),
    "broken JSON": data(ROW * 2 + '{"question": "a', "'given.jsonl', line 3"),
    "pretty-printed JSON": data(json.dumps(ROWS[0], indent=1), "line 1"),
    "JSON list in a file": data(json.dumps(ROWS), "line 1"),
    "key twice": data(ROW + '{"question": "a", "question": "b", "answer": "#### 1"}\n', "line 2"),
    "nested questions": data(lines([{"question": {"text": "a"}, "answer": "#### 1"}] * 9), "answer_column:"),
    "null answers": data(lines([{"question": "a", "answer": None}] * 9), "answer_column:"),
    "NaN answers": data('{"question": "a", "answer": NaN}\n' * 9, "answer_column:"),
    "wrong columns": data(lines([{"text": "a", "label": 1}]), "question_column:"),
    "wrong answer column": Case("answer_column:", {"answer_column": "gold"}),
    "question as answer": Case("answer_column:", {"answer_column": "question"}),
    "mixed types": data(ROW + lines([{"question": "a", "answer": {"b": 1}}]), "'given.jsonl'"),
    "TRL's column": data(lines([{**row, "completions": 1} for row in ROWS]), "completions"),
    "CSV without a header": data("What is 1?,1\nWhat is 2?,2\n", "question_column:", name="given.csv"),
    "CSV with semicolons": data("question;answer\na;1\n", "question_column:", name="given.csv"),
    "CSV ragged": data("question,answer\na,1\nb,2,3\n", "line 3", name="given.csv"),
    "CSV ragged throughout": data("question,answer\n" + "a,1,7\n" * 9, "line 2", name="given.csv"),
    "CSV with an open quote": data('question,answer\n"a,1\n', "'given.csv'", name="given.csv"),
    "CSV column twice": data("question,answer,answer\na,1,2\n", "'given.csv'", name="given.csv"),
    "Parquet that is none": data("hello", "'given.parquet'", name="given.parquet"),
    "directory of other files": data(lambda path: (path.mkdir(), put("x.jsonl", ROW)(path)), "'given'", name="given"),
    "saved dataset without its arrow file": data(saved(lambda place: next(place.glob("train/*.arrow")).unlink()), "'given'", name="given"),
    "Hub out of reach": Case("'nobody/nothing'", {"dataset_name": "nobody/nothing"}),
    "one row": data(ROW, "dataset: 1 row"),
    "one question": data(ROW * 40, "dataset:"),
    "fewer rows than a rollout": Case("dataset:", {"max_samples": "2"}),
    "prompts all too long": Case("max_prompt_length:", {"max_prompt_length": "5"}),
}  # fmt: skip

SPLITS = {
    f"split {spec!r}": Case("dataset_split:", {"dataset_split": spec})
    for spec in ("validation", "train[", "train[a:b]", "train[:0]", "train[5000:]")
} | {
    "evaluation split of no rows": Case("eval_split:", {"eval_split": "train[:0]"}),
    "evaluation split missing": Case(
        "eval_split:",
        {"eval_dataset_name": "given", "eval_split": "dev"},
        files={"given": saved()},
    ),
}  # fmt: skip

RECIPES = {
    "key twice": recipe("beta: 0.1\nseed: 3\nbeta: 0.2\n", "config:"),
    "key twice, in a stage": recipe("stages:\n- name: a\n  name: b\n", "line 3"),
    "missing": Case("config:", {"config": "gone.yaml"}),
    "directory": recipe(None, "config:"),
    "empty": recipe("", "config:"),
    "a list": recipe("- beta\n- seed\n", "config:"),
    "tabs": recipe("beta: 0.1\n\tseed: 3\n", "config:"),
    "two colons": recipe("a: b: c", "config:"),
    "Python object": recipe("beta: !!python/object/apply:os.system ['touch written']\n", "config:"),
    "not UTF-8": recipe(b"run_name: caf\xe9\n", "config:"),
    "environment": recipe("env: {WANDB_API_KEY: x}", "env:"),
    "unknown key": recipe("lerning_rate: 1", "lerning_rate:"),
    "value missing": recipe("learning_rate:", "learning_rate:"),
    "list for a value": recipe("learning_rate: [1.0e-5]", "learning_rate:"),
    "word for a switch": recipe("bf16: perhaps", "bf16:"),
    "rewards beside stages": recipe(
        "reward_funcs: [int_reward_func]\nstages: [{name: a, reward_funcs: [int_reward_func], max_steps: 2}]",
        "reward_funcs:",
    ),
    "twice": Case("config:", words=("--config", "a.yaml", "--config=b.yaml")),
    "not named": given("--config", says="config:"),
}  # fmt: skip

OUT_OF_RANGE = {
    f"{key} {value}": given(f"--{key}", value, says=f"{key}:")
    for key, value in [
        ("seed", "-1"),
        ("seed", "1.5"),
        ("learning_rate", "abc"),
        ("learning_rate", "nan"),
        ("learning_rate", "-1e-6"),
        ("temperature", "0"),
        ("top_p", "1.1"),
        ("adam_beta2", "1"),
        ("max_samples", "0"),
        ("max_steps", "0"),
        ("num_train_epochs", "1e308"),
        ("num_generations", "1"),
        ("num_shots", "99"),
        ("max_completion_length", "-8"),
        ("bf16", "maybe"),
        ("loss_type", "grop"),
        ("lr_scheduler_type", "zigzag"),
        ("optim", "sgdd"),
        ("generation", "fast"),
        ("prompt_format", "xlm"),
        ("attn_implementation", "flash"),
        ("cache_implementation", "large"),
        ("report_to", "clipboard"),
        ("report_to", "none,tensorboard"),
        ("output_dir", ""),
        ("output_dir", " run"),
        ("question_template", "Q:"),
        ("completion_template", "{reasoning} {answer}"),
        ("filter_pass_rate", "0.5"),
        ("merge_only", "gone"),
        ("hub_token", "hf_planted"),
        ("optim_args", "fast"),
    ]
}

SETTINGS = {
    "unknown flag": given("--lerning_rate", "1", says="--lerning_rate:"),
    "abbreviated flag": given("--model", "x", says="--model:"),
    "word without a flag": given("--report_to", "tensorboard", "wandb", says="'wandb'"),
    "flag without a value": given("--seed", says="seed:"),
    "group that does not divide": given("--num_generations", "3", says="num_generations:"),
    "rollout said twice": given("--steps_per_generation", "4", "--generation_batch_size", "64", says="generation_batch_size:"),
    "CPU and bf16": given("--bf16", "true", says="bf16:"),
    "CPU and 4-bit weights": given("--load_in_4bit", "true", says="load_in_4bit:"),
    "CPU and vLLM": given("--use_vllm", "true", says="use_vllm:"),
    "CPU and an optimizer of CUDA's": given("--optim", "adamw_8bit", says="optim:"),
    "optimizer not installed": given("--optim", "galore_adamw", says="optim:"),
    "question and evaluation": given("--ask", "2 + 2?", "--eval_only", "true", says="ask:"),
    "nothing to merge": given("--merge_lora", "true", says="merge_lora:"),
    "reference model without beta": given("--sync_ref_model", "true", says="sync_ref_model:"),
    "evaluation at the start of none": given("--eval_on_start", "true", says="eval_on_start:"),
    "best of no measure": given("--save_strategy", "best", says="save_strategy:"),
    "columns that rewards need": given("--remove_unused_columns", "true", says="remove_unused_columns:"),
    "schedule without its arguments": given("--lr_scheduler_type", "cosine_with_min_lr", says="lr_scheduler_kwargs:"),
    "shards of one process": given("--fsdp", "full_shard", says="fsdp:"),
    "dictionary that is none": given("--generation_kwargs", "{", says="generation_kwargs:"),
    "setting inside a dictionary": given("--model_init_kwargs", '{"dtype": "float16"}', says="model_init_kwargs:"),
    "secret inside a dictionary": given("--model_init_kwargs", '{"token": "hf_planted"}', says="model_init_kwargs.token:"),
    "template's arguments": given("--chat_template_kwargs", '{"tools": 5}', says="chat"),
    "experts of none": given("--router_aux_loss_coef", "0.1", says="router_aux_loss_coef:"),
    "adapter for other modules": given("--use_peft", "true", "--lora_target_modules", "nope", says="model: the adapter"),
    "adapter on lm_head": given("--use_peft", "true", "--lora_target_modules", "lm_head", says="lora_target_modules:"),
    "checkpoint missing": given("--resume_from_checkpoint", "gone", says="resume_from_checkpoint:"),
    "checkpoint of no run": given("--resume_from_checkpoint", "auto", says="resume_from_checkpoint:"),
    "stages that are no JSON": given("--stages", "format", says="stages:"),
    "stage of an unknown reward": given("--stages", '{"name": "a", "reward_funcs": ["int"], "max_steps": 3}', says="reward_funcs:"),
}  # fmt: skip

REWARDS = {
    "misspelt": given("--reward_funcs", "corectness_reward_func", says="reward_funcs:"),
    "too few weights": given("--reward_weights", "1", "2", says="reward_weights:"),
    "weights of nothing": given("--reward_weights", "0", "0", "0", "0", "0", says="reward_weights"),
    "arguments that are no JSON": given("--reward_args", "{low: 5}", says="reward_args:"),
    "arguments of another reward": given("--reward_args", '{"length_reward_func": {"low": 1}}', says="reward_args:"),
    "unknown parameter": given("--reward_args", '{"int_reward_func": {"x": 1}}', says="reward_args:"),
    "parameter of a wrong type": given("--reward_funcs", "length_reward_func", "--reward_args", '{"length_reward_func": {"low": "x"}}', says="reward_args:"),
    "own, not allowed": given("--reward_funcs", "mine.f", says="reward_funcs:"),
    "own, without a file": given("--reward_funcs", "gone.f", "--allow_custom_rewards", "true", says="reward_funcs:"),
    "own, with a syntax error": own_reward("bad_syntax", "def f(:\n", "reward_funcs:"),
    "own, leaving when imported": own_reward("bad_exit", "raise SystemExit(0)\n", "reward_funcs:"),
    "own, raising": own_reward("bad_call", "def f(completions, **kwargs):\n    return 1 / 0\n", "reward f:"),
    "own, too short": own_reward("bad_short", "def f(completions, **kwargs):\n    return [1.0]\n", "reward f:"),
}  # fmt: skip

MODELS = {
    "missing": Case("model_name_or_path:", {"model_name_or_path": "./gone"}),
    "neither here nor on the Hub": Case("model_name_or_path:", {"model_name_or_path": "nobody/nothing"}),
    "a file": Case("model_name_or_path:", {"model_name_or_path": "rows.jsonl"}),
    "an empty directory": Case("model_name_or_path:", {"model_name_or_path": "given"}, files={"given": None}),
    "no configuration": Case("model_name_or_path:", model=lambda place: (place / "config.json").unlink()),
    "configuration cut off": Case("model_name_or_path:", model=put("config.json", '{"model_type":')),
    "unknown architecture": Case("model_name_or_path:", model=config(model_type="nonsense")),
    "BERT": Case("model_name_or_path:", model=config(model_type="bert")),
    "T5": Case("model:", model=put("config.json", '{"model_type": "t5", "num_layers": 1}')),
    "code of its own": Case("model_name_or_path:", model=config(model_type="mine", auto_map={"AutoConfig": "x.Y"})),
    "no weights": Case("model_name_or_path:", model=lambda place: (place / "model.safetensors").unlink()),
    "weights cut off": Case("model_name_or_path:", model=cut("model.safetensors")),
    "weights as git-lfs has them": Case("model_name_or_path:", model=put("model.safetensors", "version https://git-lfs.github.com/spec/v1\n")),
    "shard missing": Case("model_name_or_path:", model=sharded),
    "weights of another shape": Case("model_name_or_path:", model=config(hidden_size=64), loads=True),
    "a layer missing": Case("model_name_or_path:", model=weights(lambda given: {key: value for key, value in given.items() if "layers.1" not in key}), loads=True),
    "weights not finite": Case("model_name_or_path:", model=weights(lambda given: {key: value * float("nan") for key, value in given.items()}), loads=True),
    "no tokenizer": Case("model_name_or_path:", model=lambda place: [(place / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")]),
    "tokenizer empty": Case("model_name_or_path:", model=put("tokenizer.json", "")),
    "no pad and no end token": Case("eos_token", model=put("tokenizer_config.json", '{"eos_token": null, "pad_token": null}')),
    "another model's tokenizer": Case("vocabulary:", model=config(vocab_size=300)),
    "template with a syntax error": Case("chat_template", model=put("chat_template.jinja", "{% for %}")),
    "template without a system role": Case("chat", model=put("chat_template.jinja", "{{ raise_exception('System role not supported') }}")),
    "template without the question": Case("chat", model=put("chat_template.jinja", "Hello!")),
    "template asked for and missing": Case("use_chat_template:", {"use_chat_template": "true"}, model=lambda place: (place / "chat_template.jinja").unlink()),
    "adapter without its model": Case("/no/model", model=adapter(b"", base_model_name_or_path="/no/model")),
    "adapter without weights": Case("model_name_or_path:", model=adapter()),
}  # fmt: skip


ENVIRONMENT = {
    "output_dir a file": Case("output_dir:", {"output_dir": "rows.jsonl"}),
    "output_dir on no disk": Case("disk:", {"output_dir": "/proc/run"}, marks=(linux,)),
    "output_dir too long": Case("output_dir:", {"output_dir": "x" * 300}),
    "output_dir holds a run": Case("output_dir:", files={"run/run.json": "{}", "run/metrics.jsonl": "precious"}),
    "checkpoint that is none": Case("resume_from_checkpoint:", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/x": "precious"}),
    "checkpoint cut off": Case("resume_from_checkpoint:", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/trainer_state.json": "{"}),
    "the model to start from": Case("overwrite_run:", {"output_dir": "model", "overwrite_run": "true"}, model=put("run.json", "{}")),
    "tracker not installed": given("--report_to", "swanlab", says="report_to:", patch=not_installed("swanlab")),
    "tracker's key": given("--report_to", "wandb", says="report_to:", environment={"WANDB_API_KEY": "short"}),
    "Hub without a login": given("--push_to_hub", "true", says="push_to_hub:", environment={"HF_TOKEN": ""}),
    "number of processes": Case("WORLD_SIZE:", environment={"WORLD_SIZE": "two"}),
    "processes without a launcher": Case("WORLD_SIZE:", environment={"WORLD_SIZE": "2"}),
}  # fmt: skip

TABLES = {"file": FILES | SPLITS, "recipe": RECIPES, "setting": OUT_OF_RANGE | SETTINGS, "reward": REWARDS}
TABLES |= {"model": MODELS, "environment": ENVIRONMENT}
MISTAKES = {f"{kind}: {name}": case for kind, table in TABLES.items() for name, case in table.items()}


def parameters(cases):
    return [pytest.param(case, id=name, marks=case.marks) for name, case in cases.items()]


def tree():
    """Every path in the working directory with what it is and holds."""
    found = {}
    for path in sorted(Path.cwd().rglob("*")):
        if "__pycache__" in path.parts:  # Python's own, of a reward's module
            continue
        mode = path.lstat().st_mode
        readable = stat.S_ISREG(mode) and mode & 0o400
        content = hashlib.sha256(path.read_bytes()).hexdigest() if readable else None
        found[str(path)] = (mode, os.readlink(path) if path.is_symlink() else content)
    return found


@pytest.fixture
def prepare(tiny_model, tiny_run, monkeypatch):
    """The command line of a case, once all that it needs is there; besides an earlier run that must survive."""

    def argv(case):
        earlier = {"outputs/Tiny-60K-GRPO/run.json": "{}", "outputs/Tiny-60K-GRPO/model.safetensors": "precious"}
        for name, content in (earlier | case.files).items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            elif callable(content):
                content(path)
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        changed = dict(case.flags)
        if case.model:
            changed.setdefault("model_name_or_path", shutil.copytree(tiny_model, Path.cwd() / "model"))
            case.model(Path("model"))
        for key, value in case.environment.items():
            monkeypatch.setenv(key, value)
        named = {word[2:].partition("=")[0] for word in case.words if word.startswith("--")}
        if "config" in changed:  # a recipe's value must not be hidden by a flag's
            named |= set(re.findall(r"^\W*(\w+):", str(case.files.get("given.yaml")), re.MULTILINE)) | {
                "learning_rate"
            }
        words = tiny_run(
            **{**dict.fromkeys(named & {*["report_to", "dataset_name", "output_dir", "learning_rate"]}), **changed}
        )
        return [*words, *case.words]

    return argv


def the_error(err):
    assert "Traceback" not in err and "usage:" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert err.rstrip().endswith(line)
    return line


@pytest.mark.parametrize("case", parameters(MISTAKES))
def test_a_mistake_is_one_line_and_changes_nothing(case, prepare, monkeypatch, capfd):
    argv = prepare(case)
    if case.patch:
        case.patch(monkeypatch)
    if not case.loads:
        monkeypatch.setattr(loading, "load", lambda config: pytest.fail("nothing was found before the weights"))
    before = tree()
    assert train_grpo.main(argv) == 2
    assert case.says in (line := the_error(capfd.readouterr().err)), line
    assert tree() == before


# --- Real commands


def without_privileges():
    """Root may read and write what permission bits forbid; without these two capabilities it may not."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: gone from the next exec on


def forbidden(name, mode, content):
    """A file (or, of no content, a directory) with these permissions."""

    def write(path):
        path.mkdir() if content is None else path.write_text(content)
        path.chmod(mode)

    return {name: write}


COMMANDS = {
    "no GPU": Case("--use_cpu true", {"use_cpu": "false"}),
    "unknown flag": MISTAKES["setting: unknown flag"],
    "missing file": MISTAKES["file: missing csv"],
    "recipe with a key twice": MISTAKES["recipe: key twice"],
    "directory as a file": MISTAKES["file: directory as file"],
    "dataset not to be read": Case("'given.jsonl'", {"dataset_name": "given.jsonl"}, files=forbidden("given.jsonl", 0o000, ROW), marks=(linux,)),
    "run not to be written": Case("output_dir:", {"output_dir": "given/run"}, files=forbidden("given", 0o555, None), marks=(linux,)),
    "model not to be read": Case("model_name_or_path:", model=lambda place: (place / "config.json").chmod(0), marks=(linux,)),
    "weights cut off": MISTAKES["model: weights cut off"],
    "weights of another shape": MISTAKES["model: weights of another shape"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(COMMANDS))
def test_a_mistake_of_a_real_command(case, prepare):
    argv = prepare(case)
    before = tree()
    done = subprocess.run(
        [sys.executable, str(ROOT / "train_grpo.py"), *argv],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        preexec_fn=without_privileges if linux in case.marks else None,
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert case.says in (line := the_error(done.stderr)), line
    assert tree() == before


# --- Odd, but fine


@dataclass(frozen=True)
class Read:
    case: Case
    rows: int  # that are trained on or held out
    answers: dict[str, str] = field(default_factory=dict)  # by question
    settings: dict[str, Any] = field(default_factory=dict)
    unusable: int = 0
    too_long: int = 0
    shown: str = ""


def fine(content, rows=40, name="given.jsonl", **expected):
    return Read(data(content, "", name=name), rows, **expected)


def sums(form, count=40):
    return [{"question": f"What is {n} + 1?", "answer": form(n + 1)} for n in range(count)]


ONE = {"What is 2 + 2?": "4"}
DROPPED = "9 rows without a question or a gold answer were dropped"
ODD = {
    "byte-order mark": fine(b"\xef\xbb\xbf" + lines(ROWS).encode(), answers=ONE),
    "Windows' line ends": fine(lines(ROWS).replace("\n", "\r\n"), answers=ONE),
    "no newline at the end, and blank lines": fine(lines(ROWS).replace("\n", "\n\n").rstrip(), answers=ONE),
    "a line of a megabyte": fine(lines([{"question": "why " * 250_000, "answer": "#### 1"}, *ROWS]), too_long=1, shown="1 training rows with longer prompts were dropped", answers=ONE),
    "null answers": fine(lines([*ROWS, *[{"question": "a", "answer": None}] * 9]), unusable=9, shown=DROPPED),
    "NaN answers": fine(lines(sums(int)) + '{"question": "a", "answer": NaN}\n' * 9, unusable=9, shown=DROPPED),
    "rows that lack the answer": fine(lines(ROWS) + '{"question": "a"}\n' * 9, unusable=9, shown=DROPPED),
    "numbers as answers": fine(lines(sums(int)), answers={"What is 8 + 1?": "9"}),
    "fractions as answers": fine(lines(sums(lambda n: n + 0.5)), answers={"What is 8 + 1?": "9.5"}),
    "numbers and texts as answers": fine(lines(sums(lambda n: n if n % 2 else str(n))), answers={"What is 8 + 1?": "9", "What is 7 + 1?": "8"}),
    "answers too large for a machine's numbers": fine(lines(sums(lambda n: 10**25 + n)), answers={"What is 8 + 1?": f"{10**25 + 9}"}),
    "thousands and dollars": fine(lines(sums(lambda n: f"${n},000")), answers={"What is 8 + 1?": "9000"}),
    "other columns, nested": fine(lines([{**row, "more": {"level": [1, None]}} for row in ROWS]), answers=ONE),
    "line separators in a string": fine(lines(sums(str)).replace("What is 8", "What\u2028is 8"), answers={"What\u2028is 8 + 1?": "9"}),
    "CSV with a byte-order mark, quotes and newlines": fine(b'\xef\xbb\xbfquestion,answer\r\n"What, ""then""\nis 1?","1,000"\r\n' + b"".join(b"q%d,%d\r\n" % (n, n) for n in range(39)), name="given.csv", answers={'What, "then"\nis 1?': "1000", "q7": "7"}),
    "CSV with short rows": fine("question,answer\n" + "".join(f"q{n},{n}\n" for n in range(40)) + "q\n" * 9, name="given.csv", unusable=9, shown=DROPPED),
    "CSV with a field of a megabyte": fine("question,answer\n" + "why " * 250_000 + ",1\n" + "".join(f"q{n},{n}\n" for n in range(40)), name="given.csv", too_long=1),
    "evaluated on some training rows": Read(Case(flags={"eval_dataset_name": "rows.jsonl", "dataset_name": "rows.jsonl", "eval_samples": "5"}), 40, shown="5 training rows that ask a held-out question were dropped"),
    "recipe with a byte-order mark": Read(recipe(b"\xef\xbb\xbfbeta: 0.5\n", ""), 40, settings={"beta": 0.5}),
    "recipe with Windows' line ends": Read(recipe("beta: 0.5\r\nseed: 7\r\n", ""), 40, settings={"beta": 0.5, "seed": 7}),
    "recipe with an alias": Read(recipe("seed: &n 7\ndata_seed: *n\n", ""), 40, settings={"seed": 7, "data_seed": 7}),
    "recipe with 1e-3, a text in YAML 1.1": Read(recipe("learning_rate: 1e-3\n", ""), 40, settings={"learning_rate": 1e-3}),
    "recipe with one reward as a text": Read(recipe("reward_funcs: correctness_reward_func\n", ""), 40, settings={"reward_funcs": ["correctness_reward_func"]}),
    "no system prompt": Read(given("--system_prompt", "", says=""), 40, settings={"system_prompt": ""}),
    "no chat template": Read(Case(model=lambda place: (place / "chat_template.jinja").unlink()), 40, shown="as plain text, 0 worked examples"),
    "no pad token": Read(Case(model=put("tokenizer_config.json", '{"eos_token": "<|im_end|>", "pad_token": null}')), 40),
    "an earlier run's broken record": Read(Case(model=put("run.json", "{")), 40, shown="is no record of a run"),
    "several trackers with a space": Read(given("--report_to", "tensorboard, trackio", says=""), 40, settings={"report_to": ["tensorboard", "trackio"]}),
    "a rank of an old launcher": Read(Case(environment={"LOCAL_RANK": "-1"}), 40),
}  # fmt: skip


@pytest.mark.parametrize("read", [pytest.param(read, id=name) for name, read in ODD.items()])
def test_odd_input_is_read_and_drops_are_reported(read, prepare, monkeypatch, capfd):
    argv, seen = prepare(read.case), []
    check = preflight.check
    monkeypatch.setattr(preflight, "check", lambda *given: seen.append(given) or check(*given))
    before = tree()
    assert train_grpo.main([*argv, "--dry_run", "true"]) == 0
    assert tree() == before
    ((config, tokenizer, _, _, data, _),) = seen
    pairs = {
        question: answer
        for rows in (data.train, data.held_out)
        for question, answer in zip(rows["question"], rows["answer"], strict=True)
    }
    assert len(data.train) + len(data.held_out) == len(pairs) == read.rows  # no question in both
    assert (data.unusable, data.too_long) == (read.unusable, read.too_long)
    assert {question: pairs[question] for question in read.answers} == read.answers
    assert {key: config.settings()[key] for key in read.settings} == read.settings
    assert tokenizer.pad_token is not None and tokenizer.eos_token is not None
    # a table's finding is broken into lines that its other columns are in between of
    assert read.shown in " ".join(capfd.readouterr().out.split())
