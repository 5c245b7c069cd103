"""`python -m grpo compare RUN RUN ...`: what several runs learned, side by side in a table.

A run's gain is paired: the same questions before and after. Over several runs the mean gain has Student's interval,
since with two or three of them the normal one is far too narrow.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from grpo.core.errors import ArgumentParser, UserError
from grpo.core.processes import show
from grpo.core.text import for_rich
from grpo.evaluation.comparison import mean_interval
from grpo.runs import report

# The key in eval_*.json, and what its numbers are multiplied by; rewards are there where gold answers are not
MEASURES = {"lenient": ("accuracy_lenient", 100), "strict": ("accuracy_strict", 100), "reward": ("reward", 1)}
# They name a run, or change what is seen and kept of it: not what is trained
NOT_TRAINED = {
    *("output_dir", "run_name", "report_to", "project", "hub_model_id", "logging_dir", "resume_from_checkpoint"),
    *("save_strategy", "save_steps", "save_total_limit", "save_only_model"),
    *("eval_every", "logging_steps", "log_completions", "num_completions_to_print"),
}


class Estimate(NamedTuple):
    """A difference in percentage points, or of rewards, with its 95 % interval."""

    value: float
    low: float
    high: float

    def in_words(self, places: int = 1) -> str:
        return f"{self.value:+.{places}f} ({self.low:+.{places}f} to {self.high:+.{places}f})"


class Run(NamedTuple):
    """A run directory's record of what was learned: accuracies in per cent (or rewards) and gains, by MEASURES."""

    name: str  # the directory, as it was named
    status: str
    facts: dict[str, Any]  # settings, commit and versions; empty where they are not known
    ends: dict[str, list[float | None]]  # before and after
    gains: dict[str, Estimate]


def read(path: Path) -> Run:
    """The run in this directory; UserError where it holds no evaluation."""
    found = report.read_facts(path)
    record, evaluations = found["record"], found["evaluations"]
    summaries = [evaluations.get("before", {}), evaluations.get("after", evaluations.get("only", {}))]
    ends = {}
    for measure, (key, times) in MEASURES.items():
        if any(key in summary for summary in summaries):
            ends[measure] = [times * summary[key] if key in summary else None for summary in summaries]
    if not ends:
        raise UserError(f"{str(path)!r} holds no evaluation (eval_*.json); train or evaluate it first")
    code = {"commit": (record.get("commit") or "")[:7], **(record.get("versions") or {})}
    facts = {**found["settings"], **code} if found["settings"] else {}
    return Run(str(path), found["status"], facts, ends, gains(found["comparison"]) if "after" in evaluations else {})


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
    """Settings, commit and versions that are not the same in all runs, names aside: the values by run."""
    keys = dict.fromkeys(key for run in runs for key in run.facts if key not in NOT_TRAINED)
    values = {key: [run.facts.get(key) for run in runs] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def notes(runs: Sequence[Run], differ: dict[str, list[Any]]) -> list[str]:
    """A line for each reason not to take the mean at face value."""
    found = [f"{run.name}: {run.status}" for run in runs if run.status not in ("finished", "evaluated")]
    found += [f"{run.name}: its settings are not known" for run in runs if not run.facts]
    if other := differ.keys() - {"seed", "data_seed"}:
        found.append(f"the mean is over different experiments: the runs differ in {', '.join(sorted(other))}")
    elif not differ and all(run.facts for run in runs):
        found.append("the runs have the same settings and the same seed: they are one experiment, counted again")
    return found


def print_runs(runs: Sequence[Run]) -> None:
    """The table, what differs, and what to beware of."""
    measures = [measure for measure in MEASURES if any(measure in run.ends for run in runs)]
    title = "Mean reward" if measures == ["reward"] else "Accuracy in per cent, before -> after; gains in points"
    show(f"{title} (95 % interval)", soft_wrap=True)  # a table's own title wraps at its width
    table = Table(box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for measure in measures:
        table.add_column(measure, justify="right", overflow="fold")
    for run in runs:
        table.add_row(for_rich(run.name), *(_cell(run, measure) for measure in measures))
    means = {measure: mean_gain(runs, measure) for measure in measures}
    if any(means.values()):
        table.add_section()
        table.add_row("mean gain", *(_in_two(mean, each) if mean else "-" for each, mean in means.items()))
    show(table)
    differ = differing(runs) if all(run.facts for run in runs) else {}
    if differ:
        show("What differs, run by run:")
    for key, values in differ.items():
        texts = (" ".join(str("-" if value is None else value).split()) for value in values)
        show(f"  {for_rich(key)}: {for_rich(' | '.join(texts))}", soft_wrap=True)
    for line in notes(runs, differ):
        show(f"[yellow]note:[/yellow] {for_rich(line)}", soft_wrap=True)


def _cell(run: Run, measure: str) -> str:
    places = 2 if measure == "reward" else 1
    ends = ("-" if end is None else f"{end:.{places}f}" for end in run.ends.get(measure, (None, None)))
    return "\n".join([" -> ".join(ends), *([_in_two(run.gains[measure], measure)] if measure in run.gains else [])])


def _in_two(gain: Estimate, measure: str) -> str:
    """The interval below its gain, so that three measures fit in 80 columns."""
    return gain.in_words(2 if measure == "reward" else 1).replace(" (", "\n(")


def main(argv: list[str]) -> int:
    """`python -m grpo compare`; its exit status."""
    parser = ArgumentParser(
        prog="python -m grpo compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="directories of runs")
    paths = parser.parse_args(argv).runs
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UserError("compare: name at least two runs, each once")
    print_runs([read(path) for path in paths])
    return 0
