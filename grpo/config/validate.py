"""Refuse values that would fail late or silently, and batches without whole groups, before anything is loaded.

TRL, transformers and PEFT refuse other values themselves, at once and in a readable line.
"""

import contextlib
import functools
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from grpo.config.parsing import MAPPINGS, is_default
from grpo.core.errors import UserError, did_you_mean
from grpo.core.settings import ALIASES, Geometry, Settings, about, given_by, steps_per_generation
from grpo.core.text import counted

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
PLACES = ("default", "script", "recipe", "flag")  # of settings; later ones override earlier ones
# Names of arguments whose texts are secrets, and of those that only look so
SECRET = re.compile(
    r"(?:token|(?:api|auth|hf|access)_?tokens|pass(?:words?|wd|phrase)|(?:^|_)pwd|secrets?|credentials?|authorization"
    r"|(?:api|access|secret|private|auth|signing|encryption|account|service)_?keys?)(?:_?\d+)?$"
)
SPECIAL = re.compile(r"<[^<>]+>|\[[A-Z]+\]")  # texts of special tokens
SPECIAL_TOKENS = PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES


def check(settings: Settings, functions: Mapping[str, Mapping[str, Callable[..., Any]]]) -> None:
    """Raise UserError for the first setting that cannot work, or for a flag that would have no effect.

    Args:
        functions: functions in HYPERPARAMETERS, by setting and name.
    """
    origin = settings.origin
    for key, value in settings.items():
        _refuse_secrets(key, value)
    for key, named in functions.items():
        for name, function in named.items():
            if isinstance(function, functools.partial):  # whose script is copied to the run
                _refuse_secrets(key, {name: function.keywords}, public=set(os.environ.values()))
    for key, value in settings.items():
        _check_value(key, value, key in origin)
    for key, value in settings.items():
        if (least := about(key).above) and value is not None and not value > (number := least.number(settings)):
            raise UserError(f"{key}: {value} is out of range; use a number above {least.label} ({number:g})")
    _check_names(settings)
    for key in ("eval_only", "eval_every"):
        skipped = key == "eval_every" and PLACES.index(origin.get("eval_samples", "default")) > PLACES.index(
            origin.get(key, "script")
        )
        if settings["eval_samples"] == 0 and settings[key] and not skipped:
            raise UserError(f"eval_samples: 0 leaves {key} no questions; raise it, or drop {key}")
    for key, value in settings.items():
        if key.endswith("_kwargs") and not isinstance(value, Mapping | None):
            raise UserError(f"{key}: {value!r} is not a mapping; write {{name: value}}, as a flag in JSON")
    for key in settings["chat_template_kwargs"] or ():
        if key in TOKENIZING:
            raise UserError(f"chat_template_kwargs: {key} is not for the template, but changes its prompts; drop it")
    _check_nested(settings)
    if settings["hub_strategy"] != "end" and not is_default(
        "hub_strategy", settings["hub_strategy"]
    ):  # a run uses end
        raise UserError(f"hub_strategy: {settings['hub_strategy']!r} uploads checkpoints and completions; use end")
    loader = str(_parsed(settings["accelerator_config"]))
    if "num_steps" in loader:
        raise UserError("accelerator_config: num_steps has a setting of its own; use --gradient_accumulation_steps")
    if found := re.search(r"(dispatch|split)_batches\W+true", loader, re.IGNORECASE):
        raise UserError(f"accelerator_config: {found[1]}_batches divides the rows of a rollout otherwise; drop it")
    for key in sorted(given_by(origin, "flag")):
        for need in () if is_default(key, settings[key]) else about(key).needs:
            if not need.holds(settings):
                raise UserError(f"{key}: it has no effect without {need.label}; drop it, or use {need.remedy}")


def _refuse_secrets(setting: str, value: Any, public: Collection[str] = ()) -> None:
    """Raise UserError if a setting holds a secret, at any depth: it would be written to files.

    Args:
        public: texts that no file repeats, such as variables of the environment.
    """
    found = secret_in(_parsed(value) if setting in MAPPINGS else value, setting, public)
    if found == setting:
        raise UserError(f"{setting}: settings are written to files; export the variable instead, such as HF_TOKEN")
    if found:
        raise UserError(
            f"{setting}: {found.removeprefix(f'{setting}.')}: settings are written to files; read it from the "
            "environment instead (HF_TOKEN, or os.environ in your function), or rename it if it is not a secret"
        )


