"""Batch geometry: how many prompts and completions an optimizer step sees, solved before anything loads."""

import math
from typing import Any

from grpo.core.checklist import counted
from grpo.core.errors import UserError
from grpo.core.settings import Geometry


def solve(settings: dict[str, Any], world_size: int) -> Geometry:
    """The geometry of these settings; UserError, naming values that work, where there is none."""
    batch, accumulation = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
    group, steps = settings["num_generations"], settings["steps_per_generation"]
    total = settings["generation_batch_size"]
    if total is not None and steps is not None:
        raise UserError(
            f"generation_batch_size: {total} and steps_per_generation {steps} say the same thing twice; use one"
        )
    if total is not None:
        if total % (batch * world_size):
            raise UserError(
                f"generation_batch_size: {total} is not a multiple of per_device_train_batch_size {batch} × "
                f"{counted(world_size, 'device')}; use a multiple of {batch * world_size}"
            )
        steps = total // (batch * world_size)
    steps = steps or accumulation
    whole = batch * world_size * accumulation  # a rollout for each optimizer step
    if steps % accumulation and accumulation % steps:
        key, value, instead = "steps_per_generation", steps, accumulation
        if total is not None:
            key, value, instead = "generation_batch_size", f"{total}, or {steps} steps per generation,", whole
        raise UserError(
            f"{key}: {value} is neither a multiple nor a divisor of gradient_accumulation_steps {accumulation}, "
            f"so optimizer steps would mix rollouts; use {instead}"
        )
    rollout = batch * world_size * steps
    if rollout % group:
        key, unit = "per_device_train_batch_size", group // math.gcd(group, world_size * steps)
        if total is not None:  # which other batches would not divide
            key, unit = "generation_batch_size", math.lcm(whole, group)
        divisors = [str(n) for n in range(2, min(rollout, 4096) + 1) if rollout % n == 0]  # of a typo's billions
        advice = f"set {key} to {unit}, {2 * unit} or another multiple of {unit}"
        if divisors:
            advice += f", or num_generations to {', '.join(divisors[:8])}"
        raise UserError(
            f"num_generations: {group} does not divide the rollout of {rollout} completions "
            f"(per_device_train_batch_size {batch} × {counted(world_size, 'device')} × "
            f"{counted(steps, 'step')} per generation); "
            f"{advice} (TRL counts completions; it counted prompts in January 2025: 1 / 4 / 16 is 16 / 4 / 16 now)"
        )
    return Geometry(world_size, batch, accumulation, steps, group, settings["num_iterations"])


def fit_evaluation(settings: dict[str, Any], world_size: int, typed: set[str]) -> list[str]:
    """Let TRL's evaluations (`eval_strategy`) compute whole groups; a note where the batch changes for that, in place.

    Raises:
        UserError: the command line itself asks for a batch that no group divides.
    """
    batch, group = settings["per_device_eval_batch_size"], settings["num_generations_eval"]
    group = group or settings["num_generations"]
    unit = group // math.gcd(group, world_size)
    if settings["eval_strategy"] == "no" or batch % unit == 0:
        return []
    fits = max(batch // unit * unit, unit)
    found = f"{batch} × {counted(world_size, 'device')} is not a multiple of the {group} samples of each question"
    if typed & {"per_device_eval_batch_size", "num_generations_eval"}:
        divisors = [str(number) for number in range(2, group) if batch * world_size % number == 0]
        instead = f", or num_generations_eval to {', '.join(divisors[:8])}" if divisors else ""
        raise UserError(
            f"per_device_eval_batch_size: {found} that eval_strategy asks for; set it to {fits}, {fits + unit} or "
            f"another multiple of {unit}{instead}"
        )
    settings["per_device_eval_batch_size"] = fits
    return [f"note: per_device_eval_batch_size {fits}, since {found} that eval_strategy asks for"]
