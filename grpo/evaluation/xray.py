"""Any JSONL of completions → what each reward gives them, and the rows whose rewards deserve a second look.

    python -m grpo xray FILE.jsonl [--reward_funcs NAME ...]

Each line is an object with `completion` (text or a list of messages) and `answer` (the gold answer as text or number,
or a GSM8K solution with `####`), like a run's `completions_before.jsonl`; other fields are ignored. By default the
five rewards of the recipe score it, or, in a run's directory, the run's rewards with their parameters.
Exit status: 0 every line was scored · 1 some could not be and are named on stderr · 2 there was nothing to score.
"""

import argparse
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import rewards
from grpo.core.errors import ArgumentParser, UserError
from grpo.data.gold import gold_answers
from grpo.rewarding import registry
from rewards import REWARD_FUNCS, count_xml, extract_answer, has_soft_format

FEW = 5  # flagged rows of each kind that are listed
Row = dict[str, Any]  # as read: line, completion (its text), answer (the gold one); as scored: see `score`


def read(lines: Iterable[bytes]) -> tuple[list[Row], dict[int, str]]:
    """The rows, unscored, and why the other lines are not rows, by number (from 1). Blank lines are skipped."""
    rows, bad = [], {}
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                rows.append({"line": number} | _read_row(json.loads(line.decode())))
        except UserError as error:
            bad[number] = str(error)
        except (ValueError, RecursionError) as error:  # bad UTF-8, over 4300 digits, thousands of brackets
            bad[number] = f"not valid JSON ({error})"
    if any(row["answer"] is not None for row in rows):  # otherwise of a run whose data has no gold answers
        without = [row["line"] for row in rows if row["answer"] is None]
        bad |= dict.fromkeys(without, "`answer` is not a gold answer; use text or a number")
        rows = [row for row in rows if row["answer"] is not None]
    return rows, dict(sorted(bad.items()))


def _read_row(row: Any) -> Row:
    if not isinstance(row, dict) or not {"completion", "answer"} <= row.keys():
        raise UserError("not a JSON object with the fields `completion` and `answer`")
    text, (gold,) = row["completion"], gold_answers([row["answer"]])
    if isinstance(text, list) and text and isinstance(text[0], dict):
        text = text[0].get("content")
    if not isinstance(text, str):
        raise UserError("`completion` is neither text nor a list of messages with text as `content`")
    if gold is None and row["answer"] is not None:
        raise UserError("`answer` is not a gold answer; use text or a finite number")
    return {"completion": text, "answer": gold}


class Form(NamedTuple):
    """How a completion is written: its template, and the pattern by which its answer is found."""

    template: str = rewards.XML_COT_FORMAT
    pattern: str = "xml"


USUAL = Form()


