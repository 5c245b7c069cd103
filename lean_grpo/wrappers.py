"""Reach a model through what wraps it: torch.compile, DistributedDataParallel and DeepSpeed, adapters."""

from typing import Any

from accelerate.utils import DynamoBackend, extract_model_from_parallel
from peft import PeftModel


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


def is_compiled(trainer: Any) -> bool:
    """True if a trainer's model is compiled, by itself, by the setting torch_compile or by accelerate's launcher."""
    backend = trainer.accelerator.state.dynamo_plugin.backend
    return unwrapped(trainer.model) is not trainer.accelerator.unwrap_model(trainer.model) or (
        backend != DynamoBackend.NO
    )
