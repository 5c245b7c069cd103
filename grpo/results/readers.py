"""Read a run's record and figures from its directory, with the kinds of the values that our programs use.

A missing file is {}. A value of another kind, or a missing one that is required, is one line that names it. A file may
have other keys, of other versions.
"""

import contextlib
from pathlib import Path
from typing import Any, Required, TypedDict

from exact_answers.marks import check_pattern
from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_lines, read_object
from grpo.core.kinds import check
from grpo.results import measures
from grpo.task.prompts import PromptFormat, Shot

Number = float | None


class Process(TypedDict, total=False):
    id: int | None
    host: str | None


class Hardware(TypedDict, total=False):
    machine: str | None
    cpus: int | None
    gpus: list[str] | None


class Geometry(TypedDict, total=False):
    world_size: int
    num_generations: int


class Data(TypedDict, total=False):
    """Counts of rows, and a hash of those that were trained on."""

    train: int
    overlap: int
    fingerprint: str | None


class Session(TypedDict, total=False):
    from_step: Required[int]
    changed: list[str]
    best_from: int  # the step from which on values of the metric are compared
    seconds: float


class Settings(TypedDict, total=False):
    """The settings that a tool does more with than to show or compare them."""

    run_name: str | None
    model_name_or_path: str | None
    dataset_name: str | None
    judge: str | None
    reward_funcs: list[str] | None
    reward_weights: list[float] | None
    metric_for_best_model: str | None
    lr_scheduler_type: str | None
    max_steps: int | None
    max_grad_norm: float | None
    max_completion_length: int
    dtype: str | None
    bf16: bool | None
    chat_template_kwargs: dict[str, Any] | None
    resume_from_checkpoint: str | None


class Asked(TypedDict, total=False):
    """What a checkpoint's seal, too, has of a record, to ask its model."""

    prompt: PromptFormat | None
    shots: list[Shot] | None
    settings: Settings | None


class Record(Asked, total=False):
    """run.json."""

    status: str | None
    started: str | None
    launcher: str | None
    program: str
    argv: list[str]
    started_in: str | None
    process: Process | None
    commit: str | None
    versions: dict[str, str] | None
    hardware: Hardware | None
    geometry: Geometry | None
    data: Data | None
    perfect: dict[str, float] | None  # values of rewards
    sources: dict[str, str] | None  # hashes
    code: dict[str, str] | None
    origin: dict[str, str] | None  # of settings
    sessions: list[Session] | None
    seconds: Number
    step: int | None
    planned: int | None
    best_step: int | None


class Seal(TypedDict, total=False):
    """complete.json, the seal of a checkpoint; to ask its model, it is also read as `Asked`."""

    world_size: Required[int]
    sharding: str | None
    settings: dict[str, Any] | None
    sources: dict[str, str] | None
    versions: dict[str, Any] | None


class Log(TypedDict, total=False):
    """A line of metrics.jsonl; the other numbers are curves."""

    step: Required[int]
    step_time: Number
    measure: str  # a digest of what an evaluation rests on (runs/resume.py)


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
    """How a share of the answers to the same questions changed."""

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


class Comparison(TypedDict, total=False):
    """comparison.json, besides the changes of its measures."""

    step: int
    verdict: str
    sentence: str
    diagnosis: list[str] | None
    rewards: dict[str, ChangeOfMean | None] | None


CHANGES = {one.name: (ChangeOfShare if one.is_share else ChangeOfMean) | None for one in measures.MEASURES}
KEYS = tuple(one.key for one in measures.MEASURES)  # how the keys of measures, intervals and rewards begin


def read_record(path: Path, kind: Any = Record) -> dict[str, Any]:
    """Read run.json; as `Asked` a seal, too."""
    record = read_object(path, kind)
    try:
        check_pattern((record.get("prompt") or {}).get("pattern", "xml"))
    except ValueError as error:
        raise UserError(f"{path}: prompt: {error}") from None
    return record


def known_record(path: Path) -> dict[str, Any]:
    """Read run.json; {} also if it is broken."""
    with contextlib.suppress(UserError, OSError):
        return read_record(path)
    return {}


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read eval_*.json."""
    summary = read_object(path, Evaluation)
    check(summary, {key: Number for key in summary if key.startswith(KEYS)}, str(path))
    return summary


def read_comparison(path: Path) -> dict[str, Any]:
    """Read comparison.json."""
    comparison = read_object(path, Comparison)
    check(comparison, CHANGES, str(path))
    return comparison


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl."""
    return read_lines(path, Log)


def read_alarms(path: Path) -> list[dict[str, Any]]:
    """Read alarms.jsonl."""
    return read_lines(path, Alarm)
