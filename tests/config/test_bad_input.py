"""A user's mistakes: one line with the value and the fix, status 2, nothing written.

A case each of what a module finds; the module's own tests have the others.
`MISTAKES` run through `main` in process and must be found before weights are loaded, save where a case says so, so that
`--dry_run` finds them too. `ODD` is input that only looks wrong, and must be read rightly.
"""

# ruff: noqa: E501 - a case is a line

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from helpers_commands import command
from helpers_runs import DEMO, ROOT, ROWS
from safetensors.torch import load_file, save_file

import train_grpo
from grpo.config import preflight
from grpo.policy import loading

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
    "missing evaluation file": Case("eval_dataset_name: the file 'gone.csv'", {"eval_dataset_name": "gone.csv"}),
    "key twice": data(ROW + '{"question": "a", "question": "b", "answer": "#### 1"}\n', "line 2"),
    "wrong columns": data(lines([{"text": "a", "label": 1}]), "question_column:"),
    "wrong answer column": Case("answer_column:", {"answer_column": "gold"}),
    "CSV without a header": data("What is 1?,1\nWhat is 2?,2\n", "question_column:", name="given.csv"),
    "CSV with an open quote": data('question,answer\n"a,1\n', "'given.csv'", name="given.csv"),
    "saved dataset without its arrow file": data(saved(lambda place: next(place.glob("train/*.arrow")).unlink()), "'given'", name="given"),
    "one row": data(ROW, "dataset: 1 row"),
    "fewer rows than a rollout": Case("dataset:", {"max_samples": "2"}),
    "prompts all too long": Case("max_prompt_length:", {"max_prompt_length": "5"}),
    "JSON that is no array": data('{"data": []}', "'given.json'", name="given.json"),
    "one object a line in .json": data(ROW + ROW, "rename it to .jsonl", name="given.json"),
    "the same file twice": Case("dataset_name: 'a.csv' is listed twice", words=("--dataset_name", "a.csv", "a.csv")),
    "second file missing": Case("dataset_name: the file 'gone.csv'", words=("--dataset_name", "rows.jsonl", "gone.csv")),
    "second evaluation file missing": Case("eval_dataset_name: the file 'gone.csv'", words=("--eval_dataset_name", "rows.jsonl", "gone.csv")),
    "messages that end with an answer": data(lines([{"prompt": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}], "answer": "2"}]), "question_column: row 1 of training data 'given.jsonl' (column 'prompt')", name="given.jsonl"),
    "template for messages": Case("question_template:", {"dataset_name": "given.jsonl"}, ("--question_template", "Q: {question}"), {"given.jsonl": lines([{"prompt": [{"role": "user", "content": row["question"]}], "answer": "1"} for row in ROWS])}),
    "columns that do not fit": Case("dataset_name: the column 'level' differs", words=("--dataset_name", "a.jsonl", "b.jsonl"), files={"a.jsonl": lines([row | {"level": 1} for row in ROWS]), "b.jsonl": lines([row | {"level": [1]} for row in ROWS])}),
    "no gold answers": data(lines([{"question": row["question"]} for row in ROWS]), "answer_column: training data 'given.jsonl' has no column 'answer'"),
    "split missing": Case("dataset_split:", {"dataset_split": "validation"}),
    "evaluation split misspelt": Case("eval_split: 'tset' cannot be used", {"eval_split": "tset"}),
    "split of no rows": Case("eval_split:", {"eval_split": "train[:0]"}),
}  # fmt: skip

RECIPES = {
    "key twice": recipe("beta: 0.1\nseed: 3\nbeta: 0.2\n", "config:"),
    "missing": Case("config:", {"config": "gone.yaml"}),
    "no data set": recipe("dataset_name: []", "dataset_name: a value"),
    "empty": recipe("", "config:"),
    "a list": recipe("- beta\n- seed\n", "config:"),
    "tabs": recipe("beta: 0.1\n\tseed: 3\n", "config:"),
    "Python object": recipe("beta: !!python/object/apply:os.system ['touch written']\n", "config:"),
    "not UTF-8": recipe(b"run_name: caf\xe9\n", "config:"),
    "environment": recipe("env: {WANDB_API_KEY: x}", "env:"),
    "unknown key": recipe("lerning_rate: 1", "lerning_rate:"),
    "value missing": recipe("learning_rate:", "learning_rate:"),
    "number with a fraction": recipe("num_generations: 8.5", "num_generations:"),
    "list for a value": recipe("learning_rate: [1.0e-5]", "learning_rate:"),
    "word for a switch": recipe("bf16: perhaps", "bf16:"),
    "twice": Case("config:", words=("--config", "a.yaml", "--config=b.yaml")),
    "not named": given("--config", says="config:"),
}  # fmt: skip

