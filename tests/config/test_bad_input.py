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
    says: str = ""  # a regular expression: the key or the file, what is wrong, and what would do
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
NO_PAIR = (
    "answer_column: none of the 9 rows has a question in 'question' .as text. .* in 'answer' .*name other columns"
)

FILES = {
    "empty": data("", r"'given.jsonl' holds no rows; give a file"),
    "blank lines only": data("\n \n\n", r"'given.jsonl' holds no rows; give a file"),
    "missing": Case("'gone.jsonl' cannot be read: No such file.*; give another path", {"dataset_name": "gone.jsonl"}),
    "missing csv": Case("'gone.csv' cannot be read: No such file.*; give another", {"dataset_name": "gone.csv"}),
    "missing parquet": Case("'gone.parquet' cannot be read: No such", {"dataset_name": "gone.parquet"}),
    "missing directory": Case(r"'\./gone' does not exist; give a file", {"dataset_name": "./gone"}),
    "missing evaluation file": Case("'gone.csv' cannot be read.*; give", {"eval_dataset_name": "gone.csv"}),
    "link to nothing": data(lambda path: path.symlink_to("gone"), "'given.jsonl' cannot be read.*; give another path"),
    "directory as file": data(None, "'given.jsonl' is a directory, but no saved dataset .*; give one that save_to_disk"),
    "unreadable device": Case(
        "'given.jsonl' cannot be read: Input/output error; give another path",
        {"dataset_name": "given.jsonl"},
        files={"given.jsonl": lambda path: path.symlink_to("/proc/self/mem")},
        marks=(linux,),
    ),
    "UTF-16": data(lines(ROWS).encode("utf-16"), r"'given.jsonl' is not UTF-8 text \(byte 0\); save it as UTF-8"),
    "Latin-1": data(ROW.replace("is", "ïs").encode("latin-1"), r"not UTF-8 text \(byte 19\); save it as UTF-8"),
    "other suffix": data("hello", r"'given.txt' is no .jsonl, .csv, .parquet file; convert it", name="given.txt"),
    "broken JSON": data(ROW * 2 + '{"question": "a', r"'given.jsonl', line 3: broken JSON .*must be one JSON object"),
    "pretty-printed JSON": data(json.dumps(ROWS[0], indent=1), r"line 1: broken JSON .*each line must be one JSON object"),
    "JSON list in a file": data(json.dumps(ROWS), r"line 1: each line must be one JSON object, .*not '\[\{"),
    "lists as rows": data("[1, 2]\n", r"line 1: each line must be one JSON object, .*not '\[1, 2\]'"),
    "key twice": data(ROW + '{"question": "a", "question": "b", "answer": "#### 1"}\n', "line 2.*'question' is given twice; give it once"),
    "nested without end": data('{"answer": ' + "[" * 99999 + "\n", "line 1: broken JSON .*nested too deeply"),
    "number without end": data('{"question": "a", "answer": 1' + "0" * 5000 + "}\n", "line 1: broken JSON .*4300 digits"),
    "half a character": data('{"question": "a \\ud800", "answer": "#### 1"}\n', "column 'question' holds half a character .*leave it out"),
    "nested questions": data(lines([{"question": {"text": "a"}, "answer": "#### 1"}] * 9), NO_PAIR),
    "nested answers": data(lines([{"question": "a", "answer": {"gold": 1}}] * 9), NO_PAIR),
    "null answers": data(lines([{"question": "a", "answer": None}] * 9), NO_PAIR),
    "NaN answers": data('{"question": "a", "answer": NaN}\n' * 9, NO_PAIR),
    "infinite answers": data('{"question": "a", "answer": -Infinity}\n' * 9, NO_PAIR),
    "empty answers": data(lines([{"question": "a", "answer": " "}] * 9), NO_PAIR),
    "numbers as questions": data(lines([{"question": 7, "answer": "#### 1"}] * 9), NO_PAIR),
    "wrong columns": data(lines([{"text": "a", "label": 1}]), "question_column: .*no column 'question'; it has text, label: name one with --question_column"),
    "wrong answer column": Case("answer_column: .*no column 'gold'; it has question, answer: name one", {"answer_column": "gold"}),
    "question as answer": Case("answer_column: 'question' is the question_column too; name another", {"answer_column": "question"}),
    "mixed types": data(ROW + lines([{"question": "a", "answer": {"b": 1}}]), "'given.jsonl' mixes types within a column: answer .*give it text alone"),
    "TRL's column": data(lines([{**row, "completions": 1} for row in ROWS]), "the column 'completions' .*; rename it"),
    "a parameter's column": Case(
        "column 'low' would replace the parameter 'low' of length_reward_func; rename or remove",
        {"dataset_name": "given.jsonl", "reward_funcs": "length_reward_func"},
        files={"given.jsonl": lines([{**row, "low": 1} for row in ROWS])},
    ),
    "CSV empty": data("", "'given.csv' holds no rows; give", name="given.csv"),
    "CSV of a header": data("question,answer\n", "'given.csv' holds no rows; give", name="given.csv"),
    "CSV without a header": data("What is 1?,1\nWhat is 2?,2\n", "question_column: .*it has What is 1.?, 1: name one", name="given.csv"),
    "CSV with semicolons": data("question;answer\na;1\n", "question_column: .*it has question;answer: name one", name="given.csv"),
    "CSV ragged": data("question,answer\na,1\nb,2,3\n", "'given.csv', line 3: 3 fields under a header of 2; put", name="given.csv"),
    "CSV ragged throughout": data("question,answer\n" + "a,1,7\n" * 9, "'given.csv', line 2: 3 fields under a header of 2; put", name="given.csv"),
    "CSV with an open quote": data('question,answer\n"a,1\n', "'given.csv', line .*no valid CSV .*; mend its quotes", name="given.csv"),
    "CSV column twice": data("question,answer,answer\na,1,2\n", "'given.csv': two columns are called 'answer'; rename one", name="given.csv"),
    "CSV UTF-16": data("question,answer\na,1\n".encode("utf-16"), "'given.csv' is not UTF-8 text .*; save it as UTF-8", name="given.csv"),
    "Parquet that is none": data("hello", "'given.parquet' is no valid Parquet file .*; write it anew", name="given.parquet"),
    "directory of other files": data(lambda path: (path.mkdir(), put("x.jsonl", ROW)(path)), "'given' is a directory, but no saved dataset .*; give one", name="given"),
    "saved dataset without its arrow file": data(saved(lambda place: next(place.glob("train/*.arrow")).unlink()), "'given' is a directory, but no saved dataset .*arrow.*; give one", name="given"),
    "saved dataset cut off": data(saved(lambda place: next(place.glob("train/*.arrow")).write_bytes(b"\0" * 99)), "'given' is a directory, but no saved dataset .*; give one", name="given"),
    "saved dataset of another kind": data(saved(put("train/state.json", "{}")), "'given' is a directory, but no saved dataset .*_data_files.*; give one", name="given"),
    "saved dataset with a list": data(saved(put("train/dataset_info.json", "[]")), "'given' is a directory, but no saved dataset .*; give one", name="given"),
    "Hub out of reach": Case("'nobody/nothing' .*cannot be loaded from the Hub: .*give a local .jsonl", {"dataset_name": "nobody/nothing"}),
    "space after the name": Case("dataset_name: 'rows.jsonl ' begins or ends with a space; leave it out", {"dataset_name": "rows.jsonl "}),
    "one row": data(ROW, "1 row.s. cannot be split into training and evaluation; give more rows"),
    "one question": data(ROW * 40, "every training question is among the held-out ones; give other training rows"),
    "evaluated on all training rows": Case("every training question is among the held-out ones; give", {"dataset_name": "rows.jsonl", "eval_dataset_name": "rows.jsonl"}),
    "fewer rows than a rollout": Case("dataset: 1 training rows are fewer than the 2 prompts of one rollout; give more rows", {"max_samples": "2"}),
    "prompts all too long": Case("max_prompt_length: all 36 prompts are longer than 5 tokens .*; raise it", {"max_prompt_length": "5"}),
}  # fmt: skip

