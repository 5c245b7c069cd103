"""A user's mistake is one line with the value, status 2, and nothing is written.

`MISTAKES` are those that people make, run through `main` in process. They are found before weights are loaded, so that
`--dry_run` finds them, too, save where a case says otherwise.
"""

# ruff: noqa: E501 - a case is a line

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers_commands import command
from helpers_runs import ROOT, ROWS
from safetensors.torch import load_file, save_file

import train_grpo


@dataclass(frozen=True)
class Case:
    says: str = ""  # in the line: the key or the file (and its line)
    flags: dict[str, str | None] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # flags that `flags` cannot say
    files: dict[str, str] = field(default_factory=dict)
    model: Callable[[Path], Any] | None = None  # spoils the copy of the model that is given

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


def cut(name):
    return lambda place: (place / name).write_bytes((place / name).read_bytes()[:9000])


def config(**changed):
    def change(place):
        before = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(before | changed))

    return change


def not_finite(place):
    tensors = {name: tensor * float("nan") for name, tensor in load_file(place / "model.safetensors").items()}
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})


def adapter_of_nothing(place):
    """The model's directory as that of an adapter."""
    (place / "model.safetensors").rename(place / "adapter_model.safetensors")
    record = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "/no/model"}
    (place / "adapter_config.json").write_text(json.dumps(record))


ROW = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'

FILES = {
    "wrong columns": data(lines([{"text": "a", "label": 1}]), "question_column:"),
    "wrong answer column": Case("answer_column:", {"answer_column": "gold"}),
    "one row": data(ROW, "dataset:"),
    "fewer rows than a rollout": data(lines(ROWS[:2]), "dataset: 1 training row"),
    "prompts all too long": Case("max_prompt_length:", {"max_prompt_length": "5"}),
    "broken line": data(ROW + '{"question', "line 2"),
    "no rows": data("", "'given.jsonl'"),
    "no gold answers": data(lines([{"question": row["question"]} for row in ROWS]), "answer_column:"),
    "eval_by missing": Case("eval_by: training data 'rows.jsonl' has no column 'subject'; it has question, answer: name one", {"eval_by": "subject", "dataset_name": "rows.jsonl"}, files={"rows.jsonl": lines(ROWS)}),
    "eval_by missing where held out": Case("eval_by: evaluation data 'given.jsonl' has no column 'level'", {"eval_by": "level", "dataset_name": "with.jsonl", "eval_dataset_name": "given.jsonl"}, files={"given.jsonl": lines(ROWS), "with.jsonl": lines([{**row, "level": 1} for row in ROWS])}),
    "eval_by names each row": Case("eval_by: each of the 25 held-out questions has another id, such as 0, 1; name", {"eval_by": "id", "dataset_name": "rows.jsonl", "eval_dataset_name": "held.jsonl"}, files={"rows.jsonl": lines(ROWS), "held.jsonl": lines([{**row, "question": f"{at}: {row['question']}", "id": at} for at, row in enumerate(ROWS[:25])])}),
    "split missing": Case("dataset_split:", {"dataset_split": "validation"}),
}  # fmt: skip

RECIPES = {
    "missing": Case("config:", {"config": "gone.yaml"}),
    "deep": recipe("[" * 100_000, "config: given.yaml is not valid YAML"),
    "deep JSON": Case("reward_args: it is nested too deeply", {"reward_args": "[" * 100_000}),
    "digits": recipe("seed: 0x" + "f" * 50_000, "config: given.yaml is not valid YAML"),
    "digits inside": recipe("generation_kwargs: {a: [0x" + "f" * 50_000 + "]}", "config: given.yaml is not valid YAML"),
    "Python object": recipe("beta: !!python/object/apply:os.system ['touch written']\n", "config:"),
    "unknown key": recipe("lerning_rate: 1", "lerning_rate:"),
    "alone without a model": Case("model_name_or_path: it is empty", {"config": "given.yaml", "model_name_or_path": None}, files={"given.yaml": "standalone: true"}),
}  # fmt: skip

SETTINGS = {
    "no data": Case("dataset_name: it is empty", {"dataset_name": ""}),
    "no number": given("--learning_rate", "abc", says="learning_rate:"),
    "a group of one": given("--num_generations", "1", says="num_generations:"),
    "more shots than exemplars": given("--num_shots", "4", says="num_shots:"),
    "unknown flag": given("--lerning_rate", "1", says="--lerning_rate:"),
    "CPU and 4-bit weights": given("--load_in_4bit", "true", says="load_in_4bit:"),
    "adapter for other modules": given("--use_peft", "true", "--lora_target_modules", "nope", says="lora_target_modules:"),
    "schedule's argument": given("--lr_scheduler_kwargs", '{"cycles": 2}', says="lr_scheduler_kwargs:"),
    "optimizer's argument": given("--optim", "sgd", "--optim_args", "momentum=-1", says="optim_args:", loads=True),
    "checkpointing's argument": given("--gradient_checkpointing", "true", "--gradient_checkpointing_kwargs", '{"a": 1}', says="gradient_checkpointing_kwargs:", loads=True),
    "compiler's backend": given("--torch_compile_backend", "foo", says="'FOO' is not a valid DynamoBackend", loads=True),
    "checkpoint missing": given("--resume_from_checkpoint", "gone", says="resume_from_checkpoint:"),
}  # fmt: skip