OUT_OF_RANGE = {
    f"{key} {value}": given(f"--{key}", value, says=f"{key}:")
    for key, value in [
        ("seed", "-1"), ("learning_rate", "abc"), ("learning_rate", "nan"), ("learning_rate", "-1e-6"),
        ("temperature", "0"), ("top_p", "1.1"), ("adam_beta2", "1"), ("max_samples", "0"), ("max_steps", "0"),
        ("max_faulty_rewards", "1.5"), ("num_generations", "1"), ("num_shots", "99"), ("bf16", "maybe"),
        ("loss_type", "grop"), ("lr_scheduler_type", "zigzag"), ("optim", "sgdd"), ("prompt_format", "xlm"),
        ("attn_implementation", "flash"), ("output_dir", ""), ("question_template", "Q:"),
        ("completion_template", "{reasoning} {answer}"), ("merge_only", "gone"),
        ("dtype", "float16"),  # on a CPU
        ("eval_every", "0"), ("stop_on_alarm", "yess"),
    ]
}  # fmt: skip

SETTINGS = {
    "exemplars that are not JSON": given("--num_shots", "1", "--exemplars", "{", says="exemplars: '{' is not JSON"),
    "exemplar without an answer": given("--num_shots", "1", "--exemplars", '{"question": "a", "reasoning": "b"}', says="exemplars: the 1. is"),
    "exemplars without shots": given("--exemplars", '{"question": "a", "reasoning": "b", "answer": "c"}', says="exemplars: it has no effect"),
    "more shots than exemplars": given("--num_shots", "2", "--exemplars", '{"question": "a", "reasoning": "b", "answer": "c"}', says="num_shots: 2 is more"),
    "unknown flag": given("--lerning_rate", "1", says="--lerning_rate:"),
    "abbreviated flag": given("--model", "x", says="--model:"),
    "setting that GRPO cannot have": given("--auto_find_batch_size", "true", says="auto_find_batch_size"),
    "word without a flag": given("--report_to", "tensorboard", "wandb", says="report_to: 'wandb'"),
    "nearly --version": given("--versio", says="version"),
    "flag without a value": given("--seed", says="seed:"),
    "CPU and fp16": given("--fp16", "true", says="fp16:"),
    "CPU and 4-bit weights": given("--load_in_4bit", "true", says="load_in_4bit:"),
    "optimizer not installed": given("--optim", "galore_adamw", says="optim:"),
    "reference model without beta": given("--sync_ref_model", "true", says="sync_ref_model:"),
    "evaluation at the start of none": given("--eval_on_start", "true", says="eval_on_start:"),
    "evaluation of broken groups": given("--eval_strategy", "steps", "--num_generations_eval", "3", says="per_device_eval_batch_size: 64"),
    "best of no measure": given("--save_strategy", "best", says="metric_for_best_model", loads=True),
    "columns that rewards need": given("--remove_unused_columns", "true", says="remove_unused_columns:"),
    "schedule without its arguments": given("--lr_scheduler_type", "cosine_with_min_lr", says="lr_scheduler_kwargs:"),
    "shards of one process": given("--fsdp", "full_shard", says="fsdp:"),
    "dictionary that is none": given("--generation_kwargs", "{", says="generation_kwargs:"),
    "experts of none": given("--router_aux_loss_coef", "0.1", says="router_aux_loss_coef:"),
    "adapter for other modules": given("--use_peft", "true", "--lora_target_modules", "nope", says="model: the adapter"),
    "checkpoint missing": given("--resume_from_checkpoint", "gone", says="resume_from_checkpoint:"),
}  # fmt: skip

