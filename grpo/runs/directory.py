"""Which directory a run may write, and which checkpoint it goes on from."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple

from filelock import FileLock, SoftFileLock, Timeout

from grpo.core import processes
from grpo.core.errors import UserError
from grpo.core.processes import is_first_process
from grpo.runs import checkpoints

LOCK = "run.lock"
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system that has none

WAYS_OUT = "go on with it (--resume_from_checkpoint auto), give another name, or replace it (--overwrite_run true)"


def default_names(model_name_or_path: str, dataset_name: str, eval_only: bool = False) -> tuple[str, str]:
    """Unset `output_dir` and `run_name` follow from the model's name (family and size) and the data's.

    An evaluation alone is called after all of the model's name.

    >>> default_names("meta-llama/Llama-3.2-1B-Instruct", "openai/gsm8k")
    ('outputs/Llama-1B-GRPO', 'Llama-1B-GRPO-gsm8k')
    """
    path = Path(model_name_or_path)
    base = path.parent.name if path.name == "model" and path.parent.name else path.name  # assets/demo/model
    family = re.match(r"[A-Za-z]*", base)[0]
    size = re.search(r"(?<![A-Za-z0-9.])\d+(\.\d+)?[BbMm](?![A-Za-z0-9])", base)
    # a run that goes on from another one is called like it
    name = (
        f"{family}-{size[0].upper()}-GRPO" if family and size else re.sub(r"(-GRPO(-\d+)?)?$", "-GRPO", base, count=1)
    )
    if eval_only:
        name = f"{base}-eval"
    data = re.sub(r"[.](jsonl?|csv|parquet)$", "", Path(dataset_name).name).replace(" ", "-")
    return f"outputs/{name}", f"{name}-{data}"


def recorded(directory: str | Path, *keys: str) -> Any:
    """What the `run.json` in this directory holds under these keys; None where there is none that says so."""
    try:
        found = json.loads((Path(directory) / "run.json").read_text(encoding="utf-8"))
        for key in keys:
            found = found[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def holds_run(directory: Path) -> bool:
    return (directory / "run.json").exists() or any(directory.glob("checkpoint-*"))


class Claim(NamedTuple):
    """The directory to write, the checkpoint to go on from (None: from the start), and what is to be said about it."""

    output_dir: str
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()


def claim(output_dir: str | None, default_dir: str, resume: str | None, overwrite: bool) -> Claim:
    """Which directory a run writes, and what it goes on from; creates nothing.

    Args:
        output_dir: as given; None takes `default_dir`, or the next free `-2`, `-3`, … where that holds a run.
        resume: None, `auto` (the run's newest complete checkpoint) or a checkpoint's directory.
        overwrite: whether a given directory that holds a run may be written.

    Raises:
        UserError: there is nothing to go on from, or what a run has written would be lost; not on other machines than
            the first process', which would wait for this one in vain: `held` tells all of them.
    """
    try:
        return _claim(output_dir, default_dir, resume, overwrite)
    except UserError:
        if not processes.is_other():
            raise
        return Claim(output_dir or default_dir)


def _claim(output_dir: str | None, default_dir: str, resume: str | None, overwrite: bool) -> Claim:
    try:
        os.lstat(output_dir or default_dir)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"output_dir: {output_dir!r} cannot be used ({reason}); give a shorter name") from None
    if resume not in (None, "auto"):
        return _explicit(output_dir, Path(resume), overwrite)
    runs = [Path(output_dir)] if output_dir else [Path(default_dir)] if overwrite else _numbered(Path(default_dir))
    if resume == "auto":
        return _newest(runs[-1] if output_dir else next((run for run in reversed(runs) if holds_run(run)), runs[0]))
    if output_dir and holds_run(runs[0]) and not overwrite:
        raise UserError(f"output_dir: {output_dir!r} already holds a run; {WAYS_OUT}")
    return Claim(str(runs[-1]))


def _explicit(output_dir: str | None, checkpoint: Path, overwrite: bool) -> Claim:
    if reason := checkpoints.why_not(checkpoint):
        raise UserError(f"resume_from_checkpoint: {str(checkpoint)!r} cannot be gone on from: {reason}; give auto")
    run, output = checkpoint.parent, Path(output_dir) if output_dir else checkpoint.parent
    later = [path for path in checkpoints.all_of(run) if checkpoints.step_of(path) > checkpoints.step_of(checkpoint)]
    if output.resolve() == run.resolve():
        if newer := next((path.name for path in later if checkpoints.why_not(path) is None), None):
            raise UserError(
                f"resume_from_checkpoint: {str(checkpoint)!r} is not the newest of its run, {newer} is, and going on "
                "from it there would mix two runs; give another output_dir, or remove the later ones"
            )
    elif holds_run(output) and not overwrite:
        raise UserError(f"output_dir: {output_dir!r} already holds another run; {WAYS_OUT}")
    return Claim(str(output), str(checkpoint))


def _newest(run: Path) -> Claim:
    found, skipped = checkpoints.newest(run)
    if found is not None:
        return Claim(str(run), str(found), tuple(f"note: {line}; it is left out" for line in skipped))
    status = str(recorded(run, "status")) if recorded(run, "sessions") else ""  # of a version that seals checkpoints
    sealed = any((path / checkpoints.SEAL).exists() for path in checkpoints.all_of(run))
    if status.startswith(("running", "interrupted", "failed")) and not sealed:
        origin = recorded(run, "settings", "resume_from_checkpoint")
        if origin and Path(origin).parent.resolve() != run.resolve():
            note = f"note: {run} was ended before it had a checkpoint of its own: it goes on from {origin}"
            return _explicit(str(run), Path(origin), overwrite=True)._replace(notes=(note,))
        if any(run.glob("*.safetensors")):
            raise UserError(
                f"resume_from_checkpoint: {str(run)!r} holds no checkpoint, but weights that were trained to the end; "
                f"measure them (--eval_only true --model_name_or_path {run}), or train anew (--overwrite_run true)"
            )
        note = f"note: {run} was ended before its first checkpoint was complete: the run starts from its beginning"
        return Claim(str(run), None, (note,))
    if skipped:
        raise UserError(
            f"resume_from_checkpoint: {str(run)!r} holds no complete checkpoint ({'; '.join(skipped)}); start the run "
            "again with --overwrite_run true"
        )
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):  # torchrun starts this command again where it fails
        return Claim(str(run), None, (f"note: {run} holds no checkpoint yet: the run starts from its beginning",))
    raise UserError(f"resume_from_checkpoint: {str(run)!r} holds no checkpoint; drop the flag")


def _numbered(directory: Path) -> list[Path]:
    """The directory, its `-2`, `-3`, … as far as they hold runs, and the first one that is free."""
    runs = [directory]
    while holds_run(runs[-1]):
        runs.append(directory.with_name(f"{directory.name}-{len(runs) + 1}"))
    return runs


def refuse_unwritable(directory: Path) -> None:
    """UserError where the directory cannot be made or written."""
    if directory.is_symlink() and not directory.exists():
        raise UserError(f"output_dir: {str(directory)!r} is a link to nothing; give another name")
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"output_dir: {str(directory)!r} cannot be written ({str(existing)!r} is in the way)")


def refuse_in_use(directory: Path) -> None:
    """UserError where another process is writing a run there now; writes nothing."""
    if (directory / LOCK).exists():
        with _lock(directory):
            pass


def written(directory: Path) -> tuple[int, int] | None:
    """Which `run.json` is there, and when it was written last; None where there is none."""
    try:
        found = (directory / "run.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@contextlib.contextmanager
def held(directory: Path, claimed: tuple[int, int] | EllipsisType | None = ...) -> Iterator[None]:
    """Make the directory, and let no other process write a run there meanwhile; the first one does for all of a run.

    The lock goes with the process, however that ends. Where nothing else was written, the directory goes again.

    Args:
        claimed: what `written` said when the directory was claimed.

    Raises:
        UserError: another process holds it, or has written it meanwhile.
    """
    if not is_first_process():
        processes.check_shared(directory)
        yield
        return
    made = (directory / "completions", directory, *directory.parents)  # innermost first; TRL makes completions
    new = [path for path in made if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with _lock(directory):
            if claimed is not ... and written(directory) != claimed:
                raise UserError(
                    f"output_dir: {str(directory)!r} was written by another run since this one began; {WAYS_OUT}"
                )
            processes.check_shared(directory)
            yield
    finally:
        if directory in new and {path.name for path in directory.iterdir()} <= {LOCK, "completions"}:
            (directory / LOCK).unlink(missing_ok=True)
        for path in new:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


def _lock(directory: Path) -> contextlib.AbstractContextManager[Any]:
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not isinstance(lock, SoftFileLock):
            process = recorded(directory, "process") or {}
            who = f"process {process.get('id', 'unknown')} on {process.get('host', 'another machine')}"
            raise UserError(
                f"output_dir: {str(directory)!r} is being written by another run ({who}); wait for its end, stop it, "
                "or give another name"
            ) from None
    except (OSError, NotImplementedError) as error:
        if getattr(error, "errno", errno.ENOSYS) not in NO_LOCKS:
            raise UserError(f"output_dir: {str(directory / LOCK)!r} cannot be written ({error.strerror})") from None
    else:
        if not isinstance(lock, SoftFileLock):
            return lock
        lock.release()  # what filelock takes instead would outlive a process that is killed
    print(f"note: files in {str(directory)!r} cannot be locked; let no other run write there meanwhile")
    return contextlib.nullcontext()
