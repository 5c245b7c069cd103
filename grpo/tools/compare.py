"""Compare several runs in a table: accuracies before and after, gains, and differences in settings and code.

Gains are paired, since the questions before and after are the same. So is the comparison of two runs after training,
on the questions that both answered, if they were judged alike. The mean gain over runs that differ only in the seed
has Student's interval, because the normal interval is far too narrow for two or three runs.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from grpo.core.errors import ArgumentParser, UserError
from grpo.core.processes import show
from grpo.core.settings import ScriptArguments, about, makes_another_experiment
from grpo.core.text import counted, decimals, for_rich, shorten
from grpo.report.files import RunFiles, read_run
from grpo.results import comparison, measures
from grpo.results.by_kind import Kind, by_kind
from grpo.results.comparison import change_of, mean_interval
from grpo.results.measures import Measure, Summary
from grpo.runs.differences import Difference, compare, without_rest
from grpo.runs.facts import JUDGE, ROWS, with_rule
from grpo.scoring.sample import Sample

DEFAULTS = dataclasses.asdict(ScriptArguments())
HELPERS = "code in ", "contents of "  # how the labels of what functions use begin
REWARDING = {"reward_funcs", "reward_weights", "reward_args"}
MISSING = "–"  # in a run's column, where its record lacks the setting


def read_evaluated(directory: Path) -> RunFiles:
    """Read a run's files. Raise UserError if they have no settings or no evaluation."""
    run = read_run(directory)
    if not (run.settings and run.evaluations):
        raise UserError(f"{str(directory)!r} holds no evaluation (run.json and eval_*.json); train or evaluate first")
    return run


def gains(runs: Sequence[RunFiles], measure: Measure) -> list[float]:
    """Return the paired gain of each run with evaluations before and after, in points or rewards."""
    differences = [change_of(measure, run.comparison).get("difference") for run in runs]
    return [measure.factor * difference for difference in differences if difference is not None]


def differing_sources(runs: Sequence[RunFiles]) -> list[str]:
    """List differing parts that are not settings: prompt, code, rows, weights. Runs without a part are skipped.

    Parts that another difference changes anyway, such as the tokens of other prompts, are no difference of their own.
    """
    labels = dict.fromkeys(difference.label for difference in _differences(runs) if not difference.is_setting)
    return ["training rows" if label == ROWS else label for label in without_rest(labels)]


def differing(runs: Sequence[RunFiles]) -> dict[str, list[Any]]:
    """Return what differs and affects what is learned or measured, with its values by run.

    A setting that another version's record lacks, and that a run does not use, is no difference.
    """
    of_runs = _settings(runs)
    differ = {difference.label for difference in _differences(runs) if difference.is_setting}
    keys = dict.fromkeys(key for settings in of_runs for key in settings if makes_another_experiment(key))
    return {
        key: [settings.get(key, MISSING) for settings in of_runs]
        for key in keys
        if (key in differ if all(key in settings for settings in of_runs) else any(is_used(run, key) for run in runs))
    }


def _differences(runs: Sequence[RunFiles]) -> Iterator[Difference]:
    """Yield the differences of each two of the runs."""
    facts = [
        {"settings": settings, "sources": with_rule(run.record.sources), "data": run.record.fingerprint}
        for run, settings in zip(runs, _settings(runs), strict=True)
    ]
    for first, second in itertools.combinations(facts, 2):
        yield from compare(first, second)


