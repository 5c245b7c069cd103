"""Read a run's figures from its directory, with the kinds of the values that our programs use.

A missing file is {}. A value of another kind, or a missing one that is required, is one line that names it. A file may
have other keys, of other versions.
"""

from pathlib import Path
from typing import Any, Required, TypedDict

from grpo.core.jsonfiles import read_lines, read_object
from grpo.core.kinds import require
from grpo.results import measures

Number = float | None


class Seal(TypedDict, total=False):
    """complete.json, the seal of a checkpoint; to ask its model, it is also read as a record (record.py)."""

    world_size: Required[int]
    sharding: str | None
    settings: dict[str, Any] | None
    sources: dict[str, str] | None
    versions: dict[str, Any] | None


class Log(TypedDict, total=False):
    """A line of metrics.jsonl; the other numbers are curves."""

    step: Required[int]
    step_time: Number
    measure: str  # a digest of what an evaluation rests on (runs/facts.py)


class Alarm(TypedDict):
    """A line of alarms.jsonl."""

    step: int
    name: str
    message: str
    remedy: str


class Evaluation(TypedDict, total=False):
    """eval_*.json, besides its measures."""

    n: Required[int]
    k: int
    step: int
    judge: str | None
    judge_error: str | None
    measure: str


class ChangeOfShare(TypedDict):
    """The change of a share of the answers to the same questions."""

    both: int
    fixed: int
    broken: int
    neither: int
    before: float
    after: float
    difference: float
    difference_low: float
    difference_high: float
    p_value: float


class ChangeOfMean(TypedDict, total=False):
    n: int
    before: float
    after: float
    difference: float
    difference_low: Number
    difference_high: Number


class ChangesByKind(TypedDict):
    """The change of accuracy, or without gold answers of the reward, for each value of a column (`eval_by`)."""

    column: str
    kinds: list[dict[str, Any]]


class Comparison(TypedDict, total=False):
    """comparison.json, besides the changes of its measures."""

    step: int
    verdict: str
    sentence: str
    diagnosis: list[str] | None
    rewards: dict[str, ChangeOfMean | None] | None
    by: ChangesByKind | None


CHANGES = {measure.name: (ChangeOfShare if measure.is_share else ChangeOfMean) | None for measure in measures.MEASURES}
KEYS = tuple(measure.key for measure in measures.MEASURES)  # how the keys of measures, intervals and rewards begin


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read eval_*.json."""
    summary = read_object(path, Evaluation)
    require(summary, {key: Number for key in summary if key.startswith(KEYS)}, str(path))
    return summary


def read_comparison(path: Path) -> dict[str, Any]:
    """Read comparison.json."""
    comparison = read_object(path, Comparison)
    require(comparison, CHANGES, str(path))
    return comparison


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl."""
    return read_lines(path, Log)


def read_alarms(path: Path) -> list[dict[str, Any]]:
    """Read alarms.jsonl."""
    return read_lines(path, Alarm)
