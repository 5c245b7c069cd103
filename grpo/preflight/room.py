"""Decide by the estimate of memory (policy/memory.py) what fits on a run's devices, and say what follows from it."""

from copy import copy
from typing import Any

import torch

from grpo.core.text import human_bytes
from grpo.policy import memory
from grpo.preflight.plan import Plan, TrainingPlan
from lean_grpo import attention, packing, sharding

# Rows whose token step was measured: on an H200, at 1.5B, 256 rows took 1.3 times as long as 64
MEASURED_ROWS = 256


def choose_checkpointing(plan: TrainingPlan) -> None:
    """Turn gradient checkpointing off if the run fits without it, where its settings leave that open."""
    device = plan.device  # which all processes read, whatever their settings are
    if not plan.config.checkpointing_is_open:
        return
    if (parts := estimate(plan, gradient_checkpointing=False)) is None:
        plan.run.use_checkpointing(True, "how much memory this model takes is known only once it is loaded")
        return
    why = f"without it the run takes up to {human_bytes(sum(parts.values()))}, and {human_bytes(device.room)} can be "
    plan.run.use_checkpointing(not device.has_room_for(parts), f"{why}used on {device.name}")


def larger_batch(plan: TrainingPlan) -> int | None:
    """Return the largest per_device_train_batch_size by doubling that fits; None if not even twice as many do.

    No larger rollout is suggested than those that were measured.
    """
    geometry, times = plan.config.geometry, 1
    batch, rows = geometry.per_device_train_batch_size, geometry.rollout // geometry.world_size
    while 2 * times * rows <= MEASURED_ROWS:
        parts = estimate(plan, 2 * times, per_device_train_batch_size=2 * times * batch)
        if parts is None or not plan.device.has_room_for(parts):
            break
        times *= 2
    return times * batch if times > 1 else None


def estimate(plan: TrainingPlan, times: int = 1, **changes: Any) -> dict[str, float] | None:
    """Estimate the bytes per device, by purpose, at the peak of the run; None if the model's sizes are unknown.

    Args:
        times: how many times as many completions a device samples at once.
        changes: other values of TRL's arguments.
    """
    if (shape := plan.usable_shape) is None or not shape.layers:
        return None
    training, geometry = changed(plan, **changes), plan.config.geometry
    longest = longest_prompt(plan)
    # DeepSpeed computes all packs of a micro-batch in one backward
    pack_tokens = None if training.deepspeed_plugin else largest_pack(plan, kernel(plan), longest)
    return memory.memory(
        shape,
        training,
        plan.config.model,
        rollout_per_device=times * geometry.rollout // geometry.world_size,
        prompt_length=longest,
        pack_tokens=pack_tokens,
        device_memory=plan.device.total,
        answers=min(training.per_device_eval_batch_size, len(plan.data.held_out)),
        shards=shards(plan),
    )


def changed(plan: TrainingPlan, **changes: Any) -> Any:
    """Return a copy of TRL's arguments with these values."""
    training = copy(plan.run.args)
    vars(training).update(changes)
    return training


def shards(plan: TrainingPlan) -> int:
    """Return the number of devices that share all weights; 1 if each device has them whole."""
    return plan.config.geometry.world_size if sharding.divides_weights(plan.config.training) else 1


def longest_prompt(plan: Plan) -> int:
    """Count the tokens of the longest prompt that is used."""
    longest, limit = max(plan.data.lengths), plan.config.script.max_prompt_length
    return min(longest, limit or longest) if isinstance(plan, TrainingPlan) else longest


def kernel(plan: Plan) -> attention.Kernel:
    """Choose the attention kernel of a training step, as the trainer does."""
    training, model = plan.config.training, plan.config.model
    number = "bfloat16" if training.bf16 else "float16" if training.fp16 else str(model.dtype)
    dtype = getattr(torch, number, torch.float32)
    return attention.kernel(model.attn_implementation or "sdpa", training.device, dtype, plan.model_config)


def largest_pack(plan: TrainingPlan, kernel: attention.Kernel, prompt: int) -> int | None:
    """Return the most positions that a training step computes at once; None with `packed` false."""
    script = plan.config.script
    if not script.packed:
        return None
    if script.pack_tokens:
        return script.pack_tokens
    if not kernel.by_segment:
        return kernel.pack_tokens
    completions = plan.config.training.num_generations or 1
    return packing.largest_pack(kernel.pack_tokens, prompt, completions, plan.config.completion_limit)
