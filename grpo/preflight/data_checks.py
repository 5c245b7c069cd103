"""Checks of the data: rows, held-out questions, gold answers, prompts and lengths."""

import re
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from exact_answers.prose import VALUE
from exact_answers.verdict import is_ambiguous, is_formula, kind_of
from grpo.core.checklist import Check, warn_if
from grpo.core.functions import innermost, mentioned, parameters, passes_on
from grpo.core.text import counted, listed, short_name, shorten
from grpo.data.columns import ALIKE, FACTS, LOOKS, READ
from grpo.data.findings import spread
from grpo.data.remedies import ADDED, PREPARE, reader_of
from grpo.preflight.plan import Checks, Plan, TrainingPlan
from grpo.results import measures
from grpo.runs import resume
from grpo.runs.facts import TOKENS
from grpo.scoring.sample import Sample
from grpo.task.given import WHOLE, distribution, repeat, same_text
from grpo.task.given_back import CHOICE, Refused
from grpo.task.gold import alternatives, has_mark, mark_name, read_column, readable
from grpo.task.task import Verdict
from grpo.task.wrong import rewritten_json

REFUSED = 0.01  # share of gold answers that the judge does not accept, from which it is warned of
LONG_GOLD = 30  # characters; hardly any completion holds such a text exactly
PLAIN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:/[0-9]+)?")  # numbers as completions write them
DECIMALS = re.compile(r"[0-9]\.[0-9]{3,}$")  # as many as people round
THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2}\.[0-9]{3}")  # as some countries write them
# A unit, next to a number; not a LaTeX command, nor the E of 6.00E+05
WORD = re.compile(r"(?<![\\A-Za-z])(?![eE][-+]?[0-9])[A-Za-z]|[%€£]")


CHECKS = Checks()


@CHECKS.add
def about_findings(plan: Plan) -> Iterator[Check]:
    """Report what the loader found in the rows."""
    yield from plan.data.findings


@CHECKS.add
def about_unused_text(plan: Plan) -> Iterator[Check]:
    """Warn of columns with text that reaches neither the prompts nor a reward or judge."""
    judges, rewards = [plan.task.judge] if plan.task.judge else [], list(plan.rewards.values())
    modules = [str(getattr(innermost(reward), "__module__", "")) for reward in rewards]
    ours = [reward for reward, module in zip(rewards, modules, strict=True) if re.match(r"rewards$|grpo\.", module)]
    others = [reward for reward in rewards if reward not in ours]
    if any(map(passes_on, others)) or any(passes_on(judge, 1) for judge in judges):
        return  # they may read any column
    reached = {"question", "answer", plan.config.script.eval_by}.union(*(parameters(reward) for reward in rewards))
    readers: list[Any] = [*others, *judges]
    reached = reached.union(*map(mentioned, readers))
    reached |= set[str]().union(*(mentioned(reward) for reward in ours)) - {"role", "content"}  # of messages
    unused = [column for column in plan.data.texts if not column.goes_to & reached]
    loud = [column for column in unused if not column.quiet or (column.quiet == ALIKE and column.path[0] in ADDED)]
    names = [column.name for column in loud]
    others_unused = [column for column in unused if column not in loud]
    quiet = {
        why: [column.name for column in others_unused if column.quiet == why] for why in (LOOKS, ALIKE, FACTS, READ)
    }
    if any(quiet.values()):
        finding = "; ".join(f"{listed(columns)} ({why})" for why, columns in quiet.items() if columns)
        yield Check("ok", "unused text", f"not used: {finding}", routine=True)
    if not loud:
        return
    finding = f"neither prompts nor rewards use the text in the column{'s' * (len(names) > 1)} {listed(names)}"
    question = "question" if plan.task.prepare else plan.data.question_column
    cells = "".join(f"{{{column.code}}}\\n" for column in loud[:3])
    answer = plan.config.script.answer_column
    needed = "if questions need it, and it does not give the answer away,"
    remedy = f"{needed} let `prepare` add it to them (docs/your-own-task.md)"
    if plan.task.prepare is None:
        remedy = f"{needed} write a `prepare` (docs/your-own-task.md) that returns "
        asks = f'f"{cells}{{row[{question!r}]}}"'
        if is_talk := {column.path[0] for column in loud} <= set(ADDED):
            asks = f"with_history(row, row[{question!r}])"
        remedy += f"{{**row, 'question': {asks}"
        remedy += f", 'answer': row[{answer!r}]}}" if answer != "answer" else "}"
        remedy += ", with with_history of examples/rows.py" * is_talk
    as_they_are = (plan.config.script.question_column, plan.config.script.answer_column) == ("question", "answer")
    if (
        as_they_are
        and plan.task.prepare is None
        and (reader := reader_of(plan.data.rows.column_names, [column.path[0] for column in loud]))
    ):
        remedy = f"use {PREPARE.format(reader)}, which adds it"
    yield Check("warning", "unused text", finding, remedy)


