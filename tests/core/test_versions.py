"""Versions: one release in every place that names it, and what `--version` says."""

import re
import tomllib
import zipfile
from importlib.metadata import version

import pytest
import yaml
from helpers_runs import ROOT

import grpo
from grpo.core import versions


def test_every_place_names_the_same_release():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    judge = tomllib.loads((ROOT / "exact_answers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, date = re.search(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", changes, re.MULTILINE).groups()
    assert grpo.__version__ == newest == citation["version"] == judge["version"]
    assert str(citation["date-released"]) == date


@pytest.mark.parametrize(
    ("commit", "source"),
    [
        ("a" * 40, " (commit aaaaaaaaaa)"),
        ("a" * 40 + "+", " (commit aaaaaaaaaa, with changes)"),
        (None, ""),
    ],
)
def test_the_line_has_the_release_the_commit_and_libraries(commit, source, monkeypatch):
    monkeypatch.setattr(versions, "commit", lambda: commit)
    assert versions.line().startswith(f"train_grpo.py {grpo.__version__}{source}; python 3.")
    assert f", torch {version('torch')}, " in versions.line()


@pytest.mark.slow
def test_both_wheels_have_the_release_and_the_license(wheels):
    assert wheels.keys() == {"lean_grpo", "exact_answers"}
    for name, wheel in wheels.items():
        release = f"{name}-{grpo.__version__}"
        assert wheel.name.startswith(f"{release}-py3-")
        license_text = zipfile.ZipFile(wheel).read(f"{release}.dist-info/licenses/LICENSE")
        assert license_text == (ROOT / "LICENSE").read_bytes()
