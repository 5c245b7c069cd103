"""Gather weights sharded by FSDP2 or DeepSpeed's ZeRO-3 once per rollout, to sample with them.

A forward gathers sharded weights layer by layer, in all processes at once. Processes whose completions end at
different lengths would wait for each other forever. With weights gathered beforehand they sample independently.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import parse_flag_from_env
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule
from transformers import TrainingArguments
from transformers.integrations import is_fsdp_enabled
from trl.models.utils import unwrap_model_for_generation

from lean_grpo import wrappers


@contextlib.contextmanager
def whole(trainer: Any) -> Iterator[Any]:
    """Gather all weights of a trainer's policy on this device, for forwards without gradients.

    All processes must enter this context. Without sharding it changes nothing.
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
            yield wrappers.unwrapped(policy)  # accelerate keeps torch.compile's wrapper
    finally:
        if sharded:
            model.set_reshard_after_forward(accelerator.state.fsdp_plugin.reshard_after_forward)
        for module in sharded:
            module.reshard()


def prepare(accelerator: Accelerator) -> None:
    """Refuse launcher settings that cannot work, and keep FSDP2's log-probabilities and sums in float32 under bf16.

    Call this before anything is sharded.

    Raises:
        ValueError: names the setting and a fix.
    """
    fsdp: Any = getattr(accelerator.state, "fsdp_plugin", None)
    if fsdp and fsdp.fsdp_version == 1:
        raise ValueError("fsdp_version: 1 cannot gather all weights for a rollout; use 2 (launch/fsdp2.yaml)")
    if fsdp and fsdp.activation_checkpointing:
        raise ValueError("fsdp_activation_checkpointing: drop it, and use gradient_checkpointing")
    if fsdp and fsdp.mixed_precision_policy:
        changed: Any = {"output_dtype": None, "reduce_dtype": torch.float32}
        fsdp.mixed_precision_policy = dataclasses.replace(fsdp.mixed_precision_policy, **changed)
    zero: Any = accelerator.state.deepspeed_plugin
    if zero and (mismatches := zero.hf_ds_config.mismatches):  # transformers' own error comes after an evaluation
        raise ValueError(f"deepspeed: its file contradicts the settings ({'; '.join(mismatches)}); write auto there")


def divides_weights(training: TrainingArguments) -> bool:
    """True if the settings or a launcher ask for FSDP2 or ZeRO-3, which divide the weights among devices."""
    zero = training.deepspeed_plugin
    return bool(training.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP") or (zero and zero.zero_stage == 3))


def where_to_load(local_process: int) -> dict[str, str] | None:
    """Return the device_map for a model that FSDP2 will shard: only a machine's first process reads the weights."""
    return {"": "meta"} if local_process and is_fsdp_enabled() else None


def shard(accelerator: Accelerator, model: Any) -> None:
    """Shard a model with FSDP2, in place, before the Trainer does, since only one process has the weights."""
    if getattr(accelerator.state, "fsdp_plugin", None) and model is not None:
        fsdp2_prepare_model(accelerator, model)
        model._get_fsdp_state()._lazy_init()  # as the root: an adapter's base model, sampled alone, would become one