@CHECKS.add_for_training
def about_training_rows(plan: TrainingPlan) -> Iterator[Check]:
    """Report training rows and optimizer steps; the rows must fill a rollout."""
    config, rows = plan.config, len(plan.data.train)
    steps = config.geometry.steps_per_epoch(rows)
    finding = f"{counted(rows, 'training row')}, {counted(steps, 'optimizer step')} per epoch"
    needed = config.geometry.rollout_prompts
    if rows < needed:
        finding = f"{counted(rows, 'training row')} cannot fill one rollout, which takes {counted(needed, 'prompt')}"
    remedy = "add rows, or lower per_device_train_batch_size or gradient_accumulation_steps"
    yield warn_if(rows < needed, "dataset", finding, remedy, "error")
    done, finding = plan.run.step or 0, counted(plan.steps, "optimizer step")
    if plan.steps < done:
        finding += f", fewer than the {done} of {plan.run.checkpoint}"
    remedy = f"use --max_steps {done} or more, or another output_dir without --resume_from_checkpoint"
    yield warn_if(plan.steps < done, "max_steps" if plan.steps < done else "this run", finding, remedy, "error")


@CHECKS.add_for_training
def about_best(plan: TrainingPlan) -> Iterator[Check]:
    """Check that the metric of the best checkpoint is measured for this data and these rewards."""
    training = plan.config.training
    metric = training.metric_for_best_model
    if metric is None:
        return
    if metric not in (measured := _measured(plan)):
        finding = f"{metric} is not measured in this run"
        yield Check("error", "metric_for_best_model", finding, f"use {', '.join(measured)}")
        return
    every = f"every {training.eval_steps:g} steps" if training.eval_strategy == "steps" else "after each epoch"
    saved = ", and its weights are saved at the end" if training.load_best_model_at_end else ""
    yield Check("ok", "best checkpoint", f"by {metric}, measured {every}{saved}")


def _measured(plan: TrainingPlan) -> list[str]:
    """Return the measures of this run's evaluations while it trains that can choose the best checkpoint."""
    is_judged, by_rule = all(map(plan.task.can_judge, plan.data.held_out)), plan.task.judge is None
    verdict = Verdict("", False, False, why=VALUE if by_rule else None) if is_judged else Verdict()
    rewards = dict.fromkeys(plan.rewards, 0.0)
    form = plan.task.form("")
    sample = Sample(verdict=verdict, format=form, truncated=False, tokens=0, rewards=rewards, reward=0.0)
    measured = [measure for measure in measures.of_samples([sample]) if measure.of(sample) is not None]
    return [measure.key for measure in measured if measure.higher_is_better is not None]


