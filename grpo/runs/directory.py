"""Which directory a run writes, which checkpoint it resumes from, and that nobody else writes there meanwhile."""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from grpo.core.errors import UserError
from grpo.core.processes import is_first_process
from grpo.core.settings import as_list, data_label
from grpo.runs import checkpoints

LOCK = "run.lock"
WAYS_OUT = "resume it (--resume_from_checkpoint auto), use another name, or delete it"


def default_names(model_name_or_path: str, dataset_name: str | list[str], eval_only: bool = False) -> tuple[str, str]:
    """Unset `output_dir` and `run_name` follow from the model's name (family and size) and the data sets'.

    An evaluation alone is called after all of the model's name.

    >>> default_names("meta-llama/Llama-3.2-1B-Instruct", "openai/gsm8k")
    ('outputs/Llama-1B-GRPO', 'Llama-1B-GRPO-gsm8k')
    >>> default_names("meta-llama/Llama-3.2-1B-Instruct", ["openai/gsm8k:main", "my.csv"])[1]
    'Llama-1B-GRPO-gsm8k+my'
    """
    path = Path(model_name_or_path)
    base = path.parent.name if path.name == "model" and path.parent.name else path.name  # assets/demo/model
    family = re.split(r"[^A-Za-z]", base)[0]
    size = re.search(r"(?<![A-Za-z0-9.])\d+(\.\d+)?[BbMm](?![A-Za-z0-9])", base)
    # a run that starts from another one's model keeps its name
    name = (
        f"{family}-{size[0].upper()}-GRPO" if family and size else re.sub(r"(-GRPO(-\d+)?)?$", "-GRPO", base, count=1)
    )
    if eval_only:
        name = f"{base}-eval"
    data = "+".join(map(data_label, as_list(dataset_name)))
    return f"outputs/{name}", f"{name}-{data}"


