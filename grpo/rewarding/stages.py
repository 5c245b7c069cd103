"""Training in stages, each with its own rewards: format first, then correctness.

One trainer runs through all of them. At a stage's first step only the rewards' weights change (weighting.py): a stage
starts from the weights and the optimizer state that the last one left, one learning-rate schedule spans them all, and
a resumed run finds its stage by its step.
"""

import itertools
import math
from typing import Any

from grpo.core.errors import UserError
from grpo.core.settings import Stage

KEYS = ("name", "reward_funcs", "reward_weights", "max_steps")
EXAMPLE = '{"name": "format", "reward_funcs": ["xmlcount_reward_func"], "max_steps": 40}'


def at(stages: list[Stage], step: int) -> int:
    """The index of the stage that optimizer step `step` (counted from 1) belongs to; the last one's for any later."""
    return next((index for index, stage in enumerate(stages) if step <= stage.last_step), len(stages) - 1)


def whole_run(stages: list[Stage]) -> dict[str, Any]:
    """The settings of the run that holds all stages; `reward_weights` are those that it starts with."""
    if not stages:
        return {}
    names = list(dict.fromkeys(name for stage in stages for name in stage.reward_funcs))
    weights = [stages[0].weights.get(name, 0.0) for name in names]
    return {"reward_funcs": names, "reward_weights": weights, "max_steps": stages[-1].last_step}


def read(settings: dict[str, Any], given: set[str], steps_per_rollout: int) -> tuple[list[Stage], list[str]]:
    """The stages of these settings, and a note if they take other numbers of steps than asked for.

    `max_steps` beside the stages stretches or shortens them, so that a recipe can be tried in a few steps. Weights can
    only change where completions are sampled anew, so a stage begins at the nearest such step.

    Args:
        settings: every setting by name; `stages` is a list with a mapping for each, or None.
        given: the names of the settings on the command line.
        steps_per_rollout: optimizer steps from one step that begins with a rollout to the next, at least 1.
    """
    asked = settings["stages"]
    if asked is None:
        return [], []
    if not asked:
        raise UserError(f"stages: the list is empty; write one mapping for each stage, like {EXAMPLE}, or remove it")
    for key in ("reward_funcs", "reward_weights"):
        if key in given or (key == "reward_weights" and settings[key] is not None):
            raise UserError(
                f"{key}: {settings[key]} cannot be combined with stages, which have their own; drop one of them"
            )
    for number, stage in enumerate(asked, 1):
        _check(number, stage)
    labels, steps = [stage["name"] for stage in asked], [stage["max_steps"] for stage in asked]
    if len(set(labels)) < len(labels):
        raise UserError(f"stages: the names {', '.join(labels)} are not all different; each stage needs its own")
    total = sum(steps) if settings["max_steps"] == -1 else settings["max_steps"]
    rollouts = [total * done / sum(steps) / steps_per_rollout for done in itertools.accumulate(steps)]
    lasts = [0, *(max(1, round(number)) * steps_per_rollout for number in rollouts[:-1]), total]
    taken = [last - before for before, last in itertools.pairwise(lasts)]
    if min(taken) < 1:
        raise UserError(
            f"max_steps: {total} is too few for stages of {', '.join(map(str, steps))} steps, each of which needs a "
            f"rollout ({steps_per_rollout} steps) of its own; use more"
        )
    stages = []
    for stage, before, last in zip(asked, lasts[:-1], lasts[1:], strict=True):
        weights = [float(weight) for weight in stage.get("reward_weights") or [1.0] * len(stage["reward_funcs"])]
        stages.append(Stage(stage["name"], before + 1, last, list(stage["reward_funcs"]), weights))
    if taken == steps:
        return stages, []
    found = ", ".join(f"{label} {count}" for label, count in zip(labels, taken, strict=True))
    return stages, [
        f"note: the stages take {found} steps, not {', '.join(map(str, steps))}, since max_steps is {total} and a "
        f"rollout serves {steps_per_rollout}"
    ]


def _check(number: int, stage: Any) -> None:
    """UserError, naming stage and key, if something is wrong with a stage."""
    if not isinstance(stage, dict) or not set(stage) <= set(KEYS):
        raise UserError(f"stages: stage {number} is {stage!r}; write a mapping of {', '.join(KEYS)}, like {EXAMPLE}")
    name, names, weights, steps = (stage.get(key) for key in KEYS)
    where = f"stages: stage {number}"
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{where}: name: {name!r} is not a name; use one such as format")
    if not isinstance(names, list) or not names or not all(isinstance(item, str) for item in names):
        raise UserError(f"{where} ({name}): reward_funcs: {names!r} is not a list of one or more rewards")
    if len(set(names)) < len(names):
        raise UserError(f"{where} ({name}): reward_funcs: {names} lists a reward twice; set its weight instead")
    if type(steps) is not int or steps < 1:
        raise UserError(f"{where} ({name}): max_steps: {steps!r} is not a number of optimizer steps; use at least 1")
    if weights is None:
        return
    if not isinstance(weights, list) or len(weights) != len(names):
        raise UserError(f"{where} ({name}): reward_weights: {weights!r} is not a list of {len(names)}, one a reward")
    if not all(type(weight) in (int, float) and math.isfinite(weight) for weight in weights) or not any(weights):
        raise UserError(f"{where} ({name}): reward_weights: {weights!r} must be finite numbers, and not all 0")
