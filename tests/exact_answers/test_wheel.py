"""exact_answers/ as a package: its wheel holds nothing else, asks for what it imports, and works without torch."""

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, version

import pytest
from helpers_runs import ROOT
from helpers_wheels import install
from packaging.requirements import Requirement

HERE = ROOT / "exact_answers"
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_page_and_its_cases(wheels):
    names = {name for name in zipfile.ZipFile(wheels["exact_answers"]).namelist() if ".dist-info/" not in name}
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
def test_an_empty_environment_grades_a_file(wheels, tmp_path):
    """Nothing is installed there but the wheel and mpmath."""
    mpmath = distribution("mpmath").locate_file("mpmath")
    python, site = install(tmp_path / "environment", wheels["exact_answers"])
    shutil.copytree(mpmath, site / "mpmath", ignore=shutil.ignore_patterns("tests"))
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "So it is $2\\\\sqrt{2}$.", "gold": "\\\\sqrt{8}"}\n{"text": "7", "gold": "8"}'
    )
    for command, words in (
        (["-m", "exact_answers", "rows.jsonl"], "right: 1 of 2 (50.0%)"),
        (["-c", "import exact_answers, sys; print(exact_answers.__file__, 'torch' in sys.modules)"], f"{site}"),
        (["-c", "import torch"], "No module named 'torch'"),
    ):
        done = subprocess.run([python, "-E", *command], cwd=tmp_path, capture_output=True, text=True)
        assert words in done.stdout + done.stderr
