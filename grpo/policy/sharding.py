"""Weights that FSDP2 or DeepSpeed's ZeRO-3 has spread over devices: loaded whole, and whole on each for a while.

Spread weights are gathered layer by layer, by all processes at the same moment, so that processes whose completions
end at different lengths would wait for each other for ever. Gathered once before, they need nobody.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.integrations import deepspeed

from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.runs.checkpoints import read_seal


@contextlib.contextmanager
def whole(trainer: Any) -> Iterator[Any]:
    """The policy with all its weights on this device, to compute without gradients; all processes enter it together.

    It takes the memory of the whole model on each device, in the number format of the forward. Weights that are not
    spread are left alone.
    """
    from torch.distributed.fsdp import FSDPModule
    from trl.models.utils import unwrap_model_for_generation

    spread = [module for module in trainer.model.modules() if isinstance(module, FSDPModule)]
    groups = [group for module in spread for group in _groups(module)]
    kept = [group.post_forward_mesh_info for group in groups]  # None: stays gathered after a forward
    for group in groups:
        group.post_forward_mesh_info = None
    for module in spread:
        module.unshard()
    kwargs = trainer.args.gradient_checkpointing_kwargs
    try:
        with unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, gradient_checkpointing_kwargs=kwargs
        ) as model:
            yield model
    finally:
        for group, mesh in zip(groups, kept, strict=True):
            group.post_forward_mesh_info = mesh
        for module in spread:
            module.reshard()


def _groups(module: Any) -> list[Any]:
    """The weights that FSDP2 gathers together for this module. Private names: no public one tells the setting."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.11 has one at most
    return [group for group in groups or [getattr(state, "_fsdp_param_group", None)] if group is not None]


def keep_precision(accelerator: Any) -> None:
    """Before a model is divided: log-probabilities stay float32 under bf16, and gradients are summed in float32.

    Accelerate lets FSDP2 turn a model's outputs and its gradients into 16-bit numbers, which DDP does not do.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if getattr(plugin, "fsdp_version", 1) == 2 and policy is not None:
        policy = dataclasses.replace(policy, output_dtype=None, reduce_dtype=torch.float32)
        plugin.mixed_precision_policy = policy


def part(weight: torch.Tensor) -> torch.Tensor:
    """What this process holds of a weight, flat: all of it where it is not spread; it may be nothing."""
    weight = getattr(weight, "ds_tensor", weight)  # ZeRO-3's; the weight itself is empty then
    weight = weight.to_local() if hasattr(weight, "to_local") else weight  # FSDP's
    return weight.detach().flatten()


@contextlib.contextmanager
def loaded_whole() -> Iterator[None]:
    """What is loaded here has all its weights in every process, also where a launcher's settings say otherwise.

    The evaluation before training needs them, and FSDP and DeepSpeed divide them when training begins. (Settings that
    say otherwise: fsdp_cpu_ram_efficient_loading, zero3_init_flag.)
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
def saved_whole(accelerator: Any) -> Iterator[None]:
    """A model that is saved here is saved with all its weights in one file, as everybody reads it."""
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


def kind(accelerator: Any) -> str:
    """What divides a run's state among its processes, and so decides in which files a checkpoint holds it."""
    if accelerator.distributed_type == "DEEPSPEED":
        return f"DeepSpeed's ZeRO-{accelerator.state.deepspeed_plugin.zero_stage}"
    return "FSDP" if accelerator.distributed_type == "FSDP" else "nothing"


def check_checkpoint(checkpoint: Path, accelerator: Any) -> None:
    """UserError where a checkpoint's state is divided otherwise than that of this run: its optimizer would be lost."""
    here = kind(accelerator)
    if (then := read_seal(checkpoint).get("divided_by", here)) != here:
        raise UserError(
            f"resume_from_checkpoint: the state in {checkpoint} is divided by {then}, that of this run by {here}; "
            "start it as it began, by torchrun or by accelerate launch with the same --config_file"
        )


def check(trainer: Any) -> None:
    """Say what a launcher's settings do that nobody may expect.

    Raises:
        UserError: they would leave a run without its weights, or waiting for ever.
    """
    if trainer.is_fsdp_enabled and getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1) != 2:
        raise UserError(
            "fsdp_version: 1 cannot gather all weights for a rollout; give fsdp_version: 2 in the launcher's "
            "settings, as accelerate/fsdp2.yaml does"
        )
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and not trainer.is_fsdp_enabled:
        say("note: Accelerate divides weights by FSDP on GPUs only; here every process holds all of them (DDP)")
    if not trainer.is_deepspeed_enabled:
        return
    plugin = trainer.accelerator.state.deepspeed_plugin
    zero = plugin.deepspeed_config.get("zero_optimization", {})
    if plugin.zero_stage == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        raise UserError(
            "zero3_save_16bit_model: false would leave the run without a model that can be loaded; set it to true, as "
            "accelerate/zero3.yaml does (in DeepSpeed's own words stage3_gather_16bit_weights_on_model_save)"
        )
    if "stable_adamw" in trainer.args.optim:
        say(
            "note: DeepSpeed gives its optimizer flat float32 vectors, so that stable_adamw scales its steps by these "
            "instead of by matrices, and has no rounding to make up for; --optim adamw_torch is meant for that"
        )
