"""What a run refuses before anything is loaded: values, combinations, flags without an effect, secrets.

What TRL, transformers and PEFT themselves refuse at once, in a readable line, is left to them.
"""

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from grpo.core import parsing
from grpo.core.errors import UserError
from grpo.core.redaction import holds_key, is_secret_name
from rewards import PENALTIES, check_pattern

MOST = 2**31 - 1  # no setting means more, and what counts to more overflows somewhere
RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "at least 1",
        lambda number: number >= 1,
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps steps_per_generation "
        "generation_batch_size num_iterations max_completion_length max_prompt_length max_samples "
        "eval_num_samples eval_every pack_tokens save_total_limit num_completions_to_print lora_r lora_alpha "
        "ref_model_sync_steps ddp_timeout",
    ),
    ("at least 2", lambda number: number >= 2, "num_generations num_generations_eval"),
    (
        "at least 0",
        lambda number: number >= 0,
        "num_shots eval_samples top_k beta epsilon epsilon_high delta weight_decay max_grad_norm warmup_steps "
        "entropy_coef eval_delay neftune_noise_alpha dataloader_num_workers seed data_seed",
    ),
    (
        "above 0",
        lambda number: number > 0,
        "num_train_epochs temperature repetition_penalty logging_steps save_steps eval_steps adam_epsilon "
        "sapo_temperature_neg sapo_temperature_pos adaptive_bounds",
    ),
    (
        "from 0 to 1",
        lambda number: 0 <= number <= 1,
        "learning_rate min_p top_entropy_quantile ref_model_mixup_alpha max_faulty_rewards",
    ),
    ("above 0 and at most 1", lambda number: 0 < number <= 1, "top_p vllm_gpu_memory_utilization"),
    ("at least 0 and below 1", lambda number: 0 <= number < 1, "adam_beta1 adam_beta2 lora_dropout"),
    ("at least 1, or -1 for whole epochs", lambda number: number == -1 or number >= 1, "max_steps"),
)

# Where TRL takes any text and complains in the middle of a run
CHOICES: dict[str, tuple[str, ...]] = {
    "vllm_mode": ("colocate", "server"),
    "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none", "True", "False"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
# An empty text is a slip of a script (`--output_dir "$OUT"`), save of those
MAY_BE_EMPTY = {"system_prompt", "debug"}


def check_values(settings: dict[str, Any]) -> None:
    """UserError for the first value that no run can have."""
    for key, value in settings.items():
        if isinstance(value, str) and not value.strip() and key not in MAY_BE_EMPTY:
            raise UserError(f"{key}: it is empty; add a value, or drop it")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not abs(number) <= MOST:  # nor is that true of nan
                raise UserError(f"{key}: {number} is out of range; use a finite number below {MOST:,}")
    for label, fits, keys in RANGES:
        for key in keys.split():
            value = settings[key]
            for number in value if isinstance(value, list) else [value]:
                if number is not None and not fits(number):
                    raise UserError(f"{key}: {number} is out of range; use a number {label}")
    for key, choices in CHOICES.items():
        if settings[key] is not None and str(settings[key]) not in choices:
            raise UserError(f"{key}: {settings[key]!r} is unknown; use {', '.join(choices[:-1])} or {choices[-1]}")
    try:
        check_pattern(settings["answer_pattern"])
    except ValueError:
        raise UserError(
            f"answer_pattern: {settings['answer_pattern']!r} is unknown; use xml, boxed, hash or final, or a template "
            "such as 'Final: {answer}'"
        ) from None


def check_adaptive(settings: dict[str, Any]) -> None:
    """UserError for adaptive rewards that the run does not use, and for invalid bounds."""
    names, bounds = settings["adaptive_rewards"] or [], settings["adaptive_bounds"]
    for name in names if names != ["all"] else ():
        if name not in settings["reward_funcs"]:
            raise UserError(
                f"adaptive_rewards: {name!r} is not among the run's rewards; use all, or some of "
                f"{', '.join(settings['reward_funcs'])}"
            )
        if name in PENALTIES and settings["adaptive_threshold"] >= 0:
            raise UserError(
                f"adaptive_rewards: {name} is never above 0, so it would never succeed; drop it, or use an "
                "adaptive_threshold below 0"
            )
    if len(bounds) != 2 or not bounds[0] <= 1 <= bounds[1]:
        raise UserError(f"adaptive_bounds: {bounds} is not a range around 1; use two multiples of the weight: 0.25 4")


# Texts of the user's own, which may well show a URL with somebody's name in it
PROSE = ("system_prompt", "question_template", "completion_template", "answer_pattern")


def refuse_secrets(settings: Mapping[str, Any]) -> None:
    """UserError for a token or a key among the settings: trackers, run.json and checkpoints record all of them.

    A secret is known by its setting's name, or by what it looks like: `hf_…`, `https://user:token@host`, `?token=…`.
    """
    for key, value in settings.items():
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):  # a mapping, as the command line gives it
            with contextlib.suppress(ValueError, RecursionError):  # no JSON: it is looked at as a text below
                value = json.loads(value)
        if isinstance(value, list | tuple):
            value = {str(number): item for number, item in enumerate(value)}
        if isinstance(value, Mapping):
            refuse_secrets({f"{key}.{name}": inner for name, inner in value.items()})
        elif isinstance(value, str) and (is_secret_name(key) or (key not in PROSE and holds_key(value))):
            raise UserError(
                f"{key}: secrets are taken from the environment only (HF_TOKEN, WANDB_API_KEY, …), since settings are "
                "written to files and trackers; drop it and export the variable"
            )


