"""What can be wrong with a model's files, said in one line before its weights are read."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import UserError, unsloth_backend
from .out_of_memory import START, phase
from .prompts import PromptFormat


@contextlib.contextmanager
def readable_load_errors(name: str) -> Iterator[None]:
    """What the libraries raise for a model that cannot be loaded, as a UserError with the remedy."""
    from huggingface_hub.errors import StrictDataclassError
    from jinja2 import TemplateError
    from safetensors import SafetensorError

    try:
        yield
    except TemplateError as error:
        raise UserError(
            f"model_name_or_path: the chat template of {name!r} refuses a system message and a question ({error}); "
            "give another model or another template"
        ) from None
    except (OSError, ValueError, TypeError, RuntimeError, ImportError, SafetensorError, StrictDataclassError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"model_name_or_path: {name!r} does not load ({reason}); give a Hub id that can be reached, or a "
            "directory with config.json, weights and tokenizer files"
        ) from error


def _refuse_missing(name: str) -> None:
    if (name.startswith((".", "/")) or name.count("/") > 1) and not os.path.isdir(name):  # no Hub id
        raise UserError(f"model_name_or_path: the directory {name!r} does not exist; give another one or a Hub id")


def read_adapter(name: str, revision: str | None) -> Any:
    """The PeftConfig where `name` is an adapter, else None."""
    from peft import PeftConfig
    from transformers.utils.peft_utils import find_adapter_config_file

    _refuse_missing(name)
    with readable_load_errors(name):
        found = find_adapter_config_file(name, revision=revision)
        return PeftConfig.from_pretrained(name, revision=revision) if found else None


def read_config(name: str, **source: Any) -> Any:
    """The configuration of a model; weights that are here are probed.

    Args:
        name: a local directory or a Hub id.
        source: `revision` and `trust_remote_code`.
    """
    from safetensors import safe_open
    from transformers import AutoConfig

    _refuse_missing(name)
    with readable_load_errors(name):
        if os.path.isdir(name):
            files = list(Path(name).glob("*.safetensors"))
            if not files and not list(Path(name).glob("pytorch_model*.bin")):
                raise OSError("it holds no weights: no .safetensors and no pytorch_model.bin")
            for file in files:
                with safe_open(file, framework="pt"):  # its header must agree with its size
                    pass
        return AutoConfig.from_pretrained(name, **source)


def read_configs(config: Any) -> tuple[Any, Any]:
    """Of the model (an adapter's base model), and of the adapter: a saved one, a new one (`use_peft`), or None."""
    from trl import get_peft_config

    name, revision = config.model.model_name_or_path, config.model.model_revision
    adapter = read_adapter(name, revision)
    if adapter:
        name, revision = adapter.base_model_name_or_path, adapter.revision
    read = read_config(name, revision=revision, trust_remote_code=config.training.trust_remote_code)
    peft_config = adapter or get_peft_config(config.model)
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
        with readable_load_errors(config.model.model_name_or_path), phase(START):
            return unsloth_backend.load(config)
    name, revision = config.model.model_name_or_path, config.model.model_revision
    adapter = read_adapter(name, revision)
    base = adapter.base_model_name_or_path if adapter else name
    source = dict(revision=adapter.revision if adapter else revision)
    source["trust_remote_code"] = config.training.trust_remote_code
    with readable_load_errors(name), phase(START):
        model = AutoModelForCausalLM.from_pretrained(base, **source | options)
        if options["quantization_config"] is None:
            model = model.to(config.training.device)
        if adapter:
            trainable = not config.script.eval_only  # by default an adapter is loaded frozen, and would learn nothing
            model = PeftModel.from_pretrained(model, name, revision=revision, is_trainable=trainable)
    return model


def load_tokenizer(config: Any, style: PromptFormat) -> tuple[Any, PromptFormat]:
    """The model's tokenizer, padding on the left, with a pad token, and the prompt format that it can render."""
    from transformers import AutoTokenizer

    name, training = config.model.model_name_or_path, config.training
    source = dict(revision=config.model.model_revision, trust_remote_code=training.trust_remote_code)
    with readable_load_errors(name):
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **source)
    if not set(tokenizer.encode("2 + 2 = 4", add_special_tokens=False)) - {tokenizer.unk_token_id}:
        raise UserError(f"model_name_or_path: {name!r} has no tokenizer files (tokenizer.json); add the model's own")
    if style.chat and tokenizer.chat_template is None:
        if config.script.use_chat_template:
            raise UserError(
                f"use_chat_template: the tokenizer of {name!r} has no chat template; give an instruct model, or add a "
                "chat_template.jinja to its directory"
            )
        style = dataclasses.replace(style, chat=False)
    if style.chat:
        with readable_load_errors(name):
            tokenizer.apply_chat_template(style.prompt("2 + 2?"), **(training.chat_template_kwargs or {}))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, style
