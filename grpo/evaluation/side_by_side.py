"""Runs side by side: their gains with mean and spread, final answers question by question, settings that differ.

It reads run directories, nothing else. A gain is paired (before against after on the same questions); over several
runs its mean has Student's interval, since with two or three of them the normal one is far too narrow.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
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

# The key in eval_*.json, and what its numbers are multiplied by; rewards are there where gold answers are not
MEASURES = {"lenient": ("accuracy_lenient", 100), "strict": ("accuracy_strict", 100), "reward": ("reward", 1)}
CURVES = {
    "reward": "Reward",
    "eval/accuracy_lenient": "Lenient accuracy",
    "eval/reward": "Reward on held-out questions",
}
# These only name a run, or say how it was started
NAMES = {*report.NOT_ON_THE_CARD, "logging_dir", "resume_from_checkpoint", "hub_model_id", "project"}
SEEDS = {"seed", "data_seed"}
# They change what is seen and kept of a run, not what is trained
WATCHING = {"eval_every", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "logging_steps"}
WATCHING |= {"log_completions", "num_completions_to_print"}
ENDED = ("finished", "evaluated")


@dataclass(frozen=True)
class Estimate:
    """An accuracy in per cent, a difference of two in percentage points, or a reward, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Run:
    """What a run directory says of what was learned; estimates and gains by MEASURES, where they were measured."""

    name: str
    path: Path
    status: str
    steps: int | None  # optimizer steps of the whole run
    settings: dict[str, Any]
    command: str
    code: dict[str, str]  # the commit and the libraries' versions
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
    names = [str(path) if last.count(name) > 1 else name for path, name in zip(paths, last, strict=True)]
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def read_run(path: Path, name: str) -> Run:
    """The run in this directory; UserError where it holds no evaluation."""
    facts = report.read_facts(path)
    evaluations = facts["evaluations"]
    before, after = evaluations.get("before", {}), evaluations.get("after", evaluations.get("only", {}))
    if not (_measured(before) or _measured(after)):
        raise UserError(f"{str(path)!r} holds no evaluation (eval_*.json); train or evaluate it first")
    steps = [line["step"] for line in report.read_metrics(path, "step")]
    record = facts["record"]
    return Run(
        name=name,
        path=path,
        status=facts["status"],
        steps=steps[-1] if steps else None,
        settings=facts["settings"],
        command=record.get("command") or "",
        code={"commit": _short_commit(record.get("commit") or ""), **(record.get("versions") or {})},
        n=(after or before).get("n"),
        before=_measured(before),
        after=_measured(after),
        gains=gains(facts["comparison"]) if after else {},
        answers=report.read_lines(path / f"completions_{'after' if 'after' in evaluations else 'only'}.jsonl"),
        curves={key: facts["curves"][key] for key in CURVES if key in facts["curves"]},
    )


def _short_commit(commit: str) -> str:
    """Seven digits, and the + of a commit with uncommitted changes."""
    return commit[:7] + "+" * commit.endswith("+")


def _measured(summary: dict[str, Any]) -> dict[str, Estimate]:
    """Of `eval_*.json`, by measure."""
    found = {measure: _estimate(summary, *key_and_times) for measure, key_and_times in MEASURES.items()}
    return {measure: each for measure, each in found.items() if each}


def gains(compared: dict[str, Any]) -> dict[str, Estimate]:
    """Of what `comparison.compare` returns, by measure."""
    found = {each: _estimate(compared.get(each) or {}, "difference", times) for each, (_, times) in MEASURES.items()}
    return {measure: each for measure, each in found.items() if each}


def _estimate(numbers: dict[str, Any], key: str, times: int) -> Estimate | None:
    """A number and its interval; None where one of them is missing or not finite."""
    found = [numbers.get(f"{key}{end}") for end in ("", "_low", "_high")]
    values = [times * value for value in found if isinstance(value, int | float) and math.isfinite(value)]
    return Estimate(*values) if len(values) == 3 else None


def spread(gains: Sequence[float]) -> Spread | None:
    """Of gains in percentage points; None where there are fewer than two, or all are the same: nothing tells then how
    far apart they are.

    >>> found = spread([40.0, 46.0, 49.0])
    >>> found.mean, round(found.deviation, 2), round(found.low, 1), round(found.high, 1)
    (45.0, 4.58, 33.6, 56.4)
    """
    if len(set(gains)) < 2:
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
    known = sorted({key for run in runs for key, value in run.code.items() if value})
    values = {key: list(dict.fromkeys(run.code[key] for run in runs if run.code.get(key))) for key in known}
    if other := [f"{key} {', '.join(each)}" for key, each in values.items() if len(each) > 1]:
        found.append(f"the runs are of different code: {'; '.join(other)}")
    return found


def _not_repeated(runs: Sequence[Run], differ: Iterable[str]) -> list[str]:
    """Of the settings that differ, those that make it another experiment, and not the same one again."""
    picks = ("keep_best", "load_best_model_at_end")  # among the steps that were measured and saved
    picked = any(run.settings.get(key) for run in runs for key in picks)
    return [key for key in differ if key not in (SEEDS if picked else SEEDS | WATCHING)]


