"""Read a run's directory: all that the report, the card, the curves and the tools know of a run.

It reads run.json, metrics.jsonl, alarms.jsonl, eval_*.json, completions_*.jsonl and comparison.json, the names of
checkpoints and of earlier ends, and whether run.lock is locked.

A run can be read while it trains, after it was killed, or on another machine. Missing files are skipped. Results count
only if they were measured with the weights that the run saved, so results of an earlier end are ignored.
"""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError
from grpo.core.processes import is_locked
from grpo.report.curves import Curve, read_curves
from grpo.results import measures, summary
from grpo.results.by_kind import Kinds, by_kind
from grpo.results.measures import Measure
from grpo.results.readers import read_alarms, read_comparison, read_evaluation, read_metrics
from grpo.results.record import RunRecord
from grpo.results.samples import file_of, read_samples, read_watched
from grpo.scoring.sample import Sample


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run's directory.

    Attributes:
        record: run.json; an empty one without it.
        status: how the run ended, or running; killed only if its own machine knows that no process writes it.
        step: optimizer steps so far.
        curves: logged numbers by key.
        evaluations: eval_*.json by `before`, `after` and `only`.
        comparison: comparison.json.
        alarms: the lines of alarms.jsonl.
    """

    directory: Path
    record: RunRecord
    status: str
    step: int
    curves: dict[str, Curve]
    evaluations: dict[str, dict[str, Any]]
    comparison: dict[str, Any]
    alarms: list[dict[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        return self.record.settings

    @property
    def name(self) -> str:
        return self.settings.get("run_name") or self.directory.resolve().name

    @property
    def results(self) -> dict[str, summary.TableRow]:
        """The rows of the results table, by the key in eval_*.json."""
        return summary.table_rows(self.evaluations, self.comparison)

    def kinds_by(self, column: str | None) -> Kinds | None:
        """The kinds of the held-out questions by a column, such as the setting `eval_by`; None without it."""
        return by_kind(column, {when: self.samples(when) for when in self.evaluations}) if column else None

    @property
    def meanings(self) -> dict[str, str]:
        """Meanings in this run of the figures that are shown large, by their key in eval_*.json."""
        return summary.meanings(list(self.evaluations.values())[-1]) if self.evaluations else {}

    @property
    def held_out_curves(self) -> list[Measure]:
        """The measures whose curves are drawn."""
        drawn = [measure for measure in measures.MEASURES if measure.curve and measure.logged in self.curves]
        return [measure for measure in drawn if not self.evaluations or measure.key in self.results]

    @property
    def resume(self) -> str | None:
        """The command that resumes the run; None without a checkpoint."""
        has_checkpoint = any(self.directory.glob("checkpoint-*"))
        return self.record.how_to_resume(self.directory) if has_checkpoint else None

    @property
    def earlier_ends(self) -> list[str]:
        """Names of the directories with results of earlier ends."""
        names = [path.name for path in self.directory.glob("_ended-at-step-*")]
        return sorted(names, key=lambda name: (len(name), name))

    def watched(self) -> list[dict[int, Sample]]:
        """For each of a few held-out questions its answers by step; [] if the run evaluates only before and after."""
        during = file_of(self.directory, "during").exists() or self.settings.get("eval_strategy", "no") != "no"
        if not (during and "before" in self.evaluations):
            return []
        whole = {
            self.evaluations[when].get("step", 0): self.samples(when)
            for when in ("before", "after")
            if when in self.evaluations
        }
        return read_watched(self.directory, whole, self.evaluations["before"].get("measure"))

    def samples(self, when: str) -> list[Sample]:
        """The samples of an evaluation; [] if it does not count."""
        return read_samples(file_of(self.directory, when)) if when in self.evaluations else []


def read_run(run: Path) -> RunFiles:
    """Read all files of a run. Raise UserError if one is broken, or if all are missing."""
    record, lines = RunRecord.read(run), read_metrics(run / "metrics.jsonl")
    trained = [line["step"] for line in lines if "loss" in line or "train_runtime" in line]
    step = record.step if record.step is not None else max(trained, default=0)
    status = _status(run, record)
    evaluations = {when: read_evaluation(run / f"eval_{when}.json") for when in summary.HEADINGS}
    comparison = read_comparison(run / "comparison.json")
    saved = step if record.best_step is None else record.best_step
    if evaluations["after"].get("step") != saved:
        evaluations["after"] = {}
    if not evaluations["after"] or comparison.get("step") != saved:
        comparison = {}
    evaluations = {when: figures for when, figures in evaluations.items() if figures}
    curves = read_curves(lines)
    if record == RunRecord() and not (curves or evaluations):
        raise UserError(f"{str(run)!r} holds no run (no run.json, metrics.jsonl or eval_*.json)")
    return RunFiles(run, record, status, step, curves, evaluations, comparison, read_alarms(run / "alarms.jsonl"))


def _status(run: Path, record: RunRecord) -> str:
    status = record.status or "running"
    here = record.host == platform.node()
    return "killed" if status == "running" and here and not is_locked(run) else status
