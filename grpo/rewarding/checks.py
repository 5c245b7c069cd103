"""Preflight's checks of the rewards and the judge, on test completions of the first training row."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from grpo.core.checklist import Check, Trial, warn_if
from grpo.core.errors import fault_of
from grpo.core.text import for_rich, short_name, with_minus
from grpo.data.checks import Plan
from grpo.rewarding import registry
from grpo.rewarding.probe import Value, perturbed, told
from grpo.rewarding.registry import penalties
from rewards import template_parts

LONG = 240  # characters; of longer test completions only the end is shown


def about_judge(plan: Plan) -> Iterator[Check]:
    """Check that the user's judge tells right from wrong."""
    task, row = plan.task, plan.first_row
    if task.judge is None:
        return
    texts = perturbed("", row.get("answer"), task, plan.data.wrong_answer)
    try:
        verdicts = {kind: task.verdict(text, row) for kind, text in texts.items()}
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        remedy = "fix it: it gets a completion's text and its row, a dictionary"
        yield Check("error", "judge", f"{task.judge_name}: {told(fault_of(error))}", remedy)
        return
    right = ", ".join(kind for kind, verdict in verdicts.items() if verdict) or "none of them"
    remedy = ""
    if row.get("answer") and (verdicts["wrong answer"] or not verdicts["perfect"]):
        remedy = "it does not tell the gold answer from a wrong one; fix it, or drop the answer_column"
    yield warn_if(remedy, "judge", f"{task.judge_name}; of the test completions right: {right}", remedy)


def about_tags(plan: Plan) -> Iterator[Check]:
    """Check that the prompt shows the tags and marks that the rewards pay for."""
    total, completion, marks = weighted_sum(plan.trial), plan.task.prompt.completion, list[str]()
    first = next(iter(plan.trial.texts), "")  # in the format
    if first in total and "no tags" in total and total[first] > total["no tags"]:
        before_answer = template_parts(completion)[-2].split()
        marks = [*re.findall(r"<\w+>", completion), *before_answer[-1:]]
    prompt = plan.prompt()
    if hidden := [mark for mark in dict.fromkeys(marks) if mark not in prompt]:
        finding = f"the prompt never shows {' and '.join(hidden)}, which the rewards pay for"
        yield Check("warning", "tags", finding, "show them in the prompt (system_prompt), or use num_shots 1")


def about_rewards(plan: Plan) -> Iterator[Check]:
    """Report rewards that fail, give one value to all or prefer the wrong answer."""
    punishing = penalties(plan.rewards)  # a penalty may punish a wrong answer less
    for name, values in plan.trial.values.items():
        title = f"reward {short_name(name)}"
        if not works(values):
            yield _about_failure(name, values, plan.data.train.column_names)
        elif len(set(values.values())) == 1:
            if plan.task.judge and "perfect" not in values:
                continue  # no test completion is known to be right
            remedy = "it moves no advantage unless your completions differ in other ways"
            first = next(iter(values.values()))
            yield Check("warning", title, f"gives {_number(first)} to every test completion", remedy)
        elif name not in punishing and prefers_wrong(earned := weighted_sum(plan.trial, [name])):
            finding = f"wrong answer earns {_number(earned['wrong answer'])}, perfect {_number(earned['perfect'])}"
            remedy = "it pays for being wrong: fix it, drop it, or change the gold answers"
            yield Check("warning", title, finding, remedy)


