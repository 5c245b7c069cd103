"""A command's start: help and a missing package are answered before libraries are imported."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_runs import ROOT

import train_grpo


def python(*words, directory=ROOT, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=directory, env=environment)


def test_a_missing_package_is_one_line():
    """Run the script like a shell whose virtual environment is not active."""
    done = python("-S", "train_grpo.py", "--config", "demo")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "is not installed; activate the virtual environment" in line


def test_help_imports_no_library():
    done = python("-X", "importtime", "train_grpo.py", "--help")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0 and "grpo.config.begin" in imported and not imported & {"torch", "transformers"}
    assert "learning_rate=5e-6" in done.stdout


# A script that is interrupted at the import of this module
INTERRUPTED = """\
import runpy, sys
class Interrupt:
    def find_spec(name, *rest):
        if name == "{module}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
sys.argv = ["{script}", "--help"]
runpy.run_path("{script}", run_name="__main__")
"""


@pytest.mark.parametrize("script", ["train_grpo.py", "grpo/__main__.py"])
@pytest.mark.parametrize("module", ["grpo.core.versions", "grpo.core.errors", "grpo.core.out_of_memory"])
def test_ctrl_c_during_the_first_imports_is_one_line(script, module):
    done = python("-c", INTERRUPTED.format(script=script, module=module), PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (130, "Interrupted\n")


def test_a_run_under_an_ascii_terminal_shows_escapes(tiny_run, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert train_grpo.main(tiny_run(dry_run="true", eval_samples="4")) == 0
    sys.stdout.flush()
    assert rb"\xd7 2 generations" in written.getvalue() and written.getvalue().isascii()


def test_a_copied_script_without_its_packages_is_one_line():
    copied = shutil.copy(ROOT / "train_grpo.py", "mine.py")
    done = python(copied, directory=".")
    assert done.returncode == 2 and done.stdout == "" and [path.name for path in Path().iterdir()] == ["mine.py"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: grpo is neither installed nor beside this file; activate")
    assert "train_grpo.py " in python(copied, "--version", directory=".", PYTHONPATH=str(ROOT)).stdout


def test_a_mistake_in_a_scripts_own_lines_is_one_line():
    Path("mine.py").write_text("import grpo.core.unhandled\n\nrewards = [undefined_reward]\n")
    done = python("mine.py", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert done.stderr == "error: NameError: name 'undefined_reward' is not defined (mine.py:3)\n"


def test_a_bug_keeps_its_traceback():
    Path("mine.py").write_text("import grpo.core.unhandled\nfrom grpo.core import text\n\ntext.counted(None, 'row')\n")
    done = python("mine.py", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 1 and done.stderr.startswith("Traceback") and "TypeError" in done.stderr
    assert "unhandled" not in done.stderr
