"""Training in stages, each with its own rewards: format first, then correctness.

One trainer runs through all of them. At a stage's first step only the rewards' weights change (weighting.py): a stage
starts from the weights and the optimizer state that the last one left, one learning-rate schedule spans them all, and
a resumed run finds its stage by its step.
"""

import argparse
import math
from typing import Any

from grpo.core import parsing
from grpo.core.errors import UserError
from grpo.core.settings import Stage

KEYS = ("name", "reward_funcs", "reward_weights", "max_steps")
EXAMPLE = '{"name": "format", "reward_funcs": ["xmlcount_reward_func"], "max_steps": 40}'


def from_json(text: str) -> Any:
    """One stage, given as a word of the command line; argparse adds the flag to the error."""
    try:
        return parsing.from_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not JSON ({error}); write one mapping for each stage: '{EXAMPLE}'"
        ) from None


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

    `max_steps` in addition to the stages lengthens or shortens them in proportion, so that a recipe can be tried in a
    few steps. Weights can only change where completions are sampled anew, so a stage begins at the nearest such step.

    Args:
        settings: every setting by name; `stages` is a list with a mapping for each, or None.
        given: the names of the settings on the command line.
        steps_per_rollout: optimizer steps from one step that begins with a rollout to the next, at least 1.
    """
    asked = settings["stages"]
    if asked is None:
        return [], []
    if len(asked) == 1 and isinstance(asked[0], list):  # all of them as one word of the command line
        asked = asked[0]
    if not asked:
        raise UserError(f"stages: the list is empty; write one mapping for each stage, like {EXAMPLE}, or remove it")
    for key in ("reward_funcs", "reward_weights"):
        if key in given or (key == "reward_weights" and settings[key] is not None):
            raise UserError(
                f"{key}: {settings[key]} cannot be combined with stages, which have their own; drop one of them"
            )
    labels = [_check(number, stage) for number, stage in enumerate(asked, 1)]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"stages: {twice[0]!r} is the name of {labels.count(twice[0])} stages; each needs its own")
    steps = [stage["max_steps"] for stage in asked]
    total = sum(steps) if settings["max_steps"] == -1 else settings["max_steps"]
    lasts = _last_steps(steps, total, steps_per_rollout)
    firsts = [1, *(last + 1 for last in lasts[:-1])]
    stages = []
    for stage, label, first, last in zip(asked, labels, firsts, lasts, strict=True):
        names = stage["reward_funcs"]
        weights = [float(weight) for weight in stage.get("reward_weights") or [1.0] * len(names)]
        stages.append(Stage(label, first, last, list(names), weights))
    taken = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    if taken == steps:
        return stages, []
    why = f"max_steps is {total}" if total != sum(steps) else f"a rollout serves {steps_per_rollout} steps"
    found = ", ".join(f"{label} {count}" for label, count in zip(labels, taken, strict=True))
    return stages, [f"note: the stages take {found} steps, not {', '.join(map(str, steps))}, since {why}"]


def _last_steps(steps: list[int], total: int, unit: int) -> list[int]:
    """The last step of each stage: `total` in proportion to `steps`, at whole rollouts of `unit` steps."""
    lasts: list[int] = []
    for index in range(1, len(steps)):
        earliest = (lasts[-1] if lasts else 0) + unit
        latest = ((total - 1) // unit - (len(steps) - 1 - index)) * unit  # leaves the later ones something
        if latest < earliest:
            least = (len(steps) - 1) * unit + 1
            raise UserError(f"max_steps: {total} is too few for {len(steps)} stages; use at least {least}")
        nearest = math.floor(total * sum(steps[:index]) / sum(steps) / unit + 0.5) * unit
        lasts.append(min(max(nearest, earliest), latest))
    return [*lasts, total]


def _check(number: int, stage: Any) -> str:
    """The stage's name; UserError, naming stage and key, if something is wrong with it."""
    if not isinstance(stage, dict):
        raise UserError(f"stages: stage {number} is {stage!r}; write a mapping like {EXAMPLE}")
    name = stage.get("name")
    where = f"stages: {name if isinstance(name, str) and name else f'stage {number}'}"
    for key in stage:
        if key not in KEYS:
            raise UserError(f"{where}: {key}: unknown key; a stage has {', '.join(KEYS)}")
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{where}: name: {name!r} is not a name; use one such as format")
    names, weights, steps = stage.get("reward_funcs"), stage.get("reward_weights"), stage.get("max_steps")
    if not isinstance(names, list) or not names or not all(isinstance(item, str) for item in names):
        raise UserError(f"{where}: reward_funcs: {names!r} is not a list of one or more rewards")
    if twice := [item for item in names if names.count(item) > 1]:
        raise UserError(f"{where}: reward_funcs: {twice[0]!r} is listed twice; list it once, with a weight")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UserError(f"{where}: max_steps: {steps!r} is not a number of optimizer steps; use at least 1")
    if weights is None:
        return name
    if not isinstance(weights, list) or len(weights) != len(names):
        raise UserError(
            f"{where}: reward_weights: {weights!r} for {len(names)} reward_funcs; write one weight for each"
        )
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UserError(f"{where}: reward_weights: {weight!r} is out of range; use a finite number")
    if not any(weights):
        raise UserError(f"{where}: reward_weights: every weight is 0, so nothing can be learned; use one above 0")
    return name
