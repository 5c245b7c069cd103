"""The wheel: its packages and files, what it asks for; lean_grpo/ alone trains a plain TRL script with it."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers_runs import DEMO, ROOT
from helpers_wheels import install
from packaging.requirements import Requirement

PACKAGES = ("lean_grpo", "grpo")
SCRIPT = """
import sys
import lean_grpo
from datasets import load_dataset
from lean_grpo import LeanGRPOTrainer
from trl import GRPOConfig

def short(completion_ids, **kwargs):
    return [-float(len(ids)) for ids in completion_ids]

model, data = sys.argv[1:]
rows = load_dataset("json", data_files=data, split="train").rename_column("question", "prompt")
args = GRPOConfig("out", num_generations=4, max_completion_length=32, max_steps=2, use_cpu=True, report_to="none")
trainer = LeanGRPOTrainer(model, short, args=args, train_dataset=rows)
before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
trainer.train()
assert trainer.state.global_step == 2 and trainer.kernel is not None
assert any((before[name] != weight).any() for name, weight in trainer.model.named_parameters())
assert not {"grpo", "rewards", "train_grpo"} & sys.modules.keys()
print("trained by", lean_grpo.__file__)
"""


@pytest.mark.slow
def test_it_holds_the_packages_and_the_files_of_the_script(wheels):
    kinds = ("*.py", "py.typed", "README.md", "templates/*")
    packages = {path.relative_to(ROOT) for name in PACKAGES for kind in kinds for path in (ROOT / name).rglob(kind)}
    patterns = ("*.py", "recipes/*", "examples/*.*", "assets/*/*.jsonl", "assets/*/model/*", "launch/*", "docs/*")
    files = {path for pattern in (*patterns, "requirements*.txt") for path in ROOT.glob(pattern)}
    files = {Path("grpo/files") / path.relative_to(ROOT) for path in files}
    names = {Path(name) for name in zipfile.ZipFile(wheels["lean_grpo"]).namelist()}
    assert {name for name in names if "dist-info" not in name.parts[0]} == packages | files


def test_every_wing_is_in_the_wheel():
    names = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    wings = {path.parent.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("__init__.py")}
    assert sorted(names) == sorted([*(".".join(wing.parts) for wing in wings), "grpo.files"])


@pytest.mark.slow
def test_it_asks_for_what_it_imports_in_ranges_that_hold_here(wheels):
    archive = zipfile.ZipFile(wheels["lean_grpo"])
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    asked = message_from_string(archive.read(name).decode()).get_all("Requires-Dist")
    asked = {one.name: one.specifier for one in map(Requirement, asked) if one.marker is None}
    imported = set()
    for path in (ROOT / "lean_grpo").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    optional = {"flash_attn"}
    assert asked.keys() == imported - sys.stdlib_module_names - optional - {"lean_grpo"}
    for package, range_ in asked.items():
        assert re.search("[<>]", str(range_)) and range_.contains(version(package), prereleases=True), package


def test_uv_and_pip_install_the_same_for_the_script():
    """pyproject.toml names for uv and for a wheel what requirements.txt names for pip in a clone, and later torch.

    A clone has exact_answers/ itself, and needs what that asks for.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for_pip = [line.partition("#")[0].strip() for line in lines]
    extra = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["script"]]
    extra, for_pip = (
        {one.name: one.specifier for one in map(Requirement, filter(None, those))} for those in (extra, for_pip)
    )
    judge = tomllib.loads((ROOT / "exact_answers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra.pop(judge["name"]).contains(judge["version"])
    extra |= {one.name: one.specifier for one in map(Requirement, judge["dependencies"])}
    clones, wheels = for_pip.pop("torch"), extra.pop("torch")
    assert extra == for_pip
    versions = [f"2.{minor}.0" for minor in range(30)]
    assert set(clones.filter(versions)) < set(wheels.filter(versions))
    assert project["dependency-groups"] == {"script": ["lean-grpo[script]"]}  # uv's
    assert (ROOT / project["tool"]["uv"]["sources"][judge["name"]]["path"]).samefile(ROOT / "exact_answers")


@pytest.mark.slow
def test_a_plain_trl_script_trains_with_it(wheels, tmp_path):
    """The environment has the libraries of this one, and nothing of this repository but the wheel."""
    python, site = install(tmp_path / "environment", wheels["lean_grpo"], with_libraries=True)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [python, "-E", "script.py", DEMO / "model", DEMO / "train.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"trained by {site / 'lean_grpo'}" in done.stdout and "Training step: packs of 2,048 tokens" in done.stdout
