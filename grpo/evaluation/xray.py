"""Show the rewards of completions, reward by reward, and list the rows that deserve a second look.

    python -m grpo xray FILE.jsonl | RUN_DIR [--reward_funcs NAME ...] [--allow_custom_rewards true]

Of a run, its completions_after.jsonl is read, or completions_before.jsonl while it has none after its last step; both
hold what each of the run's rewards gave, and their weighted sum as the total. Any other file has an object a line,
with `completion` (text or a list of messages) and `answer` (text, a number, or a GSM8K solution with `####`); rewards
get its other fields, too. The recipe's five rewards score it, or those that you name.
"""

import argparse
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grpo.core.errors import ArgumentParser, UserError
from grpo.core.text import printable, short_name
from grpo.rewarding import probe, registry
from grpo.runs import files
from grpo.task.answers import is_right
from grpo.task.gold import gold_answer, gold_mark
from grpo.task.prompts import XML, PromptFormat
from grpo.task.task import Grade, Task
from rewards import REWARD_FUNCS, completion_text, count_xml

FIRST = 5  # flagged rows of each kind that are listed
FIVE = list(REWARD_FUNCS)[:5]
# For each row, by reward, and the `total`; None where it gave no number
Scores = dict[str, list[float | None]]


class Row(NamedTuple):
    line: int  # its number in the file, from 1
    text: str
    gold: str | None  # None where the run's data has none
    fields: dict[str, Any]  # the whole line


def suspicions(row: Row, grade: Grade, judged: bool) -> Iterator[str]:
    """The reasons why a completion deserves a second look.

    Args:
        judged: by a judge of the user's, so that the lenient rule decides nothing.
    """
    text = row.text
    unpaid = not judged and row.gold is not None and grade.read != row.gold
    if unpaid and (grade.lenient or is_right(text.rpartition("</answer>")[2], row.gold or "")):  # "or rather 7"
        yield "right by the lenient rule, but not exactly the gold answer"
    if not grade.read and grade.format_soft:
        yield "format right, answer empty"
    if text.count("<answer>") > 1:
        yield "several <answer> tags: the last one counts"
    if any(text.rfind(f"<{tag}>") > text.rfind(f"</{tag}>") for tag in ("reasoning", "think", "answer")):
        yield "an opened tag is never closed (cut off?)"
    if count_xml(text) < 0:
        yield "xmlcount below 0: the tail costs more than the tags earn"


def read(file: Path) -> list[Row]:
    """The file's rows; blank lines are skipped. UserError for the first line that is not a row."""
    rows = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text, answer = completion_text(row["completion"]), row["answer"]
            gold = gold_answer(answer, gold_mark([answer]))
            is_row = isinstance(text, str) and (gold is not None or answer is None)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_row = False
        if not is_row:
            needed = "a JSON object with a `completion` (text or messages) and an `answer` (text or a number)"
            raise UserError(f"{file}, line {number} is not {needed}")
        rows.append(Row(number, text, gold, row))
    if not rows:
        raise UserError(f"{file} is empty; it needs one JSON object a line")
    return rows


def file_of(path: Path) -> Path:
    """The file, or a run's completions after its last step, or before training while it has none after it."""
    if not path.exists():
        raise UserError(f"{str(path)!r} does not exist; name a file of completions, or a run")
    if not path.is_dir():
        return path
    evaluations = files.read_run(path).evaluations
    for when in ("after", "before", "only"):
        if when in evaluations and (path / f"completions_{when}.jsonl").is_file():
            return path / f"completions_{when}.jsonl"
    raise UserError(f"{str(path)!r} holds no completions_*.jsonl; name a file of completions, or a run that has some")


def task_of(file: Path) -> Task:
    """The task of the run in whose directory the file is, as far as its record has it; otherwise the recipe's."""
    path = file.with_name("run.json")
    if not path.is_file():
        return Task(XML)
    try:
        record = files.read_object(path)
        judge = record["settings"].get("judge")
        return Task(PromptFormat(**record["prompt"]), record.get("shots") or [], judge_name=judge or "")
    except (UserError, ValueError, LookupError, TypeError):
        raise UserError(f"{path} is not a run's record; move {file.name} to another directory") from None


