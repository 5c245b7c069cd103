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
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from exact_answers import is_right
from grpo.core.errors import ArgumentParser, UserError
from grpo.core.jsonfiles import read_object
from grpo.core.text import decimals, printable, short_name, shorten, with_minus
from grpo.data.files import decimal
from grpo.evaluation.evaluate import add_rewards
from grpo.report.files import read_run
from grpo.rewarding import guard, registry
from grpo.rewarding.rollout import Rollout
from grpo.task.given import how_read, most_given, why_right
from grpo.task.gold import alternatives, gold_answer, gold_mark, readable
from grpo.task.prompts import XML, PromptFormat
from grpo.task.task import Task
from rewards import REWARD_FUNCS, completion_text, is_gold

FIRST = 5  # flagged rows of each kind that are listed
FIVE = list(REWARD_FUNCS)[:5]
Record = dict[str, Any]  # a completion with its grades, as in an evaluation


def suspicions(record: Record, task: Task) -> Iterator[str]:
    """Return reasons to look at a completion again. With the user's judge, skip those of the lenient rule."""
    text, gold = record["completion"], record["answer"]
    unpaid = not task.judge_name and gold is not None and not is_gold(record["read"], gold)
    after = text.rpartition("</answer>")[2]  # "or rather 7"
    if unpaid and (record["lenient"] or any(is_right(after, one) for one in alternatives(gold))):
        yield "right by the lenient rule, but not exactly the gold answer"
    if not record["read"] and record.get("format_soft"):
        yield "format right, answer empty"
    if text.count("<answer>") > 1:
        yield "several <answer> tags: the last one counts"


def read(file: Path, task: Task) -> list[Record]:
    """Read a record per line, with its line number and its grade (the run's own in a run's directory)."""
    records, of_run = [], file.name.startswith("completions_") and file.with_name("run.json").is_file()
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, parse_float=decimal)
            text, answer = completion_text(fields["completion"]), fields["answer"]
            gold = gold_answer(answer, gold_mark([answer]))
            is_record = isinstance(text, str) and (gold is not None or answer is None)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_record = False
        if not is_record:
            needed = "a JSON object with a `completion` (text or messages) and an `answer` (text or a number)"
            raise UserError(f"{file}, line {number} is not {needed}")
        record = {"row": fields, "line": number, "completion": text, "answer": gold, "strict": None, "lenient": None}
        if of_run:
            record |= fields
        else:
            lenient = None if gold is None or task.judge_name else task.verdict(text, record)
            record |= task.grade(text, record, lenient)._asdict()
        records.append(record)
    if not records:
        raise UserError(f"{file} is empty; write one JSON object per line")
    return records


def file_of(path: Path) -> Path:
    """Return the path of a file, or a run's file of completions after training, before it, or without training."""
    if not path.exists():
        raise UserError(f"{str(path)!r} does not exist; name a file of completions, or a run")
    if not path.is_dir():
        return path
    evaluations = read_run(path).evaluations
    for when in ("after", "before", "only"):
        if when in evaluations and (path / f"completions_{when}.jsonl").is_file():
            return path / f"completions_{when}.jsonl"
    raise UserError(f"{str(path)!r} holds no completions_*.jsonl; name a file of completions, or a run with some")


def task_of(file: Path) -> Task:
    """Return the task in the record of the file's run directory; without a record, the default xml task."""
    path = file.with_name("run.json")
    if not path.is_file():
        return Task(XML)
    try:
        record = read_object(path)
        judge = record["settings"].get("judge")
        return Task(PromptFormat(**record["prompt"]), record.get("shots") or [], judge_name=judge or "")
    except (UserError, ValueError, LookupError, TypeError):
        raise UserError(f"{path} is not a run's record; move {file.name} to another directory") from None


