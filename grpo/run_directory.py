"""Where a run lives: which directory it may write, which checkpoint it goes on from, and what `run.json` records."""

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import UserError

PACKAGES = ("torch", "transformers", "trl", "datasets", "accelerate", "peft", "torch-optimi", "vllm", "flash-attn")


# What a run writes; an old adapter beside new weights would be loaded in their place
RUN_FILES = (
    "*.safetensors*",
    "adapter_config.json",
    "run.json",
    "metrics.jsonl",
    "eval_*.json",
    "completions_*.jsonl",
    "completions/completions_*.parquet",
    "comparison.json",
    "alarms.jsonl",
    "curves.png",
    "report.html",
    "merged*",
    "checkpoint-*",
)


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


def command_line(argv: list[str]) -> str:
    """The command as a shell takes it, secrets masked."""
    words = [re.sub(r"(?i)^(--\w*(token|key|secret|password)\w*=).*", r"\1***", word) for word in argv]
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"(?i)--\w*(_token|_key|secret|password)\w*", word):
            words[index + 1] = "***"
    return shlex.join(["train_grpo.py", *words])


def resume_command(output: Path, argv: list[str]) -> str:
    """The command that goes on with the run in `output` from its newest checkpoint."""
    words = [*argv, "--resume_from_checkpoint", "auto"]
    if not any(re.match(r"--output[_-]dir\b", word) for word in argv):
        words += ["--output_dir", str(output)]
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun
    return f"{f'torchrun --nproc_per_node={processes}' if processes else 'python'} {command_line(words)}"


def mask(value: Any) -> Any:
    """The value, at any depth, without the environment's tokens, keys and passwords, wherever they came from."""
    if isinstance(value, dict):
        return {mask(key): mask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask(item) for item in value]
    if not isinstance(value, str):
        return value
    named = re.compile(r"(?i)(^|_)(token|key|secret|password|passwd|credentials?)$|api_?key")
    for name, secret in os.environ.items():
        if named.search(name) and len(secret) >= 8 and not os.path.exists(secret):  # SSH_KEY names a file
            value = value.replace(secret, "***")
    return value


def without_nan(value: Any) -> Any:
    """The value with None for what JSON cannot hold (NaN and the infinities), at any depth."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"machine": platform.machine(), "cpus": os.cpu_count(), "gpus": gpus}


def commit() -> str | None:
    """This checkout's commit, with `+` where files differ from it; None where there is no git."""
    here = Path(__file__).resolve().parent
    try:
        out = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip()


def begin(directory: Path, config: Any, **facts: Any) -> None:
    """Make the directory ready and write `run.json`: resolved settings, versions, hardware, commit, and `facts`.

    What an earlier run left is removed where it is being replaced (`overwrite_run`), so that nobody resumes from a
    checkpoint of another run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if config.script.overwrite_run and config.training.resume_from_checkpoint is None and holds_run(directory):
        for old in [path for pattern in RUN_FILES for path in directory.glob(pattern)]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    record = {
        "status": "running",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command_line(config.argv),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "geometry": dataclasses.asdict(config.geometry),
        "stages": [dataclasses.asdict(stage) for stage in config.stages],
        **facts,
        "changed": config.changed,
        "settings": config.settings(),
    }
    _write_record(directory, record)


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one JSON object; a line that was half written when an earlier process was killed goes first."""
    line = json.dumps(without_nan(record), ensure_ascii=False) + "\n"
    with path.open("ab+") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(line.encode("utf-8", errors="replace"))


def finish(directory: Path, status: str, seconds: float) -> None:
    """Note in `run.json` how the run ended and how many seconds it took."""
    record = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    _write_record(directory, {**record, "status": status, "seconds": round(seconds, 1)})


def _write_record(directory: Path, record: dict[str, Any]) -> None:
    text = json.dumps(mask(without_nan(record)), indent=2, default=str)
    (directory / "run.json").write_text(text + "\n", encoding="utf-8")
