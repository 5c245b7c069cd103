"""Whether the settings of a run that is gone on with are those that its checkpoint was made with."""

import hashlib
import json
from pathlib import Path
from typing import Any

from grpo.core import processes
from grpo.core.errors import UserError
from grpo.runs import checkpoints
from grpo.runs.record import mask, versions, without_nan

# With another value the checkpoint's place in the data, or its optimizer's state, means something else
FIXED = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
    *("num_generations", "num_iterations", "seed", "shuffle_dataset", "optim", "use_peft", "lora_r"),
    *("lora_target_modules", "dtype", "filter_pass_rate", "filter_num_samples", "curriculum"),
)
# These decide what is shown, kept or measured, or how fast; not what is learned
FREE = (
    *("output_dir", "run_name", "report_to", "project", "resume_from_checkpoint", "overwrite_run", "stop_on_alarm"),
    *("dry_run", "merge_lora", "ddp_timeout", "disable_tqdm", "dataset_name", "dataset_config", "dataset_split"),
    *("max_samples", "packed", "pack_tokens", "max_faulty_rewards", "allow_custom_rewards", "trackio_space_id"),
)
FREE_PREFIXES = ("log", "save", "eval", "hub", "push", "num_completions", "dataloader", "per_device_eval", "wandb")


def facts(config: Any, rows: Any) -> dict[str, Any]:
    """What the seals of a run's checkpoints remember of it: settings, data, versions.

    Raises:
        UserError: these training rows are not those of the checkpoint that it goes on from.
    """
    checkpoint, data = config.training.resume_from_checkpoint, fingerprint(rows)
    if checkpoint and checkpoints.read_seal(Path(checkpoint)).get("data", data) != data:
        raise UserError(
            f"resume_from_checkpoint: the training prompts are not those of {checkpoint}, so its place among them "
            "means nothing; give the data and prompt settings that the run began with, or start a new run from its "
            f"weights (--model_name_or_path {checkpoint})"
        )
    return {"settings": _plain(config.settings()), "data": data, "versions": versions()}


def compare(checkpoint: Path, settings: dict[str, Any], world_size: int) -> list[str]:
    """A line for what is not as the checkpoint's run had it.

    Raises:
        UserError: with what was changed there is nothing that could be gone on with.
    """
    sealed = checkpoints.read_seal(checkpoint)
    instead = f"or start a new run from its weights (--model_name_or_path {checkpoint})"
    if sealed.get("world_size", world_size) != world_size:
        times = "--nnodes times " if processes.count() > 1 else ""
        raise UserError(
            f"resume_from_checkpoint: {checkpoint} is of {sealed['world_size']} processes, and this run has "
            f"{world_size}: each has its own random numbers and its own part of a rollout; give "
            f"{times}--nproc_per_node={sealed['world_size']}, {instead}"
        )
    then, now = sealed.get("settings") or {}, _plain(settings)
    changed = [key for key in then if key in now and then[key] != now[key]]
    for key in changed:
        if key in FIXED:
            raise UserError(
                f"{key}: {now[key]} is not the run's, which has {then[key]}, and its checkpoint cannot be continued "
                f"with another; {_way_back(key, then[key])}, {instead}"
            )
    notes = []
    if said := _that_matter(changed):
        finding = ", ".join(f"{key} {then[key]} → {now[key]}" for key in said)
        notes.append(f"note: since the checkpoint {finding}; from here on the run is another than it would have been")
    if settings.get("sync_ref_model"):
        notes.append(
            "note: checkpoints do not hold the reference model: sync_ref_model begins with the first one again, and "
            "from here on the run is another than it would have been"
        )
    if settings.get("dataloader_persistent_workers"):  # which draw random numbers when they start
        notes.append("note: dataloader_persistent_workers: from here on the run is another than it would have been")
    before, here = sealed.get("versions") or {}, versions()
    other = [f"{name} {before[name]} → {here.get(name)}" for name in before if before[name] != here.get(name)]
    if other:
        notes.append(f"note: other versions than before: {', '.join(other)}; results may differ in their last digits")
    return notes


def unchanged(checkpoint: str | None, settings: dict[str, Any]) -> bool:
    """Whether a run goes on from a checkpoint with all the settings that decide what is learned."""
    then, now = checkpoints.read_seal(Path(checkpoint or "")).get("settings") or {}, _plain(settings)
    return bool(then) and not _that_matter([key for key in then if then[key] != now.get(key)])


def fingerprint(rows: Any) -> str:
    """Of the prompts and gold answers of rows, in their order."""
    found = hashlib.sha256()
    for pair in zip(rows["prompt"], rows["answer"], strict=True):
        found.update(json.dumps(pair).encode())
    return found.hexdigest()


def _that_matter(keys: list[str]) -> list[str]:
    return [key for key in keys if key not in FREE and not key.startswith(FREE_PREFIXES)]


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As they come back from a JSON file, without secrets."""
    return json.loads(json.dumps(mask(without_nan(settings)), default=str))


def _way_back(key: str, value: Any) -> str:
    if value is None:
        return f"leave --{key} out"
    return f"give --{key} {' '.join(map(str, value)) if isinstance(value, list) else value}"
