"""Checks of the data: rows, held-out questions, gold answers, prompts and lengths."""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import fmean, quantiles
from typing import Any

from exact_answers.verdict import is_ambiguous, kind_of
from grpo.core.checklist import Check, warn_if
from grpo.core.text import counted, listed, reward_key, rewarded, short_name, shorten
from grpo.data.remedies import PREPARE, reader_of
from grpo.preflight.plan import Checks, Plan, TrainingPlan
from grpo.results import measures
from grpo.results.answer import Answer
from grpo.results.comparison import FEWEST
from grpo.results.measures import LENIENT
from grpo.runs import resume
from grpo.task.given import WHOLE, distribution, repeat
from grpo.task.gold import alternatives, has_mark, mark_name, read_column, readable
from grpo.task.wrong import rewritten_json

FOLLOW_A_METRIC = ("reduce_lr_on_plateau", "greedy")  # schedules
ENOUGH = 100  # held-out questions; they can show a change of 6 points, not a smaller one
LONG_GOLD = 30  # characters; hardly any completion holds such a text exactly
PARTS = (  # columns that usually belong to the question …
    *("choices", "options", "endings", "candidates", "input", "context", "ctx", "passage", "article", "paragraph"),
    "hypothesis",
)
# … and series of them: A, B, C, D; option1, option2; answerA, answerB
OPTION = re.compile(r"(|option|choice|opt?|ending|sol|candidate|answer)[ _-]?([a-j]|[0-9])", re.IGNORECASE)
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]|[%€£]")  # not a LaTeX command; next to a number it is a unit


CHECKS = Checks()


@CHECKS.add
def about_rows(plan: Plan) -> Iterator[Check]:
    """Report rows read and dropped."""
    config, data = plan.config, plan.data
    columns = data.question_column + (f" and {config.script.answer_column}" if data.has_golds else "")
    finding, remedies = f"columns {columns}", []
    if plan.task.prepare:
        finding = f"{columns} by {config.script.prepare}, from the columns {shorten(', '.join(data.columns), 120)}"
    unmarked = data.unmarked()
    if empty := data.unusable - sum(unmarked.values()):
        finding += f"; dropped {counted(empty, 'row')} without a question{' or a gold answer' * data.has_golds}"
        remedies.append(f"{columns} are needed in every row")
    for mark, count in unmarked.items():
        finding += f"; dropped {counted(count, 'row')} without the mark {mark} that the others have"
        remedies.append(f"put {mark} in all gold answers, or in none")
    yield warn_if(remedies, "schema", finding, "; ".join(remedies), routine=True)


@CHECKS.add
def about_reserved_columns(plan: Plan) -> Iterator[Check]:
    """List columns that are dropped because TRL uses their names."""
    data = plan.data
    if reserved := [name for name in data.reserved if name not in data.media]:
        yield Check("ok", "columns", f"dropped {', '.join(reserved)}: TRL uses these names")


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
    limit = config.training.max_steps
    steps = limit if limit > 0 else math.ceil(steps * config.training.num_train_epochs)
    yield Check("ok", "this run", counted(steps, "optimizer step"))


@CHECKS.add_for_training
def about_conflicts(plan: TrainingPlan) -> Iterator[Check]:
    """Warn of training questions with different gold answers."""
    data = plan.data
    if data.conflicts:
        question, one, other = data.conflicts[0]
        finding = f"{counted(len(data.conflicts), 'training question')} with different gold answers, such as "
        finding += f'"{shorten(question)}": {shorten(readable(one))}, and {shorten(readable(other))}'
        yield Check("warning", "conflicts", finding, "keep the right row of each")


@CHECKS.add_for_training
def about_overlap(plan: TrainingPlan) -> Iterator[Check]:
    """Warn of training rows with a held-out question."""
    overlap = plan.data.overlap
    finding = f"dropped {counted(overlap, 'training row')} with a held-out question"
    yield warn_if(overlap, "overlap", finding, "use training rows that are not in the evaluation", routine=True)


@CHECKS.add
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


