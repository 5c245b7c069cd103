"""Find modules of the user that hide others: a `random.py` beside the script is imported instead of Python's.

This is imported first of all, and imports nothing that could be hidden: `sys` and `os` are loaded when Python starts.
"""

import os
import sys

LIBRARIES = ("site-packages", "dist-packages")


def users_modules() -> dict[str, str]:
    """Return the paths of the modules and packages in folders that Python searches before its own, by their names."""
    library = os.path.dirname(os.__file__)
    found: dict[str, str] = {}
    for folder in sys.path[: sys.path.index(library)] if library in sys.path else []:
        if os.path.basename(folder) in LIBRARIES:
            continue
        try:
            entries = os.listdir(folder or ".")
        except OSError:  # no folder, or one that may not be read
            continue
        for entry in entries:
            path = os.path.join(folder, entry)
            if entry.endswith(".py") or os.path.exists(os.path.join(path, "__init__.py")):
                found.setdefault(entry.removesuffix(".py"), path)
    return found


def end_if_python_is_hidden() -> None:
    """Raise an ImportError for a module of the user that hides one of Python's; uncaught it is one line, status 2."""
    for name, path in users_modules().items():
        if name not in sys.stdlib_module_names or name in sys.builtin_module_names:
            continue
        loaded = getattr(sys.modules.get(name), "__file__", None) or path
        if os.path.dirname(loaded) in (os.path.dirname(path), path):  # else it was loaded before, when Python started
            sys.excepthook = _in_one_line
            raise ImportError(f"{path} hides Python's own {name}: rename it, and what imports it")


def _in_one_line(kind: type[BaseException], error: BaseException, trace: object) -> None:
    if os.environ.get("RANK", "0") == "0":  # of several processes the first
        print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


end_if_python_is_hidden()
