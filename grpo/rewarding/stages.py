"""Stages change the rewards during a run, such as first the format and then correctness.

One trainer runs all stages, and only the weights of the rewards change. Model, optimizer state and learning-rate
schedule continue from stage to stage. A resumed run finds its stage by its step.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.markup import escape
from transformers import TrainerCallback, TrainerState

from grpo.core.errors import UserError
from grpo.core.processes import show
from grpo.core.settings import Stage

EXAMPLE = '{"name": "format", "reward_funcs": ["xmlcount_reward_func"], "max_steps": 40}'


def read_stages(listed: Sequence[Any]) -> list[Stage]:
    """Read the stages of a recipe or a flag, in order. Raise UserError for an incomplete one."""
    stages: list[Stage] = []
    first = 1
    for number, stage in enumerate(listed, 1):
        try:
            made = _stage(first, **stage)
        except (TypeError, ValueError):
            raise UserError(
                f"stages: stage {number} is {stage!r}; write a mapping of name, reward_funcs and max_steps, such as "
                f"{EXAMPLE}, and optionally reward_weights, a number for each of reward_funcs"
            ) from None
        stages.append(made)
        first = made.last_step + 1
    return stages


def _stage(
    first: int, *, name: Any, reward_funcs: list[str], max_steps: int, reward_weights: Sequence[Any] | None = None
) -> Stage:
    """Build a stage from its mapping. Raise TypeError or ValueError if it is incomplete."""
    weights = [float(weight) for weight in reward_weights or [1.0] * len(reward_funcs)]
    weighed = isinstance(reward_funcs, list) and len(weights) == len(reward_funcs) > 0
    if not weighed or not all(map(math.isfinite, weights)) or type(max_steps) is not int or max_steps < 1:
        raise ValueError
    return Stage(str(name), first, first + max_steps - 1, reward_funcs, weights)


def settings_of(stages: Sequence[Stage], max_steps: int) -> dict[str, Any]:
    """Return the settings of a run through all stages; `reward_weights` are the first stage's.

    Args:
        max_steps: the run's last step, also amid a stage; -1: the last stage's end.
    """
    names = list(dict.fromkeys(name for stage in stages for name in stage.reward_funcs))
    weights = [stages[0].weights.get(name, 0.0) for name in names]
    steps = stages[-1].last_step if max_steps == -1 else max_steps
    return {"reward_funcs": names, "reward_weights": weights, "max_steps": steps}


class StageWeights(TrainerCallback):
    """Set `trainer.reward_weights` (TRL's weights of the rewards in a rollout) to those of the current stage.

    They change before an optimizer step that begins with a rollout. Rewards of other stages have the weight 0. Steps
    after the last stage keep its weights.

    Args:
        trainer: a RunTrainer.
        names: the run's rewards in the trainer's order, by their names in stages.
    """

    def __init__(self, trainer: Any, names: Sequence[str], stages: Sequence[Stage]) -> None:
        self.trainer, self.names, self.stages = trainer, names, stages
        self.number = 0  # of the stage, from 1

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.trainer.at_boundary:
            self._enter(sum(stage.first_step <= state.global_step + 1 for stage in self.stages), state)
        metrics = self.trainer.training_metrics  # TRL logs the mean of each list
        metrics["stage"] = [self.number]
        for name, weight in zip(self.trainer.reward_func_names, self.trainer.reward_weights.tolist(), strict=True):
            metrics[f"reward_weights/{name}"] = [weight]

    def _enter(self, number: int, state: TrainerState) -> None:
        stage = self.stages[number - 1]
        if number != self.number and state.is_world_process_zero:
            show(f"\n[bold]Stage {number} of {len(self.stages)}[/bold], {escape(stage.describe())}")
        self.number = number
        weights = [stage.weights.get(name, 0.0) for name in self.names]
        self.trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)
