"""What ends a run with one readable line instead of a traceback."""

from grpo.core.redaction import mask, printable


class UserError(Exception):
    """A mistake of the user's, in one readable line that names the value and the remedy (exit status 2).

    It may quote what a user, a file or a library has said: secrets are masked, and what steers a terminal is escaped.
    """

    def __init__(self, message: str) -> None:
        lines = " ".join(line.strip() for line in message.splitlines())  # libraries' reasons have many lines
        super().__init__(printable(mask(lines)))


class Interrupted(KeyboardInterrupt):
    """A signal came while nothing was being trained, so that there was nothing to finish first.

    Args:
        message: follows "Interrupted".
        status: the exit status that names the signal.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Gone(UserError):
    """Another process of this run has ended, or does not answer; no bug of this one, and waiting would not help."""
