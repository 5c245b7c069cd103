"""Shipped files are the clone's, or a wheel's; those of the user come first."""

from pathlib import Path

import pytest
from helpers_runs import ROOT

from grpo import core
from grpo.core import commands, errors, versions


@pytest.fixture
def installed(monkeypatch):
    """As if this were a wheel's package in a virtual environment."""
    site = Path("venv/lib/python3.11/site-packages").absolute()
    files = site / "grpo" / "files"
    files.mkdir(parents=True)
    for module in (commands, errors, versions):
        monkeypatch.setattr(module, "INSTALLED", True)
        monkeypatch.setattr(module, "ROOT", files)
    return site


def test_files_are_the_clones_or_the_wheels(installed):
    assert core.shipped_in(ROOT / "grpo") == ROOT == core.ROOT
    assert core.shipped_in(installed / "grpo") == installed / "grpo" / "files"


def test_files_are_found_here_beside_the_script_or_shipped(tmp_path):
    (tmp_path / "beside").mkdir()
    for name, folder in (("rewards.py", "."), ("train_grpo.py", "beside"), ("mine.py", "beside")):
        (tmp_path / folder / name).touch()
    names = ("rewards.py", "mine.py", "train_grpo.py", "recipes/demo.yaml", "none.py")
    found = [core.folder_of(name, tmp_path / "beside") for name in names]
    assert found == [tmp_path, tmp_path / "beside", tmp_path / "beside", ROOT, None]


def test_a_tool_of_a_wheel_runs_by_its_name(installed):
    for anywhere in (False, True):
        assert commands.tool("ask", "my run", anywhere=anywhere) == "python -m grpo ask 'my run'"
    assert commands.file("requirements-cuda.txt") == str(installed / "grpo/files/requirements-cuda.txt")


def test_a_wheel_has_no_commit(installed):
    """Though its virtual environment may be in somebody's repository."""
    assert versions.commit() is None


def test_shipped_rewards_and_examples_are_code_of_the_run(installed):
    assert not errors.is_of_a_library(str(installed / "grpo" / "files" / "examples" / "labels.py"))
    assert errors.is_of_a_library(str(installed / "grpo" / "core" / "text.py"))


def test_a_missing_package_is_installed_with_the_others(installed, capsys):
    names = {"ours": str(installed / "grpo" / "core" / "text.py"), "the user's": "/home/me/mine.py"}
    for whose, file in names.items():
        code = compile("import no_such_package", file, "exec")
        assert errors.run_main(lambda code=code: exec(code, {})) == 2
        command = 'pip install "lean-grpo[script]"' if whose == "ours" else "pip install no_such_package"
        assert capsys.readouterr().err.endswith(f"activate the virtual environment, or {command}\n")


def test_another_rewards_py_is_one_line(monkeypatch, capsys):
    with pytest.raises(ImportError) as found:
        exec("from rewards import no_such_reward", {})

    def run():
        raise found.value

    assert errors.run_main(run) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot import name 'no_such_reward' from 'rewards'" in line and line.endswith("or restore what it lacks")
