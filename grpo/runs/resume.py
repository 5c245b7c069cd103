"""Compare a run that resumes with the run that wrote its checkpoint: settings, data, processes, versions."""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.settings import Config
from grpo.core.versions import versions
from grpo.runs import checkpoints
from grpo.runs.record import without_nan

# Another value would change the meaning of the checkpoint's place in the data, or of its optimizer's state
MUST_MATCH = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
    *("num_generations", "num_iterations", "seed", "shuffle_dataset", "optim", "use_peft", "lora_r"),
    *("lora_target_modules", "dtype"),
)
# These decide what is shown, kept or measured, or how fast; they do not change what is learned
MAY_CHANGE = (
    *("output_dir", "run_name", "report_to", "project", "resume_from_checkpoint", "stop_on_alarm"),
    *("dry_run", "ddp_timeout", "disable_tqdm", "dataset_name", "dataset_config", "dataset_split"),
    *("max_samples", "packed", "pack_tokens", "max_faulty_rewards", "allow_custom_rewards", "trackio_space_id"),
    *("gradient_checkpointing", "activation_checkpointing"),
)
MAY_CHANGE_PREFIXES = (
    *("log", "save", "eval", "hub", "push", "num_completions", "dataloader", "per_device_eval", "wandb"),
)


def _without(text: str) -> Callable[[logging.LogRecord], bool]:
    return lambda record: text not in record.getMessage()


# transformers 5.23 warns of logging_steps, eval_steps and save_steps, which may change, of the batch, which must not,
# and of a tied head, which checkpoints hold once
for module, text in (
    ("trainer_utils", "do not match the ones in the `trainer_state.json`"),
    ("trainer", "missing keys in the checkpoint model loaded: ['lm_head.weight']"),
):
    logging.getLogger(f"transformers.{module}").addFilter(_without(text))


def facts(config: Config, rows: Dataset) -> dict[str, Any]:
    """Settings, data and versions, for the seals of this run's checkpoints.

    Raises:
        UserError: the checkpoint to resume from was trained on other rows.
    """
    checkpoint, data = config.training.resume_from_checkpoint, fingerprint(rows)
    if checkpoint and checkpoints.read_seal(Path(checkpoint)).get("data", data) != data:
        raise UserError(
            f"resume_from_checkpoint: the training prompts are not those of {checkpoint}, so resuming would "
            f"repeat or skip some; use the run's own data and prompt settings, {_or_new_run(checkpoint)}"
        )
    return {"settings": as_json(config.settings()), "data": data, "versions": versions()}


def compare(checkpoint: Path, settings: dict[str, Any], world_size: int) -> list[Check]:
    """A note for each difference from the checkpoint's run that changes what comes next.

    Raises:
        UserError: a changed setting makes this checkpoint unusable.
    """
    sealed = checkpoints.read_seal(checkpoint)
    if (before := sealed.get("world_size", world_size)) != world_size:
        raise UserError(
            f"resume_from_checkpoint: {checkpoint} was written by {before} processes, and this run has {world_size}: "
            f"each has its own random numbers and its own part of a rollout; use --nproc_per_node={before}, "
            f"{_or_new_run(checkpoint)}"
        )
    changed, notes = changes(checkpoint, settings), list[Check]()
    for key in MUST_MATCH:
        if key in changed:
            then, now = changed[key]
            words = " ".join(map(str, then)) if isinstance(then, list) else then
            remedy = f"drop --{key}" if words is None else f"use --{key} {words}"
            raise UserError(
                f"{key}: {now} instead of the {then} of {checkpoint}, which makes it unusable; {remedy}, "
                f"{_or_new_run(checkpoint)}"
            )
    found = [f"{key} {then} → {now}" for key, (then, now) in changed.items()]
    if settings.get("sync_ref_model"):
        found.append("the reference model (no checkpoint contains it, so sync_ref_model restarts from the first)")
    if found:
        effect = "the run will differ from an uninterrupted one"
        notes.append(Check("warning", "changed", f"since the checkpoint: {', '.join(found)}", effect))
    before, here = sealed.get("versions") or {}, versions()
    if other := [f"{name} {before[name]} → {here.get(name)}" for name in before if before[name] != here.get(name)]:
        effect = "results may differ in their last digits"
        notes.append(Check("warning", "versions", f"since the checkpoint: {', '.join(other)}", effect))
    return notes


def changes(checkpoint: Path, settings: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Changed settings that change what is learned, by name: the checkpoint's value and the one now."""
    then, now = checkpoints.read_seal(checkpoint).get("settings") or {}, as_json(settings)
    return {
        key: (then[key], now[key])
        for key in then
        if key in now and then[key] != now[key]
        if key not in MAY_CHANGE and not key.startswith(MAY_CHANGE_PREFIXES)
    }


def fingerprint(rows: Dataset) -> str:
    """A hash of the prompts and gold answers of rows, in their order."""
    found = hashlib.sha256()
    for pair in zip(rows["prompt"], rows["answer"], strict=True):
        found.update(json.dumps(pair).encode())
    return found.hexdigest()


def as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they come back from a JSON file."""
    return json.loads(json.dumps(without_nan(settings), default=str))


def _or_new_run(checkpoint: str | Path) -> str:
    return f"or start a new run from its weights (--model_name_or_path {checkpoint})"
