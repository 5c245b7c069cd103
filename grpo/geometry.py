"""Batch geometry: how many prompts and completions an optimizer step sees, solved before anything loads."""

import math
from dataclasses import dataclass
from typing import Any

from . import UserError


@dataclass(frozen=True)
class Geometry:
    """Counts of *completions* unless the name says prompts. TRL's rule: a rollout holds whole groups.

    W = world_size, B = per_device_train_batch_size, A = gradient_accumulation_steps, S = steps_per_generation,
    G = num_generations: a rollout is B·W·S completions (which G must divide), an optimizer step B·W·A.
    """

    world_size: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_generations: int
    num_iterations: int

    @property
    def rollout(self) -> int:
        """Completions that are sampled at once, on all devices together (`generation_batch_size`)."""
        return self.per_device_train_batch_size * self.world_size * self.steps_per_generation

    @property
    def rollout_prompts(self) -> int:
        return self.rollout // self.num_generations

    @property
    def per_step(self) -> int:
        """Completions per optimizer step, on all devices together."""
        return self.per_device_train_batch_size * self.world_size * self.gradient_accumulation_steps

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps after which a step begins with a rollout again: 1 where every step does."""
        steps = math.lcm(self.steps_per_generation * self.num_iterations, self.gradient_accumulation_steps)
        return steps // self.gradient_accumulation_steps

    def steps_per_epoch(self, num_rows: int) -> int:
        """Optimizer steps that one pass over `num_rows` prompts takes; prompts that fill no rollout are left out."""
        micro_steps = num_rows // self.rollout_prompts * self.steps_per_generation * self.num_iterations
        return math.ceil(micro_steps / self.gradient_accumulation_steps)

    def describe(self) -> str:
        prompts = self.per_step / self.num_generations
        rollouts = self.per_step / self.rollout
        line = (
            f"Geometry: {prompts:g} prompts × {self.num_generations} generations = {self.per_step} completions per "
            f"optimizer step ({self.per_step // self.world_size} on each of {self.world_size} device(s), in "
            f"micro-batches of {self.per_device_train_batch_size}); "
        )
        if rollouts == 1 and self.num_iterations == 1:
            return line + "one optimizer step per rollout (on-policy)"
        steps = self.num_iterations / rollouts
        return line + f"a rollout of {self.rollout} completions serves {steps:g} optimizer step(s)"

    @classmethod
    def solve(cls, settings: dict[str, Any], world_size: int) -> "Geometry":
        """The geometry of these settings; UserError, naming values that would do, where there is none."""
        batch, accumulation = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
        group, steps = settings["num_generations"], settings["steps_per_generation"]
        total = settings["generation_batch_size"]
        if total is not None and steps is not None:
            raise UserError(
                f"generation_batch_size: {total} and steps_per_generation {steps} say the same thing twice; give one"
            )
        if total is not None:
            if total % (batch * world_size):
                raise UserError(
                    f"generation_batch_size: {total} is not a multiple of per_device_train_batch_size {batch} × "
                    f"{world_size} device(s); give a multiple of {batch * world_size}"
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
                f"so optimizer steps would mix rollouts; give {instead}"
            )
        rollout = batch * world_size * steps
        if rollout % group:
            key, unit = "per_device_train_batch_size", group // math.gcd(group, world_size * steps)
            if total is not None:  # which other batches would not divide
                key, unit = "generation_batch_size", math.lcm(whole, group)
            divisors = [str(n) for n in range(2, min(rollout, 4096) + 1) if rollout % n == 0]  # of a typo's billions
            advice = f"give {key} {unit}, {2 * unit} or another multiple of {unit}"
            if divisors:
                advice += f", or num_generations {', '.join(divisors[:8])}"
            raise UserError(
                f"num_generations: {group} does not divide the rollout of {rollout} completions "
                f"(per_device_train_batch_size {batch} × {world_size} device(s) × {steps} steps per generation); "
                f"{advice} (TRL counts completions; it counted prompts in January 2025: 1 / 4 / 16 is 16 / 4 / 16 now)"
            )
        return cls(world_size, batch, accumulation, steps, group, settings["num_iterations"])
