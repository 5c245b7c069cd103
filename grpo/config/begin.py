"""The start of a command: help and version at once, then Unsloth and the slow libraries."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.core import versions
from grpo.core.errors import run_main
from grpo.policy import unsloth

SLOW = ("grpo.config.preflight", "grpo.evaluation.before_after", "grpo.training.setup")


def begin(argv: Sequence[str], script: str) -> None:
    """Call this first in a script; it may end the process.

    A missing package is one line here, and so is Ctrl-C while the libraries are imported.

    Args:
        argv: the command line without the program's name.
        script: the file whose docstring and HYPERPARAMETERS are the help.
    """
    answered = False

    def run() -> int:
        nonlocal answered
        answered = answer(argv, script)
        if not answered:
            unsloth.import_if_asked(argv)
            for module in SLOW:
                importlib.import_module(module)
        return 0

    status = run_main(run)
    if answered or status:
        sys.exit(status)


def answer(argv: Sequence[str], script: str) -> bool:
    """Print the version or the help, if that is asked for; whether it was."""
    if "--version" in argv:
        print(versions.line())
    elif "--help" in argv or "-h" in argv:
        print(help_of(Path(script)))
    else:
        return False
    return True


def help_of(script: Path) -> str:
    """The script's docstring and its HYPERPARAMETERS as they are written there, with their comments."""
    source = script.read_text(encoding="utf-8")
    tree = ast.parse(source)
    block = next(
        node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "HYPERPARAMETERS"
    )
    lines = source.splitlines()[block.lineno : (block.end_lineno or 0) - 1]
    settings = "\n".join(line.removeprefix("    ") for line in lines)
    intro, end = "Settings, as --flag value:", "--help_all lists every other setting."
    return "\n\n".join([ast.get_docstring(tree) or "", intro, settings, end])
