"""Start a command: answer --help and --version at once, then import the slow libraries."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.core import versions
from grpo.core.errors import one_line, run_main
from grpo.core.processes import let_idle_threads_sleep
from grpo.core.requirements import check_environment

SLOW = ("grpo.preflight.preflight", "grpo.training.accuracy", "grpo.training.callbacks")


def begin(argv: Sequence[str], script: str) -> None:
    """Answer --help or --version and exit, or import the slow libraries. Call this first in a script.

    A missing package, one of another version, and Ctrl-C during the imports end in one line.
    """
    asked = {"--version", "--help", "-h"} & set(argv)
    status = run_main(lambda: _answer(asked, Path(script)) if asked else _import())
    if asked or status:
        sys.exit(status)


def _answer(asked: set[str], script: Path) -> int:
    print(versions.line() if "--version" in asked else help_of(script))
    return 0


def _import() -> int:
    check_environment()
    let_idle_threads_sleep()
    with one_line(kinds=(OSError,)):  # torch makes a cache's directory, and loads CUDA's libraries
        for module in SLOW:
            importlib.import_module(module)
    return 0


def help_of(script: Path) -> str:
    """Return the script's docstring and the source of its HYPERPARAMETERS, with their comments."""
    source = script.read_text(encoding="utf-8")
    tree = ast.parse(source)
    block = next(
        node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "HYPERPARAMETERS"
    )
    lines = source.splitlines()[block.lineno : (block.end_lineno or 0) - 1]
    settings = "\n".join(line.removeprefix("    ") for line in lines)
    intro, end = "Settings, as --flag value:", "--help_all lists every other setting."
    return "\n\n".join([ast.get_docstring(tree) or "", intro, settings, end])
