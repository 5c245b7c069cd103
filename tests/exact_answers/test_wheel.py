"""exact_answers/ as a package: its wheel holds nothing else, asks for what it imports, and works without torch."""

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from importlib.metadata import distribution, version

import pytest
from helpers_runs import ROOT
from helpers_wheels import install, pip
from packaging.requirements import Requirement

HERE = ROOT / "exact_answers"
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_page_and_its_cases(wheels):
    names = [*(path.name for path in HERE.glob("*.py")), "README.md", "cases.txt", "py.typed"]
    assert files_of(wheels["exact_answers"]) == {f"exact_answers/{name}" for name in names}


def files_of(wheel):
    """Files of a wheel, without those about the wheel itself."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.mark.slow
def test_both_wheels_own_no_file_together_and_the_script_asks_for_this_one(wheels):
    assert not files_of(wheels["exact_answers"]) & files_of(wheels["lean_grpo"])
    archive = zipfile.ZipFile(wheels["lean_grpo"])
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    asked = message_from_string(archive.read(name).decode()).get_all("Requires-Dist")
    (needed,) = [one for one in map(Requirement, asked) if one.name == PROJECT["name"]]
    assert needed.marker.evaluate({"extra": "script"}) and not needed.marker.evaluate({"extra": ""})
    assert needed.specifier.contains(PROJECT["version"])


@pytest.mark.slow
@pytest.mark.parametrize("removed", ["lean_grpo", "exact_answers"])
def test_uninstalling_one_leaves_the_other_whole(removed, wheels, tmp_path):
    python, site = install(tmp_path / "environment", *wheels.values())
    (kept,) = wheels.keys() - {removed}
    before = {name: (site / name).read_bytes() for name in files_of(wheels[kept])}
    assert all((site / name).exists() for name in files_of(wheels[removed]))
    pip(python, "uninstall", "--yes", removed.replace("_", "-"))
    assert not any((site / name).exists() for name in files_of(wheels[removed]))
    assert {name: (site / name).read_bytes() for name in files_of(wheels[kept])} == before


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
