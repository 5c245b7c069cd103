"""Whose is a directory? Runs and tools ask here before they write: what they did not make stays as it is."""

import os
import re
from pathlib import Path

from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_value
from grpo.core.processes import LOCK
from grpo.core.text import human_bytes, listed
from grpo.core.writing import part_of

MERGED = "merged"  # the status in the record of a merged model
SAMPLES = "completions"  # TRL's folder of sampled completions, made before a run has its record
ROOM = 1e6  # bytes without which no run can begin


def is_run(directory: Path) -> bool:
    """True if a directory has the record of a run, or of a merged model, as a file of its own.

    Other programs write a run.json, too; ours has a status and the settings.
    """
    path = directory / "run.json"
    status, settings = read_value(path, "status"), read_value(path, "settings")
    is_ours = isinstance(status, str) and (isinstance(settings, dict) or status == MERGED)
    return is_ours and not path.is_symlink()


def step_of(directory: Path) -> int:
    """Return N of a `checkpoint-N`, its optimizer step; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", directory.name)
    return int(match[1]) if match else -1


def is_checkpoint(path: Path) -> bool:
    """True for a directory `checkpoint-N`; False for a link to one."""
    return step_of(path) >= 0 and path.is_dir() and not path.is_symlink()


def others_in(directory: Path) -> list[str]:
    """List the names that make a directory somebody else's.

    Returns:
        [] if it is a run, or contains only checkpoints and what a run leaves that ends before it has a record.
    """
    if not directory.is_dir() or is_run(directory):
        return []
    return sorted(path.name for path in directory.iterdir() if not (_is_of_a_start(path) or is_checkpoint(path)))


def _is_of_a_start(path: Path) -> bool:
    if path.name == SAMPLES:
        return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    return path.name in (LOCK, part_of(path.with_name("run.json")).name) and path.is_file()


def is_started(directory: Path) -> bool:
    """True if a directory contains nothing but what a run leaves that ends before it has a record."""
    return all(map(_is_of_a_start, directory.iterdir()))


def links_in(run: Path) -> list[str]:
    """List the links where a run writes; libraries would write through them."""
    folders = [run, run / SAMPLES] if run.is_dir() else []
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return sorted(str(path.relative_to(run)) for path in paths if path.is_symlink())


def check_output(output: Path, setting: str = "output_dir") -> None:
    """Raise UserError if a run may not write to a directory, or cannot. Writes nothing.

    It may be new, empty or a run's. It must not be, or lie in, a file, a read-only place or a full disk.
    """
    where = f"{setting}: {str(output)!r}"
    try:
        existing = next(path for path in (output, *output.absolute().parents) if os.path.lexists(path))
        if not existing.is_dir():
            kind = "a link to nowhere" if existing.is_symlink() and not existing.exists() else "a file"
            raise UserError(f"{where} cannot be a directory: {str(existing)!r} is {kind}; use another name")
        if others := others_in(output):
            raise UserError(f"{where} is not a run's directory: it contains {listed(others, 3)}; {_way_out(output)}")
        if links := links_in(output):
            raise UserError(
                f"{where} contains a link ({listed(links, 3)}), and a run writes through none; remove it, replace "
                "it with what it points to, or use another directory"
            )
        disk = os.statvfs(existing)
        if not os.access(existing, os.W_OK | os.X_OK):
            reason = "its file system is read-only" if disk.f_flag & os.ST_RDONLY else "permission denied"
            raise UserError(f"{where} cannot be written ({reason}); use a directory of your own")
        free, no_names = disk.f_bavail * disk.f_frsize, disk.f_files and not disk.f_favail
        if free < ROOM or no_names:
            left = "no room for another file" if no_names else f"{human_bytes(free)} free"
            raise UserError(f"{where} cannot be written: its disk is full ({left}); free some space, or use another")
    except OSError as error:
        raise UserError(f"{where} cannot be written ({error.strerror}); use another directory") from None


def _way_out(output: Path) -> str:
    """Return what to do with a directory that has no run's record: use another, also for its checkpoints' sake."""
    new = output / "run"
    if checkpoints := sorted(filter(is_checkpoint, output.iterdir()), key=step_of):
        last = f"--resume_from_checkpoint {checkpoints[-1]} --output_dir {new}"
        return f"it has no valid run.json, so resume its checkpoint elsewhere ({last})"
    return f"use a new directory, such as {new}"
