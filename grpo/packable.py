"""Which runs can be computed in packs: what is known of them beforehand, and a try on a few tokens."""

import inspect
from typing import Any

import torch
from accelerate.utils import DistributedType
from peft import PeftModel

from . import attention, decoding


def why_not(trainer: Any) -> str | None:
    """Why this run cannot be computed in packs, as far as that is known without trying."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    adapters = model.peft_config.values() if isinstance(model, PeftModel) else ()
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    implementation, parallel = base.config._attn_implementation, trainer.accelerator.parallelism_config
    if trainer._is_vlm:
        return "the model takes images"
    if trainer.tools or trainer.environment_factories is not None:
        return "tools are used"
    if any(adapter.is_prompt_learning for adapter in adapters):
        return "the adapter adds virtual tokens to the prompts"
    if trainer.aux_loss_enabled:
        return "the load-balancing loss of experts depends on what is computed together"
    if trainer.args.torch_compile:
        return "torch_compile would compile every length of a pack anew"
    if parallel is not None and (parallel.cp_enabled or parallel.sp_enabled):
        return "a sequence is spread over several devices"
    if "position_ids" not in inspect.signature(type(base).forward).parameters or decoding.obstacle(base):
        return f"{type(base).__name__} has layers that cannot be told where a completion begins"
    if attention.choose(implementation, trainer.accelerator.device) is None:
        return f"attn_implementation {implementation} is not one that packs are known to work with"
    return None


@torch.no_grad()
def misfit(trainer: Any, padded: Any, packed: Any) -> str | None:
    """Why packs do not give this model's log-probabilities, if they do not: for layers that ignore what they are told.

    Args:
        padded, packed: two ways to compute them, called as TRL's `_get_per_token_logps_and_entropies`.
    """
    if trainer.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return None  # the weights may not be here yet
    model, training = trainer.model, trainer.model.training
    ids = (torch.arange(36, device=trainer.accelerator.device) * 7 % 97).view(3, 12)
    ids %= trainer.accelerator.unwrap_model(model).config.get_text_config().vocab_size
    ids[1, :5] = ids[0, :5]  # the same prompt
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0  # no padding on the left: TRL would count it as positions where those are learned
    model.eval()
    error = (padded(model, ids, mask, 7)[0] - packed(model, ids, mask, 7)[0]).abs().mean().item()
    model.train(training)
    exact = model.dtype == torch.float32 and trainer.accelerator.mixed_precision == "no"
    if error <= (1e-4 if exact else 0.1):  # nats; rounding to 16 bits alone makes some 0.02
        return None
    return f"packs would change its log-probabilities by {error:.2g} on average"
