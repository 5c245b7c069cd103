"""Complete checkpoints only: what makes one complete, which ones are, and which one a run resumes from.

A checkpoint's last file is its seal, which lists all the others with their sizes. It is written when every process has
saved its part and the disk has all of it, so a checkpoint without a seal may be half-written. Files are checked as far
as that needs no unpickling: safetensors by their headers, PyTorch's archives by their checksums.
"""

import contextlib
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from safetensors import safe_open

SEAL = "complete.json"
STATE = "trainer_state.json"
SHARDED = r"(global_step\d+|optimizer_\d+|pytorch_model_fsdp_\d+)/"  # directories of DeepSpeed and FSDP


def step_of(directory: Path) -> int:
    """N of a `checkpoint-N`, the optimizer steps before it; -1 for any other name."""
    found = re.fullmatch(r"checkpoint-(\d+)", directory.name)
    return int(found[1]) if found else -1


def all_of(run: Path) -> list[Path]:
    """A run's checkpoints, complete or not, the newest first."""
    return sorted((path for path in run.glob("checkpoint-*") if step_of(path) >= 0), key=step_of, reverse=True)


# --- Writing ------------------------------------------------------------------------------------------------------


def seal(directory: Path, world_size: int, **facts: Any) -> None:
    """Declare a checkpoint complete, once the disk has all of it.

    Args:
        world_size: processes of the run; each has an RNG state of its own.
        facts: what else the seal is to record.
    """
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        files[path.relative_to(directory).as_posix()] = path.stat().st_size
        _flush(path)
    for path in [*(path for path in directory.rglob("*") if path.is_dir()), directory]:
        _flush(path)
    write_whole(directory / SEAL, {"step": step_of(directory), "world_size": world_size, "files": files, **facts})
    _flush(directory.parent)


def break_seal(directory: Path) -> None:
    """Call this before anything in a checkpoint is written or deleted, so that half of one is never chosen."""
    (directory / SEAL).unlink(missing_ok=True)
    if directory.is_dir():
        _flush(directory)


def write_whole(path: Path, value: Any) -> None:
    """Write JSON atomically: whatever happens, the file holds all of it or what it held before."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot for directories
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_old(run: Path, keep: int | None, best: str | None = None) -> None:
    """Delete a run's complete checkpoints except the newest `keep`; None keeps all.

    Args:
        best: another one to keep. The newest that a run can resume from is always kept (with save_only_model it may
            be an old one); incomplete ones are neither counted nor deleted, so that their owner can look at them.
    """
    complete = [path for path in all_of(run) if is_sealed(path)]
    kept = [Path(best).resolve()] if best else []
    kept += [path.resolve() for path in complete if not _missing_part(read_seal(path))][:1]
    for path in complete[keep:] if keep else ():
        if path.resolve() not in kept:
            break_seal(path)
            shutil.rmtree(path, ignore_errors=True)


# --- Reading ------------------------------------------------------------------------------------------------------


def is_sealed(directory: Path) -> bool:
    return (directory / SEAL).exists()


def read_seal(directory: Path) -> dict[str, Any]:
    """A checkpoint's seal; empty where there is none that can be read."""
    try:
        found = json.loads((directory / SEAL).read_text(encoding="utf-8"))
        return found if isinstance(found["files"], dict) else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def problem_with(directory: Path) -> str | None:
    """Why a run cannot resume from this checkpoint; None where it can."""
    if not directory.is_dir():
        return "there is no such directory"
    if step_of(directory) < 0:
        return "that is not the name of a checkpoint (checkpoint-N)"
    if not is_sealed(directory):
        return f"it has no {SEAL}, so it is half-written, or another program saved it (stock TRL writes none)"
    sealed = read_seal(directory)
    if not sealed:
        return f"{SEAL} cannot be read"
    for name, size in sealed["files"].items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes instead of {size:,}"
        if reason := _damage(path):
            return f"{name} is damaged ({reason})"
    return _missing_part(sealed)


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that a run can resume from, and for each newer one a line with its problem."""
    skipped: list[str] = []
    for path in all_of(run):
        reason = problem_with(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path}: {reason}")
    return None, skipped


def _damage(path: Path) -> str | None:
    """What is wrong inside a file of the right size."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np"):  # its header must agree with its size
                pass
        elif path.suffix in (".pt", ".pth"):
            with zipfile.ZipFile(path) as archive:  # reads every byte, and unpickles none
                if broken := archive.testzip():
                    return f"the checksum of {broken} is wrong"
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    except Exception as error:  # a wrong bit may be a compression, an encryption or a nesting that nobody can read
        return str(error) or type(error).__name__
    return None


def _missing_part(sealed: dict[str, Any]) -> str | None:
    """The part of the training state that was never saved, if any."""
    names, processes = {name.partition("/")[0] for name in sealed["files"]}, sealed.get("world_size", 1)
    sharded = any(re.match(SHARDED, name) for name in sealed["files"])
    if not sharded and not names & {"optimizer.pt", "optimizer.bin"}:
        return "it has no optimizer state (save_only_model)"
    states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    missing = {STATE, *states} - names
    return f"{min(missing)} is missing" if missing else None
