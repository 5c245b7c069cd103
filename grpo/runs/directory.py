"""Choose and lock a run's directory, and choose the checkpoint to resume from."""

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from grpo.core.checklist import Check
from grpo.core.directories import check_output, is_checkpoint, is_run, is_started, others_in
from grpo.core.errors import UserError
from grpo.core.processes import LOCK, is_first_process, is_locked
from grpo.core.settings import LENGTH, data_label
from grpo.results.record import RunRecord, status_of
from grpo.runs import checkpoints
from grpo.runs.differences import Difference

WAYS_OUT = "resume it (--resume_from_checkpoint auto), use another name, or delete it"


def default_names(
    model_name_or_path: str, dataset_name: str, eval_only: bool = False, of_recipe: bool = False
) -> tuple[str, str]:
    """Return default values of `output_dir` and `run_name`, from the model's family and size and from the data.

    The directory's name omits GSM8K, and data of a recipe in recipes/. With `eval_only` it has the model's full
    name.

    Args:
        of_recipe: True if the data is that of a recipe in recipes/.

    >>> default_names("meta-llama/Llama-3.2-1B-Instruct", "openai/gsm8k")
    ('outputs/Llama-1B-GRPO', 'Llama-1B-GRPO-gsm8k')
    >>> default_names("meta-llama/Llama-3.2-1B-Instruct", "my.csv")[0]
    'outputs/Llama-1B-GRPO-my'
    """
    path = Path(model_name_or_path)
    parts = [part for part in path.parts if part not in ("..", "~", "/")] or [path.name]
    part = ""
    while len(parts) > 1 and re.fullmatch(r"model|merged|checkpoint-\d+", parts[-1]) and parts[-2] != "outputs":
        part = f"-{parts.pop()}{part}"  # of a run, or as in assets/demo
    base = parts[-1]
    family = re.split(r"[^A-Za-z]", base)[0]
    size = re.search(r"(?<![A-Za-z0-9.])\d+(\.\d+)?[BbMm](?![A-Za-z0-9])", base)
    # a run from another run's model keeps that run's name, without data and number
    name = re.sub(r"(-GRPO(-.*)?)?$", "-GRPO", base, count=1)
    if family and size:
        name = f"{family}-{size[0].upper()}-GRPO"
    if eval_only:
        name = f"{base}{part.removeprefix('-model')}-eval"
    data = data_label(dataset_name)[:100]  # file systems allow 255 characters
    run_name = f"{name}-{data}"
    return f"outputs/{name if eval_only or of_recipe or data == 'gsm8k' else run_name}", run_name


def numbered(default_dir: str) -> Iterator[Path]:
    """Yield the directories for runs of this name, in order: itself, `-2`, `-3`, …"""
    yield Path(default_dir)
    yield from (Path(f"{default_dir}-{number}") for number in itertools.count(2))


def holds_run(directory: Path) -> bool:
    """True if a directory contains a run's record or a checkpoint."""
    return is_run(directory) or any(map(is_checkpoint, directory.glob("checkpoint-*")))


def is_free(directory: Path) -> bool:
    """True if a directory contains neither a run nor files of others, and no run has locked it."""
    return not (holds_run(directory) or others_in(directory) or is_locked(directory))


def newest_finished() -> Path | None:
    """Return the finished run under outputs/ with the newest record; None without one."""
    runs = [path for path in Path("outputs").glob("*/run.json") if status_of(path.parent) == "finished"]
    return max(runs, key=lambda path: path.stat().st_mtime_ns).parent if runs else None


# --- The directory and the checkpoint -------------------------------------------------------------------------------


class Claim(NamedTuple):
    """The output directory, the checkpoint to resume from (None: from the start), and notes for the user."""

    output_dir: str
    checkpoint: str | None = None
    notes: tuple[Check, ...] = ()


def claim(
    output_dir: str | None,
    default_dir: str,
    resume: str | None,
    differences: Callable[[Path], list[Difference]] = lambda run: [],
) -> Claim:
    """Choose a run's directory and the checkpoint to resume from. Creates nothing.

    Args:
        output_dir: the user's setting; None: `default_dir`, or the next free `-2`, `-3`, … if that contains a run.
        resume: None, `auto` (the newest complete checkpoint of the run that `output_dir` names, or of the last run of
            the default name that is this experiment; without any run the start of one) or a checkpoint's directory.
        differences: returns an earlier run's differences from this experiment.
    """
    if output_dir:
        check_output(Path(output_dir))
    chosen = _choose(output_dir, default_dir, resume, differences)
    check_output(Path(chosen.output_dir))
    return chosen


