"""grpo/policy/unsloth.py: when it is imported; Unsloth itself needs a GPU."""

import importlib.util
from pathlib import Path

import pytest
from helpers_runs import ROOT

import train_grpo
from grpo.core.errors import UserError
from grpo.policy import unsloth as unsloth_backend

RECIPE = str(ROOT / "recipes" / "unsloth.yaml")


@pytest.mark.parametrize(
    ("argv", "inline", "asked"),
    [
        ([], False, False),
        ([], True, True),
        (["--use_unsloth", "false"], True, False),
        (["--use_unsloth", "--seed", "3"], False, True),
        ([f"--config={RECIPE}"], False, True),
    ],
)
def test_it_is_imported_where_the_settings_ask_for_it(argv, inline, asked, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    inline = {"use_unsloth": inline}
    if asked:
        with pytest.raises(UserError, match=r"Unsloth is not installed; pip install -r requirements-unsloth\.txt"):
            unsloth_backend.import_if_asked(inline, argv)
    else:
        unsloth_backend.import_if_asked(inline, argv)


def test_without_it_the_recipe_is_one_line(capfd):
    assert importlib.util.find_spec("unsloth") is None
    assert train_grpo.main(["--config", RECIPE]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: use_unsloth: Unsloth is not installed") and list(Path.cwd().iterdir()) == []
