"""`python -m grpo compare RUN RUN ...`: what several runs learned, side by side in a table.

A run's gain is paired: the same questions before and after. Over several runs the mean gain has Student's interval,
since with two or three of them the normal one is far too narrow.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from grpo.core.errors import MISTAKE, UserError
from grpo.core.parsing import ArgumentParser
from grpo.core.processes import show
from grpo.core.redaction import for_rich, printable
from grpo.evaluation.comparison import mean_interval
from grpo.runs import report

# The key in eval_*.json, and what its numbers are multiplied by; rewards are there where gold answers are not
MEASURES = {"lenient": ("accuracy_lenient", 100), "strict": ("accuracy_strict", 100), "reward": ("reward", 1)}
SEEDS = {"seed", "data_seed"}
# They name a run, or change what is seen and kept of it: not what is trained
NOT_TRAINED = {*report.NOT_ON_THE_CARD, "logging_dir", "resume_from_checkpoint", "hub_model_id", "project"}
NOT_TRAINED |= {"eval_every", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "logging_steps"}


class Estimate(NamedTuple):
    """A difference in percentage points, or of rewards, with its 95 % interval."""

    value: float
    low: float
    high: float


class Run(NamedTuple):
    """What a run directory says of what was learned: accuracies in per cent (or rewards) and gains, by MEASURES."""

    name: str
    status: str
    steps: int | None  # optimizer steps
    facts: dict[str, Any]  # settings, commit and versions; empty where they are not known
    before: dict[str, float]
    after: dict[str, float]  # the final ones, also of a run that was only evaluated
    gains: dict[str, Estimate]


def read(path: Path) -> Run:
    """The run in this directory; UserError where it holds no evaluation."""
    found = report.read_facts(path)
    record, evaluations, compared = found["record"], found["evaluations"], found["comparison"]
    before, after = evaluations.get("before", {}), evaluations.get("after", evaluations.get("only", {}))
    measured = [_measured(before), _measured(after)]
    if not any(measured):
        raise UserError(f"{str(path)!r} holds no evaluation (eval_*.json); train or evaluate it first")
    code = {"commit": (record.get("commit") or "")[:7], **(record.get("versions") or {})}
    steps = [line["step"] for line in report.read_metrics(path, "step")]
    return Run(
        name=path.resolve().name,
        status=found["status"],
        steps=steps[-1] if steps else None,
        facts={**found["settings"], **code} if found["settings"] else {},
        before=measured[0],
        after=measured[1],
        gains=gains(compared) if "after" in evaluations else {},
    )


def _measured(summary: dict[str, Any]) -> dict[str, float]:
    return {
        measure: times * summary[key] for measure, (key, times) in MEASURES.items() if summary.get(key) is not None
    }


def gains(compared: dict[str, Any]) -> dict[str, Estimate]:
    """Of what `comparison.compare` returns, by measure."""
    found = {}
    for measure, (_, times) in MEASURES.items():
        numbers = [(compared.get(measure) or {}).get(f"difference{end}") for end in ("", "_low", "_high")]
        known = [times * number for number in numbers if number is not None]
        if len(known) == 3:
            found[measure] = Estimate(*known)
    return found


def mean_gain(runs: Sequence[Run], measure: str) -> Estimate | None:
    """The mean gain over the runs that have one, with its interval; None where fewer than two do, or all are equal."""
    found = [run.gains[measure].value for run in runs if measure in run.gains]
    mean, low, high = mean_interval(found) if len(set(found)) > 1 else (0.0, None, None)
    return None if low is None or high is None else Estimate(mean, low, high)


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """What is not the same in all runs, but for names: the values by run."""
    keys = dict.fromkeys(key for run in runs for key in run.facts if key not in NOT_TRAINED)
    values = {key: [run.facts.get(key) for run in runs] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def notes(runs: Sequence[Run], differ: dict[str, list[Any]]) -> list[str]:
    """A line for each reason not to take the mean at face value."""
    found = [
        f"{run.name} is not finished ({run.status})" for run in runs if run.status not in ("finished", "evaluated")
    ]
    if unknown := [run.name for run in runs if not run.facts]:
        found.append(f"the settings of {unknown[0]} are not known")
    elif other := [key for key in differ if key not in SEEDS]:
        found.append(f"the mean is over different experiments: the runs differ in {', '.join(other)}")
    elif not differ:
        found.append("the runs have the same settings and the same seed: they are one experiment, counted again")
    return found


# --- Showing ------------------------------------------------------------------------------------------------------


def signed(gain: Estimate, measure: str) -> str:
    """A gain with its interval: +48.5 (+41.0 to +56.0)."""
    places = 2 if measure == "reward" else 1
    return f"{gain.value:+.{places}f} ({gain.low:+.{places}f} to {gain.high:+.{places}f})"


def print_runs(runs: Sequence[Run]) -> None:
    """The table, what differs, and what to beware of."""
    measures = [measure for measure in MEASURES if any(measure in run.before | run.after for run in runs)]
    title = "Mean reward" if measures == ["reward"] else "Accuracy in per cent, before -> after; gains in points"
    table = Table(title=f"{title} (95 % interval)", box=SIMPLE_HEAD, title_justify="left")
    for heading in ("run", "seed", "steps", *measures):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for run in runs:
        seed, steps = ("-" if value is None else str(value) for value in (run.facts.get("seed"), run.steps))
        table.add_row(for_rich(run.name), seed, steps, *(_cell(run, measure) for measure in measures))
    means = [mean_gain(runs, measure) for measure in measures]
    if any(means):
        table.add_section()
        cells = [_in_two(signed(mean, each)) if mean else "-" for mean, each in zip(means, measures, strict=True)]
        table.add_row("mean gain", "", "", *cells)
    show(table)
    differ = differing(runs) if all(run.facts for run in runs) else {}
    if differ:
        show("What differs, run by run:")
    for key, values in differ.items():
        show(f"  {for_rich(key)}: {for_rich(' | '.join(map(_short, values)))}", soft_wrap=True)
    for line in notes(runs, differ):
        show(f"[yellow]note:[/yellow] {for_rich(line)}", soft_wrap=True)


def _cell(run: Run, measure: str) -> str:
    places = 2 if measure == "reward" else 1
    ends = (run.before.get(measure), run.after.get(measure))
    text = " -> ".join("-" if end is None else f"{end:.{places}f}" for end in ends)
    return f"{text}\n{_in_two(signed(run.gains[measure], measure))}" if measure in run.gains else text


def _in_two(gain: str) -> str:
    """The interval below its gain, so that three measures fit in 80 columns."""
    return gain.replace(" (", "\n(")


def _short(value: Any, room: int = 200) -> str:
    text = " ".join(str("-" if value is None else value).split())
    return text if len(text) <= room else f"{text[: room - 1]}…"


def main(argv: list[str] | None = None) -> int:
    """`python -m grpo compare`; its exit status."""
    parser = ArgumentParser(
        prog="python -m grpo compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="directories of runs")
    try:
        paths = parser.parse_args(argv).runs
        if len({path.resolve() for path in paths}) < max(2, len(paths)):
            raise UserError("compare: name at least two runs, each once")
        runs = [read(path) for path in paths]
    except (UserError, OSError) as error:  # OSError: a run that may not be read
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return MISTAKE
    if len({run.name for run in runs}) < len(runs):  # told apart by their paths
        runs = [run._replace(name=str(path)) for run, path in zip(runs, paths, strict=True)]
    print_runs(runs)
    return 0
