"""What a run refuses before anything is loaded: values, combinations, flags without an effect, secrets.

What TRL, transformers and PEFT themselves refuse at once, in a readable line, is left to them.
"""

import contextlib
import importlib.util
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from grpo.core import parsing, processes
from grpo.core.errors import UserError
from grpo.core.redaction import holds_key, is_secret_name
from rewards import PENALTIES

MOST = 2**31 - 1  # no setting means more, and what counts to more overflows somewhere
ABOVE_ZERO, BELOW_ONE, SMALLEST = 1e-12, 1 - 1e-12, math.ulp(0.0)
ANY = (-MOST, MOST)
# Smallest and largest value that makes sense, where it is not ANY.
RANGES: dict[tuple[float, float], str] = {
    (1, MOST): "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
    "steps_per_generation generation_batch_size num_iterations max_completion_length max_prompt_length max_samples "
    "eval_samples eval_num_samples pack_tokens save_total_limit num_completions_to_print lora_r lora_alpha "
    "ref_model_sync_steps ddp_timeout",
    (2, MOST): "num_generations num_generations_eval filter_num_samples",
    (0, MOST): "num_shots top_k beta epsilon epsilon_high delta weight_decay max_grad_norm "
    "warmup_steps entropy_coef eval_delay neftune_noise_alpha",
    (0, 1024): "dataloader_num_workers",
    (SMALLEST, MOST): "adam_epsilon",
    (ABOVE_ZERO, MOST): "num_train_epochs temperature repetition_penalty logging_steps save_steps eval_steps "
    "sapo_temperature_neg sapo_temperature_pos adaptive_bounds",
    (0, 1): "learning_rate min_p top_entropy_quantile ref_model_mixup_alpha filter_pass_rate max_faulty_rewards",
    (ABOVE_ZERO, 1): "top_p vllm_gpu_memory_utilization",
    (0, BELOW_ONE): "adam_beta1 adam_beta2 lora_dropout",
    (0, 2**32 - 1): "seed data_seed",
}


# Where TRL takes any text and complains in the middle of a run
CHOICES: dict[str, tuple[str, ...]] = {
    "generation": ("auto", "lean", "hf", "compiled", "continuous", "vllm"),
    "vllm_mode": ("colocate", "server"),
    "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none", "True", "False"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "torch_compile_mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "cache_implementation": ("dynamic", "static", "offloaded", "offloaded_static", "quantized"),
}
# An empty text is a slip of a script (`--output_dir "$OUT"`), save of those
MAY_BE_EMPTY = {"system_prompt", "debug"}
PATHS = ("model_name_or_path", "dataset_name", "eval_dataset_name", "output_dir")


def check_values(settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, str) and not value.strip() and key not in MAY_BE_EMPTY:
            what = {"ask": "a question", "merge_only": "a directory"}.get(key, "a value, or leave it out")
            raise UserError(f"{key}: it is empty; give {what}")
        if key in PATHS and value and value != value.strip() and not os.path.exists(value):
            raise UserError(f"{key}: {value!r} begins or ends with a space; leave it out")
    for key, choices in CHOICES.items():
        if settings[key] is not None and str(settings[key]) not in choices:
            raise UserError(f"{key}: {settings[key]!r} is unknown; give {', '.join(choices[:-1])} or {choices[-1]}")
    ranges = {key: limits for limits, keys in RANGES.items() for key in keys.split()}
    for key, value in settings.items():
        low, high = ranges.get(key, ANY)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if not low <= number <= high:  # neither is true of nan
                above = {ABOVE_ZERO: "a number above 0", SMALLEST: "a number above 0", -MOST: "a finite number"}
                most = "" if high == MOST and not number > high else f" and at most {high:.10g}"
                most = " and below 1" if high == BELOW_ONE else most
                raise UserError(f"{key}: {number} is out of range; give {above.get(low, f'at least {low:g}')}{most}")
    shares = settings["filter_pass_rate"]
    if shares is not None and (len(shares) != 2 or shares[0] > shares[1]):
        raise UserError(f"filter_pass_rate: {shares} is no range; give the lowest and the highest share, as 0.1 0.9")
    instead = [key for key in ("dry_run", "eval_only", "ask", "merge_only") if settings[key] not in (None, False)]
    if len(instead) > 1 and instead != ["dry_run", "eval_only"]:
        raise UserError(f"{instead[-1]}: {' and '.join(instead)} are each to be done instead of a run; give one")
    if settings["max_steps"] != -1 and settings["max_steps"] < 1:
        raise UserError(f"max_steps: {settings['max_steps']} is out of range; give at least 1, or -1 for whole epochs")