SPLITS = {
    f"split {spec!r}": Case(f"dataset_split: {re.escape(repr(spec))} {says}", {"dataset_split": spec})
    for spec, says in {
        "validation": r"cannot be taken .*; there is train \(40 rows\); a slice is written train\[:1000\]",
        "train[": r"cannot be taken .*; there is train",
        "train[a:b]": r"cannot be taken .*; there is train",
        "train[:200%]": r"cannot be taken .*; there is train",
        "train[:0]": r"holds no rows; give some of train \(40 rows\)",
        "train[9:3]": "holds no rows; give some of train",
        "train[5000:]": "holds no rows; give some of train",
    }.items()
} | {
    "evaluation split of no rows": Case("eval_split: 'train.:0.' holds no rows; give some of", {"eval_split": "train[:0]"}),
    "evaluation split missing": Case(
        r"eval_split: 'dev' cannot be taken .*; there is train \(40 rows\), test \(5 rows\)",
        {"eval_dataset_name": "given", "eval_split": "dev"},
        files={"given": saved()},
    ),
}  # fmt: skip

RECIPES = {
    "key twice": recipe("beta: 0.1\nseed: 3\nbeta: 0.2\n", r"config: given.yaml .*line 3: the key 'beta' is given twice \(first in line 1\); give it once"),
    "key twice, inside": recipe("reward_args: {length_reward_func: {low: 5, low: 6}}", "line 1: the key 'low' is given twice"),
    "key twice, in a stage": recipe("stages:\n- name: a\n  name: b\n", "line 3: the key 'name' is given twice .first in line 2."),
    "missing": Case("config: cannot read 'gone.yaml' .No such file.*recipes/", {"config": "gone.yaml"}),
    "directory": recipe(None, "config: cannot read 'given.yaml' .Is a directory.; recipes are in recipes/"),
    "empty": recipe("", "config: given.yaml is empty; write `key: value` lines"),
    "only a comment": recipe("# later\n", "config: given.yaml is empty; write"),
    "a text": recipe("hello", "config: given.yaml is a str; write `key: value` lines"),
    "a list": recipe("- beta\n- seed\n", "config: given.yaml is a list; write `key: value` lines"),
    "tabs": recipe("beta: 0.1\n\tseed: 3\n", r"config: given.yaml is not valid YAML \(line 2: .*\\t.*\); write"),
    "two colons": recipe("a: b: c", "config: given.yaml is not valid YAML .line 1: mapping values.*; write"),
    "unclosed bracket": recipe("reward_funcs: [a, b\n", "config: given.yaml is not valid YAML .line 2: .*; write"),
    "alias of nothing": recipe("beta: *x\n", "config: given.yaml is not valid YAML .line 1: found undefined alias.*; write"),
    "alias of itself": recipe("reward_args: &a {x: *a}\n", "config: given.yaml is not valid YAML .Circular.*; write"),
    "Python object": recipe("beta: !!python/object/apply:os.system ['touch written']\n", "config: given.yaml is not valid YAML .line 1: could not determine a constructor"),
    "two documents": recipe("beta: 0.1\n---\nbeta: 0.2\n", "config: given.yaml is not valid YAML .line 2: but found another document.*; write"),
    "nested without end": recipe("reward_args: " + "[" * 3000, "config: given.yaml is not valid YAML .it is nested too deeply"),
    "number without end": recipe("seed: 1" + "0" * 5000, "config: given.yaml is not valid YAML .*4300 digits.*; write"),
    "control character": recipe('run_name: "\x01"', "config: given.yaml is not valid YAML .character 12: special characters"),
    "list as key": recipe("[1, 2]: 3", "config: given.yaml is not valid YAML .line 1: found unhashable key.; write"),
    "not UTF-8": recipe(b"run_name: caf\xe9\n", "config: given.yaml is not UTF-8 text .byte 13.; save it as UTF-8"),
    "environment": recipe("env: {WANDB_API_KEY: x}", "env: given.yaml may not set environment variables; export them"),
    "unknown key": recipe("lerning_rate: 1", "lerning_rate: no such setting .in given.yaml.; did you mean learning_rate"),
    "number as key": recipe("1: 2", "1: no such setting .in given.yaml.; .*--help"),
    "value missing": recipe("learning_rate:", "learning_rate: a value is needed"),
    "list for a value": recipe("learning_rate: [1.0e-5]", r"learning_rate: one value is needed, not the list \[1e-05\]"),
    "mapping for a value": recipe("learning_rate: {a: 1}", "learning_rate: .* is no number; give one"),
    "two datasets": recipe("dataset_name: [a.jsonl, b.jsonl]", "dataset_name: one value is needed, not the list"),
    "true for a number": recipe("seed: yes", "seed: 'True' is no whole number; give one"),
    "fraction for a count": recipe("num_iterations: 1.5", "num_iterations: '1.5' is no whole number; give one"),
    "word for a switch": recipe("bf16: perhaps", "bf16: 'perhaps' is neither true nor false; give one of them"),
    "rewards beside stages": recipe(
        "reward_funcs: [int_reward_func]\nstages: [{name: a, reward_funcs: [int_reward_func], max_steps: 2}]",
        "reward_funcs: given.yaml holds stages too, which have their own; drop one",
    ),
    "twice": Case("config: given 2 times .*a.yaml.*; give one recipe", words=("--config", "a.yaml", "--config=b.yaml")),
    "not named": given("--config", says="config: no recipe is named; give one of recipes/"),
    "a flag in the place of its name": given("--config", "--seed", "1", says="config: no recipe is named; give one of"),
    "named by nothing": given("--config=", says="config: no recipe is named; give one of recipes/"),
}  # fmt: skip

