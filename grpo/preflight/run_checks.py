"""Checks of the run: automatic decisions, batch sizes, tracker and output directory."""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from grpo.core.checklist import Check
from grpo.core.errors import one_line
from grpo.core.text import counted
from grpo.preflight.plan import Checks, Plan, TrainingPlan
from grpo.report import hub

CHECKS = Checks()


@CHECKS.add
def about_decisions(plan: Plan) -> Iterator[Check]:
    """List what was decided for the user: by this machine, by other settings, by the chat template."""
    yield from (*plan.config.notes, *plan.run.notes, *plan.task.notes)


@CHECKS.add_for_training
def about_batches(plan: TrainingPlan) -> Iterator[Check]:
    """List batch sizes."""
    yield Check("ok", "geometry", plan.config.geometry.describe())


@CHECKS.add_for_training
def about_schedule(plan: TrainingPlan) -> Iterator[Check]:
    """Warn of a learning rate that is 0 in every step, or below learning_rate in all of them.

    Raises:
        UserError: the schedule refuses its arguments, or a rate is below 0 or infinite.
    """
    training, last = plan.config.training, plan.steps - 1
    warmup = training.get_warmup_steps(plan.steps)
    kind, options = training.lr_scheduler_type, cast(Any, training.lr_scheduler_kwargs)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    with one_line(f"lr_scheduler_{'kwargs' if options else 'type'}: {getattr(kind, 'value', kind)}: "):
        schedule = get_scheduler(kind, optimizer, warmup, plan.steps, scheduler_specific_kwargs=options)
        if not isinstance(schedule, LambdaLR) or last < 0:  # it follows a metric
            return
        rate: Callable[[int], float] = schedule.lr_lambdas[0]
        for step in (0, min(last, warmup), plan.steps // 2, plan.steps):  # it reads its arguments after the warm-up
            if not 0 <= rate(step) < math.inf:
                raise ValueError(f"the learning rate of step {step} is below 0, or infinite")
    highest = training.learning_rate * rate(min(last, warmup))  # a warm-up's last step
    takes = f"the warm-up takes {counted(warmup, 'step')}, the run has {plan.steps}"
    remedy = "use --warmup_steps 0, or raise max_steps"
    if not training.learning_rate:
        yield Check("warning", "learning_rate", "0: no weight moves", "raise learning_rate")
    elif not highest:
        yield Check(
            "warning", "warmup_steps", f"the learning rate is 0 in the first step: no weight moves ({takes})", remedy
        )
    elif highest < training.learning_rate * (1 - 1e-9):
        finding = f"the learning rate ends at {highest:g} and never reaches {training.learning_rate:g} ({takes})"
        yield Check("warning", "warmup_steps", finding, remedy)


@CHECKS.add_for_training
def about_tracker(plan: TrainingPlan) -> Iterator[Check]:
    """List the trackers, and the repository that the model is pushed to."""
    training = plan.config.training
    yield Check("ok", "tracker", ", ".join(training.report_to or ["none"]), routine=True)
    if training.push_to_hub:
        yield hub.check_access(training)


@CHECKS.add
def about_output(plan: Plan) -> Iterator[Check]:
    """Name the run's directory."""
    resumed = f", resumed from {plan.run.checkpoint}" if plan.run.checkpoint else ""
    yield Check("ok", "output", f"{plan.run.output}{resumed}")
