"""Whatever is wrong with what a user gives: one line that says what and what would do, status 2, nothing written.

A case each of what a module finds; the module's own tests have the others.
`MISTAKES` run through `main` in process and must be found before weights are loaded, save where a case says so, so that
`--dry_run` finds them too; `COMMANDS` are real ones. `ODD` is input that only looks wrong, and must be read rightly.
"""

# ruff: noqa: E501 - a case is a line

import ctypes
import hashlib
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


ROW = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'

FILES = {
    "missing evaluation file": Case("'gone.csv'", {"eval_dataset_name": "gone.csv"}),
    "directory as file": data(None, "'given.jsonl'"),
    "key twice": data(ROW + '{"question": "a", "question": "b", "answer": "#### 1"}\n', "line 2"),
    "nested questions": data(lines([{"question": {"text": "a"}, "answer": "#### 1"}] * 9), "answer_column:"),
    "wrong columns": data(lines([{"text": "a", "label": 1}]), "question_column:"),
    "wrong answer column": Case("answer_column:", {"answer_column": "gold"}),
    "CSV without a header": data("What is 1?,1\nWhat is 2?,2\n", "question_column:", name="given.csv"),
    "CSV with semicolons": data("question;answer\na;1\n", "question_column:", name="given.csv"),
    "CSV with an open quote": data('question,answer\n"a,1\n', "'given.csv'", name="given.csv"),
    "CSV column twice": data("question,answer,answer\na,1,2\n", "'given.csv'", name="given.csv"),
    "directory of other files": data(lambda path: (path.mkdir(), put("x.jsonl", ROW)(path)), "'given'", name="given"),
    "saved dataset without its arrow file": data(saved(lambda place: next(place.glob("train/*.arrow")).unlink()), "'given'", name="given"),
    "one row": data(ROW, "dataset: 1 row"),
    "fewer rows than a rollout": Case("dataset:", {"max_samples": "2"}),
    "prompts all too long": Case("max_prompt_length:", {"max_prompt_length": "5"}),
}  # fmt: skip

SPLITS = {
    f"split {spec!r}": Case("dataset_split:", {"dataset_split": spec})
    for spec in ("validation", "train[:0]")
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
    "number with a fraction": recipe("num_generations: 8.5", "num_generations:"),
    "text for a dictionary": recipe("chat_template_kwargs: abc", "chat_template_kwargs:"),
    "null for a number": recipe("max_completion_length: null", "max_completion_length:"),
    "another recipe": recipe("config: other.yaml", "config:"),
    "number for a key": recipe("1: 2", "1: "),
    "list for a value": recipe("learning_rate: [1.0e-5]", "learning_rate:"),
    "word for a switch": recipe("bf16: perhaps", "bf16:"),
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
        ("max_faulty_rewards", "1.5"),
        ("num_train_epochs", "1e308"),
        ("num_generations", "1"),
        ("num_shots", "99"),
        ("max_completion_length", "-8"),
        ("bf16", "maybe"),
        ("loss_type", "grop"),
        ("lr_scheduler_type", "zigzag"),
        ("optim", "sgdd"),
        ("prompt_format", "xlm"),
        ("attn_implementation", "flash"),
        ("cache_implementation", "large"),
        ("report_to", "none,tensorboard"),
        ("output_dir", ""),
        ("output_dir", " run"),
        ("question_template", "Q:"),
        ("completion_template", "{reasoning} {answer}"),
        ("filter_pass_rate", "0.5"),
        ("eval_samples", "-3"),
        ("vllm_gpu_memory_utilization", "1.5"),
        ("tf32", "true"),  # on a CPU, as the next
        ("dtype", "bfloat16"),
        ("merge_only", "gone"),
        ("optim_args", "fast"),
    ]
}

