"""The checks of preflight's table, and the error that stops a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo.core.errors import UserError


@dataclass(frozen=True)
class Check:
    """A check's outcome; `remedy` is empty where all is well."""

    status: str  # ok, warning, error
    name: str
    finding: str
    remedy: str = ""


def warn_if(bad: Any, name: str, finding: str, remedy: str, status: str = "warning") -> Check:
    return Check(status, name, finding, remedy) if bad else Check("ok", name, finding)


def stop_at_errors(checks: Sequence[Check]) -> None:
    """Raise UserError for the first check that failed, with the number of others."""
    errors = [check for check in checks if check.status == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more, see the table)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0].name}: {errors[0].finding}; {errors[0].remedy}{more}")
