"""The outcome of a check before training: one line of preflight's table."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """The outcome of one preflight check; `remedy` is empty if all is well."""

    status: str  # ok, warning, error
    name: str
    finding: str
    remedy: str = ""
    routine: bool = False  # True: only a dry run shows it if all is well


def warn_if(bad: Any, name: str, finding: str, remedy: str, status: str = "warning", routine: bool = False) -> Check:
    """Return a check with this status if `bad` is true, otherwise one that is ok."""
    return Check(status, name, finding, remedy) if bad else Check("ok", name, finding, routine=routine)