OUT_OF_RANGE = {
    f"{key} {value}": given(f"--{key}", value, says=f"{key}: {says}")
    for key, value, says in [
        ("seed", "-1", "-1 is out of range; give at least 0 and at most 4294967295"),
        ("seed", "1.5", "'1.5' is no whole number; give one"),
        ("seed", "", "'' is no whole number; give one"),
        ("learning_rate", "abc", "'abc' is no number; give one"),
        ("learning_rate", "nan", "nan is out of range; give at least 0 and at most 1"),
        ("learning_rate", "1e400", "inf is out of range; give at least 0 and at most 1"),
        ("learning_rate", "-1e-6", "-1e-06 is out of range; give at least 0"),
        ("beta", "-inf", "-inf is out of range; give at least 0"),
        ("temperature", "0", "0.0 is out of range; give a number above 0"),
        ("top_p", "1.1", "1.1 is out of range; give a number above 0 and at most 1"),
        ("adam_beta2", "1", "1.0 is out of range; give at least 0 and below 1"),
        ("adam_epsilon", "0", "0.0 is out of range; give a number above 0"),
        ("neftune_noise_alpha", "-1", "-1.0 is out of range; give at least 0"),
        ("max_samples", "0", "0 is out of range; give at least 1"),
        ("max_samples", "9" * 30, "9{30} is out of range; give at least 1 and at most 2147483647"),
        ("max_steps", "0", "0 is out of range; give at least 1, or -1"),
        ("max_steps", "9" * 20, "9{20} is out of range; give a finite number and at most 2147483647"),
        ("num_train_epochs", "1e308", r"1e\+308 is out of range; give a number above 0 and at most 2147483647"),
        ("num_generations", "1", "1 is out of range; give at least 2"),
        ("num_shots", "-1", "-1 is out of range; give at least 0"),
        ("num_shots", "99", "99 is more than there are exemplars; give 0 to 3"),
        ("max_completion_length", "-8", "-8 is out of range; give at least 1"),
        ("dataloader_num_workers", "100000", "100000 is out of range; give at least 0 and at most 1024"),
        ("pad_to_multiple_of", "0", "0 is no multiple; give auto, or at least 1"),
        ("bf16", "maybe", "'maybe' is neither true nor false; give one of them"),
        ("loss_type", "grop", "'grop' is unknown; give grpo, dapo"),
        ("lr_scheduler_type", "zigzag", "invalid choice: 'zigzag' .choose from 'linear', 'cosine'"),
        ("optim", "sgdd", "invalid choice: 'sgdd' .choose from 'adamw_torch'"),
        ("dtype", "int8", "invalid choice: 'int8' .choose from 'auto', 'bfloat16'"),
        ("generation", "fast", "'fast' is unknown; give auto, lean"),
        ("prompt_format", "xlm", "'xlm' is unknown; give xml or think"),
        ("attn_implementation", "flash", "'flash' is unknown; give sdpa"),
        ("torch_compile_mode", "quick", "'quick' is unknown; give default"),
        ("torch_compile_backend", "gcc", "'gcc' is unknown; give one of .*inductor"),
        ("cache_implementation", "large", "'large' is unknown; give static"),
        ("report_to", "clipboard", "'clipboard' is not a tracker; give none, wandb"),
        ("report_to", "none,tensorboard", "'none,tensorboard' names trackers and none of them; give one or the other"),
        ("model_name_or_path", "", "it is empty; give a value, or leave it out"),
        ("dataset_name", " ", "it is empty; give a value"),
        ("dataset_split", "", "it is empty; give a value"),
        ("eval_dataset_name", "", "it is empty; give a value"),
        ("output_dir", "", "it is empty; give a value"),
        ("resume_from_checkpoint", "", "it is empty; give a value"),
        ("ask", " ", "it is empty; give a question"),
        ("output_dir", " run", "' run' begins or ends with a space; leave it out"),
        ("question_template", "Q:", "'Q:' needs {question} exactly once"),
        ("question_template", "{question} {x}", "'{question} {x}' holds other braces than {question}; leave them out"),
        ("completion_template", "{reasoning} {answer}", "{answer} must stand alone between <answer> and </answer>"),
        ("filter_pass_rate", "0.5", r"\[0.5\] is no range; give the lowest and the highest share"),
        ("merge_only", "gone", "'gone' holds no adapter .*; give a LoRA run's"),
        ("hub_token", "hf_planted", "secrets are taken from the environment only .*; drop it and export"),
        ("optim_args", "fast", "'fast' is no list of arguments; write name=value"),
    ]
}

