"""Packages that this project needs to be installed, and their versions."""

import importlib.metadata
import tomllib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from grpo.core import INSTALLED, PACKAGE, commands
from grpo.core.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT, EXTRA = "lean-grpo", "script"


def check_environment() -> None:
    """Refuse other versions than are needed, before any library is imported.

    A package that is missing is named where it is imported.

    Raises:
        UserError
    """
    wrong = []
    for needed in requirements():
        version = _version(needed.name)
        if version and not needed.specifier.contains(version, prereleases=True):
            bounds = ",".join(sorted(map(str, needed.specifier), reverse=True))  # the lower one first
            wrong.append((f"{needed.name} {version}", f"{needed.name}{bounds}"))
    if wrong:
        installed, wanted = (" and ".join(names) for names in zip(*wrong, strict=True))
        are = "is" if len(wrong) == 1 else "are"
        raise UserError(f"{installed} {are} installed; {wanted} {are} needed: {commands.install()}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> list["Requirement"]:
    """Return what pyproject.toml lists, in a clone, and the wheel's metadata, which are made from it."""
    if INSTALLED:
        return _of(PROJECT, EXTRA)
    file = PACKAGE.with_name("pyproject.toml")
    project: dict[str, Any] = (
        tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.exists() else {}
    )
    if project.get("name") != PROJECT:  # of a project that has a copy of this one
        return []
    return _parsed([*project.get("dependencies", []), *project.get("optional-dependencies", {}).get(EXTRA, [])])


def _of(distribution: str, extra: str = "") -> list["Requirement"]:
    """Return what an installed distribution requires."""
    try:
        return _parsed(importlib.metadata.requires(distribution) or [], extra)
    except importlib.metadata.PackageNotFoundError:
        return []


def _parsed(lines: Iterable[str], extra: str = "") -> list["Requirement"]:
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:  # then the libraries that need it are missing, too
        return []
    needed = map(Requirement, lines)
    return [
        requirement
        for requirement in needed
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    ]
