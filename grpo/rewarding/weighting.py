"""What each reward weighs during training: its stage's weight times a factor that follows how often it succeeds."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from rich.markup import escape
from transformers import TrainerCallback, TrainerState, TrainingArguments

from grpo.core.processes import show
from grpo.core.settings import ScriptArguments, Stage
from grpo.rewarding import stages
from rewards import PENALTIES

if TYPE_CHECKING:
    from trl import GRPOTrainer

RARE, RISE = 0.3, 1.2  # a reward that fewer completions than this earn gets more of a say with each rollout …
USUAL, FALL = 0.8, 0.9  # … and one that more than this earn gets less


def adapted(factor: float, values: Sequence[float], threshold: float, bounds: Sequence[float]) -> float:
    """A reward's factor after a rollout in which it gave these values (none of them NaN).

    Success is the share of values above the threshold. The factor is a multiple of the reward's own weight, so bounds
    of 0.25 and 4 let a weight of 2 go from 0.5 to 8. (The rule is that of public write-ups of this recipe; the bounds
    are ours.)

    >>> adapted(1.0, [0.0, 0.0, 0.0, 2.0], threshold=0.0, bounds=(0.25, 4.0))
    1.2
    """
    if values:
        success = sum(value > threshold for value in values) / len(values)
        factor *= RISE if success < RARE else FALL if success > USUAL else 1.0
    return min(max(factor, bounds[0]), bounds[1])


class RewardWeights(TrainerCallback):
    """Sets `trainer.reward_weights`, by which TRL multiplies the rewards of each rollout.

    They change before the first rollout of an optimizer step and hold for that step, so that other callbacks read, at
    its end, the weights that the rollout was scored with. All processes count the values that TRL has gathered from
    all of them, so they agree without communication. Factors are kept in the trainer's state, which is part of every
    checkpoint; the stage follows from the step.

    Args:
        trainer: its `reward_weights` at this moment are the rewards' own weights, if there are no stages.
        script: the settings `reward_funcs`, `adaptive_rewards`, `adaptive_threshold` and `adaptive_bounds`.
        stages: the run's stages, if it has any.
    """

    def __init__(self, trainer: "GRPOTrainer", script: ScriptArguments, stages: Sequence[Stage] = ()) -> None:
        self.trainer, self.stages, self.names = trainer, list(stages), list(script.reward_funcs)
        self.threshold, self.bounds = script.adaptive_threshold, script.adaptive_bounds
        self.adaptive = set(script.adaptive_rewards or [])
        if self.adaptive == {"all"}:
            self.adaptive = set(self.names) - (PENALTIES if self.threshold >= 0 else set())  # which never succeed
        self.own = trainer.reward_weights.tolist()
        self.factors: dict[str, float] = {}
        self.stage = -1
        args: Any = trainer.args  # GRPOConfig
        self.rollout_every = args.steps_per_generation * trainer.num_iterations  # in micro-batches

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *rest: Any, **kwargs: Any) -> None:
        # those in the checkpoint that is resumed; what is set in it from here on is saved with the next checkpoint
        self.factors = state.stateful_callbacks.setdefault("reward_weights", {})  # type: ignore[union-attr]  # a dict
        self._weigh(state)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *rest: Any, **kwargs: Any) -> None:
        # while a rollout serves several steps, its weights stay
        if -self.trainer._step % self.rollout_every < args.gradient_accumulation_steps:
            self._weigh(state)
        if self.stages or self.adaptive:
            metrics = self.trainer._metrics["train"]  # TRL logs the mean of each list
            for name, weight in zip(self.trainer.reward_func_names, self.trainer.reward_weights.tolist(), strict=True):
                metrics[f"reward_weights/{name}"] = [weight]
            if self.stages:
                metrics["stage"] = [self.stage + 1]

    def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
        self._adapt()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._adapt()

    def _weigh(self, state: TrainerState) -> None:
        own = self.own
        if self.stages:
            now = stages.at(self.stages, state.global_step + 1)
            own = [self.stages[now].weights.get(name, 0.0) for name in self.names]
            if now != self.stage and state.is_world_process_zero:
                stage = escape(self.stages[now].describe())
                show(f"\n[bold]Stage {now + 1} of {len(self.stages)}[/bold], {stage}")
            self.stage = now
        low, high = self.bounds  # a resumed run may have others
        weights = [
            weight * (min(max(self.factors.get(name, 1.0), low), high) if name in self.adaptive else 1.0)
            for name, weight in zip(self.names, own, strict=True)
        ]
        self.trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)

    def _adapt(self) -> None:
        """After the micro-batch that a rollout was sampled for, and after no other, follow what it has earned."""
        if (self.trainer._step - 1) % self.rollout_every:
            return
        logged: dict[str, Any] = self.trainer._logs["rewards"]  # type: ignore[assignment]  # by name
        columns = zip(self.names, logged.values(), self.trainer.reward_weights.tolist(), strict=True)
        for name, column, weight in columns:
            values = [value for value in column if not math.isnan(value)]
            # a weight below 0 would make a success what is to be avoided; at 0 the reward belongs to another stage
            if name in self.adaptive and weight > 0 and values:
                self.factors[name] = adapted(self.factors.get(name, 1.0), values, self.threshold, self.bounds)