@CHECKS.add_for_training
def about_best(plan: TrainingPlan) -> Iterator[Check]:
    """Check that the metric of the best checkpoint is measured for this data and these rewards."""
    config, training = plan.config, plan.config.training
    metric, follows = training.metric_for_best_model, training.lr_scheduler_type in FOLLOW_A_METRIC
    if metric == "loss" and follows:
        finding = f"{training.lr_scheduler_type} follows eval_loss, which says nothing in GRPO"
        yield Check("warning", "lr_scheduler_type", finding, f"set metric_for_best_model, such as {LENIENT.key}")
        return
    if metric is None or not (config.own_metric or config.trl_evaluates):
        return
    measured = _measured(plan)
    reward = rewarded(metric, "mean|std")
    if metric not in measured if config.own_metric else reward and reward not in plan.rewards:
        names = measured if config.own_metric else list(map(reward_key, plan.rewards))
        finding = f"{metric} is not measured in this run"
        yield Check("error", "metric_for_best_model", finding, f"use {', '.join(names)}")
        return
    every = f"every {training.eval_steps:g} steps" if training.eval_strategy == "steps" else "after each epoch"
    finding = f"by {metric}, measured {every} by {'eval_strategy' if config.trl_evaluates else 'eval_every'}"
    kept = ", and its weights are saved at the end" if training.load_best_model_at_end else ""
    yield Check("ok", "best checkpoint", f"{finding}{kept}")


