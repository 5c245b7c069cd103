"""Print the mean rewards of completions, and list suspicious ones.

    python -m grpo xray FILE.jsonl | RUN_DIR [--reward_funcs NAME ...] [--allow_custom_rewards true]

For a run it reads the answers to the held-out questions after training, or those before training if the run has not
finished. They contain each reward of the run, and the weighted sum as the total. Any other file has one JSON object
per line with `completion` (text or a list of messages) and `answer` (text, a number, or a GSM8K solution with `####`).
It is scored by the five default rewards, which also get its other fields. --reward_funcs uses other rewards.
"""

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from exact_answers import is_right
from grpo.core.errors import ArgumentParser, UserError
from grpo.core.text import decimals, printable, shorten, with_minus
from grpo.data.files import decimal
from grpo.report.files import read_run
from grpo.results.measures import REWARD, Measure, of_reward
from grpo.results.record import RunRecord
from grpo.results.samples import file_of, most_given, read_samples
from grpo.scoring import registry
from grpo.scoring.guard import say_faults, without_effects
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task.given import WHOLE
from grpo.task.gold import alternatives, read_column, readable
from grpo.task.prompts import XML, PromptFormat
from grpo.task.task import Task
from rewards import REWARD_FUNCS, completion_text

WHEN = ("after", "before", "only")  # evaluations of a run, the first is read
MAX_LISTED = 5  # flagged rows of each kind that are listed


def suspicions(sample: Sample, task: Task) -> Iterator[str]:
    """Return reasons to look at a completion again. With the user's judge, skip those of the lenient rule."""
    text, verdict = sample.text, sample.verdict
    after = "" if verdict.lenient else text.rpartition("</answer>")[2]  # "or rather 7"
    unpaid = verdict.lenient and not verdict.strict
    if not task.judge_name and (unpaid or any(is_right(after, gold) for gold in alternatives(sample.gold) if after)):
        yield "right by the lenient rule, but not exactly the gold answer"
    if not verdict.read and sample.format.soft:
        yield "format right, answer empty"
    if text.count("<answer>") > 1:
        yield "several <answer> tags: the last one counts"


def read_foreign(file: Path) -> dict[int, Sample]:
    """Read a completion per line, by its number."""
    samples = {}
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, parse_float=decimal)
            text, answer = completion_text(fields["completion"]), fields["answer"]
            _, (gold,) = read_column([answer])
            is_record = isinstance(text, str) and (gold is not None or answer is None)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_record = False
        if not is_record:
            needed = "a JSON object with a `completion` (text or messages) and an `answer` (text or a number)"
            raise UserError(f"{file}, line {number} is not {needed}")
        row = {key: value for key, value in fields.items() if key != "completion"}
        samples[number] = Sample({**row, "answer": gold}, text)
    return samples


def is_of_a_run(file: Path) -> bool:
    """True if a run's evaluation wrote a file of completions, with their grades."""
    return file in [file_of(file.parent, when) for when in WHEN] and file.with_name("run.json").is_file()


def choose_file(path: Path) -> Path:
    """Return the path of a file, or a run's file of completions after training, before it, or without training."""
    if not path.exists():
        raise UserError(f"{str(path)!r} does not exist; name a file of completions, or a run")
    if not path.is_dir():
        return path
    evaluations = read_run(path).evaluations
    for when in WHEN:
        if when in evaluations and (file := file_of(path, when)).is_file():
            return file
    raise UserError(f"{str(path)!r} holds no completions_*.jsonl; name a file of completions, or a run with some")


def task_of(file: Path) -> Task:
    """Return the task in the record of the file's run directory; without a record, the default xml task."""
    path = file.with_name("run.json")
    if not path.is_file():
        return Task(XML)
    record = RunRecord.read(file.parent)
    try:
        judge = record.settings.get("judge")
        task = Task(PromptFormat(**record.prompt), record.shots or [], judge_name=judge or "")
        task.perfect("", "")  # raises for a template without an answer
        return task
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{path} is not a run's record; move {file.name} to another directory") from None