REWARDS = {
    "none": recipe("reward_funcs: []\n", "reward_funcs:"),
    "gold answers needed": data(lines([{"question": row["question"]} for row in ROWS]), "correctness_reward_func"),
    "own, without **kwargs": own_reward("bad_ask", "def f(completions): return []\n", "**kwargs"),
    "weights all 0": given("--reward_weights", *["0"] * 5, says="all rewards:"),
    "weights of others": given("--reward_weights", "1", says="reward_weights:"),
    "a column like a parameter": Case("reward_funcs: the data's column 'low'", {"reward_funcs": "length_reward_func", "dataset_name": "given.jsonl"}, files={"given.jsonl": lines([{**row, "low": 3} for row in ROWS])}),
    "own, with a syntax error": own_reward("bad_syntax", "def f(:\n", "reward_funcs:"),
    "own, with an undefined name": own_reward("bad_name", "x = 1\ny = undefined\n", "bad_name.py: NameError: name 'undefined' is not defined (bad_name.py:2)"),
    "own, exiting": own_reward("bad_exit", "import sys\ndef f(completions, **kwargs):\n    sys.exit(5)\n", "reward f: SystemExit: 5 (bad_exit.py:3)"),
    "own, raising": own_reward("bad_call", "def f(completions, **kwargs):\n    return 1 / 0\n", "reward f:"),
}  # fmt: skip

MODELS = {
    "neither here nor on the Hub": Case("model_name_or_path:", {"model_name_or_path": "nobody/nothing"}),
    "weights cut off": Case("model_name_or_path:", model=cut("model.safetensors"), loads=True),
    "weights not finite": Case("model_name_or_path:", model=not_finite, loads=True),
    "no tokenizer": Case("model_name_or_path:", model=lambda place: [(place / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")]),
    "another model's tokenizer": Case("vocabulary:", model=config(vocab_size=300)),
    "adapter without its model": Case("/no/model", model=adapter_of_nothing),
}  # fmt: skip


DIRECTORIES = {
    "output_dir holds a run": Case("output_dir:", files={"run/run.json": "{}", "run/metrics.jsonl": "precious"}),
    "checkpoint that is none": Case("resume_from_checkpoint:", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/x": "precious"}),
}  # fmt: skip

TABLES = {"file": FILES, "recipe": RECIPES, "setting": SETTINGS, "reward": REWARDS}
TABLES |= {"model": MODELS, "directory": DIRECTORIES}
MISTAKES = {f"{kind}: {name}": case for kind, table in TABLES.items() for name, case in table.items()}


def tree():
    """Every file in the working directory and what it holds, but for Python's own, of a reward's module."""
    files = [path for path in sorted(Path.cwd().rglob("*")) if "__pycache__" not in path.parts]
    return {path: path.read_bytes() if path.is_file() else None for path in files}


@pytest.fixture
def prepare(tiny_model, tiny_run):
    """The command line of a case, once all that it needs is there; besides an earlier run that must survive."""

    def argv(case):
        run = "outputs/Tiny-60K-GRPO-rows"
        earlier = {f"{run}/run.json": "{}", f"{run}/model.safetensors": "precious"}
        for name, content in (earlier | case.files).items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        changed = dict(case.flags)
        if case.model:
            changed.setdefault("model_name_or_path", shutil.copytree(tiny_model, Path.cwd() / "model"))
            case.model(Path("model"))
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
        monkeypatch.setattr(train_grpo, "load_model", lambda config: pytest.fail("weights are loaded"))
    before = tree()
    assert train_grpo.main(argv) == 2
    assert case.says in (line := the_error(capfd.readouterr().err)), line
    assert tree() == before


@pytest.mark.slow
def test_a_mistake_of_a_command(prepare):
    case = MISTAKES["setting: unknown flag"]
    argv = prepare(case)
    before = tree()
    done = command(ROOT / "train_grpo.py", argv)
    assert done.returncode == 2 and case.says in the_error(done.stderr)
    assert tree() == before


def test_a_model_without_a_chat_template_is_no_mistake(prepare, capfd):
    argv = prepare(Case(model=lambda place: (place / "chat_template.jinja").unlink()))
    assert train_grpo.main([*argv, "--dry_run", "true"]) == 0
    assert "as plain text" in " ".join(capfd.readouterr().out.split())
