"""Evaluations while training: when they come, and which of their measures chooses the best checkpoint."""

import math
import re

from grpo.config.validate import PLACES
from grpo.core.errors import UserError, did_you_mean
from grpo.core.settings import MACHINE, Geometry, Settings
from grpo.results import measures
from grpo.results.measures import LENIENT
from grpo.runs.resume import FOLLOW_A_METRIC

REMEDY = f"--metric_for_best_model {LENIENT.key} with --eval_every 10"


def fill_in(settings: Settings, geometry: Geometry) -> None:
    """Turn `eval_every` into transformers' settings, and name the measure that chooses.

    Raises:
        UserError: the metric does not exist or says nothing, is not measured, or not where checkpoints are saved.
    """
    if settings["eval_samples"] == 0:
        settings.set("eval_strategy", "no", MACHINE)
    elif settings["eval_every"] and _decides(settings):
        settings.set("eval_strategy", "steps", MACHINE)
        settings.set("eval_steps", settings["eval_every"], MACHINE)
    evaluates = str(settings["eval_strategy"]) != "no"
    if evaluates:
        settings.set("num_generations_eval", 1, MACHINE)  # of TRL's evaluation, which the run's own replaces
    chooses = "save_strategy best" if str(settings["save_strategy"]) == "best" else ""
    chooses = "load_best_model_at_end" if settings["load_best_model_at_end"] else chooses
    schedule = str(settings["lr_scheduler_type"])
    follows = f"the schedule {schedule}" if schedule in FOLLOW_A_METRIC else ""
    metric = settings["metric_for_best_model"]
    name = re.sub("^eval[_/]", "", metric or "")
    if name == "loss" or ((chooses or follows) and not name):
        metric = metric or f"eval_loss, by which {f'{chooses} chooses' if chooses else f'{follows} goes'},"
        raise UserError(f"metric_for_best_model: {metric} says nothing in GRPO; use {REMEDY}")
    if not name:
        return
    chosen_by = [measure for measure in measures.MEASURES if measure.higher_is_better is not None]
    better = {measure.key: measure.higher_is_better for measure in chosen_by}
    if name not in better and not name.startswith("reward_"):
        choices = [*better, *(f"reward_{reward.rpartition('.')[2]}" for reward in settings["reward_funcs"])]
        raise UserError(f"metric_for_best_model: {metric!r} is not a metric{did_you_mean(name, choices)}")
    if settings["eval_samples"] == 0:
        raise UserError(f"eval_samples: 0 leaves metric_for_best_model {metric} no questions; raise it, or drop that")
    if not evaluates:
        raise UserError(f"metric_for_best_model: {metric} is measured while training; add --eval_every 10")
    if chooses and str(settings["eval_strategy"]) == "steps" and (every := settings["eval_steps"] or 0) >= 1:
        _check_saves(settings, metric, int(every), geometry)
    settings.set("metric_for_best_model", name, MACHINE)
    if settings["greater_is_better"] is None:
        settings.set("greater_is_better", better.get(name, True), MACHINE)


def _decides(settings: Settings) -> bool:
    """True if `eval_every` says when to evaluate, and not an `eval_strategy` of a later source.

    Raises:
        UserError: both say it in one source.
    """
    every, strategy = (PLACES.index(settings.origin.get(key, "default")) for key in ("eval_every", "eval_strategy"))
    if every == strategy and str(settings["eval_strategy"]) != "no":
        raise UserError(
            f"eval_every: {settings['eval_every']}: eval_strategy {settings['eval_strategy']} says when to evaluate, "
            "too; drop one of them"
        )
    return every >= strategy


def _check_saves(settings: Settings, metric: str, every: int, geometry: Geometry) -> None:
    """Raise UserError if checkpoints are not saved at steps where the metric is measured."""
    strategy = str(settings["save_strategy"])
    micro_steps = geometry.steps_per_generation * geometry.num_iterations
    per_rollout = max(1, micro_steps // geometry.gradient_accumulation_steps)  # optimizer steps
    step = math.lcm(every, per_rollout)
    if strategy in ("no", "epoch"):
        remedy = f"use --save_strategy steps --save_steps {step}"
        raise UserError(f"save_strategy: {strategy} saves no checkpoint where {metric} is measured; {remedy}")
    key = ("eval_every" if settings["eval_every"] == every else "eval_steps") if strategy == "best" else "save_steps"
    if settings[key] % step:
        where = f"checkpoints are saved at the ends of rollouts, each of {per_rollout} optimizer steps, and "
        where = f"{where * (per_rollout > 1)}{metric} is measured every {every} steps"
        raise UserError(f"{key}: {settings[key]:g}: {where}; use a multiple of {step}")