def secret_in(value: Any, name: str, public: Collection[str] = (), is_secret: bool = False) -> str:
    """Return the dotted name of the first secret in a value; "" without one.

    Secrets are texts at any depth under names such as `api_key`, `*_token` and `password`, but for special tokens.

    Args:
        public: texts that are not secret.
        is_secret: True below such a name.

    >>> secret_in({"pay": {"model": "x", "eos_token": "</s>", "apiKey": "sk-1"}}, "reward_args")
    'reward_args.pay.apiKey'
    >>> secret_in({"max_new_tokens": 9, "sort_key": None, "use_auth_token": True, "keys": ["a"]}, "reward_args")
    ''
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W+", "_", name).lower()
    is_secret = is_secret or bool(SECRET.search(words) and words not in SPECIAL_TOKENS)
    if isinstance(value, Mapping):
        inner = (secret_in(item, str(key), public, is_secret) for key, item in value.items())
        return next((f"{name}.{found}" for found in inner if found), "")
    if isinstance(value, list | tuple | set):
        return next(filter(None, (secret_in(item, name, public, is_secret) for item in value)), "")
    text = isinstance(value, str) and value and value not in public and not SPECIAL.fullmatch(value)
    return name if is_secret and text else ""


def _parsed(value: Any) -> Any:
    """Return a mapping that is set as JSON or by the name of a file of JSON; any other value as it is."""
    if isinstance(value, str):
        text = Path(value).read_text(encoding="utf-8", errors="replace") if os.path.isfile(value) else value
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return value


def _check_value(key: str, value: Any, is_set: bool) -> None:
    """Raise UserError for a value that this setting cannot have, whatever the others are."""
    known = about(key)
    expected = f"; use a number {known.range.label}".rstrip() if known.range else ""
    if isinstance(value, str) and known.range:  # TRL reads the text
        value = _read_number(value)
    if isinstance(value, str) and key == "optim_args":  # name=0.9,name=0.1
        value = [_read_number(part.partition("=")[2]) for part in value.split(",")]
    for number in _numbers(value):
        if number != number or number in (math.inf, -math.inf):  # isfinite raises for large integers
            raise UserError(f"{key}: {number} is not a finite number{expected}")
    if known.range and isinstance(value, int | float) and not known.range.contains(value):
        raise UserError(f"{key}: {value} is out of range{expected}")
    if known.choices and value is not None and value not in known.choices:
        others, last = ", ".join(known.choices[:-1]), known.choices[-1]
        raise UserError(f"{key}: {value!r} is unknown; use {others} or {last}")
    if known.fixed and is_set and value is not None and value != known.fixed[0]:
        raise UserError(f"{key}: {known.fixed[1]}; drop it")


def _read_number(text: str) -> float | str:
    """Return the number that a text is, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of a value, at any depth."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


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
    names = set(vars(GenerationConfig()))
    for key in settings["generation_kwargs"] or ():
        if key not in names and not settings["use_vllm"]:  # which has other arguments: training/sampling_trial.py
            raise UserError(f"generation_kwargs: {key} is not an argument{did_you_mean(key, names)}")


def _check_names(settings: Mapping[str, Any]) -> None:
    """Raise UserError if the model, or the data that is needed, has no name."""
    needed = ["model_name_or_path"]
    needed += ["dataset_name"] if not (settings["eval_only"] and settings["eval_dataset_name"]) else []
    for key in ("model_name_or_path", "dataset_name", "eval_dataset_name"):
        name = settings[key]
        if key in needed if name is None else not name.strip():
            file = "" if key == "model_name_or_path" else "a file, "
            raise UserError(f"{key}: it is empty; use {file}a directory or a Hub id")


def solve_geometry(settings: Mapping[str, Any], world_size: int) -> Geometry:
    """Count the prompts and completions of a rollout and of an optimizer step.

    Raises:
        UserError: groups or optimizer steps would mix rollouts; suggests values that work.
    """
    batch, accumulation = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
    group, total = settings["num_generations"], settings["generation_batch_size"]
    steps = steps_per_generation(settings, world_size)
    if steps % accumulation and accumulation % steps:
        key = "steps_per_generation" if total is None else "generation_batch_size"
        instead = accumulation * (1 if total is None else batch * world_size)
        raise UserError(
            f"{key}: {settings[key]} makes {counted(steps, 'step')} per generation, neither a multiple nor a divisor "
            f"of gradient_accumulation_steps {accumulation}, so optimizer steps would mix rollouts; use {instead}"
        )
    uses = steps * settings["num_iterations"]
    if uses % accumulation and accumulation % uses:
        multiple = accumulation // math.gcd(accumulation, steps)
        raise UserError(
            f"num_iterations: {settings['num_iterations']} times {counted(steps, 'step')} per generation make {uses} "
            f"steps, neither a multiple nor a divisor of gradient_accumulation_steps {accumulation}, so optimizer "
            f"steps would mix rollouts; use {multiple} or another multiple of {multiple}"
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
