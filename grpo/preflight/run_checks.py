"""Checks of the run: automatic decisions, batch geometry, stages, tracker and output directory."""

from collections.abc import Iterator

from grpo.core.checklist import Check, warn_if
from grpo.preflight.plan import Checks, Plan
from grpo.report import hub

CHECKS = Checks()


@CHECKS.add
def about_run(plan: Plan) -> Iterator[Check]:
    """List automatic decisions, batch geometry, stages, tracker and output directory."""
    config, training = plan.config, plan.config.training
    yield from config.notes
    if not config.script.eval_only:
        yield Check("ok", "geometry", config.geometry.describe())
        for stage in config.stages:
            never, limit = 0 < training.max_steps < stage.first_step, training.max_steps
            yield warn_if(never, "stage", stage.describe(), f"it never begins: the run ends after {limit} (max_steps)")
        yield Check("ok", "tracker", ", ".join(training.report_to or ["none"]), routine=True)
        if training.push_to_hub:
            yield hub.check(training)
    resumed = f", resumed from {training.resume_from_checkpoint}" if training.resume_from_checkpoint else ""
    yield Check("ok", "output", f"{training.output_dir}{resumed}")
