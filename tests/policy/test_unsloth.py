"""grpo/policy/unsloth.py: where a flag or a recipe asks for Unsloth, it is imported before the libraries it patches.

Unsloth itself needs a GPU, and an environment of its own.
"""

import importlib.util
import os
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_runs import ROOT

import train_grpo
from grpo.core.errors import UserError
from grpo.policy import unsloth as unsloth_backend

pytestmark = pytest.mark.skipif(importlib.util.find_spec("unsloth") is not None, reason="tests that it is missing")
RECIPE = str(ROOT / "recipes" / "unsloth.yaml")


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        ([], False),
        (["--use_unsloth", "--seed", "3"], True),
        (["--use-unsloth=true"], True),
        (["--config", "demo"], False),
        (["--config", "unsloth"], True),
        (["--system_prompt", "write --use_unsloth here"], False),
        ([f"--config={RECIPE}"], True),
        (["--config", RECIPE, "--use_unsloth", "false"], False),
    ],
)
def test_it_is_imported_where_a_flag_or_a_recipe_asks_for_it(argv, asked, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    if asked:
        with pytest.raises(UserError, match=r"Unsloth cannot be imported .*requirements-unsloth\.txt"):
            unsloth_backend.import_if_asked(argv)
    else:
        unsloth_backend.import_if_asked(argv)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("1" if asked else "1,2")  # it uses one GPU


@pytest.mark.parametrize(("processes", "remedy"), [("1", "`import unsloth` first"), ("2", "without torchrun")])
def test_settings_that_ask_too_late_are_one_line(processes, remedy, monkeypatch, capfd):
    """`main` called by other code, or HYPERPARAMETERS: the libraries that it patches are there by now."""
    monkeypatch.setenv("WORLD_SIZE", processes)
    assert train_grpo.main(["--config", RECIPE]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: use_unsloth: ") and remedy in line and list(Path.cwd().iterdir()) == []


def test_the_command_says_that_it_is_missing():
    done = command(ROOT / "train_grpo.py", ["--config", "unsloth"])
    assert done.returncode == 2 and done.stderr.startswith("error: use_unsloth: Unsloth cannot be imported")
