"""Write, replace and remove files of a run: whole or not at all, and never through a link.

A process may be killed at any moment, so a file is replaced as a whole. A run's directory may come from somebody else,
so a name in it may be a link to any file of the user's: it is replaced or refused, never followed.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

NO_LINK = os.O_CLOEXEC | os.O_NOFOLLOW


def part_of(path: Path) -> Path:
    """Return the name under which a file or directory is written before it replaces `path`."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` at the end, atomically: `path` has either all of it or its old content."""
    part = part_of(path)
    remove(part)  # left by a kill
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # cut short by a full disk
    flush(path.parent)


@contextlib.contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read it and to append to it."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | NO_LINK, 0o666), "ab+") as file:
        yield file


def remove(path: Path) -> None:
    """Remove a file, a link or a whole directory, if it exists; of a link never what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the disk holds a file or a directory's list of files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot do this for directories
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