@CHECKS.add
def about_golds(plan: Plan) -> Iterator[Check]:
    """Show how gold answers were read, and warn of those that completions can hardly match."""
    data, exact = plan.data, plan.trial.exact
    rows = [alternatives(gold) for gold in data.rows["answer"] if gold is not None]
    golds = [gold for row in rows for gold in row]
    if not data.has_golds:
        some = f"{len(rows)} of {counted(len(data.rows), 'row')}" if golds else "no gold answers"
        measured = "the judge's verdict" if plan.task.judge else "rewards"
        form = " and format" if plan.task.has_format else ""
        yield Check("ok", "gold answers", f"{some}: evaluation reports {measured}{form}")
    if not golds:
        return
    kinds: dict[str, list[str]] = {"number": [], "JSON": [], "mathematics": [], "text": []}
    for gold in golds:
        an_object = gold.startswith("{") and rewritten_json(gold)  # [1, 2] is an interval, too
        kinds["JSON" if an_object else kind_of(gold)].append(gold)
    units = [gold for gold in kinds["number"] if WORD.search(gold)]
    first = ", ".join(f'"{shorten(readable(row))}"' for row in rows[:3])
    alike = len(rows) > 1 and len({same_text(gold) for row in rows for gold in row}) == 1
    if repeat(rows) or alike:  # labels
        quoted = ((share, "" if share.others else '"') for share in distribution(rows))
        first = ", ".join(f"{sign}{shorten(share.answer)}{sign} {100 * share.gold:.0f} %" for share, sign in quoted)
    finding = f"{first} · {data.marks} · "
    named = {
        "numbers": kinds["number"],
        "with a unit": units,
        "arithmetic, for which arithmetic is right": [] if plan.task.judge else list(filter(is_formula, golds)),
        "JSON": kinds["JSON"],
        "mathematics": kinds["mathematics"],
        "text": kinds["text"],
    }
    for name, of_kind in named.items():
        finding += f"{100 * len(of_kind) / len(golds):.0f} % {name}, " if of_kind else ""
    finding += f"longest {counted(max(map(len, golds)), 'character')}"
    if several := sum(len(row) > 1 for row in rows):
        finding += f" · {counted(several, 'row')} with a list of gold answers, any of which is right"
    odd = [gold for gold in kinds["text"] if len(gold) > LONG_GOLD or any(map(str.isdigit, gold))]
    odd += kinds["JSON"] + kinds["mathematics"] + [gold for gold in kinds["number"] if not PLAIN.fullmatch(gold)]
    remedy = ""
    marked = [gold for gold in golds if has_mark(gold)]
    if len(marked) > 0.05 * len(golds) and (mark := read_column(marked)[0]):
        count = f"{len(marked)} of {len(golds)} have {mark_name(mark)}"
        remedy = f"{count}, too few for it to be read: put it in all of them, or in none"
    elif alike:
        remedy = "always giving this answer is right, and no completion can do better: use answers that differ"
    elif exact and len(odd) > 0.1 * len(golds):
        names = f"{' and '.join(map(short_name, exact))} {'wants' if len(exact) == 1 else 'want'}"
        remedy = f'"{shorten(odd[0])}": {names} every character of it: keep the answer alone, mark it (####, '
        remedy += r"\boxed{}, Answer:)"
        if plan.task.judge or all(refused.share < REFUSED for refused in plan.refused_golds.values()):
            remedy += ", or use judge_reward_func, which takes what means the same"
    yield warn_if(remedy, "gold answers", finding, remedy)
    long = [gold for gold in kinds["number"] if DECIMALS.search(gold)]
    if len(long) > 0.1 * len(golds) and plan.task.judge is None:
        finding = f"{len(long):,} of {counted(len(golds), 'gold answer')} have three decimals or more, as "
        finding += f"{long[0]}: they are compared exactly, and a rounded answer is wrong"
        remedy = "write a judge that allows a tolerance (docs/your-own-task.md), or round them in a `prepare` and ask "
        remedy += "for that many decimals"
        if all(THOUSANDS.fullmatch(gold) for gold in long):
            remedy += f"; if the point separates thousands, write {long[0].replace('.', '')}"
        yield Check("warning", "decimals", finding, remedy)


@CHECKS.add
def about_golds_given_back(plan: Plan) -> Iterator[Check]:
    """Warn of gold answers that the run's judge does not accept when they are given back."""
    for table, refused in plan.refused_golds.items():
        if refused.rows:
            count = len(plan.data.held_out if table == "held-out" else plan.data.rows)
            of_all = f" (tried on {refused.tried:,} of {count:,} rows)" if refused.tried < count else ""
            finding = f"{table and table + ' rows: '}{refused}{of_all}"
            yield warn_if(refused.share >= REFUSED, "given back", finding, _remedy_of_golds(plan, refused))


def _remedy_of_golds(plan: Plan, refused: Refused) -> str:
    """Return what to do about gold answers that the judge does not accept, by the first of them."""
    column = "answer" if plan.task.prepare else plan.config.script.answer_column
    gold, given = next(iter(refused.examples.items()))
    remedy = (
        "keep the answer alone, or mark it (`#### 6`, `Answer: 6`), in a `prepare` or in the file; or write a judge"
    )
    if plan.task.judge:
        remedy = "let the judge accept the gold answer of each row, or correct these answers"
    elif "|" in gold:
        remedy = (
            f"if any part is right, return the list, {{**row, 'answer': row[{column!r}].split('|')}}, in a `prepare`"
        )
    elif gold.startswith(("[", "(")) and ("'" in gold or '"' in gold):
        remedy = f"if any of its items is right, return the list, {{**row, 'answer': parsed(row[{column!r}])}}, in a "
        remedy += "`prepare`, with parsed of grpo.data.files; if not, write a judge"
    elif given and CHOICE.fullmatch(gold):
        sign = "letter" if given.isalpha() else "number"
        remedy = f"keep the {sign} alone ({given}), or the text without it, in a `prepare`"
    return remedy


