"""Show what rewards give to completions, reward by reward, and list the rows that deserve a second look.

    python -m grpo xray FILE.jsonl | RUN_DIR [--reward_funcs NAME ...] [--allow_custom_rewards true]

Of a run, its completions_after.jsonl is read, or completions_before.jsonl while it has none after its last step; both
hold what each of the run's rewards gave, and their weighted sum as the total. Any other file has an object a line,
with `completion` (text or a list of messages) and `answer` (text, a number, or a GSM8K solution with `####`); rewards
get its other fields, too. The recipe's five rewards score it, or those that you name.
"""

import argparse
import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import rewards
from grpo.core.errors import ArgumentParser, UserError
from grpo.core.text import counted, printable
from grpo.data.gold import gold_answer, gold_mark
from grpo.data.prompts import PromptFormat
from grpo.rewarding import registry
from grpo.rewarding.judge import Judge
from grpo.runs import files as run_files

PLAIN: dict[str, Any] = {"system": "", "question": "{question}", "completion": rewards.XML_COT_FORMAT, "chat": False}
FEW = 5  # flagged rows of each kind that are listed
Scores = dict[str, list[float | None]]  # by reward, for each row; None where it gave no number


class Row(NamedTuple):
    line: int  # its number in the file, from 1
    text: str
    gold: str | None  # None where the run's data has none
    fields: dict[str, Any]  # the whole line


class Run(NamedTuple):
    """The run that wrote the file, as far as scores depend on it: settings, prompt and worked examples."""

    settings: dict[str, Any]
    prompt: PromptFormat
    shots: list[Any]

    @property
    def template(self) -> str:
        return self.prompt.completion

    @property
    def pattern(self) -> str:
        return self.prompt.pattern


def _is_unpaid(text: str, got: str, gold: str | None, run: Run) -> bool:
    if run.settings.get("judge"):  # of one's own: the lenient rule decides nothing
        return False
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
            text, answer = rewards.completion_text(row["completion"]), row["answer"]
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
    for when in ("after", "before", "only"):
        if (path / f"completions_{when}.jsonl").is_file() and not (when == "after" and _is_of_an_earlier_end(path)):
            return path / f"completions_{when}.jsonl"
    raise UserError(f"{str(path)!r} holds no completions_*.jsonl; name a file of completions, or a run that has some")


def _is_of_an_earlier_end(run: Path) -> bool:
    if not ((run / "eval_after.json").is_file() and (run / "run.json").is_file()):
        return False
    return "after" not in run_files.read_run(run).evaluations


def read_run(file: Path) -> Run:
    """The run in whose directory the file is; without one, the defaults."""
    path = file.with_name("run.json")
    if not path.is_file():
        return Run({}, PromptFormat(**PLAIN), [])
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        prompt = PromptFormat(**PLAIN | record["prompt"])
        return Run(dict(record["settings"]), prompt, list(record.get("shots") or []))
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{path} is not a run's record; move {file.name} to another directory") from None


def choose_rewards(
    names: Sequence[str] | None, run: Run, with_golds: bool, own_code: bool
) -> tuple[registry.Rewards, list[str]]:
    """These rewards, or the run's, or the five, as far as they can be scored here; with the run's parameters.

    Args:
        own_code: whether code of the user's own, which the run's record names, may be loaded.

    Returns:
        The rewards, none where nothing can be scored, and why others are not among them.
    """
    files = registry.UserFiles(own_code)
    judge, own_judge = Judge(run.pattern), run.settings.get("judge")
    if own_judge and own_code:
        judge = Judge(run.pattern, files.function(own_judge, "judge"), own_judge)
    wanted = [str(name) for name in names or run.settings.get("reward_funcs") or rewards.GIST_REWARDS]
    reasons = {name: _why_not(name, with_golds, own_judge, own_code) for name in wanted}
    for name in names or []:
        if name in (*rewards.REWARD_FUNCS, *registry.TRLS) and reasons[name]:
            raise UserError(f"--reward_funcs: {name!r} cannot be scored here, {reasons[name]}; use another one")
    # a name that nobody knows is a mistake, but for one that the run has from its script
    unknown = [name for name in names or [] if name not in rewards.REWARD_FUNCS and not _is_of_script(name, run)]
    scored = [name for name in wanted if not reasons[name] or name in unknown]
    without = [name for name in wanted if name not in scored]
    notes = [
        f"not scored, {reason}: {', '.join(name for name in without if reasons[name] == reason)}"
        for reason in dict.fromkeys(reasons[name] for name in without)
    ]
    if not scored:
        return {}, notes
    given = dict(run.settings.get("reward_args") or {})
    known_as = {*scored, *(name.rpartition(".")[2] for name in scored)}
    args = {name: given[name] for name in given if name in known_as}
    follow = {"template": run.template, "answer_pattern": run.pattern, "judge": judge}
    return registry.choose(scored, args, follow, files=files), notes


def _is_of_script(name: str, run: Run) -> bool:
    return "." not in name and name in (run.settings.get("reward_funcs") or [])


def _why_not(name: str, with_golds: bool, own_judge: str | None, own_code: bool) -> str:
    """The reason why a file of completions cannot score a reward; empty where it can, or for an unknown reward."""
    reward = rewards.REWARD_FUNCS.get(name)
    if not (reward or "." in name or name in registry.TRLS):
        return "because only the script that trained has it"
    asked = inspect.signature(reward).parameters.keys() if reward else ()
    if not own_code and ("." in name or (own_judge and "judge" in asked)):
        return "because it is your own code (--allow_custom_rewards true)"
    if "completion_ids" in asked or name in registry.TRLS:
        return "because it needs the tokens of the completions"
    if not with_golds and ("answer" in asked or ("judge" in asked and not own_judge)):
        return "because not every row has an answer"
    return ""


