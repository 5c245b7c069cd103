"""Checks of the run: automatic decisions, batch sizes, tracker and output directory."""

from collections.abc import Iterator

from grpo.core.checklist import Check
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
