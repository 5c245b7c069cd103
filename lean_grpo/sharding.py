"""Weights that FSDP2 or DeepSpeed's ZeRO-3 shards over devices, gathered once to sample.

Sharded weights are gathered layer by layer, by all processes at the same moment: processes whose completions end at
different lengths would wait for each other for ever. Gathered once before, they sample independently.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.fsdp import FSDPModule
from trl.models.utils import unwrap_model_for_generation


@contextlib.contextmanager
def whole(trainer: Any) -> Iterator[Any]:
    """A trainer's policy with all its weights on this device, for forwards without gradients; all processes enter.

    Without sharding it changes nothing.
    """
    model, accelerator = trainer.model, trainer.accelerator
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if sharded:
        model.set_reshard_after_forward(False)
    for module in sharded:
        module.unshard()
    kwargs = trainer.args.gradient_checkpointing_kwargs
    try:
        with unwrap_model_for_generation(
            trainer.model_wrapped, accelerator, gradient_checkpointing_kwargs=kwargs
        ) as policy:
            yield policy
    finally:
        if sharded:
            model.set_reshard_after_forward(accelerator.state.fsdp_plugin.reshard_after_forward)
        for module in sharded:
            module.reshard()


def keep_precision(accelerator: Accelerator) -> None:
    """Before FSDP2 shards a model: keep log-probabilities float32 under bf16, and sum gradients in float32, as DDP."""
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    if policy := getattr(plugin, "mixed_precision_policy", None):
        changed = {"output_dtype": None, "reduce_dtype": torch.float32}
        plugin.mixed_precision_policy = dataclasses.replace(policy, **changed)
