"""Settings that TRL, transformers and PEFT refuse or misread together, found before anything is loaded."""

import difflib
import importlib.util
import inspect
import os
import re
from typing import Any

from grpo.core import parsing, processes
from grpo.core.errors import UserError

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
    multiple, arguments = settings["pad_to_multiple_of"], settings["optim_args"]
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
        (
            multiple not in (None, "auto") and not re.fullmatch("0*[1-9][0-9]*", str(multiple)),
            f"pad_to_multiple_of: {multiple} is no multiple; give auto, or at least 1",
        ),
        (
            arguments and not re.fullmatch(r"\s*\w+\s*=[^=,]+(,\s*\w+\s*=[^=,]+)*", arguments),
            f"optim_args: {arguments!r} is no list of arguments; write name=value,name=value",
        ),
    ):
        if is_so:
            raise UserError(message)
    _check_compiler(settings["torch_compile_backend"])
    if not settings["use_vllm"] and settings["generation"] != "vllm":  # which has names of its own
        _check_generation(settings["generation_kwargs"] or {}, settings["cache_implementation"])
    for key in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        _check_checkpointing(key, settings.get(key) or {})


def _check_generation(given: dict[str, Any], cache: str | None) -> None:
    """UserError for what model.generate does not know: it would ignore the name, or raise at the first rollout."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

    known = GenerationConfig().to_dict()
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {close[0]}?" if close else "transformers' GenerationConfig lists them"
            raise UserError(f"generation_kwargs: {name!r} is unknown; {remedy}")
    if cache is not None and cache not in ALL_CACHE_IMPLEMENTATIONS:
        raise UserError(f"cache_implementation: {cache!r} is unknown; give {', '.join(ALL_CACHE_IMPLEMENTATIONS)}")


def _check_compiler(backend: str | None) -> None:
    from accelerate.utils import DynamoBackend

    known = [each.lower() for each in DynamoBackend.list()]
    if backend is not None and backend.lower() not in known:
        raise UserError(f"torch_compile_backend: {backend!r} is unknown; give one of {', '.join(known)}")


def _check_checkpointing(key: str, given: dict[str, Any]) -> None:
    from torch.utils.checkpoint import checkpoint

    taken = inspect.signature(checkpoint).parameters.values()
    known = ["preserve_rng_state", *(each.name for each in taken if each.kind is inspect.Parameter.KEYWORD_ONLY)]
    for name in given:
        if name not in known:
            raise UserError(f"{key}: {name!r} is unknown; give one of {', '.join(known)}")
