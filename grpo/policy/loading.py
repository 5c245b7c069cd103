"""The model, its configuration and its tokenizer, loaded; what cannot be trained on is said in one line."""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import Any

from grpo.core.errors import UserError, readable
from grpo.core.out_of_memory import START, phase
from grpo.data.prompts import PromptFormat
from grpo.policy import sharding, unsloth
from grpo.policy.model_files import BROKEN, probe_weights, refuse_unusable

MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json")


def read_adapter(name: str, revision: str | None) -> Any:
    """The PeftConfig where `name` is an adapter, else None."""
    from peft import PeftConfig
    from transformers.utils.peft_utils import find_adapter_config_file

    refuse_unusable(name, "adapter_config.json")
    with readable("loading", name=name):
        found = find_adapter_config_file(name, revision=revision)
        adapter = PeftConfig.from_pretrained(name, revision=revision) if found else None
    if adapter is None:
        return None
    base = adapter.base_model_name_or_path
    if not base or (os.path.isabs(base) and not os.path.isdir(base)):
        missing = f"the adapter of {base!r}, which does not exist" if base else "an adapter that names no model"
        raise UserError(
            f"model_name_or_path: {name!r} is {missing}; set base_model_name_or_path in its adapter_config.json"
        )
    if os.path.isdir(name):
        probe_weights(name, "adapter_model")
    return adapter


def read_wish(name: str, kernel: str | None = None, **source: Any) -> Any:
    """A model's configuration, unless it asks for a kernel that the settings (`kernel`) do not."""
    from transformers import AutoConfig

    with readable("loading", name=name):
        config = AutoConfig.from_pretrained(name, **source)
    wish = str(getattr(config, "_attn_implementation", None))
    if "/" in wish and wish != kernel:  # transformers would fetch it
        raise UserError(
            f"model_name_or_path: the config.json of {name!r} asks for the attention kernel {wish!r}, a binary to be "
            f"downloaded; take _attn_implementation out of it, or trust it (--attn_implementation {wish})"
        )
    return config


