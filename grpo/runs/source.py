"""Read the code of a run once, at its start: to keep it, to show it, and to compare it with another run's.

`source/` keeps the files: the script, those of the user's that it uses, and the recipe. `run.json` has the text of
each reward, of the judge and of `prepare`. Hashes of their syntax (`ast.unparse`) are compared, so that comments,
layout, and the order and grouping of imports do not count. So are files whose names are in the code, such as those
that a reward opens.
"""

import ast
import contextlib
import hashlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import rewards
from grpo.core.errors import is_of_a_library
from grpo.core.functions import innermost
from grpo.core.text import digest
from grpo.core.writing import part_of, remove

FOLDER = "source"
# Names in a script that are compared as settings and prompt; in HYPERPARAMETERS, calls such as `partial(f, low=1)` are
# code, too
SETTINGS, CALLS = ("HYPERPARAMETERS", "SYSTEM_PROMPT", "EXEMPLARS"), "code in HYPERPARAMETERS"
OF_SCRIPT = "script's code in "  # of files that no reward, judge or `prepare` uses
REST = "rest of "  # begins the label of a file whose functions are compared one by one


class Source(NamedTuple):
    """The code of a run.

    Attributes:
        files: the contents of files, by name.
        code: the text of each function, by label; without those of libraries, and those that no file contains.
        hashes: what is compared, by a label for people: `code of` each function, with the definitions of its file
            that it uses; `code in` each file of their helpers, and in HYPERPARAMETERS; the script's code in files that
            it imports for itself; the `rest of` other files; the `contents of` files that functions or helpers name.
    """

    files: dict[str, bytes]
    code: dict[str, str]
    hashes: dict[str, str]


def read(
    script: Path,
    functions: Mapping[str, Callable[..., Any]],
    recipe: Path | None,
    inline: Collection[str] = (),
    arguments: Any = None,
) -> Source:
    """Read the script, rewards.py, the recipe, and the user's files that script and functions use.

    Only files in or below the folders of the script and the functions count, so that libraries installed from a
    folder do not.

    Args:
        functions: the run's rewards, judge and `prepare`, by label.
        inline: the settings of functions that HYPERPARAMETERS decides.
        arguments: of rewards, which may be names of files.
    """
    names: dict[Path, str] = {}
    used = _users_files(script, functions.values())
    reached = {*_users_files(None, functions.values()), Path(rewards.__file__).resolve()}
    for path in (script, Path(rewards.__file__), *used, *([recipe] if recipe else [])):
        if path.is_file() and path.resolve() not in names:
            name = path.name if path.name not in names.values() else f"{path.parent.name}-{path.name}"
            names[path.resolve()] = name
    files = {name: path.read_bytes() for path, name in names.items()}
    bodies = {path: _statements(files[name]) for path, name in names.items() if path.suffix == ".py"}
    code, hashes, homes, opened = dict[str, str](), dict[str, str](), set[Path](), dict[str, Path]()
    for label, function in functions.items():
        if text := _text_of(function):
            home = _file_of(inspect.getmodule(_holder(function)))
            code[label], hashes[f"code of {label}"] = text, _hash(function, text, bodies.get(home, []) if home else [])
            homes |= {home} if home else set()
    for path, body in bodies.items():
        is_script = path == script.resolve()
        kind = REST if path in homes else "code in " if path in reached else OF_SCRIPT
        label = f"{REST}the script" if is_script else f"{kind}{names[path]}"
        kept = _without_settings(body) if is_script else body
        hashes[label] = digest(*map(ast.unparse, kept[_has_docstring(kept) :]))
        if is_script:
            hashes[CALLS] = digest(*_calls_in(body, inline))
        opened |= _named_files(kept, path.parent) if path in reached else {}
    bound = [getattr(function, "keywords", {}) for function in functions.values()]
    opened |= _files_among(_values_in([arguments, bound]), script.parent)
    hashes |= {f"contents of {name}": _hash_of_file(at) for name, at in opened.items()}
    return Source(files, code, hashes)


