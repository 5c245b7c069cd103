"""Seal complete checkpoints, and find the newest one to resume from.

transformers writes a checkpoint in place, and resumes silently from an incomplete one: with a new optimizer if its
state is missing, and with other samples if the random state is. Therefore a checkpoint's last file is its seal,
written once the disk holds all others. A checkpoint without a seal does not count.
"""

import contextlib
import itertools
import logging
from pathlib import Path
from typing import Any

from grpo.core.directories import is_checkpoint, step_of
from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_object, write_json
from grpo.core.processes import UNSHARDED
from grpo.core.text import digest
from grpo.core.writing import flush, remove
from grpo.results.readers import Seal

SEAL = "complete.json"
STATE = "trainer_state.json"
# An optimizer's files, and the ways of sharding (core/processes.py) that write them; the first that are there count
OPTIMIZER = {
    "optimizer.pt": (UNSHARDED,),
    "optimizer.bin": ("FSDP (FULL_STATE_DICT)",),
    "optimizer_[0-9]*": ("FSDP (SHARDED_STATE_DICT)",),
    "global_step*/zero_pp_rank_*_model_states.pt": ("DeepSpeed ZeRO-3",),
    "global_step*": ("DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2"),
}


def list_all(run: Path) -> list[Path]:
    """List a run's checkpoints, complete or not, the newest first. Links to other runs' checkpoints are skipped."""
    return sorted(filter(is_checkpoint, run.glob("checkpoint-*")), key=step_of, reverse=True)


# --- Writing ------------------------------------------------------------------------------------------------------


def seal(directory: Path, world_size: int, **record: Any) -> None:
    """Seal a checkpoint once the disk holds all of it; the seal also contains `record`."""
    for path in [*directory.rglob("*"), directory]:
        flush(path)
    write_json(directory / SEAL, {"step": step_of(directory), "world_size": world_size, **record})
    flush(directory.parent)


def delete(directory: Path) -> None:
    """Delete a checkpoint, its seal first, so that a kill in between leaves no sealed half."""
    if not directory.is_symlink():
        (directory / SEAL).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        remove(directory)


def rotate(run: Path, keep: int | None, best: str | None = None) -> None:
    """Delete all checkpoints but the newest `keep` complete ones and the best one; None keeps all.

    transformers' own rotation also counts incomplete checkpoints, and may keep one instead of the only complete
    checkpoint.
    """
    complete = [path for path in list_all(run) if is_sealed(path)]
    for path in complete[keep:] if keep else ():
        if best is None or path.resolve() != Path(best).resolve():
            delete(path)


# --- Reading ------------------------------------------------------------------------------------------------------


def expect_tied_heads() -> None:
    """Let transformers load checkpoints without its warning of a tied head, which is stored once."""
    logging.getLogger("transformers.trainer").addFilter(
        lambda record: "missing keys in the checkpoint model loaded: ['lm_head.weight']" not in record.getMessage()
    )


def is_sealed(directory: Path) -> bool:
    """True if a checkpoint is complete."""
    return (directory / SEAL).exists()


def read_seal(directory: Path) -> dict[str, Any]:
    """Read a checkpoint's seal; {} if it is missing or broken."""
    with contextlib.suppress(UserError, OSError):
        return read_object(directory / SEAL, Seal)
    return {}


def shardings(directory: Path) -> tuple[str, ...]:
    """Return the ways of sharding that may have written a checkpoint: the seal's or, in older ones, its files'."""
    sealed = read_seal(directory).get("sharding")
    return (sealed,) if sealed else _shardings_by_files(directory)


def _shardings_by_files(directory: Path) -> tuple[str, ...]:
    return next((ways for files, ways in OPTIMIZER.items() if any(directory.glob(files))), ())


def identity(directory: Path) -> str:
    """Return a checkpoint's name with a hash of its seal and its state, which has the log of its run."""
    texts = [(directory / name).read_text(encoding="utf-8", errors="replace") for name in (SEAL, STATE)]
    return f"{directory.name}, {digest(*texts)}"


def problem_with(directory: Path) -> str | None:
    """Return the reason why a run cannot resume from this checkpoint, judged by its files' names; None if it can."""
    if not directory.is_dir():
        return "there is no such directory"
    if step_of(directory) < 0:
        return "that is not the name of a checkpoint (checkpoint-N)"
    if not is_sealed(directory):
        return f"it has no {SEAL}, so it is half-written, or another program saved it (stock TRL writes none)"
    if (processes := read_seal(directory).get("world_size", 0)) < 1:
        return f"{SEAL} cannot be read"
    names = {path.name for path in directory.iterdir()}
    if not _shardings_by_files(directory):
        return "it has no optimizer state (save_only_model)"
    states = ["rng_state.pth"] if processes == 1 else (f"rng_state_{rank}.pth" for rank in range(processes))
    missing = next((name for name in itertools.chain([STATE], states) if name not in names), None)
    return f"{missing} is missing" if missing else None


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that a run can resume from, and a line for each newer one with its problem."""
    skipped: list[str] = []
    for path in list_all(run):
        reason = problem_with(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path}: {reason}")
    return None, skipped