def score(records: Sequence[Record], names: Sequence[str], task: Task, allow_files: bool) -> None:
    """Add to each record the values of the named rewards, and their sum."""
    rewards = registry.choose(names, {}, registry.following(task, 0), allow_files=allow_files)
    for name, reward in rewards.items():
        needed = ""
        if "completion_ids" in inspect.signature(reward).parameters:
            needed = "the tokens of the completions"
        elif task.judge_name and "task" in registry.parameters(reward):
            needed = f"the run's judge {task.judge_name}, whose verdicts the run has recorded"
        elif registry.needs_answer(reward, task) and any(record["answer"] is None for record in records):
            needed = "an answer, which not every row has"
        if needed:
            raise UserError(f"--reward_funcs: {name!r} needs {needed}; use another one")
    columns = dict.fromkeys(key for record in records for key in record["row"] if key != "completion")
    registry.check_columns(rewards, columns)
    data = []
    for record in records:
        row = {key: record["row"].get(key) for key in columns} | {"answer": record["answer"]}
        row |= {"question": record["question"]} if "question" in record else {}
        data.append(row | {"prompt": task.ask(str(row.get("question", "")))})
    texts = [record["completion"] for record in records]
    rollout = Rollout.of_texts(data, texts, [[]] * len(texts), task.prompt.chat)
    scores = guard.excluding_faults(guard.score(rewards, rollout))
    add_rewards(records, scores, dict.fromkeys(scores, 1.0))


def print_records(records: Sequence[Record], task: Task, heading: str) -> None:
    """Print the number of right answers, each reward's mean, and the first flagged records of each kind."""
    flagged: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        for kind in suspicions(record, task):
            flagged.setdefault(kind, []).append(index)
    verdicts = [record["lenient"] for record in records if record["lenient"] is not None]
    rule = printable(f"by {task.judge_name}") if task.judge_name else "lenient"
    right = f"{sum(verdicts)} of {len(verdicts)} right ({rule})" if verdicts else f"{len(records)} rows"
    shaped = f", {sum(record['format_soft'] for record in records)} in the format" if task.has_format else ""
    print(f"{heading}{right}{shaped}, {len(set().union(*flagged.values()))} flagged")
    most = most_given([record["read"] for record in records], [record["answer"] for record in records])
    if most and most.for_everything:
        print(printable(f"{most}"))
    columns: dict[str, list[float | None]] = {}
    if are_scored(records):
        columns = {short_name(name): [r["rewards"].get(name) for r in records] for name in records[0]["rewards"]}
        columns["total"] = [record.get("reward") for record in records]
        print(f"{'reward':<28}{'mean':>12}{'> 0':>8}")
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        mean, above = (decimals(fmean(known), 3), f"{fmean(value > 0 for value in known):.0%}") if known else "––"
        print(f"{name:<28}{mean:>12}{above:>8}")
    for kind, indices in flagged.items():
        print(f"\n{kind} ({len(indices)} of {len(records)})")
        for index in indices[:FIRST]:
            record = records[index]
            read = how_read(record["completion"], record["read"], task.prompt.pattern, record.get("judged"))
            parts = [f"gold: {shorten(readable(record['answer']), 60)}", f"answer read: {shorten(read, 60)}"]
            parts += filter(None, [why_right(record)])
            for name, values in columns.items():
                parts.append(f"{name} {'–' if (value := values[index]) is None else with_minus(value, 'zg')}")
            print(printable(f"  line {record['line']}: {', '.join(parts)}"))


def are_scored(records: Sequence[Record]) -> bool:
    """True if all records have rewards."""
    return all("rewards" in record for record in records)


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
    given = parser.parse_args(argv)
    file = file_of(given.path)
    task = task_of(file)
    records = read(file, task)
    if given.reward_funcs or not (are_scored(records) or any(record["answer"] is None for record in records)):
        score(records, given.reward_funcs or FIVE, task, given.allow_custom_rewards == "true")
    print_records(records, task, "" if file == given.path else f"{file.name}: ")
    return 0
