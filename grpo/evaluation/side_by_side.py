"""Runs side by side: their gains with mean and spread, final answers question by question, settings that differ.

It reads run directories, nothing else. A gain is paired (before against after on the same questions); over several
runs its mean has Student's interval, since with two or three of them the normal one is far too narrow.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from grpo.core.errors import UserError
from grpo.core.processes import show
from grpo.core.redaction import for_rich
from grpo.evaluation import comparison
from grpo.runs import report
from grpo.runs.charts import Curve

MEASURES = ("lenient", "strict")
CURVES = {"reward": "Reward", "eval/accuracy_lenient": "Lenient accuracy"}
# These only name a run, or say how it was started
NAMES = {*report.NOT_ON_THE_CARD, "logging_dir", "resume_from_checkpoint", "hub_model_id", "project"}
SEEDS = {"seed", "data_seed"}
ENDED = ("finished", "evaluated")


@dataclass(frozen=True)
class Estimate:
    """An accuracy in per cent, or a difference of two in percentage points, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Run:
    """What a run directory says of what was learned; accuracies and gains by MEASURES, where they were measured."""

    name: str
    path: Path
    status: str
    steps: int | None  # optimizer steps of the whole run
    settings: dict[str, Any]
    command: str
    n: int | None  # held-out questions
    before: dict[str, Estimate]
    after: dict[str, Estimate]  # the final ones, also of a run that only evaluated
    gains: dict[str, Estimate]
    answers: list[dict[str, Any]]  # the records of `after`
    curves: dict[str, Curve]

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")


@dataclass(frozen=True)
class Spread:
    """The gains of several runs in percentage points: mean, sample standard deviation, range, Student's interval."""

    count: int
    mean: float
    deviation: float
    lowest: float
    highest: float
    low: float
    high: float


# --- Reading and computing ----------------------------------------------------------------------------------------


def read(paths: Sequence[Path]) -> list[Run]:
    """The runs in these directories; UserError where one of them has no run or no evaluation, or is named twice."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("compare: a run is named twice; name each once")
    if len(paths) < 2:
        raise UserError("compare: name at least two runs, or train some with --seeds 1 2 3 -- FLAGS")
    last = [path.resolve().name for path in paths]
    return [_read(path, str(path) if last.count(name) > 1 else name) for path, name in zip(paths, last, strict=True)]


def _read(path: Path, name: str) -> Run:
    facts = report.read_facts(path)
    evaluations = facts["evaluations"]
    before, after = evaluations.get("before", {}), evaluations.get("after", evaluations.get("only", {}))
    if not (_accuracies(before) or _accuracies(after)):
        raise UserError(f"{str(path)!r} holds no evaluation with accuracies (eval_*.json); train or evaluate it first")
    steps = [line["step"] for line in report.read_metrics(path, "step")]
    return Run(
        name=name,
        path=path,
        status=facts["status"],
        steps=steps[-1] if steps else None,
        settings=facts["settings"],
        command=facts["record"].get("command") or "",
        n=(after or before).get("n"),
        before=_accuracies(before),
        after=_accuracies(after),
        gains=gains(facts["comparison"]) if after else {},
        answers=report.read_lines(path / f"completions_{'after' if 'after' in evaluations else 'only'}.jsonl"),
        curves={key: facts["curves"][key] for key in CURVES if key in facts["curves"]},
    )


def _accuracies(summary: dict[str, Any]) -> dict[str, Estimate]:
    """Of `eval_*.json`, by measure; a run without gold answers has none."""
    found = {measure: _estimate(summary, f"accuracy_{measure}") for measure in MEASURES}
    return {measure: each for measure, each in found.items() if each}


def gains(compared: dict[str, Any]) -> dict[str, Estimate]:
    """Of what `comparison.compare` returns, by measure."""
    found = {measure: _estimate(compared.get(measure) or {}, "difference") for measure in MEASURES}
    return {measure: each for measure, each in found.items() if each}


def _estimate(numbers: dict[str, Any], key: str) -> Estimate | None:
    """A share and its interval, in per cent; None where one of them is missing."""
    found = [numbers.get(f"{key}{end}") for end in ("", "_low", "_high")]
    shares = [100 * share for share in found if isinstance(share, int | float)]
    return Estimate(*shares) if len(shares) == 3 else None


def spread(gains: Sequence[float]) -> Spread | None:
    """Of gains in percentage points; None where there are fewer than two.

    >>> found = spread([40.0, 46.0, 49.0])
    >>> found.mean, round(found.deviation, 2), round(found.low, 1), round(found.high, 1)
    (45.0, 4.58, 33.6, 56.4)
    """
    if len(gains) < 2:
        return None
    mean, low, high = comparison.mean_interval(gains)
    assert low is not None and high is not None
    return Spread(len(gains), mean, statistics.stdev(gains), min(gains), max(gains), low, high)


def spreads(runs: Sequence[Run]) -> dict[str, Spread]:
    """Of the runs that have a gain, by measure."""
    found = {
        measure: spread([run.gains[measure].value for run in runs if measure in run.gains]) for measure in MEASURES
    }
    return {measure: each for measure, each in found.items() if each}


def paired(first: Run, other: Run) -> dict[str, Any] | None:
    """`comparison.compare` of their final answers, where `fixed` are those that `other` alone has right.

    None where they were not asked the same questions, or have no answers.
    """
    ours, theirs = (sorted(run.answers, key=_question) for run in (first, other))
    if not ours or list(map(_question, ours)) != list(map(_question, theirs)):
        return None
    return comparison.compare(ours, theirs)


def _question(record: dict[str, Any]) -> tuple[str, str]:
    return str(record.get("question")), str(record.get("answer"))


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs, but for names: their values by run, None where it has none."""
    known = [run.settings for run in runs if run.settings]
    keys = sorted({key for settings in known for key in settings} - NAMES)
    values = {key: [run.settings.get(key) for run in runs] for key in keys}
    return {
        key: found
        for key, found in values.items()
        if any(settings.get(key) != known[0].get(key) for settings in known)
    }


