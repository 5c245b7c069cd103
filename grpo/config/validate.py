"""Refuse values that would fail late or silently, and batches without whole groups, before anything is loaded.

TRL, transformers and PEFT refuse other values themselves, at once and in a readable line.
"""

import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from grpo.config.parsing import ALIASES
from grpo.core.errors import UserError, did_you_mean
from grpo.core.settings import Geometry, given_by
from grpo.core.text import counted

RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "at least 1",
        lambda number: number >= 1,
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps steps_per_generation "
        "generation_batch_size num_iterations max_completion_length max_prompt_length max_samples eval_num_samples "
        "pack_tokens lora_r",
    ),
    ("at least 2", lambda number: number >= 2, "num_generations"),
    (
        "at least 0",
        lambda number: number >= 0,
        "num_shots eval_samples eval_every seed top_k epsilon epsilon_high max_grad_norm warmup_steps "
        "save_total_limit",
    ),
    ("at least 0", lambda number: 0 <= number < math.inf, "beta weight_decay"),
    (
        "above 0",
        lambda number: 0 < number < math.inf,
        "temperature num_train_epochs delta repetition_penalty lora_alpha logging_steps save_steps",
    ),
    ("from 0 to 1", lambda number: 0 <= number <= 1, "learning_rate max_faulty_rewards min_p"),
    ("above 0 and at most 1", lambda number: 0 < number <= 1, "top_p vllm_gpu_memory_utilization"),
    ("at least 0 and below 1", lambda number: 0 <= number < 1, "adam_beta1 adam_beta2 lora_dropout"),
    ("at least 1, or -1 for whole epochs", lambda number: number == -1 or number >= 1, "max_steps"),
)
# Settings for which TRL accepts any text and fails only in the first step
CHOICES = {
    "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none"),
}
HARMFUL = {
    "remove_unused_columns": "removes the columns that rewards read, gold answers among them",
    "neftune_noise_alpha": "adds noise to training's log-probabilities that the sampled completions did not have",
    "use_transformers_continuous_batching": "draws other samples for the same seed, so that no run can be repeated",
    "enable_jit_checkpoint": "saves in the middle of a rollout, from where no run can resume (SIGTERM saves, too)",
}
# Settings of other trainers' samplers and losses, with the value that changes nothing, and a reason
IGNORED: dict[str, tuple[Any, str]] = {
    "train_sampling_strategy": (
        "random",
        "rollouts take their prompts in groups; shuffle_dataset false keeps the order",
    ),
    "length_column_name": ("length", "rollouts take their prompts in groups"),
    "label_smoothing_factor": (0.0, "GRPO has no labels to smooth"),
    "label_names": (None, "GRPO has no labels"),
    "include_for_metrics": ([], "GRPO computes its own metrics"),
    "batch_eval_metrics": (False, "GRPO computes its own metrics"),
}
# Arguments of `generate` that no setting replaces, with the reason why they cannot be set
NOT_SAMPLING = {
    "do_sample": "rollouts are samples",
    "num_beams": "rollouts are samples, each with its own probability",
    "eos_token_id": "the tokenizer and the model's generation_config.json have the end tokens",
    "pad_token_id": "the tokenizer has it",
    "bos_token_id": "the tokenizer has it",
    "disable_compile": "TRL sets it",
    "logprobs": "TRL needs those of the sampled tokens",
    "structured_outputs_regex": "use vllm_structured_outputs_regex",
}
# Arguments that go to the tokenizer; the others, and tools and documents, go to its chat template
TOKENIZING = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {
    "tools",
    "documents",
    "sanitize_control_tokens",
}
PLACES = ("script", "recipe", "flag")  # of settings; later ones override earlier ones
# Flags, as a regular expression, that do nothing unless this setting is on
REQUIRES = {
    "lora_|use_rslora|use_dora": "use_peft",
    "bnb_|use_bnb_nested_quant": "load_in_4bit",
    "vllm_": "use_vllm",
    "dataloader_(persistent|prefetch)_": "dataloader_num_workers",
}


