"""A run directory holds the code that ran: script, rewards, the user's own files, recipe."""

import functools
import importlib
import sys
from pathlib import Path

import pytest
from helpers_runs import ROOT
from trl.rewards import think_format_reward

import rewards
import train_grpo
from grpo.runs import source


@pytest.fixture
def own(monkeypatch):
    """A user's module whose reward uses another file of the user's."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("my_helpers.py").write_text("def worth(text):\n    return 1.0\n")
    Path("my_dates.py").write_text(
        "import json\nfrom my_helpers import worth\n\nlower = str.lower\n\n\n"
        "def date(completions, *, scale=1.0, **kwargs):\n    # why\n"
        "    return [scale * worth(text) for text in completions]\n\n\n"
        "class Longer:\n    def __call__(self, completions, **kwargs):\n        return [0.0]\n"
    )
    yield importlib.import_module("my_dates")
    for name in ("my_dates", "my_helpers"):
        sys.modules.pop(name)


def test_the_code_is_that_of_the_users_functions(own):
    functions = {"date": functools.partial(own.date, scale=2.0), "longer": own.Longer(), "trl": think_format_reward}
    code = source.code_of(functions | {"int": rewards.int_reward_func})
    assert list(code) == ["date", "longer", "int"]
    assert code["date"].startswith("def date(completions") and "# why" in code["date"]
    assert code["longer"].startswith("class Longer:") and code["int"].startswith("def int_reward_func")


def test_files_are_the_script_its_own_imports_and_the_recipe(own):
    Path("mine.yaml").write_text("seed: 1\n")
    files = source.read_files(Path(train_grpo.__file__), [own.date, think_format_reward], Path("mine.yaml"))
    assert set(files) == {"train_grpo.py", "rewards.py", "my_dates.py", "my_helpers.py", "mine.yaml"}
    assert files["train_grpo.py"] == (ROOT / "train_grpo.py").read_bytes() and files["mine.yaml"] == b"seed: 1\n"


def test_a_library_in_a_folder_of_its_own_is_not_copied(own, tmp_path_factory, monkeypatch):
    """As `pip install --editable` leaves it."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "their_library.py").write_text("def helps(): ...\n")
    monkeypatch.syspath_prepend(str(folder))
    own.helps = importlib.import_module("their_library").helps
    assert "their_library.py" not in source.read_files(Path("my_dates.py"), [own.date], None)


def test_a_notebook_has_no_script():
    assert set(source.read_files(Path("notebook"), [], None)) == {"rewards.py"}