def scored(samples: Sequence[Sample], names: Sequence[str], task: Task, allow_files: bool) -> list[Sample]:
    """Return judged samples with the values of the named rewards, and their sum."""
    rewards = registry.rewards_by_name(
        names, {}, registry.parameters_of_run(task, 0), registry.shipped(names), allow_files
    )
    for name, reward in rewards.items():
        needed = ""
        if "completion_ids" in inspect.signature(reward).parameters:
            needed = "the tokens of the completions"
        elif task.judge_name and "task" in registry.parameters(reward):
            needed = f"the run's judge {task.judge_name}, whose verdicts the run has recorded"
        elif registry.needs_answer(reward, task) and any(sample.gold is None for sample in samples):
            needed = "an answer, which not every row has"
        if needed:
            raise UserError(f"--reward_funcs: {name!r} needs {needed}; use another one")
    columns = dict.fromkeys(key for sample in samples for key in sample.row)
    registry.refuse_columns_like_parameters(rewards, columns)
    whole = []  # with the same columns
    for sample in samples:
        row = {key: sample.row.get(key) for key in columns}
        whole.append(replace(sample, row={**row, "prompt": task.ask(str(row.get("question", "")))}))
    with without_effects():
        rewarded = Scorer(task, rewards, dict.fromkeys(rewards, 1.0)).reward(whole)
    say_faults(rewarded)
    return rewarded


def print_findings(samples: Mapping[int, Sample], task: Task, heading: str) -> None:
    """Print the number of right answers, each reward's mean, and the first flagged answers of each kind."""
    flagged: dict[str, list[int]] = {}
    for number, sample in samples.items():
        for kind in suspicions(sample, task):
            flagged.setdefault(kind, []).append(number)
    all_of_them = list(samples.values())
    verdicts = [sample.verdict.lenient for sample in all_of_them if sample.verdict.lenient is not None]
    rule = printable(f"by {task.judge_name}") if task.judge_name else "lenient"
    right = f"{sum(verdicts)} of {len(verdicts)} right ({rule})" if verdicts else f"{len(samples)} rows"
    shaped = f", {sum(bool(sample.format.soft) for sample in all_of_them)} in the format" if task.has_format else ""
    print(f"{heading}{right}{shaped}, {len(set().union(*flagged.values()))} flagged")
    most = most_given(all_of_them)
    if most and most.for_everything:
        print(printable(f"{most}"))
    columns: dict[str, Measure] = {}
    if are_scored(all_of_them):
        columns = {measure.label: measure for measure in map(of_reward, all_of_them[0].rewards or {})}
        columns["total"] = REWARD
        print(f"{'reward':<28}{'mean':>12}{'> 0':>8}")
    for name, measure in columns.items():
        values = [value for value in map(measure.of, all_of_them) if value is not None]
        mean, above = (decimals(fmean(values), 3), f"{fmean(value > 0 for value in values):.0%}") if values else "––"
        print(f"{printable(name):<28}{mean:>12}{above:>8}")
    for kind, numbers in flagged.items():
        print(f"\n{kind} ({len(numbers)} of {len(samples)})")
        for number in numbers[:MAX_LISTED]:
            sample = samples[number]
            read = shorten(sample.how_read(task.prompt.pattern), 60)
            if read.startswith(WHOLE):  # which no line shows otherwise
                read = f"{shorten(sample.text, 60)} ({read})"
            parts = [f"gold: {shorten(readable(sample.gold), 60)}", f"answer read: {read}"]
            parts += [str(sample.verdict)] if sample.verdict.why else []
            for name, measure in columns.items():
                parts.append(f"{name} {'–' if (value := measure.of(sample)) is None else with_minus(value, 'zg')}")
            print(printable(f"  line {number}: {', '.join(parts)}"))


def are_scored(samples: Sequence[Sample]) -> bool:
    """True if all samples have rewards."""
    return all(sample.rewards is not None for sample in samples)


def main(argv: list[str]) -> int:
    """Run `python -m grpo xray` and return its exit status."""
    parser = ArgumentParser(
        prog="python -m grpo xray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="FILE.jsonl | RUN_DIR", type=Path, help="completions, or a run that has some")
    parser.add_argument("--reward_funcs", nargs="+", metavar="NAME", help="rewards, as train_grpo.py takes them")
    parser.add_argument(
        "--allow_custom_rewards",
        choices=("true", "false"),
        default="false",
        help="true runs code in your own files, which reward_funcs names",
    )
    arguments = parser.parse_args(argv)
    file = choose_file(arguments.path)
    task = task_of(file)
    if is_of_a_run(file):
        samples = dict(enumerate(read_samples(file), 1))
    else:
        unjudged = read_foreign(file)
        samples = dict(zip(unjudged, Scorer(task, {}, {}).judge(list(unjudged.values())), strict=True))
    if not samples:
        raise UserError(f"{file} is empty; write one JSON object per line")
    unscored = list(samples.values())
    if arguments.reward_funcs or not (are_scored(unscored) or any(sample.gold is None for sample in unscored)):
        names, allowed = arguments.reward_funcs or list(REWARD_FUNCS), arguments.allow_custom_rewards == "true"
        samples = dict(zip(samples, scored(unscored, names, task, allowed), strict=True))
    print_findings(samples, task, "" if file == arguments.path else f"{file.name}: ")
    return 0
