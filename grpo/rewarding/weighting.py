"""Weights of rewards during training: the stage's, times a factor that follows how often a reward succeeds.

Stages train one thing after the other: format first, then correctness. One trainer runs through all of them, and only
the rewards' weights change: a stage starts from the weights and the optimizer state that the last one left, one
learning-rate schedule spans them all, and a resumed run finds its stage by its step.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.markup import escape
from transformers import TrainerCallback, TrainerState

from grpo.core.errors import UserError
from grpo.core.processes import show
from grpo.core.settings import ScriptArguments, Stage

RAISE_BELOW, RAISE_BY = 0.3, 1.2  # a reward that fewer completions than this earn weighs more after the rollout …
LOWER_ABOVE, LOWER_BY = 0.8, 0.9  # … and one that more than this earn weighs less
SMALLEST, LARGEST = 0.25, 4.0  # multiples of a reward's own weight
EXAMPLE = '{"name": "format", "reward_funcs": ["xmlcount_reward_func"], "max_steps": 40}'


def read_stages(asked: Sequence[Any]) -> list[Stage]:
    """The stages that a recipe or a flag lists, one after the other; UserError for one that is not complete."""
    stages: list[Stage] = []
    first = 1
    for number, stage in enumerate(asked, 1):
        try:
            made = _stage(first, **stage)
        except (TypeError, ValueError):
            raise UserError(
                f"stages: stage {number} is {stage!r}; write a mapping of name, reward_funcs and max_steps, such as "
                f"{EXAMPLE}, and, if you like, reward_weights, a number for each of reward_funcs"
            ) from None
        stages.append(made)
        first = made.last_step + 1
    return stages


def _stage(
    first: int, *, name: Any, reward_funcs: list[str], max_steps: int, reward_weights: Sequence[Any] | None = None
) -> Stage:
    """A stage from the keys of its mapping; TypeError or ValueError where it is not complete."""
    weights = [float(weight) for weight in reward_weights or [1.0] * len(reward_funcs)]
    weighed = isinstance(reward_funcs, list) and len(weights) == len(reward_funcs) > 0
    if not weighed or not all(map(math.isfinite, weights)) or type(max_steps) is not int or max_steps < 1:
        raise ValueError
    return Stage(str(name), first, first + max_steps - 1, reward_funcs, weights)


def settings_of_stages(stages: Sequence[Stage], max_steps: int) -> dict[str, Any]:
    """The settings of the run that goes through all stages; `reward_weights` are those that it starts with.

    Args:
        max_steps: where the run ends, whatever the stages take; -1: with the last of them.
    """
    names = list(dict.fromkeys(name for stage in stages for name in stage.reward_funcs))
    weights = [stages[0].weights.get(name, 0.0) for name in names]
    steps = stages[-1].last_step if max_steps == -1 else max_steps
    return {"reward_funcs": names, "reward_weights": weights, "max_steps": steps}


def adapted(factor: float, values: Sequence[float], threshold: float) -> float:
    """A reward's factor after a rollout in which it gave these values (at least one, none of them NaN).

    Success is the share of values above the threshold. The factor is a multiple of the reward's own weight, so a
    weight of 2 can go from 0.5 to 8. (The rule is that of public write-ups of this recipe; its bounds are ours.)

    >>> adapted(1.0, [0.0, 0.0, 0.0, 2.0], threshold=0.0)
    1.2
    """
    success = sum(value > threshold for value in values) / len(values)
    factor *= RAISE_BY if success < RAISE_BELOW else LOWER_BY if success > LOWER_ABOVE else 1.0
    return min(max(factor, SMALLEST), LARGEST)


class RewardWeights(TrainerCallback):
    """Sets `trainer.reward_weights`, by which TRL multiplies the rewards of each rollout.

    They change before an optimizer step that begins with a rollout, and follow at its end what the rollout has earned.
    All processes count the values that TRL has gathered from all of them, so they agree without communication. Factors
    are kept in the trainer's state, which is part of every checkpoint; the stage follows from the step.

    Args:
        trainer: a RunTrainer; its `reward_weights` are the rewards' own weights, if there are no stages.
        script: the settings `reward_funcs`, `adaptive_rewards` and `adaptive_threshold`.
        stages: the run's stages, if it has any.
    """

    def __init__(self, trainer: Any, script: ScriptArguments, stages: Sequence[Stage] = ()) -> None:
        self.trainer, self.stages, self.names = trainer, list(stages), list(script.reward_funcs)
        adaptive, self.threshold = script.adaptive_rewards or [], script.adaptive_threshold
        self.adaptive = self.names if adaptive == ["all"] else adaptive
        self.own = dict(zip(self.names, trainer.reward_weights.tolist(), strict=True))
        self.factors: dict[str, float] = {}
        self.stage: Stage | None = None
        self.begins_with_rollout = False  # this optimizer step

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # those in the checkpoint that is resumed; what is set in it from here on is saved with the next checkpoint
        self.factors = state.stateful_callbacks.setdefault("reward_weights", {})  # type: ignore[union-attr]  # a dict

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.begins_with_rollout = self.trainer.at_boundary
        if self.begins_with_rollout:
            self._weigh(state)
        metrics = self.trainer.training_metrics  # TRL logs the mean of each list
        if self.stages or self.adaptive:
            for name, weight in zip(self.trainer.reward_func_names, self.trainer.reward_weights.tolist(), strict=True):
                metrics[f"reward_weights/{name}"] = [weight]
        if self.stage is not None:
            metrics["stage"] = [self.stages.index(self.stage) + 1]

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not self.begins_with_rollout:
            return
        columns = self.trainer.last_rollout["rewards"].values()  # of the last rollout
        for name, column, weight in zip(self.names, columns, self.trainer.reward_weights.tolist(), strict=True):
            values = [value for value in column if not math.isnan(value)]
            # a weight below 0 would make a success what is to be avoided; at 0 the reward belongs to another stage
            if name in self.adaptive and weight > 0 and values:
                self.factors[name] = adapted(self.factors.get(name, 1.0), values, self.threshold)

    def _weigh(self, state: TrainerState) -> None:
        """Set the weights of the stage that the next optimizer step belongs to; the last stage's for any later."""
        if self.stages:
            step = state.global_step + 1
            stage = next((stage for stage in self.stages if step <= stage.last_step), self.stages[-1])
            if stage != self.stage and state.is_world_process_zero:
                number = f"Stage {self.stages.index(stage) + 1} of {len(self.stages)}"
                show(f"\n[bold]{number}[/bold], {escape(stage.describe())}")
            self.stage, self.own = stage, stage.weights
        factors = {name: self.factors.get(name, 1.0) for name in self.adaptive}
        weights = [self.own.get(name, 0.0) * factors.get(name, 1.0) for name in self.names]
        self.trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)
