"""Preflight's check of the held-out questions: are there enough to show a change?"""

import re
from collections.abc import Iterator

from grpo.core.checklist import Check, warn_if
from grpo.core.text import counted
from grpo.data.checks import Plan
from grpo.evaluation.comparison import FEWEST

FOLLOW_A_METRIC = ("reduce_lr_on_plateau", "greedy")  # schedules
ENOUGH = 100  # held-out questions; they can show a change of 6 points, not a smaller one


def about_best(plan: Plan) -> Iterator[Check]:
    """Check that the metric of the best checkpoint is measured for this data and these rewards."""
    config, training = plan.config, plan.config.training
    metric, follows = training.metric_for_best_model, training.lr_scheduler_type in FOLLOW_A_METRIC
    if metric == "loss" and follows:
        finding = f"{training.lr_scheduler_type} follows eval_loss, which says nothing in GRPO"
        yield Check("warning", "lr_scheduler_type", finding, "set metric_for_best_model, such as accuracy_lenient")
        return
    if config.script.eval_only or metric is None or not (config.own_metric or config.trl_evaluates):
        return
    measured = ["truncated", "reward", *(f"reward_{name}" for name in plan.rewards)]
    if plan.task.has_format:
        measured = ["format_strict", "format_soft", *measured]
    if all(map(plan.task.can_judge, plan.data.held_out)):
        measured = ["accuracy_lenient", "accuracy_strict", *measured]
    found = re.fullmatch("rewards/(.+)/(mean|std)", metric)
    if metric not in measured if config.own_metric else found and found[1] not in plan.rewards:
        names = measured if config.own_metric else [f"rewards/{name}/mean" for name in plan.rewards]
        finding = f"{metric} is not measured in this run"
        yield Check("error", "metric_for_best_model", finding, f"use {', '.join(names)}")
        return
    every = f"every {training.eval_steps:g} steps" if training.eval_strategy == "steps" else "after each epoch"
    finding = f"by {metric}, measured {every} by {'eval_strategy' if config.trl_evaluates else 'eval_every'}"
    kept = ", and its weights are saved at the end" if training.load_best_model_at_end else ""
    yield Check("ok", "best checkpoint", f"{finding}{kept}")


def about_held_out(plan: Plan) -> Iterator[Check]:
    """Report the number of held-out questions, and the smallest change that they can show."""
    script, data, count = plan.config.script, plan.data, len(plan.data.held_out)
    if script.eval_samples == 0:
        yield Check("ok", "held out", "eval_samples 0: no evaluation before and after training")
        return
    finding = counted(count, "held-out question")
    if data.cut_off:
        share = count / (sum(reading.rows for reading in data.readings) - data.unusable)
        finding += f", {100 * share:.0f} % of the rows, which have no split {script.eval_split!r}"
    remedy = "raise eval_samples or max_samples, add rows, or use another eval_dataset_name"
    few = f"this many cannot show a change below {100 * FEWEST / max(count, FEWEST):.1f} points"
    yield warn_if(count < ENOUGH, "held out", finding, f"{few}; {remedy}")
