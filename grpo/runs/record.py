"""Make a run's record, write it at the start, and set aside what a resumed run replaces."""

import dataclasses
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grpo.core import commands
from grpo.core.directories import MERGED, step_of
from grpo.core.errors import UserError, reason_of
from grpo.core.jsonfiles import valid_lines, write_lines
from grpo.core.kinds import fault
from grpo.core.settings import IN_MEMORY, Config
from grpo.core.versions import commit, versions
from grpo.core.writing import remove
from grpo.report.contents import FILES
from grpo.results.readers import Log
from grpo.results.record import FILE, RunRecord, status_of
from grpo.runs import source
from grpo.runs.checkpoints import SEAL

# What is needed to ask a run's model, and of the settings
ASKED, SETTINGS = ("prompt", "shots", "settings"), ("dtype", "bf16", "max_completion_length", "chat_template_kwargs")


def started(config: Config) -> dict[str, Any]:
    """Return how this command was started: launcher (None: from Python, with rows), program and argv."""
    launcher = None if config.script.dataset_name == IN_MEMORY else commands.launcher()
    return {"launcher": launcher, "program": config.program, "argv": list(config.argv)}


def is_own(directory: Path, checkpoint: Path | None) -> bool:
    """True if a run in this directory continues its own checkpoint."""
    return checkpoint is not None and directory.resolve() == checkpoint.parent.resolve()


def earlier(directory: Path, checkpoint: Path | None) -> RunRecord:
    """Return the record of the run that a checkpoint is of; an empty one without a checkpoint.

    Raises:
        UserError: it is this directory's, which would be written over, and broken.
    """
    if checkpoint is None:
        return RunRecord()
    return (RunRecord.read if is_own(directory, checkpoint) else RunRecord.known)(checkpoint.parent)


def begun(config: Config, then: RunRecord, session: Mapping[str, Any], **values: Any) -> RunRecord:
    """Return the record of a run that begins now, with what is known of this command and this machine.

    Args:
        then: the record of the run that is resumed.
        session: what is recorded of this session, besides its time and its command.
        values: other keys.
    """
    now, command = time.strftime("%Y-%m-%dT%H:%M:%S%z"), started(config)
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return RunRecord(
        status="running",
        started=then.started or now,
        script=Path(config.script_file).name,
        **command,
        started_in=str(Path.cwd()),
        process={"id": os.getpid(), "host": platform.node()},
        commit=commit(),
        versions=versions(),
        hardware={"machine": platform.machine(), "cpus": os.cpu_count(), "gpus": gpus},
        geometry=dataclasses.asdict(config.geometry),
        origin=dict(config.origin),
        sessions=[*then.sessions, {"started": now, **session, "command": commands.line(**command)}],
        **values,
    )


def start(
    directory: Path, checkpoint: Path | None, then: RunRecord, now: RunRecord, files: Mapping[str, bytes]
) -> None:
    """Write the record and `source/`.

    A resumed run keeps metrics, alarms and faults up to its checkpoint, since later steps are logged again, and
    sets aside earlier results. A new run starts with empty files.

    Args:
        then: the record of the run that is resumed.
        files: the run's code, for `source/`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    own = checkpoint if is_own(directory, checkpoint) else None
    # first of all files, so that what a kill leaves is known to be a run's, and is not finished without its results
    (dataclasses.replace(then, status="running") if own else now).write(directory)
    if own:
        _set_aside(directory, own, then)
    source.write(directory, files)
    for name in [file.name for file in FILES if file.is_log]:
        if checkpoint:
            _keep_until(step_of(checkpoint), checkpoint.parent / name, directory / name)
        else:
            (directory / name).unlink(missing_ok=True)
    if own:
        now.write(directory)


def _set_aside(run: Path, checkpoint: Path, then: RunRecord) -> None:
    """Move the results of the run's last end to `_ended-at-step-N`.

    The model's files are also in the checkpoint. A kill in between leaves fewer results, never wrong ones.
    """
    weights = [path.name for path in run.glob("*.safetensors")]
    model = [path.name for path in checkpoint.iterdir() if (run / path.name).is_file()]
    results = [file.name for file in FILES if file.is_result]
    names = [name for name in dict.fromkeys([*results, *weights, *sorted(model)]) if (run / name).exists()]
    if not set(names) - {"README.md"}:  # a card without results is rewritten with each checkpoint
        return
    # the step is a whole number, since it becomes a name
    aside = run / f"_ended-at-step-{step_of(checkpoint) if then.step is None else then.step}"
    aside.mkdir(exist_ok=True)
    then.part("status", "step", "best_step", *ASKED).write(aside)  # needed to ask its model, also elsewhere
    for name in names:
        remove(aside / name)
        (run / name).replace(aside / name)


def _keep_until(step: int, earlier: Path, path: Path) -> None:
    """Keep only the earlier file's lines up to this step, without a session's summary."""
    known = [line for line in valid_lines(earlier) if not fault(line, Log)]
    kept = [line for line in known if line["step"] <= step and "train_runtime" not in line]
    if kept:
        write_lines(path, kept)
    else:
        path.unlink(missing_ok=True)


def read_asked(model: Path) -> RunRecord | None:
    """Return `prompt`, `shots` and `settings` of a saved model's training; None if no file records them.

    The record is in the model's directory (a run, a merged model), in a checkpoint's seal, or in the run around it (a
    checkpoint, an earlier end).
    """
    own = model / FILE
    for path in (own, model / SEAL, model.resolve().parent / FILE):
        try:
            record = RunRecord.of_file(path, ASKED)
        except (UserError, OSError) as error:
            if path == own:
                raise error if isinstance(error, UserError) else _no_run(model, reason_of(error)) from None
            continue
        kept = {key: record.settings[key] for key in SETTINGS if key in record.settings}
        if record.prompt and record.shots is not None and len(kept) == len(SETTINGS):
            return dataclasses.replace(record, settings=kept)
        if path == own and path.exists() and status_of(model) != MERGED:
            raise _no_run(model, "no prompt, or no settings to ask it with")
    return None


def _no_run(model: Path, reason: str) -> UserError:
    return UserError(f"{str(model)!r} is not a run ({reason} in {FILE})")
