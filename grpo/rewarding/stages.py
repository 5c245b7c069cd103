"""Training in stages, each with its own rewards: format first, then correctness.

One trainer runs through all of them. At a stage's first step only the rewards' weights change (weighting.py): a stage
starts from the weights and the optimizer state that the last one left, one learning-rate schedule spans them all, and
a resumed run finds its stage by its step.
"""

from typing import Any

from grpo.core.errors import UserError
from grpo.core.settings import Stage

KEYS = ("name", "reward_funcs", "reward_weights", "max_steps")
EXAMPLE = '{"name": "format", "reward_funcs": ["xmlcount_reward_func"], "max_steps": 40}'


def at(stages: list[Stage], step: int) -> int:
    """The index of the stage that optimizer step `step` (counted from 1) belongs to; the last one's for any later."""
    return next((index for index, stage in enumerate(stages) if step <= stage.last_step), len(stages) - 1)


def whole_run(stages: list[Stage], max_steps: int) -> dict[str, Any]:
    """The settings of the run that holds all stages; `reward_weights` are those that it starts with.

    Args:
        max_steps: where the run ends, whatever the stages take; -1: with the last of them.
    """
    if not stages:
        return {}
    names = list(dict.fromkeys(name for stage in stages for name in stage.reward_funcs))
    weights = [stages[0].weights.get(name, 0.0) for name in names]
    steps = stages[-1].last_step if max_steps == -1 else max_steps
    return {"reward_funcs": names, "reward_weights": weights, "max_steps": steps}


def read(settings: dict[str, Any], given: set[str]) -> list[Stage]:
    """The stages of these settings, one after the other; UserError for one that is not complete.

    Args:
        settings: every setting by name; `stages` is a list with a mapping for each, or None.
        given: the names of the settings on the command line.
    """
    asked, stages = settings["stages"], list[Stage]()
    if asked is None:
        return stages
    for key in ("reward_funcs", "reward_weights"):
        if key in given or (key == "reward_weights" and settings[key] is not None):
            raise UserError(
                f"{key}: {settings[key]} cannot be combined with stages, which have their own; drop one of them"
            )
    if not asked:
        raise UserError(f"stages: the list is empty; write one mapping for each stage, like {EXAMPLE}, or remove it")
    first = 1
    for number, stage in enumerate(asked, 1):
        names, weights, steps = _checked(number, stage)
        stages.append(Stage(str(stage["name"]), first, first + steps - 1, names, weights))
        first += steps
    return stages


def _checked(number: int, stage: Any) -> tuple[list[str], list[float], int]:
    """A stage's rewards, their weights and its steps; UserError, naming stage and key, where something is wrong."""
    if not isinstance(stage, dict) or not {"name", "reward_funcs", "max_steps"} <= set(stage) <= set(KEYS):
        raise UserError(f"stages: stage {number} is {stage!r}; write a mapping of {', '.join(KEYS)}, like {EXAMPLE}")
    names, weights, steps = stage["reward_funcs"], stage.get("reward_weights"), stage["max_steps"]
    where = f"stages: stage {number} ({stage['name']})"
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}: reward_funcs: {names!r} is not a list of one or more rewards")
    if len(set(names)) < len(names):
        raise UserError(f"{where}: reward_funcs: {names} has a reward twice; set its weight instead")
    if weights is None:
        weights = [1.0] * len(names)
    if not isinstance(weights, list) or len(weights) != len(names):
        raise UserError(f"{where}: reward_weights: {weights!r} is not a list of {len(names)}, one a reward")
    if not all(type(weight) in (int, float) and abs(weight) < 1e9 for weight in weights) or not any(weights):
        raise UserError(f"{where}: reward_weights: {weights} are not finite numbers below 1e9, or all 0")
    if type(steps) is not int or steps < 1:
        raise UserError(f"{where}: max_steps: {steps!r} is not a number of optimizer steps; use at least 1")
    return names, [float(weight) for weight in weights], steps