SETTINGS = {
    "unknown flag": given("--lerning_rate", "1", says="--lerning_rate: no such flag; did you mean learning_rate"),
    "abbreviated flag": given("--model", "x", says="--model: no such flag; did you mean .*model_name_or_path"),
    "word without a flag": given("--report_to", "tensorboard", "wandb", says="'wandb' follows no flag that takes it; give settings as --flag value"),
    "flag without a value": given("--seed", says="seed: no value follows it; give one"),
    "group that does not divide": given("--num_generations", "3", says="num_generations: 3 does not divide .*; give per_device_train_batch_size 3, 6"),
    "batch of billions": given("--per_device_train_batch_size", "1999999999", "--num_generations", "64", says="num_generations: 64 does not divide .*; give per_device_train_batch_size 64"),
    "rollout said twice": given("--steps_per_generation", "4", "--generation_batch_size", "64", says="generation_batch_size: 64 and steps_per_generation 4 say the same thing twice; give one"),
    "CPU and bf16": given("--bf16", "true", says="bf16: True contradicts use_cpu.*; drop one"),
    "CPU and 4-bit weights": given("--load_in_4bit", "true", says="load_in_4bit: True contradicts use_cpu.*; drop one"),
    "CPU and vLLM": given("--use_vllm", "true", says="use_vllm: vLLM needs a CUDA GPU; add --use_vllm false"),
    "CPU and an optimizer of CUDA's": given("--optim", "adamw_8bit", says="optim: adamw_8bit needs CUDA; give --optim adamw_torch"),
    "optimizer not installed": given("--optim", "galore_adamw", says="optim: galore_adamw cannot be used: .*Install it"),
    "question and evaluation": given("--ask", "2 + 2?", "--eval_only", "true", says="ask: eval_only and ask are each to be done instead of a run; give one"),
    "question and preflight": given("--ask", "2 + 2?", "--dry_run", "true", says="ask: dry_run and ask are each to be done instead of a run; give one"),
    "nothing to merge": given("--merge_lora", "true", says="merge_lora: no adapter is trained .*; add --use_peft true"),
    "reference model without beta": given("--sync_ref_model", "true", says="sync_ref_model: .* beta is 0; give --beta 0.04, or drop"),
    "reference model of an adapter": given("--sync_ref_model", "true", "--beta", "0.1", "--use_peft", "true", says="sync_ref_model: an adapter has no reference model .*; drop"),
    "evaluation at the start of none": given("--eval_on_start", "true", says="eval_on_start: nothing is evaluated .*; add --eval_strategy steps"),
    "best of no measure": given("--save_strategy", "best", says="save_strategy: best needs --eval_strategy steps and a --metric_for_best_model; add them"),
    "best of no evaluation": given("--load_best_model_at_end", "true", says="load_best_model_at_end requires the save and eval strategy to match"),
    "columns that rewards need": given("--remove_unused_columns", "true", says="remove_unused_columns: true would keep the answers from the rewards; leave"),
    "schedule without its arguments": given("--lr_scheduler_type", "cosine_with_min_lr", says="lr_scheduler_kwargs: None does not do for cosine_with_min_lr .*min_lr.*; give"),
    "schedule of other arguments": given("--lr_scheduler_kwargs", '{"no_such": 1}', says="lr_scheduler_kwargs: .*no_such.*; give the arguments of this schedule"),
    "shards of one process": given("--fsdp", "full_shard", says="fsdp: full_shard needs several processes; start it with torchrun"),
    "dictionary that is none": given("--generation_kwargs", "{", says="generation_kwargs: '{' is no dictionary .*; write"),
    "list for a dictionary": given("--chat_template_kwargs", "[]", says=r"chat_template_kwargs: \[\] is no dictionary; write"),
    "dictionary with a key twice": given("--model_init_kwargs", '{"a": 1, "a": 2}', says="model_init_kwargs: .*the key 'a' is given twice"),
    "dictionary's file missing": given("--accelerator_config", "gone.json", says="accelerator_config: there is no file 'gone.json'; give one"),
    "setting inside a dictionary": given("--model_init_kwargs", '{"dtype": "float16"}', says="model_init_kwargs: dtype has a setting of its own; give --dtype float16"),
    "sampling inside a dictionary": given("--generation_kwargs", '{"temperature": "hot"}', says="generation_kwargs: temperature has a setting of its own; give --temperature"),
    "sampling by an unknown name": given("--generation_kwargs", '{"num_beam": 2}', says="generation_kwargs: 'num_beam' is unknown; did you mean num_beams"),
    "checkpointing by an unknown name": given("--gradient_checkpointing_kwargs", '{"x": 1}', says="gradient_checkpointing_kwargs: 'x' is unknown; give one of .*use_reentrant"),
    "secret inside a dictionary": given("--model_init_kwargs", '{"token": "hf_planted"}', says="model_init_kwargs.token: secrets are taken from the environment only"),
    "template's arguments": given("--chat_template_kwargs", '{"tools": 5}', says="chat template .* with chat_template_kwargs .*tools.* refuses"),
    "model option unknown": given("--model_init_kwargs", '{"no_such_option": 1}', says="does not load .*no_such_option.*; use", loads=True),
    "experts of none": given("--router_aux_loss_coef", "0.1", says="router_aux_loss_coef: 0.1 is for mixtures of experts, .*; drop it"),
    "adapter for other modules": given("--use_peft", "true", "--lora_target_modules", "nope", says="the adapter does not fit .*nope.*; set lora_target_modules"),
    "adapter on lm_head": given("--use_peft", "true", "--lora_target_modules", "lm_head", says="lora_target_modules: .*lm_head.*; leave lm_head out"),
    "adapter for classes": given("--use_peft", "true", "--lora_task_type", "SEQ_CLS", says="lora_task_type: SEQ_CLS is no kind .*; give CAUSAL_LM"),
    "checkpoint missing": given("--resume_from_checkpoint", "gone", says="resume_from_checkpoint: cannot resume from 'gone': there is no such directory; use --resume_from_checkpoint auto"),
    "checkpoint of no run": given("--resume_from_checkpoint", "auto", says="resume_from_checkpoint: 'run' holds no checkpoint; drop the flag"),
    "stages that are no JSON": given("--stages", "format", says="stages: 'format' is no JSON .*; give one mapping"),
    "stage with a key twice": given("--stages", '{"name": "a", "name": "b"}', says="stages: .*the key 'name' is given twice.*; give one mapping"),
    "stage of an unknown reward": given("--stages", '{"name": "a", "reward_funcs": ["int"], "max_steps": 3}', says="reward_funcs: 'int' is no reward; did you mean int_reward_func"),
}  # fmt: skip

