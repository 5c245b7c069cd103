"""Refuse a module of the user's where a library would import it: a `random.py` beside the script, for Python's own.

This is imported first of all, and imports only what is loaded when Python starts, which nothing can hide.
"""

import os
import sys
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

OURS = ("grpo", "lean_grpo", "exact_answers")
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # grpo/
HOME = os.path.dirname(PACKAGE)  # the clone, or site-packages


class Watch:
    """A finder of modules that finds none: it refuses what a library imports from the user's folders.

    These are the script's own and the working directory; folders in PYTHONPATH were named on purpose, and those of
    installed packages hold none of the user's. What the user's own code imports is left alone.

    Attributes:
        ends: end the process in one line, for libraries that handle an ImportError; else raise one.
    """

    def __init__(self) -> None:
        named = {os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
        folders = {os.path.abspath(folder) for folder in (*sys.path[:1], "")} - named
        self.folders = [folder for folder in folders if not _has_packages(folder)]
        self.ends = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> None:
        """Return nothing, or do not return."""
        if path is None and (found := _place(PathFinder.find_spec(name, self.folders))):
            first = _place(PathFinder.find_spec(name))
            if first == found and (name not in OURS or os.path.dirname(found) != HOME):
                self._ask(name, found)

    def _ask(self, name: str, found: str) -> None:
        frame, probes = sys._getframe(2), False
        while frame.f_back and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
            probes |= frame.f_globals["__name__"] == "importlib.util"
            frame = frame.f_back
        importer = frame.f_globals.get("__file__") or ""  # a notebook or `-c` has none
        is_ours = any(os.path.abspath(importer).startswith(os.path.join(HOME, each, "")) for each in OURS)
        if not is_ours and (not importer or self._is_users(os.path.abspath(importer))):
            return
        if probes:  # a library asks whether a package is installed
            return
        others = [
            each for each in map(os.path.abspath, sys.path) if each not in self.folders and not _is_shipped(each)
        ]
        if name in sys.stdlib_module_names:
            self._refuse(f"{found} hides Python's own {name}")
        elif name in OURS or _place(PathFinder.find_spec(name, others)):
            self._refuse(f"{found} hides the package {name}")

    def _is_users(self, file: str) -> bool:
        """True for a file whose folder is one of the user's, or that cannot be imported by its name."""
        around = [folder for folder in map(os.path.abspath, sys.path) if file.startswith(os.path.join(folder, ""))]
        return not around or (folder := max(around, key=len)) in self.folders or _is_shipped(folder)

    def _refuse(self, reason: str) -> None:
        line = f"{reason}: rename it, and what imports it"
        if not self.ends:
            raise ImportError(line)
        if os.environ.get("RANK", "0") == "0":  # of several processes the first
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


def _place(spec: "ModuleSpec | None") -> str | None:
    """Return the path of a module, or of a package's folder; None for a folder without `__init__.py`."""
    if spec is None or not spec.origin:
        return None
    origin = os.path.abspath(spec.origin)
    return os.path.dirname(origin) if spec.submodule_search_locations else origin


def _is_shipped(folder: str) -> bool:
    """True for the folder of rewards.py and examples/: the user's own may come before them."""
    return folder.startswith(os.path.join(PACKAGE, "")) or (folder == HOME and not _has_packages(folder))


def _has_packages(folder: str) -> bool:
    try:
        return any(entry.endswith(".dist-info") for entry in os.listdir(folder))
    except OSError:  # no folder, or one that may not be read
        return True


WATCH = Watch()
before = [getattr(finder, "__name__", "") for finder in sys.meta_path]
# Python looks first for what is built in, which nothing hides
sys.meta_path.insert(before.index("PathFinder") if "PathFinder" in before else len(before), WATCH)  # type: ignore
