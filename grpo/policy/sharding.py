"""Weights that FSDP2 or DeepSpeed's ZeRO-3 shards over devices: loaded whole, gathered to sample, saved in one file.

Sharded weights are gathered layer by layer, by all processes at the same moment, so that processes whose completions
end at different lengths would wait for each other for ever. Gathered once before, they can sample independently.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.accelerator import Accelerator
from transformers.integrations import deepspeed

from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.runs.checkpoints import read_seal

if TYPE_CHECKING:
    from trl import GRPOTrainer


@contextlib.contextmanager
def whole(trainer: "GRPOTrainer") -> Iterator[Any]:
    """The policy with all its weights on this device, for forwards without gradients; all processes enter together.

    It takes the memory of the whole model on each device, in the number format of the forward. Without sharding it
    changes nothing.
    """
    from torch.distributed.fsdp import FSDPModule
    from trl.models.utils import unwrap_model_for_generation

    model: Any = trainer.model
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if sharded:
        model.set_reshard_after_forward(False)
    for module in sharded:
        module.unshard()
    wrapped: Any = trainer.model_wrapped
    kwargs: Any = trainer.args.gradient_checkpointing_kwargs
    try:
        with unwrap_model_for_generation(
            wrapped, trainer.accelerator, gradient_checkpointing_kwargs=kwargs
        ) as gathered:
            yield gathered
    finally:
        if sharded:
            plugin: Any = trainer.accelerator.state.fsdp_plugin
            model.set_reshard_after_forward(plugin.reshard_after_forward)
        for module in sharded:
            module.reshard()


def keep_precision(accelerator: Accelerator) -> None:
    """Before a model is sharded: log-probabilities stay float32 under bf16, and gradients are summed in float32.

    Accelerate lets FSDP2 turn a model's outputs and its gradients into 16-bit numbers, which DDP does not do.
    """
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if getattr(plugin, "fsdp_version", 1) == 2 and policy is not None:
        policy = dataclasses.replace(policy, output_dtype=None, reduce_dtype=torch.float32)
        plugin.mixed_precision_policy = policy


def part(weight: torch.Tensor) -> torch.Tensor:
    """What this process holds of a weight, flat: all of it where it is not sharded; it may be empty."""
    weight = getattr(weight, "ds_tensor", weight)  # ZeRO-3's; the weight itself is empty then
    weight = weight.to_local() if hasattr(weight, "to_local") else weight  # FSDP's
    return weight.detach().flatten()


@contextlib.contextmanager
def loaded_whole() -> Iterator[None]:
    """What is loaded here has all its weights in every process, whatever a launcher's settings say.

    The evaluation before training needs them; FSDP and DeepSpeed shard them when training begins. (The settings:
    fsdp_cpu_ram_efficient_loading, zero3_init_flag.)
    """
    key, zero = "FSDP_CPU_RAM_EFFICIENT_LOADING", deepspeed._hf_deepspeed_config_weak_ref
    setting = os.environ.get(key)
    deepspeed.unset_hf_deepspeed_config()
    if setting is not None:
        os.environ[key] = "false"
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = zero
        if setting is not None:
            os.environ[key] = setting


@contextlib.contextmanager
def saved_whole(accelerator: Accelerator) -> Iterator[None]:
    """A model that is saved here has all its weights in one file."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        yield
        return
    kind = plugin.state_dict_type
    plugin.set_state_dict_type("FULL_STATE_DICT")
    try:
        yield
    finally:
        plugin.set_state_dict_type(kind)


def kind(accelerator: Accelerator) -> str:
    """What shards a run's state over its processes, and so decides in which files a checkpoint holds it."""
    if accelerator.distributed_type == "DEEPSPEED":
        return f"DeepSpeed's ZeRO-{accelerator.state.deepspeed_plugin.zero_stage}"
    return "FSDP" if accelerator.distributed_type == "FSDP" else "nothing"


def check_checkpoint(checkpoint: Path, accelerator: Accelerator) -> None:
    """UserError where a checkpoint's state is sharded unlike that of this run: its optimizer would be lost."""
    here = kind(accelerator)
    if (then := read_seal(checkpoint).get("divided_by", here)) != here:
        raise UserError(
            f"resume_from_checkpoint: the state in {checkpoint} is sharded by {then}, that of this run by {here}; "
            "start it as it began, by torchrun or by accelerate launch with the same --config_file"
        )


def check(trainer: "GRPOTrainer") -> None:
    """Check the launcher's settings before training, and note what they change.

    Raises:
        UserError: a run could not gather or save its weights.
    """
    if trainer.is_fsdp_enabled and getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1) != 2:
        raise UserError(
            "fsdp_version: 1 cannot gather all weights for a rollout; use fsdp_version: 2 in the launcher's "
            "settings, as accelerate/fsdp2.yaml does"
        )
    if not trainer.is_deepspeed_enabled:
        return
    plugin = trainer.accelerator.state.deepspeed_plugin
    zero = plugin.deepspeed_config.get("zero_optimization", {})
    if plugin.zero_stage == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        raise UserError(
            "zero3_save_16bit_model: false would leave the run without a model that can be loaded; set it to true, as "
            "accelerate/zero3.yaml does (DeepSpeed calls it stage3_gather_16bit_weights_on_model_save)"
        )
    if "stable_adamw" in trainer.args.optim:
        say(
            "note: DeepSpeed gives its optimizer flat float32 vectors: stable_adamw scales its steps by these instead "
            "of by matrices, and has no rounding to compensate; use --optim adamw_torch"
        )