def run_settings(file: Path) -> tuple[dict[str, Any], Form]:
    """Settings and completion format of the run whose directory holds the file; without one, the defaults."""
    path = file.parent / "run.json"
    if not path.is_file():
        return {}, USUAL
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        prompt = record["prompt"]
        return dict(record["settings"]), Form(str(prompt["completion"]), str(prompt.get("pattern", "xml")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{str(path)!r} is not a run's record ({type(error).__name__}); move it, or fix it") from None


def select(
    names: Sequence[str] | None, settings: Mapping[str, Any], form: Form, with_golds: bool = True
) -> registry.Rewards:
    """The rewards of these names, or else the run's, or else the five, with the run's parameters for them.

    Rewards that need more than completions and answers are skipped, with a line on stderr.
    """
    missing = {"completion_ids"} if with_golds else {"completion_ids", "answer"}
    judged = with_golds and not settings.get("judge")  # by the lenient rule, not by code of the user's own
    enough = [
        name
        for name, reward in REWARD_FUNCS.items()
        if not missing & inspect.signature(reward).parameters.keys() and (judged or name != "judge_reward_func")
    ]
    for name in names or []:
        if name not in enough:
            raise UserError(f"--reward_funcs: {name!r} cannot be scored here; use one or more of {', '.join(enough)}")
    wanted = list(names or settings.get("reward_funcs") or rewards.GIST_REWARDS)
    chosen = [name for name in wanted if name in enough]
    if len(chosen) < len(wanted):
        skipped = ", ".join(shown(str(name), 80) for name in wanted if name not in enough)
        have = "completions and answers" if with_golds else "completions"
        print(f"not scored, because they need more than {have}: {skipped}", file=sys.stderr)
    chosen = chosen or [name for name in rewards.GIST_REWARDS if name in enough]
    args = {name: given for name, given in (settings.get("reward_args") or {}).items() if name in chosen}
    follow = {"template": form.template, "answer_pattern": form.pattern}
    return registry.choose(chosen, args, follow)


def score(rows: Sequence[Row], functions: registry.Rewards, form: Form = USUAL) -> list[Row]:
    """The rows with what each reward gives; None, NaN and infinite values become None and add 0 to the total."""
    batch = {"completions": [row["completion"] for row in rows], "answer": [row["answer"] for row in rows]}
    columns = [reward(**batch) for reward in functions.values()]
    scored = []
    for row, values in zip(rows, zip(*columns, strict=True), strict=True):
        finite = [float(value) if value is not None and math.isfinite(value) else None for value in values]
        got = extract_answer(row["completion"], form.pattern)
        seen = {"line": row["line"], "answer": row["answer"], "extracted": got}
        seen |= {"answer_tag": got != row["completion"].strip()}
        seen |= {"rewards": dict(zip(functions, finite, strict=True)), "total": math.fsum(filter(None, finite))}
        scored.append(seen | {"suspicious": suspicions(row | seen, form)})
    return scored


def totals(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """For every reward and the `total`: the `mean`, and the share of rows with a value above 0 (`positive`)."""
    result: dict[str, dict[str, float | None]] = {}
    for name in (*rows[0]["rewards"], "total"):
        values = [value for row in rows if (value := (row | row["rewards"])[name]) is not None]
        mean, positive = (fmean(values), fmean(value > 0 for value in values)) if values else (None, None)
        result[name] = {"mean": mean, "positive": positive}
    return result


def _unpaid(text: str, got: str, gold: str, form: Form) -> bool:
    after = text.rpartition("</answer>")[2]  # "or rather 7"
    return got != gold is not None and (rewards.is_right(text, gold, form.pattern) or rewards.is_right(after, gold))


# name: (what is suspicious, whether a completion is, by its text, the answer got from it, the gold one, the form)
KINDS: dict[str, tuple[str, Callable[[str, str, Any, Form], bool]]] = {
    "unpaid": ("right by the lenient rule but correctness is 0", _unpaid),
    "empty_answer": (
        "format right, answer empty",
        lambda text, got, gold, form: not got and has_soft_format(text, form.template),
    ),
    "several_answers": ("several <answer> tags: the last one counts", lambda text, *_: text.count("<answer>") > 1),
    "cut_off": (
        "an opened tag is never closed (cut off?)",
        lambda text, *_: any(text.rfind(f"<{t}>") > text.rfind(f"</{t}>") for t in ("reasoning", "think", "answer")),
    ),
    "costly_tail": ("xmlcount below 0: the tail costs more than the tags earn", lambda text, *_: count_xml(text) < 0),
}


def suspicions(row: Row, form: Form = USUAL) -> list[str]:
    """The names of the KINDS that a row with `completion`, `extracted` and `answer` belongs to."""
    facts = row["completion"], row["extracted"], row["answer"], form
    return [kind for kind, (_, holds) in KINDS.items() if holds(*facts)]


def shown(text: str, room: int) -> str:
    """A text on one line, cut in the middle to `room` characters; terminal control sequences are escaped."""
    safe = repr(text)[1:-1]
    return safe if len(safe) <= room else f"{safe[: room // 2]}…{safe[-((room - 1) // 2) :]}"


def print_summary(rows: Sequence[Row], sums: dict[str, dict[str, float | None]]) -> None:
    """Print each reward's mean, then `FEW` flagged rows of each kind."""

    def number(value: float | None, style: str = ".3f") -> str:
        return "-" if value is None else format(value, style)

    def show(row: Row) -> None:
        parts = " ".join(number(value, "g") for value in row["rewards"].values())
        read = "extracted" if row["answer_tag"] else "nothing marks it:"
        gold = "" if row["answer"] is None else f"gold '{shown(row['answer'], 20)}', "
        texts = f"{gold}{read} '{shown(row['extracted'], 60)}'"
        print(f"  line {row['line']}: {texts}, total {row['total']:.3f} ({parts})")

    print(f"{len(rows)} rows, {sum(bool(row['suspicious']) for row in rows)} of them flagged")
    print(f"{'reward':<28}{'mean':>12}{'> 0':>8}")
    for name, column in sums.items():
        print(f"{rewards.short_name(name):<28}{number(column['mean']):>12}{number(column['positive'], '.0%'):>8}")
    for kind, (what, _) in KINDS.items():
        found = [row for row in rows if kind in row["suspicious"]]
        if found:
            print(f"\n{what} ({len(found)} of {len(rows)})")
        for row in found[:FEW]:
            show(row)


def main(argv: list[str]) -> int:
    parser = ArgumentParser(
        prog="python -m grpo xray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE.jsonl", help="the completions")
    parser.add_argument("--reward_funcs", nargs="+", metavar="NAME", help="rewards, by their names in rewards.py")
    arguments = parser.parse_args(argv)
    settings, form = run_settings(Path(arguments.file))
    rows, bad = read(Path(arguments.file).read_bytes().split(b"\n"))
    if not rows:
        first = next((f" (line {line}: {reason})" for line, reason in bad.items()), "")
        raise UserError(f"{arguments.file!r} holds no row that can be scored{first}")
    functions = select(arguments.reward_funcs, settings, form, rows[0]["answer"] is not None)
    for line, reason in bad.items():
        print(f"line {line}: {reason}", file=sys.stderr)
    rows = score(rows, functions, form)
    print_summary(rows, totals(rows))
    return 1 if bad else 0