def read_config(name: str, kernel: str | None = None, **source: Any) -> Any:
    """The configuration of a model; weights that are here are probed.

    Args:
        name: a local directory or a Hub id.
        kernel: the attention implementation that the settings ask for.
        source: `revision` and `trust_remote_code`.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    refuse_unusable(name, *MODEL_FILES)
    if os.path.isdir(name):
        probe_weights(name, "model")
    config = read_wish(name, kernel, **source)
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise UserError(
            f"model_name_or_path: {name!r} is a {config.model_type}, which fills gaps in a text and does not go on "
            "with it; give a causal language model"
        )
    return config


def read_configs(config: Any) -> tuple[Any, Any]:
    """Of the model (an adapter's base model), and of the adapter: a saved one, a new one (`use_peft`), or None."""
    from trl import get_peft_config

    name, revision = config.model.model_name_or_path, config.model.model_revision
    adapter = read_adapter(name, revision)
    if adapter:
        name, revision = adapter.base_model_name_or_path, adapter.revision
    read = read_config(
        name, config.model.attn_implementation, revision=revision, trust_remote_code=config.training.trust_remote_code
    )
    try:
        peft_config = adapter or get_peft_config(config.model)
    except ValueError as error:
        raise UserError(f"use_peft: PEFT refuses the settings of the adapter ({error}); see lora_*") from None
    if (coefficient := config.training.router_aux_loss_coef) and not hasattr(
        read.get_text_config(), "output_router_logits"
    ):
        raise UserError(f"router_aux_loss_coef: {coefficient} is for mixtures of experts, and {name} is none; drop it")
    if config.script.merge_lora and peft_config is None:
        raise UserError("merge_lora: no adapter is trained that could be merged; add --use_peft true, or drop it")
    quantized = config.model.load_in_4bit or config.model.load_in_8bit
    if quantized and peft_config is None and not config.script.eval_only:
        raise UserError(
            f"use_peft: quantized weights ({name}) cannot be trained; add --use_peft true, which trains an adapter on "
            "them, or drop load_in_4bit and load_in_8bit"
        )
    return read, peft_config


def load(config: Any) -> Any:
    """The policy on this process' device; a saved adapter on its base model, to go on with."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from trl import get_quantization_config

    options = {
        "dtype": config.model.dtype,
        "attn_implementation": config.model.attn_implementation,
        "quantization_config": get_quantization_config(config.model),
        **(config.training.model_init_kwargs or {}),
    }
    if config.script.use_unsloth:
        with readable("loading", name=config.model.model_name_or_path), phase(START):
            return unsloth.load(config)
    name, revision = config.model.model_name_or_path, config.model.model_revision
    adapter = read_adapter(name, revision)
    base = adapter.base_model_name_or_path if adapter else name
    source = dict(revision=adapter.revision if adapter else revision)
    source["trust_remote_code"] = config.training.trust_remote_code
    read_wish(base, config.model.attn_implementation, **source)
    with readable("loading", name=name), phase(START), sharding.loaded_whole(), warnings.catch_warnings():
        model, found = AutoModelForCausalLM.from_pretrained(base, output_loading_info=True, **source | options)
        if options["quantization_config"] is None:
            model = model.to(config.training.device)
        if adapter:
            trainable = not config.script.eval_only  # by default an adapter is loaded frozen, and would learn nothing
            # PEFT only warns of weights that it does not find, and leaves them as a new adapter's
            warnings.filterwarnings("error", message="Found missing adapter keys", category=UserWarning)
            try:
                model = PeftModel.from_pretrained(model, name, revision=revision, is_trainable=trainable)
            except UserWarning as error:
                raise ValueError(f"adapter_model holds other weights than adapter_config.json says: {error}") from None
    _refuse_random(base, sorted(found["missing_keys"]))
    for key, weight in model.named_parameters():
        whole = weight.is_floating_point() and weight.element_size() > 1 and not weight.is_meta  # no quantized numbers
        if whole and not weight.isfinite().all():
            raise UserError(
                f"model_name_or_path: {name!r} holds numbers that are not finite ({key}); give a checkpoint of before"
            )
    return model


def _refuse_random(name: str, missing: Sequence[str]) -> None:
    """UserError for weights that the files lack: transformers makes them up, and training would start from noise."""
    if missing:
        raise UserError(
            f"model_name_or_path: {name!r} lacks {len(missing)} of the weights that its config.json asks for "
            f"({', '.join(missing[:2])}{', …' if len(missing) > 2 else ''}); get its files again"
        )


def load_tokenizer(config: Any, style: PromptFormat) -> tuple[Any, PromptFormat]:
    """The model's tokenizer, padding on the left, with a pad token, and the prompt format that it can render."""
    from transformers import AutoTokenizer

    name, training = config.model.model_name_or_path, config.training
    source = dict(revision=config.model.model_revision, trust_remote_code=training.trust_remote_code)
    refuse_unusable(name, *TOKENIZER_FILES)
    with readable("loading", name=name):
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **source)
    if not set(tokenizer.encode("2 + 2 = 4", add_special_tokens=False)) - {tokenizer.unk_token_id}:
        raise UserError(f"model_name_or_path: {name!r} has no tokenizer files (tokenizer.json); add the model's own")
    if tokenizer.eos_token is None:
        raise UserError(
            f"model_name_or_path: the tokenizer of {name!r} has no end token, so that no completion would end; set "
            "eos_token in its tokenizer_config.json"
        )
    if style.chat and tokenizer.chat_template is None:
        if config.script.use_chat_template:
            raise UserError(
                f"use_chat_template: the tokenizer of {name!r} has no chat template; give an instruct model, or add a "
                "chat_template.jinja to its directory"
            )
        style = dataclasses.replace(style, chat=False)
    if style.chat:
        _check_template(tokenizer, style, name, training.chat_template_kwargs or {})
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, style


def _check_template(tokenizer: Any, style: PromptFormat, name: str, kwargs: dict[str, Any]) -> None:
    """UserError where the chat template cannot render a prompt, or leaves the question out."""
    from jinja2 import TemplateError

    where = f"model_name_or_path: the chat template of {name!r}"
    where += f" with chat_template_kwargs {kwargs}" if kwargs else ""
    remedy = "mend its chat_template.jinja, or give --use_chat_template false"
    try:
        text = tokenizer.apply_chat_template(style.prompt("2 + 2?"), tokenize=False, **kwargs)
    except (TemplateError, *BROKEN) as error:
        raise UserError(f"{where} refuses a system message and a question ({error}); {remedy}") from None
    if "2 + 2?" not in text:
        raise UserError(f"{where} leaves the question out; {remedy}")
