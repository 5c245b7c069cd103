"""Load the model, its configuration and its tokenizer from a directory or the Hub; unusable files end in one line.

Configurations are read for preflight, weights after it, and all of them before a run writes anything.
"""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.integrations import deepspeed, is_fsdp_enabled
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging
from transformers.utils.peft_utils import find_adapter_config_file
from trl import get_peft_config, get_quantization_config

from grpo.core import folder_of
from grpo.core.errors import UserError, one_line
from grpo.core.settings import Config
from grpo.core.text import digest
from lean_grpo import sharding

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # kinds of numbers by their bytes


@contextlib.contextmanager
def model_errors(name: str, where: str = "model_name_or_path") -> Iterator[None]:
    """Turn any fault of a model's files, read in this context, into one line that begins with `where`."""
    if os.path.isfile(name):
        raise UserError(f"{where}: {name!r} is a file; use the directory of a model, or a Hub id")
    if (name.startswith((".", "/")) or name.count("/") > 1) and not os.path.isdir(name):
        raise UserError(f"{where}: the directory {name!r} does not exist; use another one or a Hub id")
    remedy = "use a Hub id that can be reached, or a directory with config.json, weights and tokenizer files"
    with one_line(f"{where}: {name!r} does not load (", f"); {remedy}"):
        yield


def base_of(adapter: PeftConfig) -> str:
    """Return the name of an adapter's base model. A path that does not exist from here may be a shipped model's."""
    name = str(adapter.base_model_name_or_path)
    folder = None if os.path.exists(name) else folder_of(name)
    return str(folder / name) if folder else name


def read_adapter(name: str, revision: str | None = None, where: str = "model_name_or_path") -> PeftConfig | None:
    """Return the configuration of a saved adapter; None for a whole model.

    Raises:
        UserError: it, or an adapter in its base model's directory, would make PEFT import a module that it names.
    """
    outermost, source, visited = None, name, set[str]()
    while source not in visited and (source == name or os.path.isdir(source)):
        visited.add(source)
        with model_errors(source, where):
            if not find_adapter_config_file(source, revision=revision):
                break
            adapter = PeftConfig.from_pretrained(source, revision=revision)
        if getattr(adapter, "megatron_config", None):
            raise UserError(
                f"{where}: the adapter_config.json of {source!r} asks for Megatron's layers (megatron_config), whose "
                "code PEFT would import from wherever it lies; remove megatron_config from it"
            )
        outermost, source, revision = outermost or adapter, base_of(adapter), adapter.revision
    return outermost


def _read(config: Config) -> tuple[PeftConfig | None, dict[str, Any], PretrainedConfig]:
    """Return a saved adapter's configuration or None, from_pretrained's arguments, and the model's configuration."""
    name = str(config.model.model_name_or_path)
    revision: str | None = config.model.model_revision
    adapter = read_adapter(name, revision)
    if adapter:
        name, revision = base_of(adapter), adapter.revision
    options = {"revision": revision, "trust_remote_code": config.training.trust_remote_code}
    with model_errors(name):
        model_config = AutoConfig.from_pretrained(name, **options)
    kernel = str(getattr(model_config, "_attn_implementation", None))
    if "/" in kernel:  # transformers would look for it, whatever attn_implementation the settings ask for
        raise UserError(
            f"model_name_or_path: the config.json of {name!r} asks for the attention kernel {kernel!r}, a binary to "
            "be downloaded; remove _attn_implementation from it"
        )
    kind = model_config.model_type
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(model_config, "is_decoder", False):
        raise UserError(f"model_name_or_path: {name!r} is a masked LM ({kind}); GRPO needs a causal LM")
    return adapter, {"pretrained_model_name_or_path": name, **options}, model_config


def read_configs(config: Config) -> tuple[PretrainedConfig, PeftConfig | None]:
    """Return the configurations of the model (an adapter's base model) and of the saved or new adapter, or None."""
    model = config.model
    adapter, _, model_config = _read(config)
    try:
        peft_config = adapter or get_peft_config(model)
    except ValueError as error:
        raise UserError(f"use_peft: PEFT refuses the settings of the adapter ({error}); see lora_*") from None
    return model_config, peft_config


def read_generation(config: Config) -> GenerationConfig:
    """Return the configuration of the model's generation, which a model without generation_config.json implies."""
    _, source, model_config = _read(config)
    try:
        return GenerationConfig.from_pretrained(source.pop("pretrained_model_name_or_path"), **source)
    except OSError:
        return GenerationConfig.from_model_config(model_config)


def load_model(config: Config) -> tuple[Any, PeftConfig | None]:
    """Load the policy to train. Return it, and the configuration of a new adapter to train, or None.

    For FSDP2 a machine's first process loads it to host memory; so do the others with adapters or quantization, else
    to the meta device.
    """
    policy = _load_policy(config, trainable=True)
    return policy, None if isinstance(policy, PeftModel) else get_peft_config(config.model)


def load_for_evaluation(config: Config) -> Any:
    """Load the policy, as a whole in each process, without a new adapter.

    FSDP_CPU_RAM_EFFICIENT_LOADING is turned off in the environment, since evaluations do not shard.
    """
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    return _load_policy(config, trainable=False)