def recorded(rows: Sequence[Row]) -> Scores:
    """What a run's rewards gave to each row when it was evaluated; empty for other files."""
    given = [values for row in rows if isinstance(values := row.fields.get("rewards"), dict)]
    if len(given) < len(rows):
        return {}
    names = dict.fromkeys(name for values in given for name in values)
    return {name: [_number(values.get(name)) for values in given] for name in names}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def score(rows: Sequence[Row], chosen: registry.Rewards, run: Run) -> tuple[Scores, list[str]]:
    """The values of each reward for each row, and the reasons why others have none."""
    data = [_data_of(row.fields) for row in rows]
    keys = dict.fromkeys(key for each in data for key in each)
    columns: dict[str, Any] = {key: [each.get(key) for each in data] for key in keys}
    columns["answer"] = [row.gold for row in rows]
    if all(isinstance(row.fields.get("question"), str) for row in rows):
        columns["question"] = [row.fields["question"] for row in rows]
        columns["prompts"] = [run.prompt.prompt(question, run.shots) for question in columns["question"]]
    chat = run.prompt.chat
    columns["completions"] = [[{"role": "assistant", "content": row.text}] if chat else row.text for row in rows]
    columns |= {"log_extra": lambda *_: None, "log_metric": lambda *_: None}  # TRL's, for rewards that log
    scores: Scores = {}
    notes = []
    for name, reward in chosen.items():
        try:
            found: Any = reward(**columns)
            found = asyncio.run(found) if inspect.iscoroutine(found) else found
            if len(found) != len(rows):
                raise ValueError(f"it returned {counted(len(found), 'value')} for {counted(len(rows), 'completion')}")
            scores[name] = [None if value is None else float(value) for value in found]
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            notes.append(f"not scored: {name} raises {type(error).__name__}: {_shown(str(error))}")
    return scores, notes


def _data_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The columns of the data: a record's `row`, or all that another file's line has besides the completion."""
    others = fields.get("row", fields)
    return {key: others[key] for key in others if key != "completion"} if isinstance(others, dict) else {}


def is_right(row: Row, run: Run) -> bool | None:
    """Whether a row is right by the lenient rule, or as the run's own judge has said; None where nobody can tell."""
    if run.settings.get("judge"):
        said = row.fields.get("lenient")
        return said if isinstance(said, bool) else None
    return None if row.gold is None else rewards.is_right(row.text, row.gold, run.pattern)


def print_scores(
    rows: Sequence[Row], scores: Scores, totals: Sequence[float | None], run: Run, heading: str, notes: Sequence[str]
) -> None:
    """Print how many are right, each reward's mean, then the first flagged rows of each kind."""
    answers = [rewards.extract_answer(row.text, run.pattern) for row in rows]
    flagged = {
        kind: [at for at, row in enumerate(rows) if holds(row.text, answers[at], row.gold, run)]
        for kind, holds in KINDS.items()
    }
    verdicts = [verdict for verdict in (is_right(row, run) for row in rows) if verdict is not None]
    rule = printable(f"by {run.settings['judge']}") if run.settings.get("judge") else "lenient"
    right = f"{sum(verdicts)} of {len(verdicts)} right ({rule})" if verdicts else counted(len(rows), "row")
    shaped = sum(rewards.has_soft_format(row.text, run.template) for row in rows)
    print(f"{heading}{right}, {shaped} in the format, {len(set().union(*flagged.values()))} flagged")
    for note in notes:
        print(printable(note))
    if scores:
        print(f"{'reward':<28}{'mean':>12}{'> 0':>8}")
    for name, values in (scores | {"total": list(totals)} if scores else {}).items():
        known = [value for value in values if value is not None]
        mean, above = (f"{fmean(known):.3f}", f"{fmean(value > 0 for value in known):.0%}") if known else "––"
        print(f"{rewards.short_name(name):<28}{mean:>12}{above:>8}")
    for kind, places in flagged.items():
        if places:
            print(f"\n{kind} ({len(places)} of {len(rows)})")
        for at in places[:FEW]:
            gold = "" if rows[at].gold is None else f"gold {_shown(rows[at].gold)}, "
            parts = " ".join(_or_dash(values[at], "g") for values in scores.values())
            total = _or_dash(totals[at], ".3f")
            print(f"  line {rows[at].line}: {gold}answer read {_shown(answers[at])}, total {total} ({parts})")


def _totals(rows: Sequence[Row], scores: Scores, are_recorded: bool) -> list[float | None]:
    """The weighted sum that a run recorded for each row, otherwise the plain sum."""
    if are_recorded and all("reward" in row.fields for row in rows):
        return [_number(row.fields["reward"]) for row in rows]
    known = [[value for values in scores.values() if (value := values[at]) is not None] for at in range(len(rows))]
    return [sum(values) if values else None for values in known]


def _or_dash(value: float | None, places: str) -> str:
    return "–" if value is None else format(value, places)


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
        help="true runs code in your own files, which reward_funcs or the run's record name",
    )
    given = parser.parse_args(argv)
    file = file_of(given.path)
    rows, run = read(file), read_run(file)
    with_golds = all(row.gold is not None for row in rows)
    notes: list[str] = []
    scores = {} if given.reward_funcs else recorded(rows)
    are_recorded = bool(scores)
    if not scores:
        chosen, unable = choose_rewards(given.reward_funcs, run, with_golds, given.allow_custom_rewards == "true")
        scores, failed = score(rows, chosen, run)
        notes = [*unable, *failed]
    totals = _totals(rows, scores, are_recorded)
    print_scores(rows, scores, totals, run, "" if file == given.path else f"{file.name}: ", notes)
    return 0
