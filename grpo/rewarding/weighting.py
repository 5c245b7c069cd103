"""What each reward weighs while it trains: its stage's weight times a factor that follows how often it succeeds."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from transformers import TrainerCallback

from grpo.core.settings import Stage
from grpo.rewarding import stages

RARE, RISE = 0.3, 1.2  # a reward that fewer completions than this earn gets more of a say with each rollout …
USUAL, FALL = 0.8, 0.9  # … and one that more than this earn gets less


def adapted(factor: float, values: Sequence[float], threshold: float, bounds: Sequence[float]) -> float:
    """A reward's factor after a rollout in which it gave these values.

    Success is the share of values above the threshold; None and NaN, which say nothing, are to be left out before.
    Without any value the factor stays. The factor is a multiple of the reward's own weight, so bounds of 0.25 and 4
    let a weight of 2 go from 0.5 to 8. (The rule is that of public write-ups of this recipe; the bounds are ours.)

    >>> adapted(1.0, [0.0, 0.0, 0.0, 2.0], threshold=0.0, bounds=(0.25, 4.0))
    1.2
    >>> adapted(1.0, [2.0, 2.0, 2.0, 2.0], threshold=0.0, bounds=(0.25, 4.0))
    0.9
    >>> adapted(1.0, [0.0, 2.0], threshold=0.0, bounds=(0.25, 4.0))
    1.0
    """
    if values:
        success = sum(value > threshold for value in values) / len(values)
        factor *= RISE if success < RARE else FALL if success > USUAL else 1.0
    return min(max(factor, bounds[0]), bounds[1])


def is_penalty(lowest: float, highest: float, threshold: float) -> bool:
    """Whether a reward whose values have had this range only ever takes away.

    Its best is 0, which is not above a threshold of 0, so the rule would take it for one that never succeeds and raise
    it to its bound. A constant value is none: all wrong at -1 each is what the first right answer will end.
    """
    return lowest < highest <= 0 <= threshold


class RewardWeights(TrainerCallback):
    """Sets `trainer.reward_weights`, which TRL multiplies each rollout's rewards with.

    They change before the first rollout of an optimizer step and hold for that step, so that a callback that looks at
    the rollout at the step's end, in whatever order, reads those that it was scored with. All processes count the
    values that TRL has gathered from all of them, so that they agree without asking each other. Factors are kept in
    the trainer's state, which is part of every checkpoint; the stage follows from the step.

    Args:
        trainer: a GRPOTrainer; its `reward_weights` at this moment are the rewards' own, where there are no stages.
        script: the settings `reward_funcs`, `adaptive_rewards`, `adaptive_threshold` and `adaptive_bounds`.
        stages: the run's stages, if it has any.
    """

    def __init__(self, trainer: Any, script: Any, stages: Sequence[Stage] = ()) -> None:
        self.trainer, self.stages, self.names = trainer, list(stages), list(script.reward_funcs)
        adaptive = script.adaptive_rewards or []
        self.adaptive = self.names if adaptive == ["all"] else adaptive
        self.threshold, self.bounds = script.adaptive_threshold, script.adaptive_bounds
        self.own = trainer.reward_weights.tolist()
        self.kept: dict[str, dict[str, Any]] = {}  # by reward: its `factor`, and the range of its values so far
        self.stage = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # what a checkpoint of this run has kept; from here on, what is noted in it is saved with the next one
        self.kept = state.stateful_callbacks.setdefault("reward_weights", {})
        self._weigh(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # a rollout that serves several steps keeps the weights that it was scored with
        if -self.trainer._step % self._rollout_every < args.gradient_accumulation_steps:
            self._weigh(state)
        if self.stages or self.adaptive:
            noted = self.trainer._metrics["train"]  # TRL logs means; of one value it is the value
            for name, weight in zip(self.trainer.reward_func_names, self.trainer.reward_weights.tolist(), strict=True):
                noted[f"reward_weights/{name}"] = [weight]
            if self.stages:
                noted["stage"] = [self.stage + 1]

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapt(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapt(state)

    @property
    def _rollout_every(self) -> int:
        """Micro-batches from one rollout to the next."""
        return self.trainer.args.steps_per_generation * self.trainer.num_iterations

    def _weigh(self, state: Any) -> None:
        own = self.own
        if self.stages:
            now = stages.at(self.stages, state.global_step + 1)
            own = [self.stages[now].weights.get(name, 0.0) for name in self.names]
            if now != self.stage and state.is_world_process_zero:
                Console().print()  # off the progress bar's line
                Console().print(
                    f"[bold]Stage {now + 1} of {len(self.stages)}[/bold], {escape(self.stages[now].describe())}"
                )
            self.stage = now
        factors = [self.kept.get(name, {}).get("factor", 1.0) if name in self.adaptive else 1.0 for name in self.names]
        factors = [min(max(factor, self.bounds[0]), self.bounds[1]) for factor in factors]  # other bounds since
        weights = [weight * factor for weight, factor in zip(own, factors, strict=True)]
        self.trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)

    def _adapt(self, state: Any) -> None:
        """After the micro-batch that a rollout was sampled for, and after no other, follow what it has earned."""
        if (self.trainer._step - 1) % self._rollout_every:
            return
        columns = zip(
            self.names, self.trainer._logs["rewards"].values(), self.trainer.reward_weights.tolist(), strict=True
        )
        for name, column, weight in columns:
            values = [value for value in column if not math.isnan(value)]
            # below 0 a success is what is to be avoided; at 0 the reward is another stage's
            if name not in self.adaptive or weight <= 0 or not values:
                continue
            kept = self.kept.setdefault(name, {"factor": 1.0, "lowest": values[0], "highest": values[0]})
            was_penalty = is_penalty(kept["lowest"], kept["highest"], self.threshold)
            kept["lowest"], kept["highest"] = min(kept["lowest"], *values), max(kept["highest"], *values)
            if not is_penalty(kept["lowest"], kept["highest"], self.threshold):
                kept["factor"] = adapted(kept["factor"], values, self.threshold, self.bounds)
                continue
            kept["factor"] = 1.0
            if not was_penalty and state.is_world_process_zero:
                Console().print(
                    f"note: {escape(name)} has been below 0 and never above it: taken for a penalty, it keeps its own "
                    "weight until it is above; an adaptive_threshold below 0 would say when it succeeds"
                )