def _load_policy(config: Config, trainable: bool) -> Any:
    """Load the policy on this process' device: a PreTrainedModel, or a PeftModel if a saved adapter is named.

    Args:
        trainable: whether a saved adapter is to be trained; otherwise it is frozen.
    """
    name, training, model = str(config.model.model_name_or_path), config.training, config.model
    adapter, source, _ = _read(config)
    base, quantization = source["pretrained_model_name_or_path"], get_quantization_config(model)
    options: dict[str, Any] = {
        "dtype": model.dtype,
        "attn_implementation": own_attention(config),
        "quantization_config": quantization,
        **(training.model_init_kwargs if isinstance(training.model_init_kwargs, dict) else {}),
    }
    elsewhere = sharding.where_to_load(training.local_process_index)
    if elsewhere and quantization is None and not adapter:  # TRL copies an adapter, so it must be there
        options["device_map"] = elsewhere
    if os.path.isdir(base):  # only downloads need a progress bar
        logging.disable_progress_bar()
    given = f" with model_init_kwargs {training.model_init_kwargs}" if training.model_init_kwargs else ""
    with model_errors(name, f"model_name_or_path{given}"), loaded_whole(), warnings.catch_warnings():
        loaded: Any = AutoModelForCausalLM.from_pretrained(**source | options, output_loading_info=True)
        policy, report = loaded
        if quantization is None and not is_fsdp_enabled():
            policy = policy.to(training.device)
        if adapter:
            # PEFT only warns of missing weights, and initializes them
            warnings.filterwarnings("error", message="Found missing adapter keys", category=UserWarning)
            policy = PeftModel.from_pretrained(policy, name, revision=model.model_revision, is_trainable=trainable)
    if missing := sorted(report["missing_keys"]):  # transformers would initialize them at random
        raise UserError(
            f"model_name_or_path: {base!r} lacks {len(missing)} of the weights that its config.json asks for "
            f"({', '.join(missing[:2])}{', …' if len(missing) > 2 else ''}); download it again"
        )
    for key, weight in policy.named_parameters():
        number = weight.is_floating_point() and weight.element_size() > 1 and not weight.is_meta  # not quantized
        if number and not weight.isfinite().all():
            raise UserError(
                f"model_name_or_path: weights of {name!r} are not finite ({key}); use an earlier checkpoint"
            )
    return policy


def digest_of_weights(model: Any) -> str:
    """Return a hash of the sums of a model's weights, the same on any device; "" if they are elsewhere.

    Quantized weights are left out: their bits depend on the device, while those of embeddings and norms do not.
    """
    sums = []
    for weight in model.parameters():
        if weight.is_meta:
            return ""
        if weight.is_floating_point():
            bits = weight.detach().view(BITS[weight.element_size()])
            sums.append(bits.sum(dtype=torch.int64).item())  # of whole numbers, so that no order of addition counts
    return digest(*map(str, sums))


# What differs between copies of a configuration, or is a setting of the run
OF_A_COPY = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "_from_model_config")


def digest_of_configuration(model: Any) -> str:
    """Return a hash of what a model's configuration and that of its generation set, besides defaults."""

    def own_values(value: Any) -> Any:
        if isinstance(value, dict):
            own = {key: item for key, item in value.items() if key not in OF_A_COPY}
            return {key: own_values(item) for key, item in own.items() if not key.startswith("_attn_implementation")}
        return value

    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    parts = [base.config.to_diff_dict()]
    parts += [base.generation_config.to_diff_dict()] if getattr(base, "generation_config", None) else []
    return digest(*(json.dumps(own_values(part), sort_keys=True, default=str) for part in parts))


def own_attention(config: Config) -> str:
    """Return the model's own attention: sdpa if FlashAttention 2 computes packs (lean_grpo/attention.py).

    For each sampled token, transformers' FlashAttention would unpad the whole cache in every layer.
    """
    asked = config.model.attn_implementation or "sdpa"
    return "sdpa" if asked == "flash_attention_2" and config.script.packed else asked


def load_tokenizer(config: Config) -> PreTrainedTokenizerBase:
    """Load the tokenizer, with left padding and a pad token."""
    name, training = str(config.model.model_name_or_path), config.training
    source = dict(revision=config.model.model_revision, trust_remote_code=training.trust_remote_code)
    with model_errors(name):
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **source)
    if not set(tokenizer.encode("2 + 2 = 4", add_special_tokens=False)) - {tokenizer.unk_token_id}:
        raise UserError(f"model_name_or_path: {name!r} has no tokenizer files (tokenizer.json); add the model's own")
    if tokenizer.eos_token is None:
        raise UserError(
            f"model_name_or_path: the tokenizer of {name!r} has no end token, so that no completion would end; set "
            "eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextlib.contextmanager
def loaded_whole() -> Iterator[None]:
    """Load all weights in every process, also where a launcher's file asks for ZeRO-3 (zero3_init_flag)."""
    zero = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = zero
