"""The parts of preflight: checks, the trial of the rewards, and the error that stops a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo.core.errors import UserError


@dataclass(frozen=True)
class Check:
    """The outcome of one preflight check; `remedy` is empty if all is well."""

    status: str  # ok, warning, error
    name: str
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class Trial:
    """The run's rewards on test completions of the first training row; empty with `eval_only`."""

    texts: dict[str, str] = field(default_factory=dict)  # test completions by kind: perfect, wrong answer, …
    values: dict[str, dict[str, float | str | None]] = field(
        default_factory=dict
    )  # by reward and kind; a string describes a failure
    exact: list[str] = field(default_factory=list)  # rewards that need the gold answer character by character
    weights: dict[str, float] = field(default_factory=dict)  # by reward


def warn_if(bad: Any, name: str, finding: str, remedy: str, status: str = "warning") -> Check:
    """Return a check with this status if `bad` is true, otherwise one that is ok."""
    return Check(status, name, finding, remedy) if bad else Check("ok", name, finding)


def stop_at_errors(checks: Sequence[Check]) -> None:
    """Raise UserError for the first failed check, with the number of further failures."""
    errors = [check for check in checks if check.status == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more, see the table)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0].name}: {errors[0].finding}; {errors[0].remedy}{more}")