def check_adaptive(settings: dict[str, Any]) -> None:
    """UserError for rewards that are to be scaled and are not there, and for bounds that are none."""
    names, bounds = settings["adaptive_rewards"] or [], settings["adaptive_bounds"]
    for name in names if names != ["all"] else ():
        if name not in settings["reward_funcs"]:
            raise UserError(
                f"adaptive_rewards: {name!r} is none of the run's rewards; give all, or some of "
                f"{', '.join(settings['reward_funcs'])}"
            )
        if name in PENALTIES and settings["adaptive_threshold"] >= 0:
            raise UserError(
                f"adaptive_rewards: {name} is never above 0, so it would never succeed; drop it, or use an "
                "adaptive_threshold below 0"
            )
    if len(bounds) != 2 or not bounds[0] <= 1 <= bounds[1]:
        raise UserError(f"adaptive_bounds: {bounds} is no range around 1; give two multiples of the weight: 0.25 4")


# Texts of the user's own, which may well show a URL with somebody's name in it
PROSE = ("ask", "system_prompt", "question_template", "completion_template")


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
    *FILES,
)  # fmt: skip
OWN_FLAGS = {  # what a dictionary would set behind the back of a setting, which run.json then records wrongly
    "model_init_kwargs": {"torch_dtype": "dtype", "revision": "model_revision"}
    | {key: key for key in ("dtype", "attn_implementation", "trust_remote_code")},
    "generation_kwargs": {"max_new_tokens": "max_completion_length"}
    | {key: key for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")},
}
PACKAGES = {"use_liger_kernel": "liger_kernel", "deepspeed": "deepspeed"}


def read_dictionaries(settings: dict[str, Any]) -> None:
    """Turn the settings that are JSON into dictionaries, in place."""
    for key in (key for key in DICTIONARIES if key in settings):  # transformers 5.17 does not have them all
        value = settings[key]
        if isinstance(value, str) and not (key in FILES and not value.lstrip().startswith(("{", "["))):
            try:
                settings[key] = value = parsing.from_json(value)
            except ValueError as error:
                raise UserError(f'{key}: {value!r} is no dictionary ({error}); write {{"name": value}}') from None
        if isinstance(value, str) and not os.path.isfile(value):
            raise UserError(f'{key}: there is no file {value!r}; give one, or write {{"name": value}}')
        if not isinstance(value, dict | str | None):
            raise UserError(f'{key}: {value!r} is no dictionary; write {{"name": value}}')
        for name, flag in OWN_FLAGS.get(key, {}).items():
            if isinstance(value, dict) and name in value:
                raise UserError(f"{key}: {name} has a setting of its own; give --{flag} {value[name]}")


def check_together(settings: dict[str, Any], world_size: int) -> None:
    """UserError for the first setting that does not go with another one, or with what is installed."""
    for key, package in PACKAGES.items():
        if settings[key] and importlib.util.find_spec(package) is None:
            raise UserError(f"{key}: {package} is not installed; pip install {package.replace('_', '-')}, or drop it")
    lora, modules = settings["use_peft"], settings["lora_target_modules"] or []
    reference, evaluation = settings["sync_ref_model"], settings["eval_strategy"] != "no"
    for is_so, message in (
        (
            reference and not settings["beta"],
            "sync_ref_model: there is no reference model while beta is 0; give --beta 0.04, or drop sync_ref_model",
        ),
        (
            reference and lora,
            "sync_ref_model: an adapter has no reference model of its own; drop sync_ref_model, or use_peft",
        ),
        (
            settings["eval_on_start"] and not evaluation,
            "eval_on_start: nothing is evaluated while eval_strategy is no; add --eval_strategy steps, or drop it",
        ),
        (
            settings["save_strategy"] == "best" and not (evaluation and settings["metric_for_best_model"]),
            "save_strategy: best needs --eval_strategy steps and a --metric_for_best_model; add them, or give steps",
        ),
        (
            settings["remove_unused_columns"],
            "remove_unused_columns: true would keep the answers from the rewards; leave it out",
        ),
        (
            lora and "lm_head" in modules,
            "lora_target_modules: TRL reads the weights of lm_head itself, past an adapter on it; leave lm_head out",
        ),
        (
            settings["lora_task_type"] != "CAUSAL_LM",
            f"lora_task_type: {settings['lora_task_type']} is no kind of model that writes text; give CAUSAL_LM",
        ),
        (
            settings["fsdp"] and world_size == 1,
            f"fsdp: {settings['fsdp']} needs several processes; start it with torchrun, or drop it",
        ),
        (
            settings["save_on_each_node"] and processes.count() > 1,
            "save_on_each_node: true would let every machine write the same run; leave it out, and share output_dir",
        ),
    ):
        if is_so:
            raise UserError(message)


# Flags, as a regular expression, that do nothing unless one of these settings has one of these values
NEEDS: tuple[tuple[str, tuple[str, ...], tuple[Any, ...]], ...] = (
    ("save_steps", ("save_strategy",), ("steps",)),
    ("save_total_limit|save_only_model", ("save_strategy",), ("steps", "epoch", "best")),
    ("eval_steps", ("eval_strategy",), ("steps",)),
    ("eval_delay", ("eval_strategy",), ("steps", "epoch")),
    ("num_train_epochs", ("max_steps",), (-1,)),
    ("lora_.*|use_rslora|use_dora", ("use_peft",), (True,)),
    ("bnb_.*|use_bnb_nested_quant", ("load_in_4bit",), (True,)),
    ("vllm_.*", ("use_vllm",), (True,)),
    ("vllm_server_.*|vllm_group_port", ("vllm_mode",), ("server",)),
    ("filter_num_samples", ("filter_pass_rate", "curriculum"), (True,)),
    ("adaptive_threshold|adaptive_bounds", ("adaptive_rewards",), (True,)),
    ("ref_model_.*", ("sync_ref_model",), (True,)),
    ("sapo_.*", ("loss_type",), ("sapo",)),
    ("vespo_.*", ("loss_type",), ("vespo",)),
    ("pack_tokens", ("packed",), (True,)),
    ("gradient_checkpointing_kwargs", ("gradient_checkpointing",), (True,)),
    ("num_completions_to_print", ("log_completions",), (True,)),
    ("hub_.*", ("push_to_hub",), (True,)),
)


def check_effect(settings: dict[str, Any], typed: set[str]) -> None:
    """UserError for a flag that was typed and does nothing with the other settings.

    In a recipe or the inline block it may stand: another flag has switched off what it belongs to.
    """
    for flags, names, values in NEEDS:
        if any(settings[name] in values or (values == (True,) and settings[name]) for name in names):
            continue
        for key in sorted(key for key in typed if re.fullmatch(flags, key) and not _off(settings[key])):
            states = " and ".join(f"{name} is {_shown(settings[name])}" for name in names)
            wish = f"--{names[0]} {'0.1 0.9' if names[0] == 'filter_pass_rate' else _shown(values[0])}"
            wish = "--adaptive_rewards all" if names[0] == "adaptive_rewards" else wish
            raise UserError(f"{key}: it has no effect while {states}; drop it, or add {wish}")


def _off(value: Any) -> bool:
    return value is None or value is False


def _shown(value: Any) -> str:
    return {None: "unset", True: "true", False: "false"}.get(value, str(value))