def recorded(directory: str | Path, *keys: str) -> Any:
    """The value under these keys in the directory's `run.json`; None where there is none."""
    try:
        found = json.loads((Path(directory) / "run.json").read_text(encoding="utf-8"))
        for key in keys:
            found = found[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def holds_run(directory: Path) -> bool:
    return (directory / "run.json").exists() or any(directory.glob("checkpoint-*"))


def newest_finished() -> Path:
    """The run under outputs/ that finished last; UserError where there is none."""
    finished = [path for path in Path("outputs").glob("*/run.json") if recorded(path.parent, "status") == "finished"]
    if not finished:
        raise UserError("ask: no finished run in outputs/; name the directory of one")
    return max(finished, key=lambda path: path.stat().st_mtime_ns).parent


# --- Which directory, which checkpoint ------------------------------------------------------------------------------


class Claim(NamedTuple):
    """The directory to write, the checkpoint to resume from (None: from the start), and notes for the user."""

    output_dir: str
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()


def claim(output_dir: str | None, default_dir: str, resume: str | None) -> Claim:
    """Which directory a run writes, and what it resumes from; creates nothing.

    Args:
        output_dir: as the user set it; None: `default_dir`, or the next free `-2`, `-3`, … where that holds a run.
        resume: None, `auto` (the run's newest complete checkpoint) or a checkpoint's directory.

    Raises:
        UserError: there is nothing to resume from, or a run would be overwritten.
    """
    try:
        return _claim(output_dir, default_dir, resume)
    except OSError as error:  # a name that is too long
        name = error.filename or output_dir
        raise UserError(f"output_dir: {str(name)!r} cannot be used ({error.strerror}); use another one") from None


def _claim(output_dir: str | None, default_dir: str, resume: str | None) -> Claim:
    if resume not in (None, "auto"):
        return _resume_from(Path(resume), output_dir)
    if output_dir:
        newest = free = Path(output_dir)
    else:  # the last that holds a run, and the first that is neither a run's nor about to be
        names = [Path(default_dir)]
        while holds_run(names[-1]) or (names[-1] / LOCK).exists():
            names.append(Path(f"{default_dir}-{len(names) + 1}"))
        newest, free = next(filter(holds_run, reversed(names)), names[0]), names[-1]
    if resume == "auto":
        return _resume_newest(newest)
    if holds_run(free):
        raise UserError(f"output_dir: {output_dir!r} already holds a run; {WAYS_OUT}")
    return Claim(str(free))


def _resume_from(checkpoint: Path, output_dir: str | None) -> Claim:
    """Resume from this checkpoint: in its own run if it is the newest there, otherwise in a directory of its own."""
    if reason := checkpoints.problem_with(checkpoint):
        weights = f", or start a new run from its weights (--model_name_or_path {checkpoint})"
        raise UserError(
            f"resume_from_checkpoint: cannot resume from {str(checkpoint)!r}: {reason}; use "
            f"--resume_from_checkpoint auto{weights if any(checkpoint.glob('*.safetensors')) else ''}"
        )
    run, output = checkpoint.parent, Path(output_dir) if output_dir else checkpoint.parent
    if output.resolve() == run.resolve():
        newest, _ = checkpoints.newest(run)
        if newest is not None and newest.resolve() != checkpoint.resolve():
            raise UserError(
                f"resume_from_checkpoint: {str(checkpoint)!r} is not the newest of its run, {newest.name} is, and "
                "resuming from it there would mix two runs; use another output_dir, or delete the newer ones"
            )
    elif holds_run(output):
        raise UserError(f"output_dir: {output_dir!r} already holds another run; {WAYS_OUT}")
    return Claim(str(output), str(checkpoint))


def _resume_newest(run: Path) -> Claim:
    """Resume from a run's newest complete checkpoint.

    A run that was killed before it had one starts again, from another run's checkpoint if it had: nothing in it is
    worth keeping. So does a run that torchrun restarts (--max_restarts) before there is anything. Whatever else has no
    complete checkpoint is left as it is.
    """
    found, skipped = checkpoints.newest(run)
    if found is not None:
        return Claim(str(run), str(found), tuple(f"note: {line}; it is skipped" for line in skipped))
    if not holds_run(run) and not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise UserError(f"resume_from_checkpoint: {str(run)!r} holds no checkpoint; drop the flag")
    weights = any(run.glob("*.safetensors"))
    broken_off = str(recorded(run, "status")).startswith(("running", "interrupted", "failed"))
    sealed = any(map(checkpoints.is_sealed, checkpoints.all_of(run)))
    origin = recorded(run, "settings", "resume_from_checkpoint")
    if not holds_run(run) or (broken_off and not weights and not sealed and _can_begin_again(origin, run)):
        start = origin or "the beginning"
        return Claim(str(run), origin, (f"note: {run} has no checkpoint yet; starting from {start}",))
    detail = f" ({'; '.join(skipped)})" if skipped else ""
    detail += ", but trained weights (--eval_only true evaluates them)" if weights else ""
    raise UserError(
        f"resume_from_checkpoint: {str(run)!r} holds no complete checkpoint{detail}; use another output_dir, or "
        "delete the run"
    )


def _can_begin_again(origin: str | None, run: Path) -> bool:
    """True for a run that began at the beginning, or at a checkpoint of another run that is still whole."""
    return origin is None or (
        Path(origin).resolve().parent != run.resolve() and not checkpoints.problem_with(Path(origin))
    )


# --- One writer -----------------------------------------------------------------------------------------------------


def refuse_unwritable(directory: Path) -> None:
    """UserError where the directory cannot be made or written; writes nothing."""
    existing = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        why = "does not let you write" if existing.is_dir() else "is in the way"
        raise UserError(f"output_dir: {str(directory)!r} cannot be written: {str(existing)!r} {why}; use another name")


def last_written(directory: Path) -> int | None:
    """When the directory's `run.json` was last written, in nanoseconds; None where there is none."""
    try:
        return (directory / "run.json").stat().st_mtime_ns
    except OSError:
        return None


@contextlib.contextmanager
def held(directory: Path, claimed: int | None) -> Iterator[None]:
    """Make the directory, and let no other process write a run there meanwhile; the first process locks for all.

    The lock goes with the process, however that ends. Where nothing was written, the directory is removed again.

    Args:
        claimed: `last_written` of when the directory was claimed: of two runs that start at once, one is refused here
            even if the other has ended meanwhile.

    Raises:
        UserError: another process holds it, or has written it meanwhile.
    """
    if not is_first_process():
        yield
        return
    new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with _lock(directory):
            if last_written(directory) != claimed:
                raise UserError(
                    f"output_dir: {str(directory)!r} was written by another run since this one started; {WAYS_OUT}"
                )
            yield
    finally:
        if new and {path.name for path in directory.iterdir()} <= {LOCK, "completions"}:  # TRL makes completions
            shutil.rmtree(directory)


def is_held(directory: Path) -> bool:
    """Whether a process writes a run there now; also where this user may not try."""
    if not (directory / LOCK).exists():
        return False
    try:
        with FileLock(directory / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def _lock(directory: Path) -> contextlib.AbstractContextManager[Any]:
    try:
        return FileLock(directory / LOCK).acquire(timeout=0)
    except Timeout:
        process = recorded(directory, "process") or {}
        who = f"process {process.get('id', 'unknown')} on {process.get('host', 'an unknown machine')}"
        raise UserError(
            f"output_dir: {str(directory)!r} is being written by another run ({who}); wait until it ends, stop it, "
            f"or use another name (if there is no such process, delete {directory / LOCK})"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise UserError(
                f"output_dir: {str(directory)!r}: its file system has no locks; use another output_dir"
            ) from None
        raise UserError(f"output_dir: {str(directory / LOCK)!r} cannot be written ({error.strerror})") from None
