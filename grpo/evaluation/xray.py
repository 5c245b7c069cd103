"""Score a JSONL file of completions reward by reward, and list the rows that deserve a second look.

    python -m grpo xray FILE.jsonl [--reward_funcs NAME ...]

Each line is an object with `completion` (text or a list of messages) and `answer` (text, a number, or a GSM8K solution
with `####`), as in a run's completions_before.jsonl; other fields are ignored. By default the recipe's five rewards
score it, and in a run's directory the run's rewards with their parameters.
"""

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import rewards
from grpo.core.errors import ArgumentParser, UserError
from grpo.data.gold import gold_answers

FEW = 5  # flagged rows of each kind that are listed


class Row(NamedTuple):
    line: int  # its number in the file, from 1
    text: str
    gold: str | None  # None where the run's data has none


class Run(NamedTuple):
    """What the scores follow of the run that wrote the file: settings, completion template and answer pattern."""

    settings: dict[str, Any]
    template: str = rewards.XML_COT_FORMAT
    pattern: str = "xml"


def _is_unpaid(text: str, got: str, gold: str | None, run: Run) -> bool:
    after = text.rpartition("</answer>")[2]  # "or rather 7"
    return got != gold is not None and (rewards.is_right(text, gold, run.pattern) or rewards.is_right(after, gold))


def _is_cut_off(text: str, *_: Any) -> bool:
    return any(text.rfind(f"<{tag}>") > text.rfind(f"</{tag}>") for tag in ("reasoning", "think", "answer"))


# What is suspicious, and whether a completion is: by its text, the answer read, the gold answer and the run
KINDS: dict[str, Callable[[str, str, str | None, Run], bool]] = {
    "right by the lenient rule, but correctness is 0": _is_unpaid,
    "format right, answer empty": lambda text, got, _, run: not got and rewards.has_soft_format(text, run.template),
    "several <answer> tags: the last one counts": lambda text, *_: text.count("<answer>") > 1,
    "an opened tag is never closed (cut off?)": _is_cut_off,
    "xmlcount below 0: the tail costs more than the tags earn": lambda text, *_: rewards.count_xml(text) < 0,
}


def read(file: Path) -> list[Row]:
    """The file's rows; blank lines are skipped. UserError for the first line that is not a row."""
    rows = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text, (gold,) = rewards.completion_text(row["completion"]), gold_answers([row["answer"]])
            is_row = isinstance(text, str) and (gold is not None or row["answer"] is None)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_row = False
        if not is_row:
            needed = "a JSON object with a `completion` (text or messages) and an `answer` (text or a number)"
            raise UserError(f"{file}, line {number} is not {needed}")
        rows.append(Row(number, text, gold))
    if not rows:
        raise UserError(f"{file} is empty; it needs one JSON object a line")
    return rows


def read_run(file: Path) -> Run:
    """The run in whose directory the file is; without one, the defaults."""
    path = file.with_name("run.json")
    if not path.is_file():
        return Run({})
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Run(record["settings"], record["prompt"]["completion"], record["prompt"]["pattern"])
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{path} is not a run's record; move {file.name} to another directory") from None


def choose_rewards(names: Sequence[str] | None, run: Run, with_golds: bool) -> list[str]:
    """These names, or those of the run's rewards that completions and answers suffice for, or the five."""
    lacking = {"completion_ids"} if with_golds else {"completion_ids", "answer", "judge"}
    lacking |= {"judge"} if run.settings.get("judge") else set()  # it is code of the user's own
    known = {name: inspect.signature(reward).parameters.keys() for name, reward in rewards.REWARD_FUNCS.items()}
    enough = [name for name, parameters in known.items() if not lacking & parameters]
    for name in names or []:
        if name not in enough:
            raise UserError(f"--reward_funcs: {name!r} cannot be scored here; use one or more of {', '.join(enough)}")
    wanted = names or run.settings.get("reward_funcs") or rewards.GIST_REWARDS
    if skipped := [name for name in wanted if name not in enough]:
        print(f"not scored, because they need more than completions and answers: {', '.join(skipped)}")
    return [name for name in wanted if name in enough] or [name for name in rewards.GIST_REWARDS if name in enough]


def score(rows: Sequence[Row], names: Sequence[str], run: Run) -> dict[str, list[float]]:
    """What each reward gives to each row, with the run's parameters."""
    columns = {"completions": [row.text for row in rows], "answer": [row.gold for row in rows]}
    scores = {}
    for name in names:
        reward, own = rewards.REWARD_FUNCS[name], (run.settings.get("reward_args") or {}).get(name, {})
        follows = {"template": run.template, "answer_pattern": run.pattern} | own
        taken = inspect.signature(reward).parameters.keys() & follows.keys()
        scores[name] = reward(**columns, **{key: follows[key] for key in taken})
    return scores


def print_scores(rows: Sequence[Row], scores: dict[str, list[float]], run: Run) -> None:
    """Print each reward's mean, then the first flagged rows of each kind."""
    totals = [sum(values) for values in zip(*scores.values(), strict=True)]
    answers = [rewards.extract_answer(row.text, run.pattern) for row in rows]
    flagged = {
        kind: [at for at, row in enumerate(rows) if holds(row.text, answers[at], row.gold, run)]
        for kind, holds in KINDS.items()
    }
    print(f"{len(rows)} rows, {len(set().union(*flagged.values()))} of them flagged")
    print(f"{'reward':<28}{'mean':>12}{'> 0':>8}")
    for name, values in (scores | {"total": totals}).items():
        print(f"{rewards.short_name(name):<28}{fmean(values):>12.3f}{fmean(value > 0 for value in values):>8.0%}")
    for kind, places in flagged.items():
        if places:
            print(f"\n{kind} ({len(places)} of {len(rows)})")
        for at in places[:FEW]:
            gold = "" if rows[at].gold is None else f"gold {_shown(rows[at].gold)}, "
            parts = " ".join(f"{values[at]:g}" for values in scores.values())
            print(f"  line {rows[at].line}: {gold}answer read {_shown(answers[at])}, total {totals[at]:.3f} ({parts})")


def _shown(text: Any) -> str:
    """A text in quotes on one line, without what steers a terminal."""
    quoted = repr(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:60]}…"


def main(argv: list[str]) -> int:
    """`python -m grpo xray`; its exit status."""
    parser = ArgumentParser(
        prog="python -m grpo xray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE.jsonl", type=Path, help="the completions")
    parser.add_argument("--reward_funcs", nargs="+", metavar="NAME", help="rewards, by their names in rewards.py")
    given = parser.parse_args(argv)
    rows, run = read(given.file), read_run(given.file)
    names = choose_rewards(given.reward_funcs, run, all(row.gold is not None for row in rows))
    print_scores(rows, score(rows, names, run), run)
    return 0