@CHECKS.add
def about_separators(plan: Plan) -> Iterator[Check]:
    """Warn of a gold answer with a comma that can be read in two ways."""
    golds = (text for gold in plan.data.rows["answer"] if gold is not None for text in alternatives(gold))
    if unclear := next((gold for gold in golds if "," in gold and is_ambiguous(gold)), ""):
        finding = f'"{unclear}" is a number with a decimal comma, or a list; both are right'
        remedy = f"write {unclear.replace(',', '.')} or {unclear.replace(',', ', ')} in a `prepare`"
        yield Check("warning", "separators", finding, remedy)


@CHECKS.add
def about_prompts(plan: Plan) -> Iterator[Check]:
    """Report the prompt format, and warn of plain text that a model may not follow."""
    task, script = plan.task, plan.config.script
    kind = "chat messages" if task.prompt.chat else "plain text"
    by = plan.config.origin.get("prompt_format", "script")
    name = script.prompt_format if isinstance(script.prompt_format, str) else f"the {by}'s format"
    name += f" with answer_pattern {script.answer_pattern}" if script.answer_pattern else ""
    finding = f"{name}{' with your system_prompt' * (script.system_prompt is not None)} as {kind}, "
    finding += counted(len(task.shots), "worked example")
    if task.prompt.pattern != "xml":
        gold = shorten(next(iter(alternatives(plan.first_row["answer"])), "…"), 60)
        shown = task.perfect("\0", gold).split("\0")[-1].strip()
        finding += f", answers as {shown}{f' ({WHOLE})' * (task.prompt.pattern == 'text')}"
    if task.prompt.prefill:
        finding += f"; they end in {task.prompt.prefill!r}, with which completions are scored and shown"
    cannot = not task.prompt.chat and plan.tokenizer.chat_template is None and not task.shots
    remedy = "the model has no chat template: it may never stop or show the format; num_shots 1 helps"
    yield warn_if(cannot, "prompts", finding, remedy, routine=True)


@CHECKS.add
def about_end_of_prompts(plan: Plan) -> Iterator[Check]:
    """Refuse prompts that end in the end token."""
    end = str(plan.tokenizer.eos_token)
    if plan.prompt().rstrip().endswith(end):
        finding = f"prompts end in the end token {end!r}, after which a model begins something else"
        remedy = (
            "let the tokenizer add none (add_eos_token and the post_processor in its files), and the chat template "
        )
        remedy += "open the assistant's turn (add_generation_prompt)"
        yield Check("error", "end token", finding, remedy)


@CHECKS.add
def about_opened_tags(plan: Plan) -> Iterator[Check]:
    """Warn of prompts that end in a tag which the format's completions do not have."""
    opened = re.search(r"<\w+>\s*$", plan.prompt())
    if opened and not plan.task.prompt.prefill:
        finding = f"prompts end in {opened[0]!r}, which is not part of this format's completions"
        remedy = "no completion can have the format: use --prompt_format think, or a format whose completion has it"
        yield Check("warning", "prefilled", finding, remedy)


@CHECKS.add_for_training
def about_resumed_prompts(plan: TrainingPlan) -> Iterator[Check]:
    """Warn if rows, or the prompts' tokens, differ from the checkpoint's. Refuse other training prompts."""
    if plan.run.checkpoint and (changed := resume.changed_data(plan.run.checkpoint, plan.data)):
        finding = f"since the checkpoint: the {' and the '.join(changed)}"
        if TOKENS in changed:
            finding += " (an edited or dated chat template, another tokenizer or end token)"
        yield Check("warning", "changed", finding, "the run will differ from an uninterrupted one")


@CHECKS.add
def about_completion_lengths(plan: Plan) -> Iterator[Check]:
    """Compare the lengths of gold solutions with the limit of completions."""
    limit, solutions = plan.config.completion_limit, _solution_lengths(plan)
    long = fmean(length > limit for length in solutions)
    subject = "gold solutions in the answer format" if any(plan.data.reasoning) else "the answer format alone"
    subject = subject if plan.task.has_format else "gold answers"
    finding = f"{subject}: {spread(solutions)}; limit {limit}"
    finding += f"; {100 * long:.0f} % are longer" if long else ""
    remedy = "raise max_completion_length: a completion that is cut off earns next to nothing"
    yield warn_if(long > 0.05, "completion length", finding, remedy, routine=True)


def _solution_lengths(plan: Plan) -> list[int]:
    """Count the tokens of the first gold solutions, written as completions with an end token."""
    lengths = []
    for reasoning, gold in zip(plan.data.reasoning[:1000], plan.data.rows["answer"][:1000], strict=True):
        lengths.append(len(plan.encode(plan.task.perfect(reasoning, "".join(alternatives(gold)[:1])))) + 1)
    return lengths
