"""The disk: whether a run has room, and what is said and left when it fills up in the middle of one."""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.core.errors import UserError
from grpo.core.processes import on_each
from grpo.runs import checkpoints
from grpo.runs.record import resume_command

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What safetensors (in Rust) and PyTorch's archives (in C++) say of the same
MESSAGES = re.compile(r"No space left|os error (28|122|27)\b|quota exceeded|StreamWriter failed|unexpected pos \d+ vs")


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or one that it came from, says that there was no room on the disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if MESSAGES.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def readable_errors(output: Path, argv: list[str]) -> Iterator[None]:
    """A full disk as a UserError that says what is kept of the run in `output` and how it goes on."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        last, _ = checkpoints.newest(output)
        if last is None:
            kept, then = "no checkpoint was complete", "start again"
        else:
            kept, then = f"the last complete checkpoint is {last}", f"go on{on_each()}: {resume_command(output, argv)}"
        free = shutil.disk_usage(output).free
        raise UserError(
            f"output_dir: the disk of {str(output)!r} is full ({free / 1e6:,.1f} MB free); {kept}; free some room, or "
            f"lower save_total_limit, then {then}"
        ) from error
