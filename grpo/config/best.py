"""Read the settings of the best checkpoint: `load_best_model_at_end`, `metric_for_best_model`, `save_strategy`.

The metric is a measure of the run's own evaluations (`eval_every`), or one of TRL's (`eval_strategy`).
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from transformers.trainer_utils import IntervalStrategy
from trl import GRPOConfig

from grpo.core.errors import UserError, did_you_mean
from grpo.core.settings import Geometry
from grpo.core.text import rewarded
from grpo.results import measures
from grpo.results.measures import LENIENT

# Metrics of TRL's evaluation
LOWER_IS_BETTER = ("completions/clipped_ratio", "frac_reward_zero_std", "groups/all_wrong", "kl", "loss")
MEASURED_BY_TRL = re.compile(
    r"reward|reward_std|frac_reward_zero_std|entropy|kl|groups/(all_right|all_wrong|mixed)"
    r"|completions/((mean|min|max)_(terminated_)?length|clipped_ratio)"
)
REMEDY = f"--metric_for_best_model {LENIENT.key} with --eval_every 10"


def bare_name(metric: str | None) -> str | None:
    """Return a metric's name as transformers expects it, without the prefix that it has in logs.

    >>> bare_name("eval/reward"), bare_name("eval_reward")
    ('reward', 'reward')
    """
    return metric and re.sub("^eval[_/]", "", metric)


def greater_is_better(settings: Mapping[str, Any]) -> bool | None:
    """Return the setting, or else whether more of the metric is better; None without a metric."""
    given, metric = settings["greater_is_better"], bare_name(settings["metric_for_best_model"])
    if given is not None or not metric:
        return given
    return _own().get(metric, metric not in LOWER_IS_BETTER)


def _own() -> dict[str, bool]:
    """Return the measures of the run's own evaluations that can choose, and whether more of each is better.

    Besides, each reward's mean can, as `reward_<name>`.
    """
    return {one.key: one.higher_is_better for one in measures.MEASURES if one.higher_is_better is not None}


def own_metric(settings: Mapping[str, Any], geometry: Geometry) -> str | None:
    """Return the measure of the run's own evaluations that chooses the best checkpoint; None for another or no metric.

    Raises:
        UserError: the metric does not exist or says nothing, is not measured, or not where checkpoints are saved.
    """
    strategy, evaluates = str(settings["save_strategy"]), str(settings["eval_strategy"]) != "no"
    chooser = "load_best_model_at_end" if settings["load_best_model_at_end"] else ""
    chooser = chooser or ("save_strategy best" if strategy == "best" else "")
    given = settings["metric_for_best_model"]
    name = bare_name(given) or ""
    if name == "loss" or (chooser and not name):
        metric = given or f"eval_loss, by which {chooser} chooses,"
        raise UserError(f"metric_for_best_model: {metric} says nothing in GRPO; use {REMEDY}")
    if not name:
        return None
    own = name in _own() or (name.startswith("reward_") and name != "reward_std")
    if name == "reward" and evaluates and not settings["eval_every"]:
        own = False
    if not own:
        if not (MEASURED_BY_TRL.fullmatch(name) or rewarded(name, "mean|std")):
            choices = [*_own(), *(f"reward_{reward.rpartition('.')[2]}" for reward in settings["reward_funcs"])]
            raise UserError(f"metric_for_best_model: {given!r} is not a metric{did_you_mean(name, choices)}")
        if name == "kl" and not settings["beta"]:
            raise UserError(f"metric_for_best_model: {given} is not measured with beta 0; set beta, or use {REMEDY}")
        if not evaluates:
            remedy = f"add --eval_strategy steps --eval_steps 10, or use {REMEDY}"
            raise UserError(f"metric_for_best_model: {given} is measured by TRL's evaluation; {remedy}")
        return None
    if settings["eval_samples"] == 0:
        raise UserError(f"eval_samples: 0 leaves metric_for_best_model {given} no questions; raise it, or drop that")
    every = settings["eval_every"]
    if not every and not evaluates:
        raise UserError(f"metric_for_best_model: {given} is measured while training; add --eval_every 10")
    if chooser and not evaluates:
        _check_saves(settings, strategy, given, every, geometry)
    return name


def _check_saves(settings: Mapping[str, Any], strategy: str, metric: str, every: int, geometry: Geometry) -> None:
    """Raise UserError if checkpoints are not saved at steps where the metric is measured."""
    micro_steps = geometry.steps_per_generation * geometry.num_iterations
    per_rollout = max(1, micro_steps // geometry.gradient_accumulation_steps)  # optimizer steps
    step = math.lcm(every, per_rollout)
    if strategy in ("no", "epoch"):
        remedy = f"use --save_strategy steps --save_steps {step}"
        raise UserError(f"save_strategy: {strategy} saves no checkpoint where {metric} is measured; {remedy}")
    key = "eval_every" if strategy == "best" else "save_steps"
    if settings[key] % step:
        where = f"checkpoints are saved at the ends of rollouts, each of {per_rollout} optimizer steps, and "
        where = f"{where * (per_rollout > 1)}{metric} is measured every {every} (eval_every)"
        raise UserError(f"{key}: {settings[key]:g}: {where}; use a multiple of {step}")


def without_own(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as GRPOConfig accepts them, which knows TRL's evaluation alone."""
    if str(settings["eval_strategy"]) != "no":
        return dict(settings)
    return {**settings, "load_best_model_at_end": False, "metric_for_best_model": None}


def choose_by(metric: str, training: GRPOConfig, settings: Mapping[str, Any], origin: dict[str, str]) -> None:
    """Let the run's own evaluations choose the best checkpoint, at each step where `eval_every` measures it."""
    training.metric_for_best_model = metric
    training.greater_is_better = settings["greater_is_better"]
    training.load_best_model_at_end = settings["load_best_model_at_end"]
    if str(settings["eval_strategy"]) == "no":  # callbacks such as EarlyStoppingCallback wait for evaluations
        training.eval_strategy, training.eval_steps = IntervalStrategy.STEPS, settings["eval_every"]
        origin["eval_strategy"] = origin["eval_steps"] = "machine"
