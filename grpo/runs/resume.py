"""Whether a resumed run still has the settings and the data that its checkpoint was made with."""

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.core.errors import UserError
from grpo.core.settings import Config
from grpo.runs import checkpoints
from grpo.runs.record import versions, without_nan

if TYPE_CHECKING:
    from datasets import Dataset

# Another value would change the meaning of the checkpoint's place in the data, or of its optimizer's state
MUST_MATCH = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
    *("num_generations", "num_iterations", "seed", "shuffle_dataset", "optim", "use_peft", "lora_r"),
    *("lora_target_modules", "dtype"),
)
# These decide what is shown, kept or measured, or how fast; they do not change what is learned
FREE = (
    *("output_dir", "run_name", "report_to", "project", "resume_from_checkpoint", "stop_on_alarm"),
    *("dry_run", "merge_lora", "ddp_timeout", "disable_tqdm", "dataset_name", "dataset_config", "dataset_split"),
    *("max_samples", "packed", "pack_tokens", "max_faulty_rewards", "allow_custom_rewards", "trackio_space_id"),
    *("gradient_checkpointing", "activation_checkpointing"),
)
FREE_PREFIXES = ("log", "save", "eval", "hub", "push", "num_completions", "dataloader", "per_device_eval", "wandb")


class _Without(logging.Filter):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self.text not in record.getMessage()


# transformers 5.23 warns of logging_steps, eval_steps and save_steps, which are FREE, of the batch, which MUST_MATCH,
# and of a tied head, which checkpoints hold once
for module, text in (
    ("trainer_utils", "do not match the ones in the `trainer_state.json`"),
    ("trainer", "missing keys in the checkpoint model loaded: ['lm_head.weight']"),
):
    logging.getLogger(f"transformers.{module}").addFilter(_Without(text))


def facts(config: Config, rows: "Dataset") -> dict[str, Any]:
    """What the seals of this run's checkpoints record: settings, data, versions.

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


def compare(checkpoint: Path, settings: dict[str, Any], world_size: int) -> list[str]:
    """A note for whatever differs from the checkpoint's run.

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
    then, now = sealed.get("settings") or {}, as_json(settings)
    changed = {key: then[key] for key in then if key in now and then[key] != now[key]}
    for key in (key for key in changed if key in MUST_MATCH):
        words = " ".join(map(str, then[key])) if isinstance(then[key], list) else then[key]
        remedy = f"drop --{key}" if words is None else f"use --{key} {words}"
        raise UserError(
            f"{key}: {now[key]} instead of the {then[key]} of {checkpoint}, which makes it unusable; {remedy}, "
            f"{_or_new_run(checkpoint)}"
        )
    found = [f"{key} {then[key]} → {now[key]}" for key in changed if _matters(key)]
    if settings.get("sync_ref_model"):
        found.append("the reference model (no checkpoint contains it, so sync_ref_model restarts from the first)")
    notes = []
    if found:
        notes.append(
            f"note: changed since the checkpoint: {', '.join(found)}; the run will differ from an uninterrupted one"
        )
    before, here = sealed.get("versions") or {}, versions()
    if other := [f"{name} {before[name]} → {here.get(name)}" for name in before if before[name] != here.get(name)]:
        notes.append(f"note: versions changed: {', '.join(other)}; results may differ in their last digits")
    return notes


def unchanged(checkpoint: str | None, settings: dict[str, Any]) -> bool:
    """Whether a run resumes from a checkpoint with all the settings that decide what is learned."""
    then, now = checkpoints.read_seal(Path(checkpoint or "")).get("settings") or {}, as_json(settings)
    return bool(then) and not any(_matters(key) for key in then if then[key] != now.get(key))


def fingerprint(rows: "Dataset") -> str:
    """Of the prompts and gold answers of rows, in their order."""
    found = hashlib.sha256()
    for pair in zip(rows["prompt"], rows["answer"], strict=True):
        found.update(json.dumps(pair).encode())
    return found.hexdigest()


def _matters(key: str) -> bool:
    return key not in FREE and not key.startswith(FREE_PREFIXES)


def as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they come back from a JSON file, without secrets."""
    return json.loads(json.dumps(without_nan(settings), default=str))


def _or_new_run(checkpoint: str | Path) -> str:
    return f"or start a new run from its weights (--model_name_or_path {checkpoint})"
