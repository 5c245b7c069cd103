"""Preflight: check a run before loading weights. Print the checks, the rewards of test completions, and a prompt."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from transformers import PreTrainedTokenizerBase

import grpo.data.checks as data_checks
import grpo.evaluation.checks as evaluation_checks
import grpo.policy.checks as policy_checks
import grpo.rewarding.checks as reward_checks
from grpo.core.checklist import Check, Trial, stop_at_errors, warn_if
from grpo.core.processes import is_first_process, say
from grpo.core.settings import Config
from grpo.core.text import for_rich, shorten
from grpo.data.checks import Plan
from grpo.data.dataset import Data
from grpo.policy import loading
from grpo.rewarding import probe
from grpo.rewarding.registry import Rewards, check_columns, weights_of
from grpo.runs import checkpoints, hub, resume
from grpo.task.gold import readable
from grpo.task.task import Task

# Checks that only a dry run shows if all is well
ROUTINE = (
    *("tracker", "schema", "overlap", "prompts", "prompt length", "completion length"),
    *("all rewards", "memory", "disk"),
)
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def about_run(plan: Plan) -> Iterator[Check]:
    """List automatic decisions, batch geometry, stages, tracker and output directory."""
    config, training = plan.config, plan.config.training
    yield from config.notes
    if not config.script.eval_only:
        yield Check("ok", "geometry", config.geometry.describe())
        for stage in config.stages:
            never, limit = 0 < training.max_steps < stage.first_step, training.max_steps
            yield warn_if(never, "stage", stage.describe(), f"it never begins: the run ends after {limit} (max_steps)")
        yield Check("ok", "tracker", ", ".join(training.report_to or ["none"]))
        if training.push_to_hub:
            yield hub.check(training)
    resumed = f", resumed from {training.resume_from_checkpoint}" if training.resume_from_checkpoint else ""
    yield Check("ok", "output", f"{training.output_dir}{resumed}")


def about_resumed_prompts(plan: Plan) -> Iterator[Check]:
    """Warn if the prompts' tokens differ from the checkpoint's. Refuse other training rows."""
    checkpoint = plan.config.training.resume_from_checkpoint
    if not checkpoint:
        return
    resume.check_rows(checkpoint, plan.data.train)
    sealed = checkpoints.read_seal(Path(checkpoint))
    if sealed.get("tokens", plan.data.tokens) != plan.data.tokens:
        plan.config.resumed_with.append("the tokens of the prompts")
        finding = "the tokens of the prompts, or the end token, are not the checkpoint's (an edited or dated chat "
        finding += "template, another tokenizer)"
        yield Check("warning", "changed", finding, "the run will differ from an uninterrupted one")


CHECKS: tuple[Callable[[Plan], Iterator[Check]], ...] = (  # the table's order
    about_run,
    data_checks.about_rows,
    evaluation_checks.about_held_out,
    evaluation_checks.about_best,
    data_checks.about_golds,
    data_checks.about_prompts,
    about_resumed_prompts,
    reward_checks.about_judge,
    data_checks.about_lengths,
    reward_checks.about_tags,
    reward_checks.about_rewards,
    reward_checks.about_all_rewards,
    policy_checks.about_end,
    policy_checks.about_model,
)


def run(
    config: Config, tokenizer: PreTrainedTokenizerBase, task: Task, data: Data, rewards: Rewards
) -> dict[str, float]:
    """Print checks, the rewards of test completions, and a prompt exactly as the model gets it.

    A dry run prints all of them, and the test completions.

    Returns:
        Each reward's value for a perfect completion, by name; empty with `eval_only`.
    """
    plan = make_plan(config, tokenizer, task, data, rewards)
    checks = [check for about in CHECKS for check in about(plan)]
    if is_first_process():
        print_checks(checks if config.script.dry_run else folded(checks))
        if plan.trial.values:
            # rich would wrap the table's title at the table's width
            title = "[italic]Rewards, tried on completions for the first training row[/italic]"
            Console().print("", title, reward_checks.matrix(plan.trial), "", sep="\n")
            if config.script.dry_run:
                Console().print(reward_checks.listing(plan.trial.texts), "", sep="\n")
        print_example(plan.prompt(), readable(plan.first_row["answer"]))
    stop_at_errors(checks)
    if config.script.dry_run:
        warnings = sum(check.status == "warning" for check in checks)
        say(f"Dry run: {warnings or 'no'} warning{'s' * (warnings != 1)}, no error; nothing was trained or written")
    perfect = {rewards[name].__name__: values.get("perfect") for name, values in plan.trial.values.items()}
    return {name: value for name, value in perfect.items() if isinstance(value, float)}


def make_plan(config: Config, tokenizer: PreTrainedTokenizerBase, task: Task, data: Data, rewards: Rewards) -> Plan:
    """Read the model's configurations and try the rewards (not with `eval_only`)."""
    check_columns(rewards, {*data.train.column_names, *data.held_out.column_names})
    trial = Trial()
    if not config.script.eval_only:
        row, reasoning = data.train[0], data.reasoning[0]
        tried = probe.try_rewards(rewards, row, reasoning, task, tokenizer, data.wrong_answer)
        trial = Trial(*tried, weights_of(config, rewards))
    return Plan(config, tokenizer, task, data, rewards, *loading.read_configs(config), trial)


def folded(checks: Sequence[Check]) -> list[Check]:
    """Replace the routine checks that are ok by one line with their names."""
    routine = [check for check in checks if check.status == "ok" and check.name in ROUTINE]
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
    Console().print(table)


def print_example(prompt: str, gold: str) -> None:
    """Print a prompt as the model gets it, with its gold answer."""
    title, answer = "a training prompt, as the model gets it", f"gold answer: {for_rich(shorten(gold, 60))}"
    Console().print(Panel(for_rich(prompt), title=title, title_align="left", subtitle=answer, subtitle_align="left"))
