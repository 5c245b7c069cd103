"""Reach a model through what wraps it: torch.compile, DistributedDataParallel and DeepSpeed, adapters."""

import copy
from typing import Any

import torch
from accelerate.utils import DynamoBackend, extract_model_from_parallel
from peft import PeftModel
from transformers import GenerationConfig
from transformers.modeling_outputs import CausalLMOutput


def unwrapped(model: Any) -> Any:
    """Return the PreTrainedModel or PeftModel inside compiled and distributed wrappers, in whatever order they are.

    A wrapper's signature, class and missing attributes say nothing about the model, so decide and sample on this one.
    """
    while (inner := extract_model_from_parallel(model, keep_torch_compile=False)) is not model:
        model = inner
    return model


def base_of(model: Any) -> Any:
    """Return the PreTrainedModel inside all wrappers and adapters; its layers hold the adapter."""
    model = unwrapped(model)
    return unwrapped(model.get_base_model()) if isinstance(model, PeftModel) else model


def passes_on(model: Any, method: str, config: GenerationConfig | None = None) -> bool:
    """True if an adapter's `forward` or `generate` only calls its base model's, or the model has no adapter.

    It is tried, with the base model's method replaced. Otherwise the base model, with the adapter's layers inside,
    computes something else: without virtual tokens, or without the hooks by which aLoRA learns where a row begins.

    Args:
        config: what `generate` is given, too.
    """
    model, base = unwrapped(model), base_of(model)
    if model is base:
        return True
    ids = torch.zeros(1, 2, dtype=torch.long, device=base.device)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if config:
        given["generation_config"] = copy.copy(config)
        given["generation_config"].max_new_tokens = 1  # where another `generate` than the base model's is reached
    fields = dict(vars(given["generation_config"])) if config else {}
    output = CausalLMOutput(logits=torch.zeros(1, 2, 1, device=base.device))
    checkpointed = [module for module in base.modules() if getattr(module, "gradient_checkpointing", False)]
    calls: list[bool] = []

    def state() -> list[Any]:
        """Return names of attributes and numbers of hooks, which replaced methods and new hooks would change."""
        hooks = [(len(module._forward_pre_hooks), len(module._forward_hooks)) for module in base.modules()]
        return [sorted(vars(base)), *hooks]

    def edited() -> bool:
        now = vars(given["generation_config"]) if config else {}
        return now.keys() != fields.keys() or any(now[name] is not value for name, value in fields.items())

    def reached(*args: Any, **kwargs: Any) -> Any:
        same = all(kwargs.get(name) is value for name, value in given.items()) and not edited()
        calls.append(not args and same and not any(kwargs[name] is not None for name in kwargs.keys() - given))
        calls.append(state() == before)
        return output

    own = vars(base).get(method)
    vars(base)[method] = reached
    before = state()
    try:
        for module in checkpointed:
            module.gradient_checkpointing = False  # some adapters add hooks then that only a backward would remove
        with torch.no_grad():
            returned = getattr(model, method)(**given)
    except Exception:  # adapters may ask for arguments of their own
        return False
    finally:
        for module in checkpointed:
            module.gradient_checkpointing = True
        del vars(base)[method]
        vars(base).update({method: own} if own else {})
    return calls == [True, True] and returned is output


def is_compiled(trainer: Any) -> bool:
    """True if a trainer's model is compiled, by itself, by the setting torch_compile or by accelerate's launcher."""
    backend = trainer.accelerator.state.dynamo_plugin.backend
    return unwrapped(trainer.model) is not trainer.accelerator.unwrap_model(trainer.model) or (
        backend != DynamoBackend.NO
    )
