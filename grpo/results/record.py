"""The record of a run, `run.json`: the one place that reads and writes it."""

import contextlib
import dataclasses
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Required, Self, TypedDict

from exact_answers.marks import check_pattern
from grpo.core import commands
from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_object, read_value, write_json
from grpo.core.kinds import require
from grpo.task.prompts import PromptFormat, Shot

FILE = "run.json"
# Keys that each record of a run has, also with null or {}: `launcher` is null from Python, `commit` without git
ALWAYS = ("launcher", "commit", "code")


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


class KindsOfSettings(TypedDict, total=False):
    """The settings that a tool does more with than to show or compare them."""

    run_name: str | None
    model_name_or_path: str | None
    dataset_name: str | None
    judge: str | None
    eval_by: str | None
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


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of `run.json`. None and {}: it does not have it, or has null.

    Attributes:
        status: running, finished, evaluated, merged, or how it ended.
        started, started_in: when, and in which directory, its first and its last session began.
        launcher, program, argv: the command of its last session; launcher None: from Python, with rows.
        process: the process that writes it.
        commit: of this project's code; a + at its end: with changes.
        prompt, shots: the prompt format and the worked examples.
        perfect: each reward's value for a perfect completion, by logged name.
        sources: hashes of prompt, code, rows and model by label; `code` the text of the functions.
        origin: where each setting is from.
        decisions: what the run decided by itself.
        settings: all by name, as the last session used them.
        sessions: the first one, and one for each time that it was resumed.
        seconds: of all sessions that were not killed.
        step, planned: optimizer steps at its end, and those of the whole run.
        best_step: the step of the saved weights if they are those of the best checkpoint.
        others: keys of other versions.
    """

    status: str | None = None
    started: str | None = None
    script: str | None = None
    launcher: str | None = None
    program: str | None = None
    argv: list[str] | None = None
    started_in: str | None = None
    process: dict[str, Any] = field(default_factory=dict, metadata={"kind": Process})
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict, metadata={"kind": Hardware})
    geometry: dict[str, Any] = field(default_factory=dict, metadata={"kind": Geometry})
    prompt: dict[str, Any] = field(default_factory=dict, metadata={"kind": PromptFormat})
    shots: list[Shot] | None = field(default=None, metadata={"kind": list[Shot]})
    data: dict[str, Any] = field(default_factory=dict, metadata={"kind": Data})
    perfect: dict[str, float] | None = None
    wandb_id: str | None = field(default=None, metadata={"kind": Any})  # a foreign one is ignored
    sources: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    decisions: list[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict, metadata={"kind": KindsOfSettings})
    sessions: list[dict[str, Any]] = field(default_factory=list, metadata={"kind": list[Session]})
    seconds: float | None = None
    step: int | None = None
    planned: int | None = None
    best_step: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    # Files

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read a directory's record; an empty one without the file.

        Raises:
            UserError: the file is broken, or a value has another kind.
        """
        return cls.of_file(directory / FILE)

    @classmethod
    def of_file(cls, path: Path, keys: Collection[str] = ()) -> Self:
        """Read a record from any file that has one, such as a checkpoint's seal; of these keys alone, if given."""
        values = {key: value for key, value in read_object(path).items() if value is not None}
        fields = {key: value for key, value in values.items() if key in (keys or KINDS)}
        require(fields, KINDS, str(path))
        try:
            check_pattern(fields.get("prompt", {}).get("pattern", "xml"))
        except ValueError as error:
            raise UserError(f"{path}: prompt: {error}") from None
        return cls(**fields, others={} if keys else {key: values[key] for key in values if key not in fields})

    @classmethod
    def known(cls, directory: Path) -> Self:
        """Read a directory's record; an empty one also if the file is broken."""
        with contextlib.suppress(UserError, OSError):
            return cls.read(directory)
        return cls()

    def to_json(self) -> dict[str, Any]:
        """Return the values that the record has, by key."""
        empty, always = type(self)(), ALWAYS if self.program is not None else ()
        values = {key: getattr(self, key) for key in KINDS}
        filled = {key: value for key, value in values.items() if key in always or value != getattr(empty, key)}
        return filled | dict(self.others)

    def write(self, directory: Path) -> None:
        """Write the record to a directory, atomically."""
        write_json(directory / FILE, self.to_json())

    # What it says

    @property
    def host(self) -> str | None:
        """The machine of the process that writes it."""
        return self.process.get("host")

    @property
    def world_size(self) -> int:
        return self.geometry.get("world_size", 1)

    @property
    def fingerprint(self) -> str | None:
        """A hash of the training rows."""
        return self.data.get("fingerprint")

    @property
    def pattern(self) -> str:
        """Its answer pattern."""
        return self.prompt.get("pattern", "xml")

    @property
    def is_complete(self) -> bool:
        """True if the run has finished with its last step."""
        return self.status == "finished" and self.step == self.planned

    @property
    def is_broken_off(self) -> bool:
        """True if it was killed, interrupted, or failed."""
        return str(self.status).startswith(("running", "interrupted", "failed"))

    @property
    def changes(self) -> list[str]:
        """Settings changed by resumed sessions, in words; `settings` are those of the last session."""
        changed = [session for session in self.sessions if "changed" in session]
        return [f"from step {session['from_step']} on: {', '.join(session['changed'])}" for session in changed]

    @property
    def weights_of_best(self) -> str:
        """The saved weights, in words, if they are those of the best checkpoint; else ""."""
        if self.best_step is None:
            return ""
        begins = max((session.get("best_from", 0) for session in self.sessions), default=0)
        since = f" from step {begins} on" * bool(begins)
        metric = self.settings.get("metric_for_best_model")
        chosen = f"weights of step {self.best_step}, the best{since} by {metric} on the held-out questions"
        return f"{chosen}, which flatters their figures"

    @property
    def command(self) -> str | None:
        """The command of its last session."""
        return None if self._started is None else commands.line(**self._started)

    def how_to_resume(self, directory: Path) -> str | None:
        """Return the command that resumes the run in this directory, seen from the working directory."""
        elsewhere = self.started_in not in (None, str(Path.cwd()))
        at = directory.resolve() if elsewhere else directory
        return None if self._started is None else commands.resume(self._started, at)

    @property
    def _started(self) -> dict[str, Any] | None:
        if self.program is None or self.argv is None:
            return None
        return {"launcher": self.launcher, "program": self.program, "argv": self.argv}

    # What becomes of it

    def ended(self, status: str, seconds: float, step: int | None, planned: int, best_step: int | None) -> Self:
        """Return the record of the run once its last session has ended.

        Args:
            status: how it ended.
            seconds: of its last session; a killed session has none.
            step: the optimizer step at which it ended; None: an evaluation alone.
            planned: optimizer steps of the whole run; 0 if unknown.
            best_step: the step of the weights that were saved, if they are those of the best checkpoint.
        """
        *earlier, last = self.sessions
        sessions = [*earlier, last | {"seconds": round(seconds, 1), "status": status}]
        total = round(sum(session.get("seconds", 0) for session in sessions), 1)
        values = {"step": step, "planned": planned or None, "best_step": best_step}
        new: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
        return dataclasses.replace(self, status=status, seconds=total, sessions=sessions, **new)

    def part(self, *keys: str) -> Self:
        """Return a record of these keys alone."""
        return type(self)(**{key: getattr(self, key) for key in keys})


# The kind of each key, as it is in the file
KINDS = typing.get_type_hints(RunRecord) | {
    key.name: key.metadata["kind"] for key in dataclasses.fields(RunRecord) if key.metadata
}
del KINDS["others"]


def status_of(directory: Path) -> str | None:
    """Return the status in a directory's record, whatever else the file has; None without one."""
    status = read_value(directory / FILE, "status")
    return status if isinstance(status, str) else None