# --- Combinations -----------------------------------------------------------------------------------------------

# Settings that are dictionaries, as JSON on the command line; some may also name a file
FILES = ("accelerator_config", "fsdp_config", "deepspeed")
DICTIONARIES = (
    "model_init_kwargs", "generation_kwargs", "chat_template_kwargs", "lr_scheduler_kwargs", "liger_kernel_config",
    "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "transformers_continuous_batching_config",
    "reward_args", *FILES,
)  # fmt: skip
OWN_FLAGS = {  # what a dictionary would set behind the back of a setting, which run.json then records wrongly
    "model_init_kwargs": {"torch_dtype": "dtype", "revision": "model_revision"}
    | {key: key for key in ("dtype", "attn_implementation", "trust_remote_code")},
    "generation_kwargs": {"max_new_tokens": "max_completion_length"}
    | {key: key for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")},
}


def read_dictionaries(settings: dict[str, Any]) -> None:
    """Turn the settings that are JSON into dictionaries, in place."""
    for key in (key for key in DICTIONARIES if key in settings):  # transformers 5.17 does not have them all
        value, reason = settings[key], ""
        if isinstance(value, str) and key in FILES and os.path.isfile(value):
            continue
        if isinstance(value, str):
            try:
                settings[key] = value = parsing.from_json(value)
            except ValueError as error:
                reason = f" ({error})"
        if not isinstance(value, dict | None):
            file = ", or the name of a file that exists" if key in FILES else ""
            raise UserError(f'{key}: {value!r} is not a dictionary{reason}; write {{"name": value}}{file}')
        for name in OWN_FLAGS.get(key, {}).keys() & (value or {}).keys():
            raise UserError(f"{key}: {name} has a setting of its own; use --{OWN_FLAGS[key][name]}")


def check_together(settings: dict[str, Any], world_size: int) -> None:
    """UserError for the first setting that does not go with another one, or with what is installed."""
    for key, package in {"use_liger_kernel": "liger_kernel", "deepspeed": "deepspeed"}.items():
        if settings[key] and importlib.util.find_spec(package) is None:
            raise UserError(f"{key}: {package} is not installed; pip install {package.replace('_', '-')}, or drop it")
    if settings["eval_samples"] == 0 and (settings["eval_every"] or settings["eval_only"]):
        key = "eval_only" if settings["eval_only"] else "eval_every"
        raise UserError(f"eval_samples: 0 leaves {key} no questions; raise it, or drop --{key}")
    if settings["use_transformers_continuous_batching"]:
        raise UserError(
            "use_transformers_continuous_batching: it turns float32 weights into 16-bit ones for good; drop it"
        )
    if settings["remove_unused_columns"]:
        raise UserError("remove_unused_columns: true would keep the answers from the rewards; drop it")
    if settings["use_peft"] and "lm_head" in (settings["lora_target_modules"] or []):
        raise UserError("lora_target_modules: TRL reads lm_head's weights itself, past an adapter on it; drop lm_head")
    if settings["fsdp"] and world_size == 1:
        raise UserError(f"fsdp: {settings['fsdp']} needs several processes; start it with torchrun, or drop it")


def doubts(settings: Mapping[str, Any]) -> list[str]:
    """A note where the learning rate is that of all weights, and an adapter is trained (docs/reading-curves.md)."""
    rate, model = settings["learning_rate"], os.path.expanduser(str(settings["model_name_or_path"]))
    adapter = settings["use_peft"] or os.path.isfile(os.path.join(model, "adapter_config.json"))
    if adapter and 0 < rate <= 1e-5:
        return [f"note: learning_rate {rate:g} teaches an adapter next to nothing; try {10 * rate:g}"]
    return []


# Flags, as a regular expression, that do nothing unless this setting is on
NEEDS = {"lora_|use_rslora|use_dora": "use_peft", "bnb_|use_bnb_nested_quant": "load_in_4bit", "vllm_": "use_vllm"}


def check_effect(settings: dict[str, Any], typed: set[str]) -> None:
    """UserError for a flag that was typed and would be ignored in silence."""
    for flags, switch in NEEDS.items():
        ignored = sorted(key for key in typed if re.match(flags, key) and settings[key] not in (None, False))
        by_itself = switch == "use_vllm" and settings[switch] is None and not settings["use_cpu"]  # where it is there
        if ignored and not settings[switch] and not by_itself:
            raise UserError(f"{ignored[0]}: it has no effect without {switch}; drop it, or add --{switch} true")