# --- Functions ----------------------------------------------------------------------------------------------------


def _holder(function: Callable[..., Any]) -> Any:
    """Return the function or class with the code: without bound parameters, and an object's class."""
    function = innermost(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def _text_of(function: Callable[..., Any]) -> str:
    """Return the source of a function of the user or of rewards.py; "" for a library's, or if no file has it."""
    holder = _holder(function)
    try:
        text = "" if is_of_a_library(inspect.getfile(holder)) else inspect.getsource(holder)
    except (OSError, TypeError):
        return ""
    return textwrap.dedent(text).strip("\n")


def _hash(function: Callable[..., Any], text: str, body: list[ast.stmt]) -> str:
    """Hash a function: the statements of its file that define it and what it uses there, or else its text."""
    holder = _holder(function)
    module = vars(inspect.getmodule(holder) or object)
    names = {name for name, value in module.items() if value is function} | {holder.__qualname__.partition(".")[0]}
    used: dict[int, ast.stmt] = {}
    while found := {at: line for at, line in enumerate(body) if at not in used and _names_of(line) & names}:
        used |= found
        names |= _names_in(found.values())
        names -= set(SETTINGS)
    if used:
        return digest(*(ast.unparse(used[at]) for at in sorted(used)))
    try:
        return digest(ast.unparse(ast.parse(text)))
    except SyntaxError:  # the line of a lambda
        return digest(" ".join(text.split()))


class _OneName(ast.NodeTransformer):
    """Split imports, so that each imports one name."""

    def visit_Import(self, node: ast.Import) -> Any:
        return [ast.Import([alias]) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]


def _statements(text: bytes) -> list[ast.stmt]:
    """Parse a file. Each import imports one name, and imports in a row are sorted."""
    split: Iterable[ast.stmt] = _OneName().visit(ast.parse(text)).body
    groups = itertools.groupby(split, lambda line: isinstance(line, ast.Import | ast.ImportFrom))
    return [line for imports, group in groups for line in (sorted(group, key=ast.unparse) if imports else group)]


def _without_settings(script: list[ast.stmt]) -> list[ast.stmt]:
    """Drop what is compared as settings and prompt, and names imported for it alone."""
    kept = [line for line in script if not _names_of(line) & set(SETTINGS)]
    used = _names_in(kept)
    return [line for line in kept if not isinstance(line, ast.ImportFrom) or _names_of(line) & used]


def _names_in(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names that statements read or write."""
    return {node.id for line in statements for node in ast.walk(line) if isinstance(node, ast.Name)}


def _names_of(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names.union(*(_names_of(node) for node in nodes[1:] if isinstance(node, ast.stmt)))  # under `if`, `try`, …


def _has_docstring(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def _calls_in(body: list[ast.stmt], settings: Collection[str]) -> list[str]:
    """Return the calls and lambdas in the values of these HYPERPARAMETERS."""
    values = [
        keyword.value
        for line in body
        if "HYPERPARAMETERS" in _names_of(line)
        for keyword in ast.walk(line)
        if isinstance(keyword, ast.keyword) and keyword.arg in settings
    ]
    return [
        ast.unparse(node) for value in values for node in ast.walk(value) if isinstance(node, ast.Call | ast.Lambda)
    ]


# --- Files --------------------------------------------------------------------------------------------------------


def _named_files(body: list[ast.stmt], folder: Path) -> dict[str, Path]:
    """Return the files whose names are texts in the code, in the working directory or in the code's folder.

    Those that it writes are none: they are different in each session.
    """
    nodes = [node for line in body for node in ast.walk(line)]
    no_names = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    no_names |= {
        id(inner) for node in nodes if isinstance(node, ast.Call) and _writes(node) for inner in ast.walk(node)
    }
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in no_names]
    return _files_among(texts, folder)


def _writes(call: ast.Call) -> bool:
    """True if a call writes to a file: `open("log.txt", "a")`, `Path("log.txt").write_text(…)`."""
    name = ast.unparse(call.func).rpartition(".")[2]
    words = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    is_open = name in ("open", "fdopen") and any(re.fullmatch(r"[rwaxbt+]*[wax+][rwaxbt+]*", word) for word in words)
    return is_open or name.startswith("write_") or name in ("touch", "unlink", "mkdir", "FileHandler")


def _files_among(values: Iterable[Any], folder: Path) -> dict[str, Path]:
    """Return the texts that are the names of files, seen from the working directory or from this folder."""
    found: dict[str, Path] = {}
    for text in (value for value in values if isinstance(value, str)):
        with contextlib.suppress(OSError, ValueError):  # a text that is no name
            at = next((at for at in (Path(text), folder / text) if at.is_file()), None)
            found |= {text: at} if at else {}
    return found


def _values_in(value: Any) -> Iterator[Any]:
    """Yield a value, or all values in a mapping or a list, at any depth."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _values_in(item)
    else:
        yield value


def _hash_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _users_files(script: Path | None, functions: Iterable[Callable[..., Any]]) -> list[Path]:
    """List the user's files that the script, if any, and the functions are in, or import from."""
    modules = _modules_of(script) if script else []
    modules += filter(None, (inspect.getmodule(_holder(function)) for function in functions))
    folders = {path.parent for module in modules if (path := _file_of(module)) and not is_of_a_library(str(path))}
    used: dict[Path, None] = {}
    for module in modules:
        _add_files(module, folders, used)
    return list(used)


def _modules_of(script: Path) -> list[ModuleType]:
    home = script.resolve()
    names = (script.name, home.name)  # to resolve the files of all modules would take most of a dry run's time
    loaded = (module for module in list(sys.modules.values()) if str(getattr(module, "__file__", "")).endswith(names))
    return [module for module in loaded if _file_of(module) == home][:1]


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
    _add_imported(path, folders, used)


def _add_imported(path: Path, folders: Iterable[Path], used: dict[Path, None]) -> None:
    """Add the files that a file imports anywhere, also in the body of a function, which may not have run yet."""
    searched = {Path(entry).resolve() for entry in sys.path}
    roots_of_names = [*folders, *(at for at in searched if any(map(at.is_relative_to, folders)))]
    for name, level in _imports_in(ast.parse(path.read_bytes())):
        roots = [*path.parents][level - 1 : level] if level else roots_of_names
        places = [root.joinpath(*name.split(".")) for root in roots]
        for place in (file for at in places for file in (at.with_name(f"{at.name}.py"), at / "__init__.py")):
            if place.is_file() and (file := place.resolve()) not in used and not is_of_a_library(str(file)):
                with contextlib.suppress(SyntaxError, ValueError):  # which fails where it is imported
                    ast.parse(file.read_bytes())
                    used[file] = None
                    _add_imported(file, folders, used)


def _imports_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the name and the level of each module that a file imports, and of names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)]
            yield from ((name.strip("."), node.level) for name in names if name)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name, call = str(node.args[0].value), ast.unparse(node.func).rpartition(".")[2]
            if call in ("import_module", "__import__") and name.strip("."):
                yield name.lstrip("."), len(name) - len(name.lstrip("."))


def _file_of(module: ModuleType | None) -> Path | None:
    """Return a module's file; None for built-in modules and notebooks."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) and file.endswith(".py") else None


def write(run: Path, files: Mapping[str, bytes]) -> None:
    """Write `source/` atomically, since a run may be killed at any moment."""
    folder = run / FOLDER
    part = part_of(folder)
    remove(part)
    part.mkdir()
    for name, content in files.items():
        (part / name).write_bytes(content)
    remove(folder)
    part.rename(folder)
