"""Which directory a run may write, and which checkpoint it goes on from."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import UserError


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


def setting(directory: str, key: str) -> Any:
    """What the run in this directory was set to; None where there is no record of one."""
    try:
        return json.loads((Path(directory) / "run.json").read_text(encoding="utf-8"))["settings"][key]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def holds_run(directory: Path) -> bool:
    return (directory / "run.json").exists() or any(directory.glob("checkpoint-*"))


def claim(output_dir: str | None, default_dir: str, resume: str | None, overwrite: bool) -> tuple[str, str | None]:
    """The directory to write and the checkpoint to go on from; creates nothing.

    Args:
        output_dir: as given; None takes `default_dir`, or the next free `-2`, `-3`, … where that holds a run.
        resume: None, `auto` (the run's newest checkpoint) or a checkpoint's directory.
        overwrite: whether a given directory that holds a run may be written.
    """
    if resume not in (None, "auto"):
        checkpoint = Path(resume)
        if not (checkpoint / "trainer_state.json").is_file():
            raise UserError(f"resume_from_checkpoint: {resume!r} is no checkpoint (no trainer_state.json); give auto")
        return output_dir or str(checkpoint.parent), resume
    runs = [Path(output_dir)] if output_dir else [Path(default_dir)] if overwrite else _numbered(Path(default_dir))
    if resume == "auto":
        latest = runs[-1] if output_dir else next((run for run in reversed(runs) if holds_run(run)), runs[0])
        checkpoints = [p for p in latest.glob("checkpoint-*") if (p / "trainer_state.json").is_file()]
        if not checkpoints:
            raise UserError(f"resume_from_checkpoint: {str(latest)!r} holds no checkpoint; drop the flag")
        return str(latest), str(max(checkpoints, key=lambda p: int(p.name.rpartition("-")[2])))
    if output_dir and holds_run(runs[0]) and not overwrite:
        raise UserError(
            f"output_dir: {output_dir!r} already holds a run; go on with it (--resume_from_checkpoint auto), give "
            "another name, or replace it (--overwrite_run true)"
        )
    return str(runs[-1]), None


def _numbered(directory: Path) -> list[Path]:
    """The directory, its `-2`, `-3`, … as far as they hold runs, and the first one that is free."""
    runs = [directory]
    while holds_run(runs[-1]):
        runs.append(directory.with_name(f"{directory.name}-{len(runs) + 1}"))
    return runs


def refuse_unwritable(directory: Path) -> None:
    """UserError where the directory cannot be made or written."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"output_dir: {str(directory)!r} cannot be written ({str(existing)!r} is in the way)")


@contextlib.contextmanager
def cleared_on_refusal(output: Path) -> Iterator[None]:
    """What TRL refuses, as a UserError, and without the directories that it makes before it looks at the settings."""
    made = (output / "completions", output, *output.parents)  # innermost first
    new = [path for path in made if not path.exists()]
    try:
        yield
    except (UserError, ValueError, NotImplementedError, ImportError) as error:
        for directory in new:
            with contextlib.suppress(OSError):  # not empty
                directory.rmdir()
        raise UserError(str(error)) from error