REWARDS = {
    "gold answers needed": data(lines([{"question": row["question"]} for row in ROWS]), "do without correctness_reward_func"),
    "gold answers needed by samples": Case("do without eval_num_samples", {"dataset_name": "given.jsonl"}, ("--reward_funcs", "xmlcount_reward_func", "--eval_num_samples", "2"), {"given.jsonl": lines([{"question": row["question"], "answer": None} for row in ROWS])}),
    "own, asking for no column": own_reward("bad_ask", "def f(completions, solution): return []\n", "f asks for solution"),
    "own, async and raising": own_reward("bad_later", "async def f(completions):\n    raise KeyError('server')\n", "reward f:"),
    "weights of nothing": given("--reward_weights", "0", "0", "0", "0", "0", says="reward_weights"),
    "own, with a syntax error": own_reward("bad_syntax", "def f(:\n", "reward_funcs:"),
    "own, raising": own_reward("bad_call", "def f(completions, **kwargs):\n    return 1 / 0\n", "reward f:"),
}  # fmt: skip

MODELS = {
    "neither here nor on the Hub": Case("model_name_or_path:", {"model_name_or_path": "nobody/nothing"}),
    "an empty directory": Case("model_name_or_path:", {"model_name_or_path": "given"}, files={"given": None}),
    "T5": Case("model:", model=put("config.json", '{"model_type": "t5", "num_layers": 1}')),
    "weights cut off": Case("model_name_or_path:", model=cut("model.safetensors"), loads=True),
    "shard missing": Case("model_name_or_path:", model=sharded, loads=True),
    "weights of another shape": Case("model_name_or_path:", model=config(hidden_size=64), loads=True),
    "a layer missing": Case("model_name_or_path:", model=weights(lambda given: {key: value for key, value in given.items() if "layers.1" not in key}), loads=True),
    "weights not finite": Case("model_name_or_path:", model=weights(lambda given: {key: value * float("nan") for key, value in given.items()}), loads=True),
    "no tokenizer": Case("model_name_or_path:", model=lambda place: [(place / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")]),
    "no pad and no end token": Case("eos_token", model=put("tokenizer_config.json", '{"eos_token": null, "pad_token": null}')),
    "template with a syntax error": Case("chat_template", model=put("chat_template.jinja", "{% for %}")),
    "another model's tokenizer": Case("vocabulary:", model=config(vocab_size=300)),
    "adapter without its model": Case("/no/model", model=adapter(b"", base_model_name_or_path="/no/model")),
    "adapter without weights": Case("model_name_or_path:", model=adapter(), loads=True),
}  # fmt: skip


ENVIRONMENT = {
    "output_dir holds a run": Case("output_dir:", files={"run/run.json": "{}", "run/metrics.jsonl": "precious"}),
    "checkpoint that is none": Case("resume_from_checkpoint:", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/x": "precious"}),
    "processes without a launcher": Case("WORLD_SIZE:", environment={"WORLD_SIZE": "2"}),
}  # fmt: skip

TABLES = {"file": FILES, "recipe": RECIPES, "setting": OUT_OF_RANGE | SETTINGS, "reward": REWARDS}
TABLES |= {"model": MODELS, "environment": ENVIRONMENT}
MISTAKES = {f"{kind}: {name}": case for kind, table in TABLES.items() for name, case in table.items()}


def tree():
    """Every file in the working directory and what it holds, but for Python's own, of a reward's module."""
    files = [path for path in sorted(Path.cwd().rglob("*")) if "__pycache__" not in path.parts]
    return {path: path.read_bytes() if path.is_file() else None for path in files}


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
        if "config" in changed:  # its value must not be hidden by a flag's
            changed.setdefault("learning_rate", None)
        given = {word[2:] for word in case.words} & {"report_to", "learning_rate", "output_dir"}
        return [*tiny_run(**dict.fromkeys(given), **changed), *case.words]

    return argv


def the_error(err):
    assert "Traceback" not in err and "usage:" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert err.rstrip().endswith(line)
    return line


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(case, prepare, monkeypatch, capfd):
    argv = prepare(case)
    if not case.loads:
        monkeypatch.setattr(loading, "load", lambda config: pytest.fail("nothing was found before the weights"))
    before = tree()
    assert train_grpo.main(argv) == 2
    assert case.says in (line := the_error(capfd.readouterr().err)), line
    assert tree() == before


COMMANDS = ("setting: unknown flag", "file: missing evaluation file", "recipe: tabs", "reward: own, raising")
COMMANDS += ("environment: output_dir holds a run", "model: weights not finite")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_of_a_command(name, prepare):
    argv = prepare(MISTAKES[name])
    before = tree()
    done = command(ROOT / "train_grpo.py", argv, real=name == COMMANDS[0])
    assert done.returncode == 2 and MISTAKES[name].says in the_error(done.stderr)
    assert tree() == before


# Gives up the right of root to read and write everything; there is none to give up for other users
POWERLESS = """
import ctypes, sys
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
import train_grpo
sys.exit(train_grpo.main())
"""
FORBIDDEN = {  # a path, what is there and its mode; the flag that names it, and what the error says
    "a data file": ("rows.csv", "question,answer", 0, "--dataset_name rows.csv", "'rows.csv' cannot be read"),
    "a data file's directory": ("data", None, 0, "--dataset_name data/rows.jsonl", "'data/rows.jsonl' cannot be read"),
    "a recipe": ("own.yaml", "seed: 1", 0, "--config own.yaml", "config: cannot read 'own.yaml'"),
    "an output directory": (
        "runs",
        None,
        0o500,
        "--output_dir runs/mine",
        "output_dir: 'runs/mine' cannot be written",
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_may_not_be_read_or_written_is_named(name, tiny_run):
    path, content, mode, flag, says = FORBIDDEN[name]
    Path(path).mkdir() if content is None else Path(path).write_text(content)
    Path("powerless.py").write_text(POWERLESS)
    Path(path).chmod(mode)
    try:
        key = flag.split()[0][2:]
        done = command("powerless.py", [*tiny_run(**{key: None}), *flag.split()], PYTHONPATH=str(ROOT))
    finally:
        Path(path).chmod(0o700)
    assert done.returncode == 2 and says in the_error(done.stderr), done.stderr
    assert not Path("run").exists()


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
DROPPED = "dropped 9 rows without a question or a gold answer"
ODD = {
    "a line of a megabyte": fine(lines([{"question": "why " * 250_000, "answer": "#### 1"}, *ROWS]), too_long=1, shown="dropped 1 training row above it", answers=ONE),
    "null answers": fine(lines([*ROWS, *[{"question": "a", "answer": None}] * 9]), unusable=9, shown=DROPPED),
    "CSV with a byte-order mark, quotes and newlines": fine(b'\xef\xbb\xbfquestion,answer\r\n"What, ""then""\nis 1?","1,000"\r\n' + b"".join(b"q%d,%d\r\n" % (n, n) for n in range(39)), name="given.csv", answers={'What, "then"\nis 1?': "1000", "q7": "7"}),
    "CSV with short rows": fine("question,answer\n" + "".join(f"q{n},{n}\n" for n in range(40)) + "q\n" * 9, name="given.csv", unusable=9, shown=DROPPED),
    "data with a test split": Read(Case(flags={"dataset_name": "given", "eval_samples": "3"}, files={"given": saved()}), 40, shown="dropped 3 training rows with a held-out question"),
    "evaluated on some training rows": Read(Case(flags={"eval_dataset_name": "rows.jsonl", "dataset_name": "rows.jsonl", "eval_samples": "5"}), 40, shown="dropped 5 training rows with a held-out question"),
    "recipe with a byte-order mark": Read(recipe(b"\xef\xbb\xbfbeta: 0.5\n", ""), 40, settings={"beta": 0.5}),
    "recipe with one reward as a text": Read(recipe("reward_funcs: correctness_reward_func\n", ""), 40, settings={"reward_funcs": ["correctness_reward_func"]}),
    "no system prompt": Read(given("--system_prompt", "", says=""), 40, settings={"system_prompt": ""}),
    "no chat template": Read(Case(model=lambda place: (place / "chat_template.jinja").unlink()), 40, shown="as plain text, 0 worked examples"),
    "no pad token": Read(Case(model=put("tokenizer_config.json", '{"eos_token": "<|im_end|>", "pad_token": null}')), 40),
    "an earlier run's broken record": Read(Case(model=put("run.json", "{")), 40, shown="is not a run's record"),
    "several trackers with a space": Read(given("--report_to", "tensorboard, trackio", says=""), 40, settings={"report_to": ["tensorboard", "trackio"]}),
}  # fmt: skip


@pytest.mark.parametrize("read", ODD.values(), ids=ODD)
def test_odd_input_is_read_and_drops_are_reported(read, prepare, monkeypatch, capfd):
    argv, seen = prepare(read.case), []
    check = preflight.check
    monkeypatch.setattr(preflight, "check", lambda *given: seen.append(given) or check(*given))
    before = tree()
    assert train_grpo.main([*argv, "--dry_run", "true"]) == 0
    assert tree() == before
    ((config, tokenizer, _, _, data, *_),) = seen
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