SETTINGS = {
    "unknown flag": given("--lerning_rate", "1", says="--lerning_rate:"),
    "abbreviated flag": given("--model", "x", says="--model:"),
    "setting that GRPO cannot have": given("--auto_find_batch_size", "true", says="auto_find_batch_size"),
    "word without a flag": given("--report_to", "tensorboard", "wandb", says="'wandb'"),
    "flag without a value": given("--seed", says="seed:"),
    "CPU and bf16": given("--bf16", "true", says="bf16:"),
    "CPU and 4-bit weights": given("--load_in_4bit", "true", says="load_in_4bit:"),
    "CPU and an optimizer of CUDA's": given("--optim", "adamw_8bit", says="optim:"),
    "optimizer not installed": given("--optim", "galore_adamw", says="optim:"),
    "reference model without beta": given("--sync_ref_model", "true", says="sync_ref_model:"),
    "evaluation at the start of none": given("--eval_on_start", "true", says="eval_on_start:"),
    "best of no measure": given("--save_strategy", "best", says="save_strategy:"),
    "columns that rewards need": given("--remove_unused_columns", "true", says="remove_unused_columns:"),
    "schedule without its arguments": given("--lr_scheduler_type", "cosine_with_min_lr", says="lr_scheduler_kwargs:"),
    "shards of one process": given("--fsdp", "full_shard", says="fsdp:"),
    "dictionary that is none": given("--generation_kwargs", "{", says="generation_kwargs:"),
    "setting inside a dictionary": given("--model_init_kwargs", '{"dtype": "float16"}', says="model_init_kwargs:"),
    "template's arguments": given("--chat_template_kwargs", '{"tools": 5}', says="chat"),
    "experts of none": given("--router_aux_loss_coef", "0.1", says="router_aux_loss_coef:"),
    "adapter for other modules": given("--use_peft", "true", "--lora_target_modules", "nope", says="model: the adapter"),
    "adapter on lm_head": given("--use_peft", "true", "--lora_target_modules", "lm_head", says="lora_target_modules:"),
    "checkpoint missing": given("--resume_from_checkpoint", "gone", says="resume_from_checkpoint:"),
}  # fmt: skip

REWARDS = {
    "weights of nothing": given("--reward_weights", "0", "0", "0", "0", "0", says="reward_weights"),
    "arguments that are no JSON": given("--reward_args", "{low: 5}", says="reward_args:"),
    "own, with a syntax error": own_reward("bad_syntax", "def f(:\n", "reward_funcs:"),
    "own, raising": own_reward("bad_call", "def f(completions, **kwargs):\n    return 1 / 0\n", "reward f:"),
    "own, too short": own_reward("bad_short", "def f(completions, **kwargs):\n    return [1.0]\n", "reward f:"),
}  # fmt: skip