def about_all_rewards(plan: Plan) -> Iterator[Check]:
    """Check that the weighted sum differs between completions, and is highest for the perfect one."""
    total = weighted_sum(plan.trial)
    if plan.trial.weights and not any(plan.trial.weights.values()):
        yield Check("error", "all rewards", "every weight is 0", "nothing can be learned; set reward_weights above 0")
    elif total and any(map(works, plan.trial.values.values())):
        finding, remedy = ", ".join(f"{kind} earns {_number(value)}" for kind, value in total.items()), ""
        if {"perfect", "wrong answer"} <= total.keys():  # there is a gold answer
            finding = f"perfect earns {_number(total['perfect'])}, wrong answer {_number(total['wrong answer'])}"
            if total["perfect"] <= total["wrong answer"]:
                remedy = (
                    "a wrong answer earns no less than the right one; add a correctness reward, or raise its weight"
                )
        if len(set(total.values())) == 1 < len(total):
            remedy = "they all earn the same; unless your completions differ in other ways, nothing can be learned"
        yield warn_if(remedy, "all rewards", finding, remedy)


def works(values: Mapping[str, Value]) -> bool:
    """True if a reward returned a finite number or None for every test completion."""
    return not any(isinstance(value, str) for value in values.values())


def _about_failure(name: str, values: Mapping[str, Value], columns: Sequence[str]) -> Check:
    faults = {kind: value for kind, value in values.items() if isinstance(value, str)}
    fault = next(iter(faults.values()))
    on = "" if len(faults) == len(values) else f" on {' and '.join(map(repr, faults))}"
    remedy = "fix it"
    if "unexpected keyword argument" in fault:  # TRL passes all columns, and more
        remedy = "add **kwargs to its parameters"
    elif re.match(rf"raises TypeError: (\S+\.)?({re.escape(name)}|__call__)\(\) missing ", fault):
        passed = [column for column in columns if column != "prompt"]
        remedy = f"it gets {', '.join(['prompts', 'completions', 'completion_ids', *passed])}: use these names"
    return Check("error", f"reward {short_name(name)}", fault + on, remedy)


def prefers_wrong(earned: Mapping[str, float]) -> bool:
    """True if the wrong answer earns clearly more than the perfect answer; small differences may come from length."""
    if not {"perfect", "wrong answer"} <= earned.keys():  # there is no gold answer
        return False
    return earned["wrong answer"] - earned["perfect"] > 0.1 * max(map(abs, earned.values()))


def weighted_sum(trial: Trial, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the weighted sum of the rewards (all, or `names`) for each completion.

    As in training, a completion on which one of them fails has no sum. A reward that fails on all is left out; {} if
    all do.
    """
    kinds = next(iter(trial.values.values()), {}).keys()

    def fails(name: str, kind: str) -> bool:
        return isinstance(trial.values[name][kind], str)

    working = [name for name in names or trial.values if not all(fails(name, kind) for kind in kinds)]
    whole = [kind for kind in kinds if working and not any(fails(name, kind) for name in working)]
    columns: Any = {kind: {name: trial.values[name][kind] for name in working} for kind in whole}
    return {kind: registry.weighted_sum(values, trial.weights) for kind, values in columns.items()}


def matrix(trial: Trial) -> Table:
    """Build preflight's table: a row for each reward and the weighted sum, a column for each test completion."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for kind in trial.texts:
        table.add_column(kind, justify="right", no_wrap=True)
    for name, values in trial.values.items():
        weight = "" if trial.weights[name] == 1 else f" × {trial.weights[name]:g}"
        table.add_row(for_rich(short_name(name) + weight), *map(_number, values.values()))
    if total := weighted_sum(trial):
        sums = [_number(total[kind]) if kind in total else "–" for kind in trial.texts]  # – where a reward fails
        table.add_row("weighted sum", *sums, style="bold")
    return table


def listing(texts: Mapping[str, str]) -> Table:
    """List the test completions with line breaks: the first one in full, only the ends of other long ones."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, (kind, text) in enumerate(texts.items()):
        shown = text if number == 0 or len(text) <= LONG else f"…{text[1 - LONG :]}"
        table.add_row(kind, for_rich(shown.replace("\n", "↵ ").strip()) or "(no text)")
    return table


def _number(value: Value) -> str:
    if isinstance(value, str):
        return "raises" if value.startswith("raises") else "–"  # it did not return a number
    return "none" if value is None else with_minus(value, "z.3g")