def _twice(runs: Sequence[Run]) -> tuple[str, str] | None:
    """The names of the first two runs that gain something with the same seeds; None where all differ."""
    found: dict[tuple[Any, Any], str] = {}
    for run in runs:
        if run.gains and run.seed is not None:
            data_seed = run.settings.get("data_seed")
            seeds = run.seed, run.seed if data_seed is None else data_seed
            if seeds in found:
                return found[seeds], run.name
            found[seeds] = run.name
    return None


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """All that is shown of several runs, for the page and the terminal."""
    differ, notes = differing(runs), warnings(runs)
    changed, again = _not_repeated(runs, differ), _twice(runs)
    if unknown := [run.name for run in runs if not run.settings]:
        notes.append(f"the settings of {unknown[0]} are unknown, so nothing says that the runs repeat one experiment")
    elif changed:
        named = ", ".join([*changed[:3], *["…"] * (len(changed) > 3)])
        notes.append(f"mean and spread are over different experiments: the runs differ in {named}")
    else:
        if again:
            notes.append(f"{again[0]} and {again[1]} are one experiment that counts twice: they have the same seed")
        lengths = sorted({run.steps for run in runs if run.steps})
        if len(lengths) > 1:
            notes.append(f"the runs ended after different numbers of steps ({', '.join(map(str, lengths))})")
    measures = [each for each in MEASURES if any(each in run.before | run.after for run in runs)]
    lead = measures[0]
    others = {run.name: found for run in runs[1:] if (found := paired(runs[0], run)) and lead in gains(found)}
    return {
        "runs": runs,
        "measures": measures,
        "spreads": spreads(runs),
        "paired": {name: (gains(found)[lead], found[lead]) for name, found in others.items()},
        "differing": differ,
        "repeats": not unknown and not changed and not again,
        "warnings": notes,
    }


# --- Showing ------------------------------------------------------------------------------------------------------


def write(compared: dict[str, Any], path: Path) -> Path:
    """Write the page and return its path."""
    curves = {key: {run.name: run.curves.get(key) for run in compared["runs"]} for key in CURVES}
    drawn = {key: found for key, found in curves.items() if any(found.values())}
    return report.fill("compare.html.j2", path, compared | {"curves": drawn, "titles": CURVES, "bars": bars(compared)})


def bars(compared: dict[str, Any]) -> dict[str, Any]:
    """The gains by the first measure and their mean on one scale: `rows` (name, gain), and `ticks` from end to end."""
    lead = compared["measures"][0]
    rows = [(run.name, run.gains[lead]) for run in compared["runs"] if lead in run.gains]
    if mean := compared["spreads"].get(lead):
        rows.append((f"mean of {mean.count}", Estimate(mean.mean, mean.low, mean.high)))
    ends = [0.0, *(end for _, gain in rows for end in (gain.low, gain.high))]
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 10**6)[5 * (lead != "reward") :]
    step = next(step for step in steps if max(ends) - min(ends) <= 7 * step)
    left, right = math.floor(min(ends) / step), max(1, math.ceil(max(ends) / step))
    return {"rows": rows, "ticks": [step * tick for tick in range(left, right + 1)]}


def print_all(compared: dict[str, Any]) -> None:
    """The table, the final answers, the settings that differ and the warnings."""
    runs, measures = compared["runs"], compared["measures"]
    title = "Mean reward" if measures == ["reward"] else "Accuracy in per cent, before -> after; gains in points"
    table = Table(title=f"{title} (95 % interval)", box=SIMPLE_HEAD)
    table.title_justify = "left"
    for heading in ("run", "seed", "steps", *measures):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for run in runs:
        seed, steps = ("-" if value is None else for_rich(str(value)) for value in (run.seed, run.steps))
        table.add_row(for_rich(run.name), seed, steps, *(_cell(run, measure) for measure in measures))
    if compared["spreads"]:
        table.add_section()
        for heading, show_it in SUMMARY.items():
            found = [(compared["spreads"].get(measure), digits(measure)) for measure in measures]
            table.add_row(heading, "", "", *(show_it(each, places) if each else "-" for each, places in found))
    show(table)
    if compared["paired"]:
        show(f"Final answers against those of {for_rich(runs[0].name)}, question by question, {measures[0]}:")
    for name, (gain, found) in compared["paired"].items():
        line = f"  {for_rich(name)}: {signed(gain, digits(measures[0]))}"
        if "fixed" in found:
            line += f" points; {found['fixed']} right in this run alone, {found['broken']} in that one"
            line += f", p = {found['p_value']:.2g}"
        show(line, soft_wrap=True)
    if compared["differing"]:
        show("Settings that differ, run by run:")
    for key, values in compared["differing"].items():
        show(f"  {for_rich(key)}: {for_rich(' | '.join(_short(value) for value in values))}", soft_wrap=True)
    for line in compared["warnings"]:
        show(f"[yellow]warning:[/yellow] {for_rich(line)}", soft_wrap=True)


SUMMARY: dict[str, Callable[[Spread, int], str]] = {  # the rows below the runs'
    "mean gain": lambda found, places: f"{found.mean:+.{places}f}",
    "95 % interval (t)": lambda found, places: f"{found.low:+.{places}f} to {found.high:+.{places}f}",
    "standard deviation": lambda found, places: f"{found.deviation:.{places}f}",
    "range": lambda found, places: f"{found.lowest:+.{places}f} to {found.highest:+.{places}f}",
}


def digits(measure: str) -> int:
    """Decimal places: of per cent, or of a reward."""
    return 2 if measure == "reward" else 1


def signed(found: Estimate, places: int = 1) -> str:
    """A difference with its interval: +48.5 (+41.0 to +56.0)."""
    return f"{found.value:+.{places}f} ({found.low:+.{places}f} to {found.high:+.{places}f})"


def _cell(run: Run, measure: str) -> str:
    """Before and after, and on two more lines the gain with its interval."""
    places, ends = digits(measure), (run.before.get(measure), run.after.get(measure))
    text = " -> ".join(f"{end.value:.{places}f}" if end else "-" for end in ends)
    return f"{text}\n{signed(run.gains[measure], places)}".replace(" (", "\n(") if measure in run.gains else text


def _short(value: Any, room: int = 200) -> str:
    """A setting's value on one line."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
    text = " ".join(text.split())
    return text if len(text) <= room else f"{text[: room - 1]}…"
