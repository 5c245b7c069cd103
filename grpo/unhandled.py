"""End a script in one line if it fails outside of `run_main`: while it is imported, or in a line of its own.

Import this first in a program's own start: it replaces `sys.excepthook`. A mistake in the user's code has status 2,
Ctrl-C has 130; a bug keeps its traceback.
"""

import sys

from grpo.hidden import hiding

TYPE_CHECKING = False  # nothing is imported before the last lines
if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn


def _end(kind: type[BaseException], error: BaseException, trace: "TracebackType | None") -> None:
    def fail() -> "NoReturn":
        raise error

    if issubclass(kind, KeyboardInterrupt):  # at once: it may have come amid the import of what is below
        print("Interrupted", file=sys.stderr)
        sys.exit(130)
    if line := hiding(error):  # such as one that the import below needs
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    try:
        from grpo.core.errors import run_main

        status = run_main(fail)
    except BaseException:
        sys.__excepthook__(kind, error.with_traceback(trace), trace)
        return
    sys.exit(status)


sys.excepthook = _end
