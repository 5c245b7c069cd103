"""Write a run's record, `run.json`, and set aside what a resumed run replaces."""

import dataclasses
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grpo.core import commands
from grpo.core.directories import MERGED, step_of
from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_object, read_value, valid_lines, write_json, write_lines
from grpo.core.kinds import fault
from grpo.core.settings import IN_MEMORY, Config
from grpo.core.versions import commit, versions
from grpo.core.writing import remove
from grpo.report.contents import FILES
from grpo.results.readers import Asked, Log, known_record, read_record
from grpo.runs import source
from grpo.runs.checkpoints import SEAL

if TYPE_CHECKING:
    from grpo.runs.run import Run

# Settings needed to ask a run's model
SETTINGS = ("dtype", "bf16", "max_completion_length", "chat_template_kwargs")


def started(config: Config) -> dict[str, Any]:
    """Return how this command was started: launcher (None: from Python, with rows), program and argv."""
    launcher = None if config.script.dataset_name == IN_MEMORY else commands.launcher()
    return {"launcher": launcher, "program": config.program, "argv": config.argv}


def start_record(run: "Run", **values: Any) -> None:
    """Write `run.json` (settings, versions, hardware, commit, and these values) and `source/`.

    A resumed run keeps metrics, alarms and faults up to its checkpoint, since later steps are logged again, and
    sets aside earlier results. A new run starts with empty files.
    """
    config, directory, checkpoint = run.config, run.output, run.checkpoint
    directory.mkdir(parents=True, exist_ok=True)
    step = step_of(checkpoint) if checkpoint else 0
    own = checkpoint if checkpoint and directory.resolve() == checkpoint.parent.resolve() else None
    earlier = (read_record if own else known_record)(checkpoint.parent / "run.json") if checkpoint else {}
    now, how = time.strftime("%Y-%m-%dT%H:%M:%S%z"), started(config)
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    session = {"started": now, "from_step": step, "command": commands.line(**how)}
    if run.changed:
        session["changed"] = run.changed
    if run.rechosen:
        session["best_from"] = step
    record = {
        "status": "running",
        "started": earlier.get("started", now),
        "script": Path(config.script_file).name,
        **how,
        "started_in": str(Path.cwd()),
        "process": {"id": os.getpid(), "host": platform.node()},
        "commit": commit(),
        "versions": versions(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "gpus": gpus},
        "geometry": dataclasses.asdict(config.geometry),
        **values,
        "sources": run.facts["sources"],
        "code": run.source.code,
        "origin": config.origin,
        "decisions": [f"{note.name}: {note.finding}" for note in (*config.notes, *run.notes)],
        "settings": run.settings(),
        "sessions": [*(earlier.get("sessions") or []), session],
    }
    # first of all files, so that what a kill leaves is known to be a run's, and is not finished without its results
    write_json(directory / "run.json", earlier | {"status": "running"} if own else record)
    if own:
        _set_aside(directory, own, earlier)
    source.write(directory, run.source.files)
    for name in [file.name for file in FILES if file.is_log]:
        _keep_until(step, checkpoint and checkpoint.parent / name, directory / name)
    if own:
        write_json(directory / "run.json", record)


def _set_aside(run: Path, checkpoint: Path, earlier: dict[str, Any]) -> None:
    """Move the results of the run's last end to `_ended-at-step-N`.

    The model's files are also in the checkpoint. A kill in between leaves fewer results, never wrong ones.
    """
    weights = [path.name for path in run.glob("*.safetensors")]
    model = [path.name for path in checkpoint.iterdir() if (run / path.name).is_file()]
    results = [file.name for file in FILES if file.is_result]
    names = [name for name in dict.fromkeys([*results, *weights, *sorted(model)]) if (run / name).exists()]
    if not set(names) - {"README.md"}:  # a card without results is rewritten with each checkpoint
        return
    ended = earlier.get("step")  # a whole number, since it becomes a name
    aside = run / f"_ended-at-step-{step_of(checkpoint) if ended is None else ended}"
    aside.mkdir(exist_ok=True)
    kept = ("status", "step", "best_step", "settings", "prompt", "shots")  # needed to ask its model, also elsewhere
    write_json(aside / "run.json", {key: earlier[key] for key in kept if key in earlier})
    for name in names:
        remove(aside / name)
        (run / name).replace(aside / name)


def _keep_until(step: int, earlier: Path | None, path: Path) -> None:
    """Keep only the earlier file's lines up to this step, without a session's summary."""
    lines = valid_lines(earlier) if earlier else []
    known = [line for line in lines if not fault(line, Log)]
    kept = [line for line in known if line["step"] <= step and "train_runtime" not in line]
    if kept:
        write_lines(path, kept)
    else:
        path.unlink(missing_ok=True)


def finish(
    directory: Path, status: str, seconds: float, step: int | None, planned: int = 0, best_step: int | None = None
) -> None:
    """Record in `run.json` how and at which optimizer step the run ended, and the seconds of all its sessions.

    A killed session has no seconds. An evaluation alone has no step.

    Args:
        planned: optimizer steps of the whole run; 0 if unknown.
        best_step: the step of the weights that were saved, if they are those of the best checkpoint.
    """
    record = read_object(directory / "run.json")
    record["sessions"][-1] |= {"seconds": round(seconds, 1), "status": status}
    total = sum(session.get("seconds", 0) for session in record["sessions"])
    ended = {"status": status, "seconds": round(total, 1)} | ({} if step is None else {"step": step})
    ended |= {"planned": planned} if planned else {}
    ended |= {} if best_step is None else {"best_step": best_step}
    write_json(directory / "run.json", record | ended)


def read_prompt(model: Path) -> dict[str, Any] | None:
    """Return the `prompt`, `shots` and `settings` of a saved model's training; None if no file records them.

    The record is in the model's directory (a run, a merged model), in a checkpoint's seal, or in the run around it (a
    checkpoint, an earlier end).
    """
    for path in (model / "run.json", model / SEAL, model.resolve().parent / "run.json"):
        try:
            record = read_record(path, Asked)
            prompt, shots = dict(record["prompt"]), list(record["shots"])
            return {"prompt": prompt, "shots": shots, "settings": {key: record["settings"][key] for key in SETTINGS}}
        except UserError:
            if path == model / "run.json":
                raise
        except (OSError, KeyError, TypeError) as error:
            if path == model / "run.json" and path.exists() and read_value(path, "status") != MERGED:
                raise UserError(f"{str(model)!r} is not a run ({type(error).__name__} in {path})") from None
    return None
