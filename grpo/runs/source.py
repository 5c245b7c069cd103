"""Save the code of a run: the script, the user's files that it uses, and the recipe.

The code is read at the start, so edits during the run do not appear in it.
"""

import inspect
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo.core import ROOT
from grpo.core.errors import is_of_a_library
from grpo.core.fingerprint import innermost

FOLDER = "source"
Files = dict[str, bytes]  # name → content


def _holder(function: Callable[..., Any]) -> Any:
    """Return the function or class with the code: without bound parameters, and an object's class."""
    function = innermost(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def code_of(functions: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """Return the source of each function of the user and of rewards.py, by label; TRL's are omitted."""
    code = {}
    for label, function in functions.items():
        try:
            if not is_of_a_library(inspect.getfile(_holder(function))):
                code[label] = textwrap.dedent(inspect.getsource(_holder(function))).strip("\n")
        except (OSError, TypeError):  # no file has it
            continue
    return code


def read_files(script: Path, functions: Iterable[Callable[..., Any]], recipe: Path | None) -> Files:
    """Read the script, rewards.py, the recipe, and the user's files that script and functions use, by name.

    Only files in or below the folders of the script and the functions count, so that libraries installed from a
    folder do not.
    """
    modules = [module for module in list(sys.modules.values()) if _file_of(module) == script.resolve()][:1]
    modules += filter(None, (inspect.getmodule(_holder(function)) for function in functions))
    folders = {path.parent for module in modules if (path := _file_of(module)) and not is_of_a_library(str(path))}
    used: dict[Path, None] = {}
    for module in modules:
        _add_files(module, folders, used)
    paths = [script, ROOT / "rewards.py", *used, *([recipe] if recipe else [])]
    files: Files = {}
    for path in dict.fromkeys(path.resolve() for path in paths if path.is_file()):
        name = path.name if path.name not in files else f"{path.parent.name}-{path.name}"
        files[name] = path.read_bytes()
    return files


def _add_files(module: ModuleType, folders: Iterable[Path], used: dict[Path, None]) -> None:
    """Add a module's file and those of modules that it imports from, if they are the user's."""
    path = _file_of(module)
    if path is None or path in used or is_of_a_library(str(path)) or not any(map(path.is_relative_to, folders)):
        return
    used[path] = None
    for value in list(vars(module).values()):
        home = getattr(_holder(value), "__module__", None)  # methods of built-in types have no module
        origin = value if isinstance(value, ModuleType) else sys.modules.get(str(home))
        if origin is not None:
            _add_files(origin, folders, used)


def _file_of(module: ModuleType) -> Path | None:
    """Return a module's file; None for built-in modules and notebooks."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) and file.endswith(".py") else None


def write(run: Path, files: Files) -> None:
    """Write `source/` atomically, since a run may be killed at any moment."""
    folder, part = run / FOLDER, run / f".{FOLDER}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for name, content in files.items():
        (part / name).write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
