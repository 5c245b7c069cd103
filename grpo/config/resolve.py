"""From what was asked for to one checked configuration.

`merge` checks all that can be said of a run on any machine; `resolve` fits it to this one, chooses the run's directory
and lets TRL construct its own objects. Neither writes, prints or changes this process: `configure` does both, and
lets `hardware.claim_devices` do so in between.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import arguments, hardware, help, validate
from grpo.config.geometry import fit_evaluation, solve
from grpo.core.errors import UserError
from grpo.core.settings import IN_MEMORY, Config, Geometry, Stage
from grpo.rewarding import stages
from grpo.runs import directory as run_directory
from grpo.runs import resume

# TRL's default for it, and transformers 5.17, still use the old name that transformers 5.23 warns of
warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)

# A question or a merge trains nothing, so that it can follow any run's flags
WITHOUT_TRAINING: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_generations": 2,
    "num_iterations": 1,
    "optim": "adamw_torch",
    "use_vllm": False,
    "stages": None,
    "adaptive_rewards": None,
    "output_dir": None,
    "resume_from_checkpoint": None,
}


@dataclass
class Merged:
    """The settings before they are fitted to a machine: all that can be said of a run on another one."""

    settings: dict[str, Any]
    typed: set[str]  # what the command line itself gives
    chosen: set[str]  # what the recipe or the command line gives
    geometry: Geometry
    stages: list[Stage]
    notes: list[str]


def merge(hyperparameters: dict[str, Any], argv: list[str], world_size: int) -> Merged:
    """The settings of so many processes, each checked, but for what depends on this machine; raises UserError."""
    settings, typed, recipe, below = arguments.read(hyperparameters, argv)
    chosen = typed | recipe
    validate.check_values(settings)
    trains = not (settings["ask"] or settings["merge_only"])
    if not trains:
        if settings["ask"] and "output_dir" in typed and "model_name_or_path" not in typed:  # that run is asked
            settings["model_name_or_path"], typed = settings["output_dir"], typed | {"model_name_or_path"}
        settings |= WITHOUT_TRAINING
        typed = typed - WITHOUT_TRAINING.keys()
    validate.read_dictionaries(settings)
    validate.refuse_secrets(settings)
    geometry = solve(settings, world_size)
    in_stages, notes = stages.read(settings, typed), fit_evaluation(settings, world_size, typed)
    settings.update(stages.whole_run(in_stages, settings["max_steps"]))
    validate.check_adaptive(settings)
    if settings["ask"] and "model_name_or_path" not in typed:
        settings["model_name_or_path"] = str(run_directory.newest_finished())
    if settings["merge_only"] and "dtype" not in typed:  # as it was trained
        settings["dtype"] = run_directory.recorded(settings["merge_only"], "settings", "dtype") or settings["dtype"]
    if settings["eval_samples"] == 0 and settings["eval_every"] and "eval_every" not in typed:
        settings["eval_every"] = None  # a recipe's
    validate.check_together(settings, world_size)
    if trains:
        validate.check_effect(settings, typed)
    dropped = below.get("eval_dataset_name")
    if dropped and not settings["eval_dataset_name"] and "eval_dataset_name" not in typed:
        owner = "HYPERPARAMETERS'" if dropped == hyperparameters.get("eval_dataset_name") else "the recipe's"
        notes.append(
            f"note: {owner} eval_dataset_name ({dropped}) is ignored, since your data replaces what it belongs to: "
            "held-out questions come from yours"
        )
    if trains and not settings["eval_only"]:
        notes += validate.doubts(settings)
    return Merged(settings, typed, chosen, geometry, in_stages, notes)


def configure(hyperparameters: dict[str, Any], argv: Sequence[str], dataset: Any = None) -> Config:
    """`resolve`, and this process made ready for what it says: its GPU chosen, its group of processes joined.

    Args:
        dataset: rows in memory, which replace `dataset_name`.
    """
    words = list(argv)
    if help.answer_at_once(words):
        sys.exit(0)
    if dataset is not None:
        if any(word.partition("=")[0] == "--dataset_name" for word in words):
            raise UserError(
                "dataset_name: it would not be read beside `dataset`, the rows in memory; drop one of them"
            )
        words += ["--dataset_name", IN_MEMORY]
    merged = merge(hyperparameters, words, hardware.world_size())
    hardware.claim_devices(merged.settings, words)
    return resolve(hyperparameters, words, merged)


def resolve(hyperparameters: dict[str, Any], argv: list[str] | None = None, merged: Merged | None = None) -> Config:
    """The configuration of this run; raises UserError for the first thing that is wrong.

    Args:
        hyperparameters: HYPERPARAMETERS of train_grpo.py, the defaults.
        argv: the command line without the program's name; None reads sys.argv.
        merged: what `merge` makes of these two, where that is known.
    """
    argv = sys.argv[1:] if argv is None else argv
    merged = merged or merge(hyperparameters, argv, hardware.world_size())
    settings, notes = merged.settings, merged.notes
    notes += hardware.fit_to_machine(settings, merged.typed, merged.chosen)
    settings["model_name_or_path"] = os.path.expanduser(settings["model_name_or_path"])
    changed = _changed(hyperparameters, settings)
    output_dir, run_name = run_directory.default_names(
        settings["model_name_or_path"], settings["dataset_name"], settings["eval_only"]
    )
    claim = run_directory.claim(settings["output_dir"], output_dir, settings["resume_from_checkpoint"])
    settings["output_dir"], settings["resume_from_checkpoint"] = claim.output_dir, claim.checkpoint
    notes += claim.notes
    run_directory.refuse_unwritable(Path(claim.output_dir))
    if claim.output_dir.startswith(f"{output_dir}-"):  # its number, so that no tracker makes one curve of two runs
        run_name += claim.output_dir.removeprefix(output_dir)
    settings["run_name"] = settings["run_name"] or run_name
    script, training, model = arguments.to_dataclasses(settings)
    hardware.check_optimizer(training)
    if model.model_revision != "main":  # TRL loads the reference model with these
        given = training.model_init_kwargs
        training.model_init_kwargs = {"revision": model.model_revision, **(given if isinstance(given, dict) else {})}
    config = Config(
        script=script,
        training=training,
        model=model,
        geometry=merged.geometry,
        notes=notes,
        changed=changed,
        argv=argv,
        stages=merged.stages,
        typed=merged.typed,
    )
    if claim.checkpoint:
        notes += resume.compare(Path(claim.checkpoint), config.settings(), merged.geometry.world_size)
    return config


def _changed(hyperparameters: dict[str, Any], settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings that differ from the defaults, except names that follow from the model."""
    inline = {**arguments.read(hyperparameters, []).settings, "output_dir": None, "run_name": None}
    validate.read_dictionaries(inline)
    if inline["use_vllm"] is None:
        inline["use_vllm"] = settings["use_vllm"]
    inline["report_to"] = (inline["report_to"] or "none").split(",")
    return {key: {"inline": inline[key], "run": value} for key, value in settings.items() if value != inline[key]}
