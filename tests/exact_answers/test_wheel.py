"""exact_answers/ as a package: its wheel holds nothing else, asks for what it imports, and works without torch."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import version

import pytest
from helpers_runs import ROOT
from packaging.requirements import Requirement

HERE = ROOT / "exact_answers"
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `pip install ./exact_answers` builds, from a copy of the folder."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(HERE, place / "exact_answers", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "-w", place, place / "exact_answers"], check=True)
    return next(place.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_page_and_its_cases(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {f"exact_answers/{path.name}" for path in HERE.glob("*.py")}
    assert names == modules | {f"exact_answers/{name}" for name in ("README.md", "cases.txt", "py.typed")}


def test_it_asks_for_what_it_imports_and_mpmath_is_here():
    imported = set()
    for path in HERE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    asked = {one.name: one.specifier for one in map(Requirement, PROJECT["dependencies"])}
    optional = {"math_verify"}  # for the comparison of the command
    assert asked.keys() == imported - sys.stdlib_module_names - optional - {"exact_answers"}
    assert all(range_.contains(version(name)) for name, range_ in asked.items())


@pytest.mark.slow
def test_an_empty_environment_grades_a_file(wheel, tmp_path):
    """Nothing is installed there but the wheel and mpmath."""
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment" / "bin" / "python"
    import mpmath

    site = next((tmp_path / "environment" / "lib").glob("python*/site-packages"))
    shutil.copytree(os.path.dirname(mpmath.__file__), site / "mpmath", ignore=shutil.ignore_patterns("tests"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "So it is $2\\\\sqrt{2}$.", "gold": "\\\\sqrt{8}"}\n{"text": "7", "gold": "8"}'
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command, words in (
        (["-m", "exact_answers", "rows.jsonl"], "right: 1 of 2 (50.0%)"),
        (["-c", "import exact_answers, sys; print(exact_answers.__file__, 'torch' in sys.modules)"], f"{site}"),
        (["-c", "import torch"], "No module named 'torch'"),
    ):
        done = subprocess.run([python, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert words in done.stdout + done.stderr
