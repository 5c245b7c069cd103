"""Checks of the rewards and the judge, on test completions of the first training row."""

import re
from collections.abc import Iterator, Mapping, Sequence

from grpo.core.checklist import Check, warn_if
from grpo.core.text import short_name
from grpo.preflight.plan import Checks, Plan, TrainingPlan
from grpo.preflight.reward_trial import number, sums, works
from grpo.scoring.calling import Score
from grpo.scoring.registry import penalties
from grpo.scoring.sample import Fault
from rewards import template_parts

CHECKS = Checks()


@CHECKS.add
def about_judge(plan: Plan) -> Iterator[Check]:
    """Check that the user's judge tells right from wrong."""
    task, row = plan.task, plan.first_row
    if task.judge is None:
        return
    if fault := next((sample.judge_fault for sample in plan.judged.values() if sample.judge_fault), None):
        yield Check("error", "judge", str(fault), "fix it: it gets a completion's text and its row, a dictionary")
        return
    verdicts = {kind: sample.verdict.lenient for kind, sample in plan.judged.items()}
    right = ", ".join(kind for kind, is_right in verdicts.items() if is_right) or "none of them"
    remedy = ""
    if row.get("answer") and (verdicts["wrong answer"] or not verdicts["perfect"]):
        remedy = "it does not tell the gold answer from a wrong one; fix it, or drop the answer_column"
        if not any(verdicts.values()):
            remedy = "it does not accept the gold answer; fix it, unless it judges by other columns"
    yield warn_if(remedy, "judge", f"{task.judge_name}; of the test completions right: {right}", remedy)


@CHECKS.add_for_training
def about_tags(plan: TrainingPlan) -> Iterator[Check]:
    """Check that the prompt shows the tags and marks that the rewards pay for."""
    total, completion, marks = sums(plan.trial), plan.task.prompt.completion, list[str]()
    first = next(iter(plan.trial.texts), "")  # in the format
    if first in total and "no tags" in total and total[first] > total["no tags"]:
        before_answer = template_parts(completion)[-2].split()
        marks = [*re.findall(r"<\w+>", completion), *before_answer[-1:]]
    prompt = plan.prompt()
    if hidden := [mark for mark in dict.fromkeys(marks) if mark not in prompt]:
        finding = f"the prompt never shows {' and '.join(hidden)}, which the rewards pay for"
        yield Check("warning", "tags", finding, "show them in the prompt (system_prompt), or use num_shots 1")


@CHECKS.add_for_training
def about_rewards(plan: TrainingPlan) -> Iterator[Check]:
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
            yield Check("warning", title, f"gives {number(first)} to every test completion", remedy)
        elif name not in punishing and prefers_wrong(earned := sums(plan.trial, [name])):
            earns = f"earns {number(earned['wrong answer'])}, the right one {number(earned['perfect'])}"
            finding = f"a wrong answer in perfect form {earns}"
            remedy = "it pays for being wrong: fix it, drop it, or change the gold answers"
            yield Check("warning", title, finding, remedy)


@CHECKS.add_for_training
def about_all_rewards(plan: TrainingPlan) -> Iterator[Check]:
    """Check that the weighted sum differs between completions, and is highest for the perfect one."""
    total = sums(plan.trial)
    if plan.trial.weights and not any(plan.trial.weights.values()):
        yield Check("error", "all rewards", "every weight is 0", "nothing can be learned; set reward_weights above 0")
    elif total and any(map(works, plan.trial.values.values())):
        finding, remedy = ", ".join(f"{kind} earns {number(value)}" for kind, value in total.items()), ""
        if {"perfect", "wrong answer"} <= total.keys():  # there is a gold answer
            finding = f"perfect earns {number(total['perfect'])}, "
            finding += f"a wrong answer in perfect form {number(total['wrong answer'])}"
            if total["perfect"] <= total["wrong answer"]:
                remedy = (
                    "a wrong answer earns no less than the right one; add a correctness reward, or raise its weight"
                )
        if len(set(total.values())) == 1 < len(total):
            remedy = "they all earn the same; unless your completions differ in other ways, nothing can be learned"
        yield warn_if(remedy, "all rewards", finding, remedy, routine=True)


def _about_failure(name: str, values: Mapping[str, Score], columns: Sequence[str]) -> Check:
    faults = {kind: value.fault for kind, value in values.items() if isinstance(value, Fault)}
    fault = next(iter(faults.values()))
    on = "" if len(faults) == len(values) else f" on {' and '.join(map(repr, faults))}"
    remedy = "fix it"
    if "unexpected keyword argument" in fault:  # TRL passes all columns, and more
        remedy = "add **kwargs to its parameters"
    elif re.match(rf"TypeError: (\S+\.)?({re.escape(name)}|__call__)\(\) missing ", fault):
        passed = [column for column in columns if column != "prompt"]
        remedy = f"it gets {', '.join(['prompts', 'completions', 'completion_ids', *passed])}: use these names"
    return Check("error", f"reward {short_name(name)}", fault + on, remedy)


def prefers_wrong(earned: Mapping[str, float]) -> bool:
    """True if the wrong answer earns clearly more than the perfect answer; small differences may come from length."""
    if not {"perfect", "wrong answer"} <= earned.keys():  # there is no gold answer
        return False
    return earned["wrong answer"] - earned["perfect"] > 0.1 * max(map(abs, earned.values()))