def _choose(
    output_dir: str | None, default_dir: str, resume: str | None, differences: Callable[[Path], list[Difference]]
) -> Claim:
    if resume not in (None, "auto"):
        return _resume_from(Path(resume), output_dir)
    # the first free one
    free = Path(output_dir) if output_dir else next(filter(is_free, numbered(default_dir)))
    if resume == "auto":
        return _resume_newest(free if output_dir else _run_of_experiment(default_dir, differences))
    if holds_run(free):
        raise UserError(f"output_dir: {output_dir!r} already holds a run; {WAYS_OUT}")
    return Claim(str(free))


def _run_of_experiment(default_dir: str, differences: Callable[[Path], list[Difference]]) -> Path:
    """Return the last run of the default name that is this experiment, or else this experiment with another length."""
    taken = itertools.takewhile(lambda path: not is_free(path), numbered(default_dir))
    runs = {run: differences(run) for run in reversed(list(taken)) if holds_run(run)}
    if not runs:
        return next(filter(is_free, numbered(default_dir)))
    same = [run for run, differ in runs.items() if all(difference.means is LENGTH for difference in differ)]
    if same:
        return min(same, key=lambda run: bool(runs[run]))
    others = "; ".join(f"{run} differs in {', '.join(map(str, differ))}" for run, differ in runs.items())
    resumable = [run for run in runs if checkpoints.newest(run)[0]]
    nearest = min(resumable, key=lambda run: len(runs[run]), default=None)
    ways = f"resume the nearest with --output_dir {nearest}, repeat its own command, or " if nearest else ""
    raise UserError(
        f"resume_from_checkpoint: auto finds no run of these settings ({others}); {ways}drop the flag to start a new "
        "one"
    )


def _resume_from(checkpoint: Path, output_dir: str | None) -> Claim:
    """Resume from this checkpoint, in its own run if it is the newest there, otherwise in another directory."""
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

    A directory without a run begins one, so that the same command serves a job's first start and its restarts. A run
    that was killed before its first checkpoint starts again: from the beginning, or from another run's checkpoint if
    it began there. Any other run without a complete checkpoint is refused.
    """
    newest, skipped = checkpoints.newest(run)
    if newest is not None:
        notes = [Check("warning", "checkpoint", line, "it is skipped") for line in skipped]
        return Claim(str(run), str(newest), tuple(notes))
    if not holds_run(run):
        return Claim(str(run), None, (Check("ok", "checkpoint", f"auto: {run} holds no run yet, so this begins one"),))
    record = RunRecord.known(run)
    origin = record.settings.get("resume_from_checkpoint")
    weights = any(run.glob("*.safetensors"))
    kept = weights or any(map(checkpoints.is_sealed, checkpoints.list_all(run)))
    if record.is_broken_off and not kept and not (origin and checkpoints.problem_with(Path(origin))):
        start = origin or "the beginning"
        note = Check("warning", "checkpoint", f"{run} has none yet", f"starting from {start}")
        return Claim(str(run), origin, (note,))
    detail = f" ({'; '.join(skipped)})" if skipped else ""
    detail += ", but trained weights (--eval_only true evaluates them)" if weights else ""
    raise UserError(
        f"resume_from_checkpoint: {str(run)!r} holds no complete checkpoint{detail}; use another output_dir, or "
        "delete the run"
    )


# --- One writer -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(directory: Path, checkpoint: str | None = None, default_dir: str = "") -> Iterator[Path]:
    """Create the directory and lock it against other runs; the first process locks for all.

    The system releases the lock when the process ends, however it ends. A new directory is removed if the run writes
    no files to it.

    Args:
        checkpoint: the checkpoint to resume from, if any.
        default_dir: the default name of `directory`. If another run was faster, the next free number is locked and
            yielded.
    """
    if not is_first_process():
        yield directory
        return
    check_output(directory)  # it may have changed while data were loaded
    for output in filter(is_free, numbered(default_dir)) if default_dir else [directory]:
        new, lock = not output.exists(), _lock(output)
        if lock is None:
            continue
        finished = checkpoint is None and status_of(output) == "finished"
        if not (finished or (default_dir and holds_run(output))):
            break
        lock.release()
    else:
        reason = f"already holds a run; {WAYS_OUT}"
        if lock is None:
            process = RunRecord.known(directory).process  # {} before it trains
            who = f" (process {process.get('id')} on {process.get('host')})" if process else ""
            reason = f"is being written by another run{who}; wait until it ends, stop it, or use another name"
        raise UserError(f"output_dir: {str(directory)!r} {reason}")
    try:
        yield output
    finally:
        if new and is_started(output):
            shutil.rmtree(output)
        lock.release()


def _lock(directory: Path) -> FileLock | None:
    """Create and lock the directory; None if another process keeps holding the lock."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / LOCK)
        lock.acquire(timeout=0.5)
    except Timeout:
        return None
    except OSError as error:
        raise UserError(f"output_dir: {str(directory)!r} cannot be written ({error.strerror})") from None
    return lock
