"""Name a module of the user's that hides another: a `random.py` beside the script is imported for Python's own.

This imports only what is loaded when Python starts, which nothing can hide.
"""

import os
import sys
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = ("grpo", "lean_grpo", "exact_answers")
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the clone, or site-packages


def hiding(error: BaseException) -> str:
    """Return a line that names such a module, if one is loaded or has failed with this exception; else "".

    The user's folders are the script's and the working directory; those in PYTHONPATH were named on purpose.
    """
    named = {os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
    folders = {os.path.abspath(folder) for folder in (*sys.path[:1], "")} - named
    others = [entry for entry in sys.path if os.path.abspath(entry) not in folders and not _is_shipped(entry)]
    for path in map(os.path.abspath, (*_files_of(error), *_files_loaded())):
        place = os.path.dirname(path) if os.path.basename(path) == "__init__.py" else path
        folder, base = os.path.split(place)
        name = base.removesuffix(".py")
        if folder not in folders or (name in OURS and folder == HOME):
            continue
        library = PathFinder.find_spec(name, [HOME] if name in OURS else others)
        if name in sys.stdlib_module_names:
            return f"{place} hides Python's own {name}: rename it, and what imports it"
        if library and library.origin:  # no folder without `__init__.py`
            return f"{place} hides the package {name}: rename it, and what imports it"
    return ""


def _is_shipped(entry: str) -> bool:
    """True for the folder of rewards.py and examples/, of which the user has copies: a clone, or one in a wheel."""
    folder = os.path.abspath(entry)
    is_clone = folder == HOME and os.path.exists(os.path.join(HOME, "pyproject.toml"))
    return is_clone or folder.startswith(os.path.join(HOME, "grpo", ""))


def _files_of(error: BaseException | None) -> "Iterator[str]":
    """Yield the files that an exception and its causes passed through."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


def _files_loaded() -> "Iterator[str]":
    for name, module in list(sys.modules.items()):
        if "." not in name and name != "__main__" and isinstance(file := getattr(module, "__file__", None), str):
            yield file
