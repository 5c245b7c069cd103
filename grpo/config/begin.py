"""The start of a command: what is answered before the libraries are imported, which take seconds, or patched."""

import sys
from collections.abc import Sequence

from grpo.config import help
from grpo.core import ending
from grpo.policy import unsloth


def begin(argv: Sequence[str]) -> None:
    """Answer `--version`, name a flag that does not exist, import Unsloth where it is asked for.

    A script calls this before it imports what needs torch, transformers or TRL; it may end the process.
    """
    answered = False

    def run() -> int:
        nonlocal answered
        answered = help.answer_at_once(argv)
        unsloth.import_if_asked(argv)
        return 0

    status = ending.status_of(run)
    if answered or status:
        sys.exit(status)
