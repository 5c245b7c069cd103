"""What is known of a setting is one line of grpo/core/settings.py, which all that judges it asks."""

import ast
import dataclasses
import functools
import inspect
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from helpers_runs import ROOT
from helpers_tables import each
from packaging.version import Version
from trl import GRPOConfig, ModelConfig
from trl.trainer import grpo_trainer

from grpo.config.parsing import Parser
from grpo.core.settings import SETTINGS, UNSET, about

PARSER = Parser()
DEFAULTS = PARSER.defaults
FIELDS = {field.name: field for owner in (GRPOConfig, ModelConfig) for field in dataclasses.fields(owner)}
# Lines of settings that the lowest transformers does not have
NEW = {"activation_checkpointing", "activation_checkpointing_kwargs"}
NEW = NEW if Version(transformers.__version__) < Version("5.23") else set()
OURS = (
    '    max_words: int = _setting(50, "Words of an answer, at most.", AT_LEAST_1, '
    'change=CHECKPOINT, aliases=("words",))'
)
TRLS = (
    '    "entropy_coef": Setting(range=AT_LEAST_0, change=NOTHING, is_seed=True, on_cpu=0.5, fixed=(0.5, "it hurts")),'
)
PROGRAM = """
import contextlib, io, json, shutil
from pathlib import Path
from grpo.config.configure import configure, merge
from grpo.core.errors import UserError
from grpo.core.processes import UNSHARDED
from grpo.core.settings import makes_another_experiment
from grpo.runs import checkpoints, resume
import train_grpo

def error(function, *given):
    try:
        return str(function(*given) and "")
    except UserError as caught:
        return str(caught)

def shown(function, *given):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        function(*given)
    return " ".join(out.getvalue().split())

def given(flags):
    return configure(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", *flags.split()])

def resumed(key, then, now):
    checkpoint = Path("checkpoint-1")
    checkpoint.mkdir(exist_ok=True)
    checkpoints.seal(checkpoint, 1, settings={key: then})
    facts = {"settings": {key: now}, "sources": {}, "sharding": UNSHARDED}
    notes = lambda: resume.note_changes(checkpoint, facts, 1)
    return error(lambda: [note.finding for note in notes()])

print(json.dumps({
    "help": shown(merge, train_grpo.HYPERPARAMETERS, ["--help_all"]),
    "default": given("").script.max_words,
    "on_cpu": given("").training.entropy_coef,
    "range": [error(given, "--max_words 0"), error(given, "--entropy_coef -1")],
    "fixed": error(given, "--entropy_coef 2"),
    "alias": error(given, "--words 3"),
    "resume": [resumed("max_words", 50, 60), resumed("entropy_coef", 0.5, 0.6)],
    "compare": [makes_another_experiment(key) for key in ("max_words", "entropy_coef")],
}))
"""


@pytest.mark.slow
def test_a_setting_is_added_in_one_line(tmp_path):
    for name in ("lean_grpo", "exact_answers", "recipes", "rewards.py", "train_grpo.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "grpo", tmp_path / "grpo", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "grpo/core/settings.py"
    text = path.read_text(encoding="utf-8")
    for place, line in (("    # The run\n", OURS), ("    # The loss\n", TRLS)):
        assert text.count(place) == 1
        text = text.replace(place, f"{place}{line}\n")
    text = re.sub(r' *"entropy_coef": Setting.range=ANY.*\n', "", text)  # the line of today
    path.write_text(text, encoding="utf-8")
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "--max_words" in found["help"] and "Words of an answer, at most." in found["help"]
    assert (found["default"], found["on_cpu"]) == (50, 0.5)
    assert found["range"][0].startswith("max_words: 0 is out of range; use a number at least 1")
    assert found["range"][1].startswith("entropy_coef: -1.0 is out of range; use a number at least 0")
    assert found["fixed"].startswith("entropy_coef: it hurts; drop it")
    assert "did you mean max_words?" in found["alias"]
    assert found["resume"][0].startswith("max_words: 60 instead of the 50 of") and found["resume"][1] == "[]"
    assert found["compare"] == [True, False]


def test_every_line_is_of_a_setting_that_exists():
    known = PARSER.settings
    assert SETTINGS.keys() - NEW <= known.keys()
    aliases = [alias for row in SETTINGS.values() for alias in row.aliases]
    assert len(aliases) == len(set(aliases)) and not known.keys() & set(aliases)


def test_every_setting_of_trl_has_a_line():
    """A setting that a new TRL brings needs one: its range or choices, what it needs, what another value means.

    No line speaks for several, so that none is taken for known by the beginning of its name.
    """
    without = [name for name in FIELDS if name not in SETTINGS]
    assert not without, f"add a line of TRL_SETTINGS for {', '.join(without)}"


def test_every_number_of_trl_has_a_range():
    """Or it is fixed, or a list."""
    numbers = [name for name, field in FIELDS.items() if re.search(r"\b(int|float)\b", str(field.type))]
    assert len(numbers) > 60
    assert [name for name in numbers if not (about(name).range or about(name).fixed)] == ["reward_weights"]


@functools.cache
def comparisons():
    return [node for node in ast.walk(ast.parse(inspect.getsource(grpo_trainer))) if isinstance(node, ast.Compare)]


@each((key, known) for key, known in SETTINGS.items() if known.choices)
def test_choices_are_those_that_trl_knows(key, known):
    """They stand in its code, compared with the setting, or in its help."""
    compared = {
        constant.value
        for node in comparisons()
        if getattr(node.left, "attr", "") == key
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant)
    }
    told = set(re.findall(r"['\"`](\w+)['\"`]", FIELDS[key].metadata["help"]))
    if key == "torch_compile_mode":  # of which newer versions of torch have more
        assert set(torch._inductor.list_mode_options()) <= set(known.choices)
        return
    assert set(known.choices) in (compared, told) or compared < set(known.choices) <= told, (compared, told)


@each((key, need) for key, known in SETTINGS.items() for need in known.needs)
def test_the_remedy_meets_the_need(key, need):
    """And its settings exist."""
    settings = DEFAULTS | PARSER.flags(need.remedy.partition(" (")[0].split())[0]
    assert need.holds(settings)


@each(name for name in DEFAULTS if about(name).range or about(name).choices)
def test_defaults_are_in_range(name):
    known, default = about(name), DEFAULTS[name]
    if known.range and isinstance(default, int | float):
        assert known.range.contains(default)
    assert not known.choices or default is None or default in known.choices
    assert known.default is UNSET or known.default == default


def test_the_seed_alone_may_differ_between_runs_of_one_experiment():
    """TRL draws nothing by `data_seed`, so two of them are one run twice."""
    assert [name for name, known in SETTINGS.items() if known.is_seed] == ["seed"]


def test_what_is_fixed_is_the_default():
    """But `do_train`, which TRL does not read."""
    fixed = {name: known.fixed[0] for name, known in SETTINGS.items() if known.fixed}
    defaults = {name: DEFAULTS[name] or None for name in fixed}
    assert defaults.pop("include_num_input_tokens_seen") == "no" and not fixed.pop("include_num_input_tokens_seen")
    assert {name for name in fixed if (fixed[name] or None) != defaults[name]} == {"do_train"}
