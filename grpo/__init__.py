"""What `train_grpo.py` stands on; each module does one thing."""

import os

from .masking import mask, printable


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


def is_first_process() -> bool:
    """Whether this is the first of a launcher's processes, or there is no launcher; known before torch is loaded."""
    return "LOCAL_RANK" not in os.environ or os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print once for all of a run's processes; accelerate's print does so once on every machine."""
    if is_first_process():
        print(text)
