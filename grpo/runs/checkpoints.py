"""Seal checkpoints that are complete, and find the newest one that a run can resume from.

transformers writes a checkpoint in place, and resumes in silence from half of one: with a new optimizer where its
state is missing, with other samples where the random state is. So a checkpoint's last file is its seal, written once
the disk holds all others, and a checkpoint without a seal does not count.
"""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

SEAL = "complete.json"
STATE = "trainer_state.json"
OPTIMIZER = r"optimizer\.(pt|bin)|optimizer_\d+|global_step\d+"  # the last two are directories of FSDP and DeepSpeed


def step_of(directory: Path) -> int:
    """N of a `checkpoint-N`, the optimizer steps before it; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", directory.name)
    return int(match[1]) if match else -1


def list_all(run: Path) -> list[Path]:
    """A run's checkpoints, complete or not, the newest first."""
    return sorted((path for path in run.glob("checkpoint-*") if step_of(path) >= 0), key=step_of, reverse=True)


# --- Writing ------------------------------------------------------------------------------------------------------


def seal(directory: Path, world_size: int, **record: Any) -> None:
    """Declare a checkpoint complete, once the disk holds all of it; the seal also holds the values of `record`."""
    for path in [*directory.rglob("*"), directory]:
        _flush(path)
    write_json(directory / SEAL, {"step": step_of(directory), "world_size": world_size, **record})
    _flush(directory.parent)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: whatever happens, it holds all of the text or what it held before."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", errors="replace") as file:  # a lone surrogate cannot be encoded
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # what a full disk has cut short
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot for directories
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete(directory: Path) -> None:
    """Delete a checkpoint, its seal first: killed in between, half of one never counts."""
    (directory / SEAL).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def rotate(run: Path, keep: int | None, best: str | None = None) -> None:
    """Delete all but the newest `keep` complete checkpoints and the best one; None keeps all.

    transformers' own rotation also counts half-written checkpoints, and may keep one of a killed run instead of the
    only complete one.
    """
    complete = [path for path in list_all(run) if is_sealed(path)]
    for path in complete[keep:] if keep else ():
        if best is None or path.resolve() != Path(best).resolve():
            delete(path)


# --- Reading ------------------------------------------------------------------------------------------------------


def is_sealed(directory: Path) -> bool:
    return (directory / SEAL).exists()


def read_seal(directory: Path) -> dict[str, Any]:
    """A checkpoint's seal; empty where there is none that can be read."""
    try:
        sealed = json.loads((directory / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return sealed if isinstance(sealed, dict) else {}


def problem_with(directory: Path) -> str | None:
    """The reason why a run cannot resume from this checkpoint; None where its files' names show none."""
    if not directory.is_dir():
        return "there is no such directory"
    if step_of(directory) < 0:
        return "that is not the name of a checkpoint (checkpoint-N)"
    if not is_sealed(directory):
        return f"it has no {SEAL}, so it is half-written, or another program saved it (stock TRL writes none)"
    if not (sealed := read_seal(directory)):
        return f"{SEAL} cannot be read"
    names, processes = {path.name for path in directory.iterdir()}, sealed.get("world_size", 1)
    if not any(re.fullmatch(OPTIMIZER, name) for name in names):
        return "it has no optimizer state (save_only_model)"
    states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    missing = {STATE, *states} - names
    return f"{min(missing)} is missing" if missing else None


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that a run can resume from, and for each newer one a line with its problem."""
    skipped: list[str] = []
    for path in list_all(run):
        reason = problem_with(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path}: {reason}")
    return None, skipped