def recorded(rows: Sequence[Row]) -> Scores:
    """The rewards that a run's evaluation has recorded for each row, and their weighted sum; empty for other files."""
    values = [row.fields["rewards"] for row in rows if isinstance(row.fields.get("rewards"), dict)]
    if len(values) < len(rows):
        return {}
    scores = {name: [_number(rewards.get(name)) for rewards in values] for name in values[0]}
    return {**scores, "total": [_number(row.fields.get("reward")) for row in rows]}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def score(rows: Sequence[Row], names: Sequence[str], task: Task, allow_files: bool) -> Scores:
    """The values of the named rewards for each row, and their sum.

    Raises:
        UserError: a file of completions cannot score one of them.
    """
    rewards = registry.choose(names, {}, registry.following(task, 0), allow_files=allow_files)
    for name, reward in rewards.items():
        needed = ""
        if "completion_ids" in inspect.signature(reward).parameters:
            needed = "the tokens of the completions"
        elif task.judge_name and "task" in registry.parameters(reward):
            needed = f"the run's judge {task.judge_name}, whose verdicts the run has recorded"
        elif registry.needs_answer(reward, task) and any(row.gold is None for row in rows):
            needed = "an answer, which not every row has"
        if needed:
            raise UserError(f"--reward_funcs: {name!r} needs {needed}; use another one")
    data = []
    for row in rows:
        others = row.fields.get("row", row.fields)
        data.append({**others, "answer": row.gold, "prompt": task.ask(str(row.fields.get("question", "")))})
    columns = probe.columns_of(data, [row.text for row in rows], [[]] * len(rows), task.prompt.chat)
    scores = probe.scores(rewards, columns)
    known = [[value for value in values if value is not None] for values in zip(*scores.values(), strict=True)]
    return {**scores, "total": [sum(values) if values else None for values in known]}


def grade(row: Row, task: Task) -> Grade:
    """The row's grade: the run's verdict where it recorded one, otherwise the lenient rule's."""
    lenient = row.fields.get("lenient")
    if not isinstance(lenient, bool):
        lenient = None if row.gold is None or task.judge_name else task.verdict(row.text, {"answer": row.gold})
    return task.grade(row.text, {"answer": row.gold}, lenient)


def print_scores(rows: Sequence[Row], scores: Scores, task: Task, heading: str) -> None:
    """Print how many are right, each reward's mean, then the first flagged rows of each kind."""
    grades = [grade(row, task) for row in rows]
    flagged: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        for kind in suspicions(row, grades[index], bool(task.judge_name)):
            flagged.setdefault(kind, []).append(index)
    verdicts = [grade.lenient for grade in grades if grade.lenient is not None]
    rule = printable(f"by {task.judge_name}") if task.judge_name else "lenient"
    right = f"{sum(verdicts)} of {len(verdicts)} right ({rule})" if verdicts else f"{len(rows)} rows"
    shaped = sum(grade.format_soft for grade in grades)
    print(f"{heading}{right}, {shaped} in the format, {len(set().union(*flagged.values()))} flagged")
    if scores:
        print(f"{'reward':<28}{'mean':>12}{'> 0':>8}")
    for name, values in scores.items():
        known = [value for value in values if value is not None]
        mean, above = (f"{fmean(known):.3f}", f"{fmean(value > 0 for value in known):.0%}") if known else "––"
        print(f"{short_name(name):<28}{mean:>12}{above:>8}")
    for kind, indices in flagged.items():
        print(f"\n{kind} ({len(indices)} of {len(rows)})")
        for index in indices[:FIRST]:
            parts = [f"line {rows[index].line}: gold {_shown(rows[index].gold)}"]
            parts.append(f"answer read {_shown(grades[index].read)}")
            parts += [
                f"{short_name(name)} {'–' if values[index] is None else format(values[index], 'g')}"
                for name, values in scores.items()
            ]
            print(f"  {', '.join(parts)}")


def _shown(text: Any) -> str:
    """A text in quotes on one line, without what steers a terminal."""
    quoted = repr(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:60]}…"


def main(argv: list[str]) -> int:
    """`python -m grpo xray`; its exit status."""
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
    rows, task = read(file), task_of(file)
    scores = {} if given.reward_funcs else recorded(rows)
    if given.reward_funcs or (not scores and all(row.gold is not None for row in rows)):
        scores = score(rows, given.reward_funcs or FIVE, task, given.allow_custom_rewards == "true")
    print_scores(rows, scores, task, "" if file == given.path else f"{file.name}: ")
    return 0
