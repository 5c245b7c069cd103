"""A command's start: help and a missing package are answered before libraries are imported."""

import subprocess
import sys

from helpers_runs import ROOT


def python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)


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
