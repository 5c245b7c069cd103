"""Preflight: check a run before loading weights. Print the checks, the rewards of test completions, and a prompt."""

from collections.abc import Sequence

from rich.panel import Panel
from rich.table import Table

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.processes import console, is_first_process, say
from grpo.core.text import for_rich, shorten
from grpo.preflight import data_checks, model_checks, reward_checks, room, run_checks
from grpo.preflight.plan import Plan, TrainingPlan
from grpo.preflight.reward_trial import completions_table, rewards_table
from grpo.scoring.registry import refuse_columns_like_parameters
from grpo.task.gold import readable

MODULES = (run_checks, data_checks, reward_checks, model_checks)  # the table's order
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def check(plan: Plan) -> None:
    """Print the checks, the rewards of test completions, and a prompt exactly as the model gets it.

    A dry run prints all of the checks, and the test completions.

    Raises:
        UserError: a check failed.
    """
    dry_run, checks = plan.config.script.dry_run, outcomes(plan)
    if is_first_process():
        print_checks(checks if dry_run else folded(checks))
        if plan.trial.values:
            # rich would wrap the table's title at the table's width
            title = "[italic]Rewards, tried on completions for the first training row[/italic]"
            console().print("", title, rewards_table(plan.trial), "", sep="\n")
            if dry_run:
                console().print(completions_table(plan.trial.texts), "", sep="\n")
        print_example(plan.prompt(), readable(plan.first_row["answer"]))
    stop_at_errors(checks)
    if dry_run:
        warnings = sum(check.status == "warning" for check in checks)
        say(f"Dry run: {warnings or 'no'} warning{'s' * (warnings != 1)}, no error; nothing was trained or written")


def outcomes(plan: Plan) -> list[Check]:
    """Return the lines of all checks, in the order of the table, once the run has decided what is left to it."""
    if isinstance(plan, TrainingPlan):
        room.choose_checkpointing(plan)
    refuse_columns_like_parameters(plan.rewards, {*plan.data.rows.column_names, *plan.data.held_out.column_names})
    return [outcome for module in MODULES for outcome in module.CHECKS.outcomes(plan)]


def stop_at_errors(checks: Sequence[Check]) -> None:
    """Raise UserError for the first failed check, with the number of further failures."""
    errors = [check for check in checks if check.status == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more, see the table)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0].name}: {errors[0].finding}; {errors[0].remedy}{more}")


def folded(checks: Sequence[Check]) -> list[Check]:
    """Replace the routine checks that are ok by one line with their names."""
    routine = [check for check in checks if check.status == "ok" and check.routine]
    names = ", ".join(dict.fromkeys(check.name for check in routine))
    shown = [check for check in checks if check not in routine]
    return [*shown, Check("ok", "more", f"{names} (--dry_run true shows them)")] if routine else shown


def print_checks(checks: Sequence[Check]) -> None:
    """Print the table of checks."""
    table = Table(title="Preflight", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "check", "finding"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        remedy = f"\n→ {for_rich(check.remedy)}" if check.remedy else ""
        style = STYLES[check.status]
        table.add_row(f"[{style}]{check.status}[/{style}]", for_rich(check.name), for_rich(check.finding) + remedy)
    console().print(table)


def print_example(prompt: str, gold: str) -> None:
    """Print a prompt as the model gets it, with its gold answer."""
    title, answer = "a training prompt, as the model gets it", f"gold answer: {for_rich(shorten(gold, 60))}"
    console().print(Panel(for_rich(prompt), title=title, title_align="left", subtitle=answer, subtitle_align="left"))