def check(settings: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    """Raise UserError for the first setting that cannot work, or for a flag that would have no effect."""
    flags = given_by(origin, "flag")
    for label, in_range, keys in RANGES:
        for key in keys.split():
            if settings[key] is not None and not in_range(settings[key]):
                raise UserError(f"{key}: {settings[key]} is out of range; use a number {label}")
    for key, choices in CHOICES.items():
        if settings[key] not in choices:
            raise UserError(f"{key}: {settings[key]!r} is unknown; use {', '.join(choices[:-1])} or {choices[-1]}")
    _check_data(settings)
    for key in ("eval_only", "eval_every"):
        skipped = key == "eval_every" and PLACES.index(origin["eval_samples"]) > PLACES.index(
            origin.get(key, "script")
        )
        if settings["eval_samples"] == 0 and settings[key] and not skipped:
            raise UserError(f"eval_samples: 0 leaves {key} no questions; raise it, or drop {key}")
    for key, value in settings.items():
        if key.endswith("_kwargs") and not isinstance(value, Mapping | None):
            raise UserError(f"{key}: {value!r} is not a mapping; write {{name: value}}, as a flag in JSON")
        if value and key.endswith(("_token", "_key")):
            raise UserError(f"{key}: settings are written to files; export the variable instead, such as HF_TOKEN")
    for key in settings["chat_template_kwargs"] or ():
        if key in TOKENIZING:
            raise UserError(f"chat_template_kwargs: {key} is not for the template, but changes its prompts; drop it")
    _check_nested(settings)
    for key, harm in HARMFUL.items():
        if settings[key]:
            raise UserError(f"{key}: it {harm}; drop it")
    for key, (neutral, reason) in IGNORED.items():
        if settings[key] != neutral:
            raise UserError(f"{key}: it has no effect: {reason}; drop it")
    if "hub_strategy" in origin and settings["hub_strategy"] != "end":
        raise UserError(f"hub_strategy: {settings['hub_strategy']!r} uploads checkpoints and completions; use end")
    loader = settings["accelerator_config"] or ""  # text, or a file's path, if set by a flag
    if isinstance(loader, str) and os.path.isfile(loader):
        loader = Path(loader).read_text(encoding="utf-8", errors="replace")
    if "num_steps" in str(loader):
        raise UserError("accelerator_config: num_steps has a setting of its own; use --gradient_accumulation_steps")
    if found := re.search(r"(dispatch|split)_batches\W+true", str(loader), re.IGNORECASE):
        raise UserError(f"accelerator_config: {found[1]}_batches divides the rows of a rollout otherwise; drop it")
    for pattern, switch in REQUIRES.items():
        ignored = sorted(key for key in flags if re.match(pattern, key) and settings[key] not in (None, False))
        by_itself = switch == "use_vllm" and settings[switch] is None and not settings["use_cpu"]  # if it is installed
        if ignored and not settings[switch] and not by_itself:
            value = "1" if switch.endswith("workers") else "true"
            raise UserError(f"{ignored[0]}: it has no effect without {switch}; drop it, or add --{switch} {value}")


def _check_nested(settings: Mapping[str, Any]) -> None:
    """Refuse arguments in a mapping that have a setting of their own, or that do not exist."""
    for outer in ("generation_kwargs", "model_init_kwargs", "lr_scheduler_kwargs"):
        for key, value in (settings[outer] or {}).items():
            own = ALIASES.get(key, key)
            if outer == "generation_kwargs" and key in NOT_SAMPLING:
                raise UserError(f"{outer}: {key} cannot be set: {NOT_SAMPLING[key]}; drop it")
            if own in settings:
                instead = f"--{own} {value}" if isinstance(value, str | int | float) else f"--{own}"
                raise UserError(f"{outer}: {key} has a setting of its own; use {instead} instead")
            if key.endswith(("token", "_key")):
                raise UserError(f"{outer}: {key}: settings are written to files; export HF_TOKEN instead")
    names = set(vars(GenerationConfig()))
    for key in settings["generation_kwargs"] or ():
        if key not in names and not settings["use_vllm"]:  # which has other arguments: training/sampling_trial.py
            raise UserError(f"generation_kwargs: {key} is not an argument{did_you_mean(key, names)}")


def _check_data(settings: Mapping[str, Any]) -> None:
    needed = not (settings["eval_only"] and settings["eval_dataset_name"])
    for key in ("dataset_name", "eval_dataset_name"):
        missing = settings[key] is None and key == "dataset_name" and needed
        if missing or not (settings[key] or "-").strip():
            raise UserError(f"{key}: it is empty; use a file, a directory or a Hub id")


def solve_geometry(settings: Mapping[str, Any], world_size: int) -> Geometry:
    """Count the prompts and completions of a rollout and of an optimizer step.

    Raises:
        UserError: groups or optimizer steps would mix rollouts; suggests values that work.
    """
    batch, accumulation = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
    group, total = settings["num_generations"], settings["generation_batch_size"]
    steps = settings["steps_per_generation"] or accumulation
    if total is not None and settings["steps_per_generation"] is None:
        steps = max(1, total // (batch * world_size))  # TRL refuses non-multiples
    if steps % accumulation and accumulation % steps:
        key = "steps_per_generation" if total is None else "generation_batch_size"
        instead = accumulation * (1 if total is None else batch * world_size)
        raise UserError(
            f"{key}: {settings[key]} makes {counted(steps, 'step')} per generation, neither a multiple nor a divisor "
            f"of gradient_accumulation_steps {accumulation}, so optimizer steps would mix rollouts; use {instead}"
        )
    rollout = batch * world_size * steps
    if rollout % group:
        unit = group // math.gcd(group, rollout // batch)
        divisors = [str(number) for number in range(2, min(rollout, 4096) + 1) if rollout % number == 0]
        instead = f", or num_generations to {', '.join(divisors[:8])}" if divisors else ""
        raise UserError(
            f"num_generations: {group} does not divide the rollout of {rollout} completions "
            f"(per_device_train_batch_size {batch} × {counted(world_size, 'device')} × {counted(steps, 'step')} per "
            f"generation); set per_device_train_batch_size to {unit}, {2 * unit} or another multiple of {unit}"
            f"{instead} (TRL counts completions; it counted prompts in January 2025: 1 / 4 / 16 is 16 / 4 / 16 now)"
        )
    return Geometry(world_size, batch, accumulation, steps, group, settings["num_iterations"])