REWARDS = {
    "misspelt": given("--reward_funcs", "corectness_reward_func", says="reward_funcs: 'corectness_reward_func' is no reward; did you mean correctness_reward_func"),
    "none": given("--reward_funcs", says="reward_funcs: no value follows it; give one"),
    "twice": given("--reward_funcs", "int_reward_func", "int_reward_func", says="reward_funcs: 'int_reward_func' is given twice; give it once"),
    "too few weights": given("--reward_weights", "1", "2", says="reward_weights: 2 weights for 5 reward_funcs; give one for each"),
    "infinite weight": given("--reward_weights", "1", "1", "1", "1", "inf", says="reward_weights: inf is out of range; give a finite number"),
    "weights of nothing": given("--reward_weights", "0", "0", "0", "0", "0", says="every weight is 0; nothing can be learned; give reward_weights above 0"),
    "arguments that are no JSON": given("--reward_args", "{low: 5}", says="reward_args: '{low: 5}' is no mapping .*; write"),
    "arguments twice": given("--reward_args", '{"a": {}, "a": {}}', says="reward_args: .*the key 'a' is given twice"),
    "arguments of another reward": given("--reward_args", '{"length_reward_func": {"low": 1}}', says="reward_args: 'length_reward_func' is not among reward_funcs .*; add or drop it"),
    "unknown parameter": given("--reward_args", '{"int_reward_func": {"x": 1}}', says="reward_args: int_reward_func has no parameter 'x'; it has none, so leave it out"),
    "parameter of a wrong type": given("--reward_funcs", "length_reward_func", "--reward_args", '{"length_reward_func": {"low": "x"}}', says="reward_args: length_reward_func: low is 'x'; give a whole number"),
    "own, not allowed": given("--reward_funcs", "mine.f", says="reward_funcs: 'mine.f' runs the code of mine.py; if you trust it, give --allow_custom_rewards true"),
    "own, without a file": given("--reward_funcs", "gone.f", "--allow_custom_rewards", "true", says="reward_funcs: 'gone.f' needs a file gone.py in .*; there is none"),
    "own, with a syntax error": own_reward("bad_syntax", "def f(:\n", "reward_funcs: importing 'bad_syntax' raises SyntaxError: .*line 1.*; mend bad_syntax.py"),
    "own, raising when imported": own_reward("bad_import", "1 / 0\n", "reward_funcs: importing 'bad_import' raises ZeroDivisionError: .*; mend bad_import.py"),
    "own, leaving when imported": own_reward("bad_exit", "raise SystemExit(0)\n", "reward_funcs: importing 'bad_exit' raises SystemExit: 0; mend"),
    "own, not there": own_reward("bad_empty", "x = 1\n", "reward_funcs: 'bad_empty' has no 'f', nor any other function; define it"),
    "own, no function": own_reward("bad_kind", "f = 3\n\ndef g(): ...\n", "reward_funcs: 'bad_kind.f' is no function but int; name a function"),
    "own, raising": own_reward("bad_call", "def f(completions, **kwargs):\n    return 1 / 0\n", "reward f: raises ZeroDivisionError: .*; mend it"),
    "own, leaving": own_reward("bad_leave", "def f(completions, **kwargs):\n    raise SystemExit(0)\n", "reward f: raises SystemExit: 0; mend it"),
    "own, of texts": own_reward("bad_text", "def f(completions, **kwargs):\n    return ['good'] * len(completions)\n", "reward f: .*'good'.*; mend it"),
    "own, too short": own_reward("bad_short", "def f(completions, **kwargs):\n    return [1.0]\n", "reward f: f returned 1 values for 5 completions; .*; mend it"),
}  # fmt: skip