def _measured(plan: TrainingPlan) -> list[str]:
    """Return the measures of this run's evaluations while it trains that can choose the best checkpoint."""
    row, is_judged = plan.data.held_out[0], all(map(plan.task.can_judge, plan.data.held_out))
    grade: dict[str, Any] = plan.task.grade("", row, False if is_judged else None)._asdict()
    rewards = dict.fromkeys(plan.rewards, 0.0)
    answer = Answer(row["question"], row["answer"], **grade, truncated=False, tokens=0, rewards=rewards, reward=0.0)
    known = [one for one in measures.of_answers([answer]) if one.of(answer) is not None]
    return [one.key for one in known if one.higher_is_better is not None]


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
    if repeat(rows):  # labels
        quoted = ((share, "" if share.others else '"') for share in distribution(rows))
        first = ", ".join(f"{sign}{shorten(share.answer)}{sign} {100 * share.gold:.0f} %" for share, sign in quoted)
    finding = f"{first} · {data.where_golds_are()} · "
    named = {
        "numbers": kinds["number"],
        "with a unit": units,
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
    odd += kinds["JSON"] + kinds["mathematics"] + units
    remedy = ""
    marked = [gold for gold in golds if has_mark(gold)]
    if len(marked) > 0.05 * len(golds) and (mark := read_column(marked)[0]):
        count = f"{len(marked)} of {len(golds)} have {mark_name(mark)}"
        remedy = f"{count}, too few for it to be read: put it in all of them, or in none"
    elif exact and len(odd) > 0.1 * len(golds):
        names = f"{' and '.join(map(short_name, exact))} {'wants' if len(exact) == 1 else 'want'}"
        remedy = f'"{shorten(odd[0])}": {names} every character of it: keep the answer alone, mark it (####, '
        remedy += r"\boxed{}, Answer:), or use judge_reward_func, which takes what means the same"
    yield warn_if(remedy, "gold answers", finding, remedy)


@CHECKS.add
def about_separators(plan: Plan) -> Iterator[Check]:
    """Warn of a gold answer with a comma that can be read in two ways."""
    golds = (one for gold in plan.data.rows["answer"] if gold is not None for one in alternatives(gold))
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
def about_hidden_columns(plan: Plan) -> Iterator[Check]:
    """Warn of columns that questions usually need and that the prompts do not show."""
    script = plan.config.script
    if hidden := _hidden_parts(plan):
        finding = f"the prompts do not show the column{'s' * (len(hidden) > 1)} {listed(hidden)}, which questions "
        finding += "usually need"
        remedy = "write a `prepare` that adds them, such as those in examples/rows.py (docs/your-own-task.md)"
        columns = script.question_column, script.answer_column
        as_they_are = columns == ("question", "answer") and plan.task.prepare is None
        if as_they_are and (reader := reader_of(plan.data.rows.column_names, hidden)):
            remedy = f"use {PREPARE.format(reader)}, which adds them"
        yield Check("warning", "prompts", finding, remedy)


@CHECKS.add
def about_media(plan: Plan) -> Iterator[Check]:
    """Refuse questions about images; warn of images without such questions, and of such questions alone."""
    data = plan.data
    finding = f"{counted(len(data.placeholders), 'question')} with {data.placeholders[0]}" if data.placeholders else ""
    finding += " and " * bool(data.placeholders and data.media) + f"the column {listed(data.media)}" * bool(data.media)
    finding += ": the model gets text only"
    remedy = "keep the rows that can be answered without, in a `prepare` (docs/your-own-task.md)"
    if data.placeholders or data.media:
        yield Check("error" if data.placeholders and data.media else "warning", "images", finding, remedy)


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
    """Warn if the prompts' tokens differ from the checkpoint's. Refuse other training rows."""
    if not plan.run.checkpoint:
        return
    resume.check_rows(plan.run.checkpoint, plan.data.train)
    if resume.has_other_tokens(plan.run.checkpoint, plan.data.tokens):
        finding = "the tokens of the prompts, or the end token, are not the checkpoint's (an edited or dated chat "
        finding += "template, another tokenizer)"
        yield Check("warning", "changed", finding, "the run will differ from an uninterrupted one")


def _hidden_parts(plan: Plan) -> list[str]:
    """Return the columns of PARTS, and those of series of options, that the prompts do not show."""
    rows, script = plan.data.rows, plan.config.script
    columns = [name for name in rows.column_names if name not in (script.question_column, script.answer_column)]
    series: dict[str, dict[str, str]] = {}
    for name in columns:
        if option := OPTION.fullmatch(name):
            series.setdefault(option[1].lower(), {})[option[2].lower()] = name
    parts = [[name] for name in columns if name.lower() in PARTS]
    for stem, of_series in series.items():
        counts = [] if stem in ("", "answer") else [("0", "1"), ("1", "2")]  # 1 and 2 alone may be anything
        if any(set(first) <= of_series.keys() for first in [("a", "b"), *counts]):
            parts.append(list(of_series.values()))
    hidden: dict[str, None] = {}
    for row in rows.select(range(min(len(rows), 100))):
        prompt = row["prompt"]
        text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
        text = " ".join(text.split())
        for names in parts:
            cells = [cell for name in names for cell in (row[name] if isinstance(row[name], list) else [row[name]])]
            if not all(" ".join(str(cell).split()) in text for cell in cells if cell is not None):
                hidden |= dict.fromkeys(names)
    return list(hidden)


@CHECKS.add
def about_prompt_lengths(plan: Plan) -> Iterator[Check]:
    """Compare the lengths of prompts with their limit."""
    config, data = plan.config, plan.data
    finding = _spread(data.lengths)
    if isinstance(plan, TrainingPlan) and config.script.max_prompt_length:
        finding += f"; limit {config.script.max_prompt_length}"
    if data.too_long:
        finding += f"; dropped {counted(data.too_long, 'training row')} above it"
    many = data.too_long > 0.05 * len(data.lengths)
    yield warn_if(many, "prompt length", finding, "raise max_prompt_length or lower num_shots", routine=True)


@CHECKS.add
def about_completion_lengths(plan: Plan) -> Iterator[Check]:
    """Compare the lengths of gold solutions with the limit of completions."""
    limit, solutions = plan.config.completion_limit, _solution_lengths(plan)
    long = fmean(length > limit for length in solutions)
    subject = "gold solutions in the answer format" if any(plan.data.reasoning) else "the answer format alone"
    subject = subject if plan.task.has_format else "gold answers"
    finding = f"{subject}: {_spread(solutions)}; limit {limit}"
    finding += f"; {100 * long:.0f} % are longer" if long else ""
    remedy = "raise max_completion_length: a completion that is cut off earns next to nothing"
    yield warn_if(long > 0.05, "completion length", finding, remedy, routine=True)


def _solution_lengths(plan: Plan) -> list[int]:
    """Count the tokens of the first gold solutions, written as completions with an end token."""
    lengths = []
    for reasoning, gold in zip(plan.data.reasoning, plan.data.rows["answer"], strict=False):
        # GSM8K's calculator marks, <<48/2=24>>, are not part of a completion
        plain = re.sub(r"<<.*?>>", "", reasoning)
        lengths.append(len(plan.encode(plan.task.perfect(plain, "".join(alternatives(gold)[:1])))) + 1)
    return lengths


def _spread(lengths: Sequence[int]) -> str:
    cuts = quantiles(lengths, n=20, method="inclusive") if len(lengths) > 1 else [lengths[0]] * 19
    return f"median {cuts[9]:.0f}, 95 % up to {cuts[18]:.0f}, longest {counted(max(lengths), 'token')}"