def _settings(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Return the settings of each run, with commit, processes and, if trained runs differ in them, steps."""
    differ = len({run.step for run in runs if "after" in run.evaluations}) > 1
    steps = [{"steps": run.step} if differ else {} for run in runs]
    own = [{"commit": run.record.commit, "processes": run.record.world_size} for run in runs]
    return [run.settings | facts | counted for run, facts, counted in zip(runs, own, steps, strict=True)]


def is_used(run: RunFiles, key: str) -> bool:
    """True if a run's record has this setting, and its value was chosen: not a default, nor off in HYPERPARAMETERS."""
    if key not in run.settings:
        return False
    origin, value = run.record.origin or dict.fromkeys(run.settings, "script"), run.settings[key]
    return origin.get(key) == "flag" or bool(key in origin and value and value != DEFAULTS.get(key))


def by_version(runs: Sequence[RunFiles]) -> str:
    """Describe differing versions of libraries, and settings that some versions do not have, unused; "" if none."""
    names = dict.fromkeys(name for run in runs for name in run.record.versions)
    numbers = {name: [run.record.versions.get(name, MISSING) for run in runs] for name in names}
    parts = [f"{name} {' | '.join(by_run)}" for name, by_run in numbers.items() if len(set(by_run)) > 1]
    keys = dict.fromkeys(key for run in runs for key in run.settings if makes_another_experiment(key))
    some = [key for key in keys if any(key not in run.settings for run in runs)]
    if unused := [key for key in some if not any(is_used(run, key) for run in runs)]:
        parts.append(f"only some have the setting{'s' * (len(unused) > 1)} {', '.join(unused)}, which no run uses")
    return f"Versions: {'; '.join(parts)}" if parts else ""


def print_runs(runs: Sequence[RunFiles]) -> None:
    """Print the table, each run against the first, and all differences."""
    settings, sources = differing(runs), differing_sources(runs)
    resumed = [f"{run.directory} was resumed, {change}" for run in runs for change in run.record.changes]
    one_experiment = all(about(key).is_seed for key in settings) and not (sources or resumed)
    copies = _copies(runs) if one_experiment else {}
    column, other_columns = _kinds_column(runs)
    lines = [*after_training(runs, column), *other_columns, *resumed, *filter(None, [by_version(runs)])]
    lines += [
        f"{copy} has the same answers as {first}, letter by letter: they count as one run"
        for copy, first in copies.items()
    ]
    show("Before → after, and the paired gain (95 % interval); accuracies in per cent", soft_wrap=True)
    rewarded = REWARDING.isdisjoint(settings) and not (_reward_functions(runs) | {JUDGE}) & {*sources}
    counted_runs = [run for run in runs if run.directory not in copies] if one_experiment else []
    hidden = [] if rewarded else [measures.REWARD]
    show(_table(runs, counted_runs, hidden))
    if kinds := _table_of_kinds(runs, counted_runs, column, hidden):
        show(kinds)
    if settings or sources:
        lines.append("What differs:")
    elif one_experiment:
        lines.append("No setting that matters differs: one experiment, counted several times")
    if sources:
        text = ", ".join(f"other {label.replace('code of', 'code in')}" for label in sources)
        lines.append(f"  {text[0].upper()}{text[1:]}")
    for key, by_run in settings.items():
        lines.append(f"  {key}: {' | '.join(shorten(str(value), 200) for value in by_run)}")
    for line in lines:
        show(for_rich(line), soft_wrap=True)


def _copies(runs: Sequence[RunFiles]) -> dict[Path, Path]:
    """Return the runs whose answers are all those of an earlier one, by directory, and that one.

    Two of them would give an interval without width, though nothing was repeated.
    """
    first: dict[str, Path] = {}
    copies: dict[Path, Path] = {}
    for run in runs:
        if answers := run.samples("after"):
            same = first.setdefault(json.dumps([sample.to_json() for sample in answers]), run.directory)
            copies |= {} if same == run.directory else {run.directory: same}
    return copies


def _reward_functions(runs: Sequence[RunFiles]) -> set[str]:
    """Return the labels of the code of the runs' rewards, and of all helpers, which rewards may use."""
    names = [name for run in runs for name in run.settings.get("reward_funcs") or []]
    helpers = {label for run in runs for label in run.record.sources if label.startswith(HELPERS)}
    return {f"code of {name}" for name in names} | helpers


def _table(runs: Sequence[RunFiles], counted_runs: Sequence[RunFiles], hidden: Sequence[Measure]) -> Table:
    """Build the table.

    Args:
        counted_runs: the runs whose mean gain is shown, if there are any.
        hidden: measures that are not the same in all runs.
    """
    drawn = [measure for measure in measures.MEASURES if measure.curve and measure not in hidden]
    shown = [measure for measure in drawn if any(measure.key in run.results for run in runs)]
    table = Table(box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for measure in shown:
        table.add_column(measure.words, justify="right", overflow="fold")
    for run in runs:
        status = "" if run.status == "finished" else f"\n({run.status})"
        table.add_row(for_rich(f"{run.directory}{status}"), *(_cell(run, measure.key) for measure in shown))
    if counted_runs:
        table.add_section()
        table.add_row("mean gain", *(_mean(gains(counted_runs, measure), measure) for measure in shown))
    return table


def _kinds_column(runs: Sequence[RunFiles]) -> tuple[str | None, list[str]]:
    """Return the column `eval_by` of the runs, and a line if they have several. One of a single run is all runs'."""
    columns = {str(run.directory): column for run in runs if (column := run.settings.get("eval_by"))}
    if len(different := list(dict.fromkeys(columns.values()))) < 2:
        return (different or [None])[0], []
    named = ", ".join(f"{shorten(column, 40)} in {run}" for run, column in columns.items())
    return None, [f"No accuracy by kind of question: eval_by is {named}"]


def _table_of_kinds(
    runs: Sequence[RunFiles], counted_runs: Sequence[RunFiles], column: str | None, hidden: Sequence[Measure]
) -> Table | None:
    """Build the table of the kinds of questions, with a column for each run; None without kinds.

    Args:
        counted_runs, hidden: as for `_table`.
    """
    found = {run.directory: run.kinds_by(column) for run in runs}
    measured = [kinds.measure for kinds in found.values() if kinds]
    if not measured or measured[0] in hidden or len(set(measured)) > 1:
        return None
    of_runs = {path: {kind.name: kind for kind in kinds.kinds} if kinds else {} for path, kinds in found.items()}
    table = Table(box=SIMPLE_HEAD)
    table.add_column(for_rich(next(kinds.title for kinds in found.values() if kinds)), overflow="fold")
    for path in [*found, *(["mean gain"] if counted_runs else [])]:
        table.add_column(for_rich(str(path)), justify="right", overflow="fold")
    for name in dict.fromkeys(name for kinds in of_runs.values() for name in kinds):
        own = [kinds.get(name) for kinds in of_runs.values()]
        gained = [of_runs[run.directory].get(name) for run in counted_runs]
        differences = [kind.change["difference"] for kind in gained if kind and "difference" in kind.change]
        means = [_mean([measured[0].factor * one for one in differences], measured[0])] if counted_runs else []
        label = next(kind.label for kind in own if kind)
        table.add_row(for_rich(label), *(_cell_of_kind(kind) if kind else MISSING for kind in own), *means)
    return table


def _cell_of_kind(kind: Kind) -> str:
    """Format `before → after`, and below it the gain with its interval and what follows from it."""
    lines = [" → ".join(value for value, _ in kind.cells[:2])]
    for value, interval in kind.cells[2:]:
        lines.append(", ".join(filter(None, [f"{value} ({interval})" if interval else value, kind.note])))
    return "\n".join(lines)


def after_training(runs: Sequence[RunFiles], column: str | None = None) -> list[str]:
    """Compare each later run with the first, by their answers to the same questions after training.

    Args:
        column: `eval_by`; each kind of questions has a line of its own, too.
    """
    first, *others = runs
    answers, lines = first.samples("after"), []
    for run in others:
        theirs = run.samples("after")
        if not (answers and theirs):
            continue
        pairs = _common(answers, theirs, by_row=bool(first.evaluations["after"].get("judge")))
        if what := _other_judges(first, run) or ("" if pairs else "answered other questions"):
            lines.append(f"{first.directory} and {run.directory} {what}: their gains cannot be compared")
            continue
        compared = comparison.compare([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
        shown = [drawn for drawn in measures.MEASURES if drawn.curve and drawn.is_share and drawn.key in first.results]
        parts = [_paired(measure, change) for measure in shown if (change := change_of(measure, compared))]
        same = f"the same {counted(len(pairs), 'question')}"
        if len(pairs) < max(len(answers), len(theirs)):
            same = f"the {counted(len(pairs), 'question')} that both answered (of {len(answers)} and {len(theirs)})"
        if parts:
            lines.append(f"After training, on {same}, {run.directory} against {first.directory}: {', '.join(parts)}")
        kinds = by_kind(column, {"first": [ours for ours, _ in pairs], "other": [theirs for _, theirs in pairs]})
        if kinds and kinds.measure.is_share:
            lines += [
                ", ".join(filter(None, [f"  {kind.label}: {_paired(kinds.measure, kind.change)}", kind.note]))
                for kind in kinds.kinds
                if kind.change
            ]
    return lines


def _other_judges(first: RunFiles, run: RunFiles) -> str:
    """Say that two runs' answers were judged by other code, or may have been; "" if they were judged alike."""
    judge, other_judge = (judged.evaluations["after"].get("judge") for judged in (first, run))
    changed = differing_sources([first, run])
    if judge != other_judge or (f"code of the judge {judge}" if judge else JUDGE) in changed:
        return "have other judges"
    helpers = [label for label in changed if judge and label.startswith(HELPERS)]
    return f"may have other judges (other {', other '.join(helpers)})" if helpers else ""


def _common(ours: Sequence[Sample], others: Sequence[Sample], by_row: bool) -> list[tuple[Sample, Sample]]:
    """Pair the answers to the questions that are in both, with the same gold answer.

    Args:
        by_row: the judge is the user's, which reads the other columns, too.
    """

    def key(answer: Sample) -> str:
        return json.dumps([answer.question, answer.gold, answer.columns if by_row else None])

    theirs: dict[str, list[Sample]] = {}
    for answer in others:
        theirs.setdefault(key(answer), []).append(answer)
    return [(answer, theirs[key(answer)].pop(0)) for answer in ours if theirs.get(key(answer))]


def _paired(measure: Measure, change: Summary) -> str:
    """Describe a paired difference with its interval."""
    points, low, high = (decimals(100 * change[f"difference{end}"], 1, "+") for end in ("", "_low", "_high"))
    counts = f"{change['fixed']} better, {change['broken']} worse"
    return f"{measure.words} {points} points (95 % interval {low} to {high}; {counts})"


def _cell(run: RunFiles, key: str) -> str:
    """Format `before → after`, and below it the gain with its interval; an unfinished run has only one of them."""
    _, cells = run.results.get(key, ("", []))
    lines = [" → ".join(value for value, _ in cells[:2])]
    return "\n".join(lines + [f"{value}\n({interval})" if interval else value for value, interval in cells[2:]])


def _mean(gains: Sequence[float], measure: Measure) -> str:
    if len(gains) < 2:
        return "–"
    ends = mean_interval(gains)  # of two gains or more, so that there are three
    mean, low, high = (decimals(value or 0.0, measure.places, "+") for value in ends)
    return f"{mean}\n({low} to {high})"


def main(argv: list[str]) -> int:
    """Run `python -m grpo compare` and return its exit status."""
    parser = ArgumentParser(prog="python -m grpo compare", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="directories of runs")
    paths = parser.parse_args(argv).runs
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UserError("compare: name at least two runs, each once")
    print_runs([read_evaluated(path) for path in paths])
    return 0
