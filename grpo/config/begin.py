"""Handle --version, unknown flags and Unsloth before importing the slow libraries; then import them."""

import importlib
import sys
from collections.abc import Sequence

from grpo.config import help
from grpo.core import ending
from grpo.policy import unsloth

SLOW = ("grpo.config.preflight", "grpo.evaluation.before_after", "grpo.training.setup")


def begin(argv: Sequence[str]) -> None:
    """Call this first in a script; it may end the process.

    A missing package is one line here, and so is Ctrl-C while the libraries are imported.
    """
    answered = False

    def run() -> int:
        nonlocal answered
        answered = help.answer_at_once(argv)
        if not answered:
            unsloth.import_if_asked(argv)
            for module in SLOW:
                importlib.import_module(module)
        return 0

    status = ending.status_of(run)
    if answered or status:
        sys.exit(status)