MODELS = {
    "neither here nor on the Hub": Case("model_name_or_path:", {"model_name_or_path": "nobody/nothing"}),
    "a file": Case("model_name_or_path:", {"model_name_or_path": "rows.jsonl"}),
    "an empty directory": Case("model_name_or_path:", {"model_name_or_path": "given"}, files={"given": None}),
    "T5": Case("model:", model=put("config.json", '{"model_type": "t5", "num_layers": 1}')),
    "weights cut off": Case("model_name_or_path:", model=cut("model.safetensors"), loads=True),
    "weights as git-lfs has them": Case("model_name_or_path:", model=put("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), loads=True),
    "shard missing": Case("model_name_or_path:", model=sharded, loads=True),
    "weights of another shape": Case("model_name_or_path:", model=config(hidden_size=64), loads=True),
    "a layer missing": Case("model_name_or_path:", model=weights(lambda given: {key: value for key, value in given.items() if "layers.1" not in key}), loads=True),
    "weights not finite": Case("model_name_or_path:", model=weights(lambda given: {key: value * float("nan") for key, value in given.items()}), loads=True),
    "no tokenizer": Case("model_name_or_path:", model=lambda place: [(place / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")]),
    "tokenizer empty": Case("model_name_or_path:", model=put("tokenizer.json", "")),
    "no pad and no end token": Case("eos_token", model=put("tokenizer_config.json", '{"eos_token": null, "pad_token": null}')),
    "template with a syntax error": Case("chat_template", model=put("chat_template.jinja", "{% for %}")),
    "another model's tokenizer": Case("vocabulary:", model=config(vocab_size=300)),
    "adapter without its model": Case("/no/model", model=adapter(b"", base_model_name_or_path="/no/model")),
    "adapter without weights": Case("model_name_or_path:", model=adapter(), loads=True),
}  # fmt: skip


ENVIRONMENT = {
    "output_dir on no disk": Case("disk:", {"output_dir": "/proc/run"}, marks=(linux,)),
    "output_dir holds a run": Case("output_dir:", files={"run/run.json": "{}", "run/metrics.jsonl": "precious"}),
    "checkpoint that is none": Case("resume_from_checkpoint:", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/x": "precious"}),
    "the model to start from": Case("overwrite_run:", {"output_dir": "model", "overwrite_run": "true"}, model=put("run.json", "{}")),
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
    if not case.loads:
        monkeypatch.setattr(loading, "load", lambda config: pytest.fail("nothing was found before the weights"))
    before = tree()
    assert train_grpo.main(argv) == 2
    assert case.says in (line := the_error(capfd.readouterr().err)), line
    assert tree() == before


# --- Real commands, for what only another process shows


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
    "dataset not to be read": Case("'given.jsonl'", {"dataset_name": "given.jsonl"}, files=forbidden("given.jsonl", 0o000, ROW), marks=(linux,)),
    "run not to be written": Case("output_dir:", {"output_dir": "given/run"}, files=forbidden("given", 0o555, None), marks=(linux,)),
    "model not to be read": Case("model_name_or_path:", model=lambda place: (place / "config.json").chmod(0), marks=(linux,)),
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
    "a line of a megabyte": fine(lines([{"question": "why " * 250_000, "answer": "#### 1"}, *ROWS]), too_long=1, shown="1 training rows with longer prompts were dropped", answers=ONE),
    "null answers": fine(lines([*ROWS, *[{"question": "a", "answer": None}] * 9]), unusable=9, shown=DROPPED),
    "rows that lack the answer": fine(lines(ROWS) + '{"question": "a"}\n' * 9, unusable=9, shown=DROPPED),
    "answers too large for a machine's numbers": fine(lines(sums(lambda n: 10**25 + n)), answers={"What is 8 + 1?": f"{10**25 + 9}"}),
    "other columns, nested": fine(lines([{**row, "more": {"level": [1, None]}} for row in ROWS]), answers=ONE),
    "CSV with a byte-order mark, quotes and newlines": fine(b'\xef\xbb\xbfquestion,answer\r\n"What, ""then""\nis 1?","1,000"\r\n' + b"".join(b"q%d,%d\r\n" % (n, n) for n in range(39)), name="given.csv", answers={'What, "then"\nis 1?': "1000", "q7": "7"}),
    "CSV with short rows": fine("question,answer\n" + "".join(f"q{n},{n}\n" for n in range(40)) + "q\n" * 9, name="given.csv", unusable=9, shown=DROPPED),
    "CSV with a field of a megabyte": fine("question,answer\n" + "why " * 250_000 + ",1\n" + "".join(f"q{n},{n}\n" for n in range(40)), name="given.csv", too_long=1),
    "data with a test split": Read(Case(flags={"dataset_name": "given", "eval_samples": "3"}, files={"given": saved()}), 40, shown="3 training rows that ask a held-out question were dropped"),
    "evaluated on some training rows": Read(Case(flags={"eval_dataset_name": "rows.jsonl", "dataset_name": "rows.jsonl", "eval_samples": "5"}), 40, shown="5 training rows that ask a held-out question were dropped"),
    "recipe with a byte-order mark": Read(recipe(b"\xef\xbb\xbfbeta: 0.5\n", ""), 40, settings={"beta": 0.5}),
    "recipe with an alias": Read(recipe("seed: &n 7\ndata_seed: *n\n", ""), 40, settings={"seed": 7, "data_seed": 7}),
    "recipe with one reward as a text": Read(recipe("reward_funcs: correctness_reward_func\n", ""), 40, settings={"reward_funcs": ["correctness_reward_func"]}),
    "no system prompt": Read(given("--system_prompt", "", says=""), 40, settings={"system_prompt": ""}),
    "no chat template": Read(Case(model=lambda place: (place / "chat_template.jinja").unlink()), 40, shown="as plain text, 0 worked examples"),
    "no pad token": Read(Case(model=put("tokenizer_config.json", '{"eos_token": "<|im_end|>", "pad_token": null}')), 40),
    "an earlier run's broken record": Read(Case(model=put("run.json", "{")), 40, shown="is not a run's record"),
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