MODELS = {
    "missing": Case(r"model_name_or_path: the directory '\./gone' does not exist; use another", {"model_name_or_path": "./gone"}),
    "missing, by a long path": Case("model_name_or_path: the directory 'a/b/gone' does not exist; use", {"model_name_or_path": "a/b/gone"}),
    "neither here nor on the Hub": Case("model_name_or_path: 'nobody/nothing' does not load .*; use", {"model_name_or_path": "nobody/nothing"}),
    "a file": Case("model_name_or_path: 'rows.jsonl' is a file; use the directory of a model", {"model_name_or_path": "rows.jsonl"}),
    "an empty directory": Case("model_name_or_path: 'given' does not load .*; use", {"model_name_or_path": "given"}, files={"given": None}),
    "no configuration": Case("does not load .*model.*; use", model=lambda place: (place / "config.json").unlink()),
    "configuration cut off": Case("does not load .*; use", model=put("config.json", '{"model_type":')),
    "configuration empty": Case("does not load .*; use", model=put("config.json", "")),
    "configuration of bytes": Case("does not load .*; use", model=put("config.json", b"\xff\xfe")),
    "configuration a list": Case("does not load .*; use", model=put("config.json", "[]")),
    "configuration of nothing": Case("does not load .*model_type.*; use", model=put("config.json", "{}")),
    "configuration of a wrong type": Case("does not load .*hidden_size.*expected int.*; use", model=config(hidden_size="wide")),
    "unknown architecture": Case("does not load .*`nonsense`.*; use", model=config(model_type="nonsense")),
    "BERT": Case("model_name_or_path: .* is a masked LM .bert.; GRPO needs a causal LM", model=config(model_type="bert")),
    "T5": Case("model: .* is no causal language model: .*T5Config.*; give another model", model=put("config.json", '{"model_type": "t5", "num_layers": 1}')),
    "unknown activation": Case("model: .*'nonsense'.*; give another model", model=config(hidden_act="nonsense")),
    "no attention heads": Case("model: .*; give another model", model=config(num_attention_heads=0)),
    "code of its own": Case("does not load .*custom code.*; use", model=config(model_type="mine", auto_map={"AutoConfig": "x.Y"})),
    "no weights": Case("does not load .no weights: no model.safetensors.*; use", model=lambda place: (place / "model.safetensors").unlink()),
    "weights under another name": Case("does not load .no weights.*; use", model=lambda place: (place / "model.safetensors").rename(place / "training_args.bin")),
    "weights cut off": Case("does not load .model.safetensors: .*; download it again", model=cut("model.safetensors")),
    "weights empty": Case("does not load .model.safetensors: .*; download it again", model=put("model.safetensors", b"")),
    "weights as git-lfs has them": Case("does not load .model.safetensors: .*; download it again", model=put("model.safetensors", "version https://git-lfs.github.com/spec/v1\n")),
    "weights a directory": Case("does not load .model.safetensors: .*; download it again", model=lambda place: ((place / "model.safetensors").unlink(), (place / "model.safetensors").mkdir())),
    "weights pickled, of text": Case("does not load .*; use", model=lambda place: ((place / "model.safetensors").unlink(), put("pytorch_model.bin", "hello")(place)), loads=True),
    "shard missing": Case("does not load .model-00002-of-00002.safetensors: it is missing.; download it again", model=sharded),
    "shards of an empty index": Case("does not load .*weight_map", model=lambda place: (sharded(place), put("model.safetensors.index.json", "{}")(place))),
    "shards of a broken index": Case("does not load .*; use", model=lambda place: (sharded(place), put("model.safetensors.index.json", "{")(place))),
    "weights of another shape": Case("does not load .its weights have other shapes than its config.json says.; use", model=config(hidden_size=64), loads=True),
    "weights of another architecture": Case("lacks .* of the weights that its config.json asks for .*transformer.*; download it again", model=put("config.json", '{"model_type": "gpt2", "vocab_size": 512, "n_embd": 48, "n_layer": 2, "n_head": 4}'), loads=True),
    "a layer missing": Case("lacks 12 of the weights .*layers.1.*; download it again", model=weights(lambda given: {key: value for key, value in given.items() if "layers.1" not in key}), loads=True),
    "weights not finite": Case("are not finite .model.embed_tokens.weight.; use", model=weights(lambda given: {key: value * float("nan") for key, value in given.items()}), loads=True),
    "no tokenizer": Case("has no tokenizer files .*; add the model's own", model=lambda place: [(place / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")]),
    "tokenizer.json missing": Case("has no tokenizer files .*; add", model=lambda place: (place / "tokenizer.json").unlink()),
    "tokenizer empty": Case("does not load .*; use", model=put("tokenizer.json", "")),
    "tokenizer of nothing": Case("does not load .*added_tokens.*; use", model=put("tokenizer.json", "{}")),
    "tokenizer's settings broken": Case("does not load .*; use", model=put("tokenizer_config.json", "{")),
    "tokenizer's settings a list": Case("does not load .*; use", model=put("tokenizer_config.json", "[]")),
    "no pad and no end token": Case("the tokenizer of .* has no end token.*; set eos_token in its tokenizer_config.json", model=put("tokenizer_config.json", '{"eos_token": null, "pad_token": null}')),
    "another model's tokenizer": Case("vocabulary: the tokenizer gives token .*, the model knows 300; give the tokenizer that belongs", model=config(vocab_size=300)),
    "template with a syntax error": Case("the chat template of .* refuses .*; fix its chat_template.jinja", model=put("chat_template.jinja", "{% for %}")),
    "template without a system role": Case("chat template .*System role not supported.*; fix", model=put("chat_template.jinja", "{{ raise_exception('System role not supported') }}")),
    "template that raises": Case("chat template .*division by zero.*; fix", model=put("chat_template.jinja", "{{ 1 / 0 }}")),
    "template without the question": Case("chat template .* leaves the question out; fix", model=put("chat_template.jinja", "Hello!")),
    "template empty": Case("chat template .* leaves the question out; fix", model=put("chat_template.jinja", "")),
    "template asked for and missing": Case("use_chat_template: .* has no chat template; use an instruct model", {"use_chat_template": "true"}, model=lambda place: (place / "chat_template.jinja").unlink()),
    "adapter without its model": Case("the directory '/no/model' does not exist", model=adapter(b"", base_model_name_or_path="/no/model")),
    "adapter that names no model": Case("is an adapter that names no model; set base_model_name_or_path", model=adapter(b"", base_model_name_or_path=None)),
    "adapter of an unknown kind": Case("does not load .*NONSENSE.*; use", model=adapter(b"", peft_type="NONSENSE")),
    "adapter's settings broken": Case("does not load .*; use", model=put("adapter_config.json", "{")),
    "adapter without weights": Case("does not load .no weights: no adapter_model.safetensors.*; use", model=adapter()),
    "adapter's weights cut off": Case("does not load .adapter_model.safetensors: .*; download it again", model=adapter(b"\0" * 50)),
}  # fmt: skip


ENVIRONMENT = {
    "output_dir a file": Case("output_dir: 'rows.jsonl' cannot be written .*in the way", {"output_dir": "rows.jsonl"}),
    "output_dir inside a file": Case("output_dir: 'rows.jsonl/run' cannot be written .*in the way", {"output_dir": "rows.jsonl/run"}),
    "output_dir a device": Case("output_dir: '/dev/null/run' cannot be written .*in the way", {"output_dir": "/dev/null/run"}, marks=(linux,)),
    "output_dir on no disk": Case("disk: .*0.0 MB free in /proc; free some room", {"output_dir": "/proc/run"}, marks=(linux,)),
    "output_dir with a NUL": recipe('output_dir: "a\\0b"', r"output_dir: 'a\\x00b' holds a NUL.*; leave it out"),
    "output_dir too long": Case("output_dir: 'x{300}' .*; give a shorter", {"output_dir": "x" * 300}),
    "output_dir a link to nothing": Case("output_dir: 'given' .*; give another", {"output_dir": "given"}, files={"given": lambda path: path.symlink_to("gone/run")}),
    "output_dir holds a run": Case("output_dir: 'run' already holds a run; go on with it .--resume_from_checkpoint auto., give another name, or replace it", files={"run/run.json": "{}", "run/metrics.jsonl": "precious"}),
    "output_dir holds a checkpoint": Case("output_dir: 'run' already holds a run; go on", files={"run/checkpoint-5/model.safetensors": "precious"}),
    "checkpoint that is none": Case("resume_from_checkpoint: 'run' holds no complete checkpoint .*--overwrite_run true", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/x": "precious"}),
    "checkpoint of an odd name": Case("resume_from_checkpoint: 'run' holds no checkpoint", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-last/trainer_state.json": "{}"}),
    "checkpoint cut off": Case("resume_from_checkpoint: 'run' holds no complete checkpoint .*checkpoint-5: .*--overwrite_run true", {"resume_from_checkpoint": "auto"}, files={"run/checkpoint-5/trainer_state.json": "{"}),
    "the model to start from": Case("overwrite_run: 'model' holds the model to start from; give another name", {"output_dir": "model", "overwrite_run": "true"}, model=put("run.json", "{}")),
    "tracker not installed": given("--report_to", "swanlab", says="report_to: swanlab is not installed; pip install swanlab, or give --report_to none", patch=not_installed("swanlab")),
    "kernels not installed": given("--use_liger_kernel", "true", says="use_liger_kernel: liger_kernel is not installed; pip install liger-kernel, or drop it", patch=not_installed("liger_kernel")),
    "tracker's key": given("--report_to", "wandb", says="report_to: W&B refuses its key .*; wandb login, or --report_to none", environment={"WANDB_API_KEY": "short"}),
    "what only TRL refuses, in new directories": Case("push_to_hub: the Hub does not take .*; give", {"log_completions_hub_repo": "a/b", "output_dir": "a/b/c"}, loads=True),
    "Hub without a login": given("--push_to_hub", "true", says="push_to_hub: the Hub does not take the model .*; hf auth login", environment={"HF_TOKEN": ""}),
    "number of processes": Case("WORLD_SIZE: 'two' in the environment is no number of processes; unset it, or use torchrun", environment={"WORLD_SIZE": "two"}),
    "no processes": Case("WORLD_SIZE: '0' in the environment is no number of processes; unset it", environment={"WORLD_SIZE": "0"}),
    "processes without a launcher": Case("WORLD_SIZE: 2 in the environment, but no launcher; start with torchrun, or unset it", environment={"WORLD_SIZE": "2"}),
    "number of a process": Case("LOCAL_RANK: '' in the environment is no number of processes; unset it", environment={"LOCAL_RANK": ""}),
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
def test_a_mistake_is_one_line_with_the_remedy_and_leaves_all_as_it_was(case, prepare, monkeypatch, capfd):
    argv = prepare(case)
    if case.patch:
        case.patch(monkeypatch)
    if not case.loads:
        monkeypatch.setattr(loading, "load", lambda config: pytest.fail("nothing was found before the weights"))
    before = tree()
    assert train_grpo.main(argv) == 2
    assert re.search(case.says, line := the_error(capfd.readouterr().err)), line
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
    "no GPU": Case("no CUDA GPU is visible, .*python train_grpo.py --config recipes/demo.yaml.*--use_cpu true", {"use_cpu": "false"}),
    "unknown flag": MISTAKES["setting: unknown flag"],
    "missing file": MISTAKES["file: missing csv"],
    "recipe with a key twice": MISTAKES["recipe: key twice"],
    "directory as a file": MISTAKES["file: directory as file"],
    "dataset not to be read": Case("'given.jsonl' cannot be read: Permission denied; give another path, or make", {"dataset_name": "given.jsonl"}, files=forbidden("given.jsonl", 0o000, ROW), marks=(linux,)),
    "run not to be written": Case("output_dir: 'given/run' cannot be written .*/given' is in the way", {"output_dir": "given/run"}, files=forbidden("given", 0o555, None), marks=(linux,)),
    "model not to be read": Case("model_name_or_path: '.*/model' does not load .*config.json", model=lambda place: (place / "config.json").chmod(0), marks=(linux,)),
    "weights cut off": MISTAKES["model: weights cut off"],
    "weights of another shape": MISTAKES["model: weights of another shape"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(COMMANDS))
def test_as_a_command(case, prepare):
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
    assert re.search(case.says, line := the_error(done.stderr)), line
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
    "recipe with a name like a date": Read(recipe("run_name: 2024-13-45\n", ""), 40, settings={"run_name": "2024-13-45"}),
    "recipe with one reward as a text": Read(recipe("reward_funcs: correctness_reward_func\n", ""), 40, settings={"reward_funcs": ["correctness_reward_func"]}),
    "no system prompt": Read(given("--system_prompt", "", says=""), 40, settings={"system_prompt": ""}),
    "no chat template": Read(Case(model=lambda place: (place / "chat_template.jinja").unlink()), 40, shown="as plain text, 0 worked examples"),
    "no pad token": Read(Case(model=put("tokenizer_config.json", '{"eos_token": "<|im_end|>", "pad_token": null}')), 40),
    "an earlier run's broken record": Read(Case(model=put("run.json", "{")), 40, shown="is no record of a run"),
    "several trackers with a space": Read(given("--report_to", "tensorboard, trackio", says=""), 40, settings={"report_to": ["tensorboard", "trackio"]}),
    "a rank of an old launcher": Read(Case(environment={"LOCAL_RANK": "-1"}), 40),
}  # fmt: skip


@pytest.mark.parametrize("read", [pytest.param(read, id=name) for name, read in ODD.items()])
def test_odd_input_is_read_rightly_and_what_is_dropped_is_said(read, prepare, monkeypatch, capfd):
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