def warnings(runs: Sequence[Run]) -> list[str]:
    """A line for each reason not to take the figures at face value."""
    found = [f"{run.name} is not finished ({run.status})" for run in runs if run.status not in ENDED]
    asked = {tuple(map(_question, sorted(run.answers, key=_question))) for run in runs if run.answers}
    if len(asked) > 1 or len({run.n for run in runs}) > 1:
        found.append(
            "the runs did not answer the same held-out questions, so their answers are not compared one by one"
        )
    return found


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """All that is shown of several runs, for the page and the terminal."""
    differ, notes = differing(runs), warnings(runs)
    repeats = differ.keys() <= SEEDS
    if not repeats:
        notes.append("the runs differ in more than the seed, so mean and spread are over different experiments")
    others = {run.name: found for run in runs[1:] if (found := paired(runs[0], run)) and "lenient" in found}
    return {
        "runs": runs,
        "spreads": spreads(runs),
        "paired": {name: (gains(found)["lenient"], found["lenient"]) for name, found in others.items()},
        "differing": differ,
        "repeats": repeats,
        "warnings": notes,
    }


# --- Showing ------------------------------------------------------------------------------------------------------


def write(compared: dict[str, Any], path: Path) -> Path:
    """Write the page and return its path."""
    curves = {key: {run.name: run.curves.get(key) for run in compared["runs"]} for key in CURVES}
    drawn = {key: found for key, found in curves.items() if any(found.values())}
    return report.fill("compare.html.j2", path, compared | {"curves": drawn, "titles": CURVES, "bars": bars(compared)})


def bars(compared: dict[str, Any]) -> dict[str, Any]:
    """The lenient gains and their mean on one scale: `rows` (name, gain), and `ticks` from end to end."""
    rows = [(run.name, run.gains["lenient"]) for run in compared["runs"] if "lenient" in run.gains]
    if mean := compared["spreads"].get("lenient"):
        rows.append((f"mean of {mean.count}", Estimate(mean.mean, mean.low, mean.high)))
    ends = [0.0, *(end for _, gain in rows for end in (gain.low, gain.high))]
    step = next(step for step in (5, 10, 20, 50, 10**6) if max(ends) - min(ends) <= 7 * step)
    left, right = math.floor(min(ends) / step), max(1, math.ceil(max(ends) / step))
    return {"rows": rows, "ticks": [step * tick for tick in range(left, right + 1)]}


def print_all(compared: dict[str, Any]) -> None:
    """The table, the final answers, the settings that differ and the warnings."""
    runs, per_measure = compared["runs"], compared["spreads"]
    table = Table(title="Accuracy in per cent, before -> after; gains in points (95 % interval)", box=SIMPLE_HEAD)
    table.title_justify = "left"
    for heading in ("run", "seed", "steps", *MEASURES):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for run in runs:
        cells = [f"{_number(run.before, measure)} -> {_number(run.after, measure)}" for measure in MEASURES]
        below = [signed(run.gains[each]).replace(" (", "\n(") if each in run.gains else "" for each in MEASURES]
        seed, steps = ("-" if value is None else for_rich(str(value)) for value in (run.seed, run.steps))
        table.add_row(for_rich(run.name), seed, steps, *map("\n".join, zip(cells, below, strict=True)))
    if per_measure:
        table.add_section()
        for heading, show_it in SUMMARY.items():
            found = [per_measure.get(measure) for measure in MEASURES]
            table.add_row(heading, "", "", *(show_it(each) if each else "-" for each in found))
    show(table)
    if compared["paired"]:
        show(f"Final answers against those of {for_rich(runs[0].name)}, question by question, lenient:")
    for name, (gain, found) in compared["paired"].items():
        only = f"{found['fixed']} right in this run alone, {found['broken']} in that one, p = {found['p_value']:.2g}"
        show(f"  {for_rich(name)}: {signed(gain)} points; {only}", soft_wrap=True)
    if compared["differing"]:
        show("Settings that differ, run by run:")
    for key, values in compared["differing"].items():
        show(f"  {for_rich(key)}: {for_rich(' | '.join(_short(value) for value in values))}", soft_wrap=True)
    for line in compared["warnings"]:
        show(f"[yellow]warning:[/yellow] {for_rich(line)}", soft_wrap=True)


SUMMARY = {  # the rows below the runs'
    "mean gain": lambda found: f"{found.mean:+.1f}",
    "95 % interval (t)": lambda found: f"{found.low:+.1f} to {found.high:+.1f}",
    "standard deviation": lambda found: f"{found.deviation:.1f}",
    "range": lambda found: f"{found.lowest:+.1f} to {found.highest:+.1f}",
}


def signed(found: Estimate) -> str:
    """A difference with its interval: +48.5 (+41.0 to +56.0)."""
    return f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def _number(accuracies: dict[str, Estimate], measure: str) -> str:
    return f"{accuracies[measure].value:.1f}" if measure in accuracies else "-"


def _short(value: Any, room: int = 200) -> str:
    """A setting's value on one line."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
    text = " ".join(text.split())
    return text if len(text) <= room else f"{text[: room - 1]}…"
