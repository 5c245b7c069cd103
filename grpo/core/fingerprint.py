"""Hash the parts of an experiment that settings do not cover: prompts, and the code of a user's functions.

Two runs with the same settings may differ in a prompt, or in the body of a reward. The hash of a function ignores
comments and layout, and includes the helpers and constants that it uses from the user's files.
"""

import ast
import functools
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from grpo.core.errors import is_of_a_library

REST = "rest of the script"  # the label of a script's code besides its settings, prompt and rewards
PLAIN = (str, bytes, int, float, complex, bool, type(None), re.Pattern)


def without_rest(labels: Iterable[str]) -> list[str]:
    """Drop REST from labels of differences unless it is the only one: a reward's helpers are part of it, too."""
    kept = list(labels)
    return [label for label in kept if label != REST] or kept


def of_text(*texts: str) -> str:
    """Return a short hash of texts, in this order."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", errors="replace")).hexdigest()[:16]


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of `functools.partial`s."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def of_code(function: Callable[..., Any]) -> str:
    """Return a short hash of a function's code, including helpers and constants that it uses from the user's files."""
    parts: list[str] = []
    _collect(function, parts, {})
    return of_text(*parts)


def of_script(path: Path, without: Collection[str]) -> str:
    """Return a short hash of a script's code without its docstring and the definitions of `without`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [statement for statement in tree.body if not _names_of(statement) & set(without)]
    if kept and isinstance(kept[0], ast.Expr) and isinstance(kept[0].value, ast.Constant):
        kept = kept[1:]
    return of_text(*map(ast.unparse, kept))


def _names_of(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _collect(value: Any, parts: list[str], seen: dict[int, Any]) -> None:
    """Append texts that identify a value, and those of the user's code that it uses."""
    if isinstance(value, PLAIN):
        parts.append(repr(value))
        return
    if id(value) in seen:  # a function that calls itself
        return
    seen[id(value)] = value  # keep the value, so that no other object gets its id
    if isinstance(value, Mapping):
        parts.append("{}")
        for key, item in value.items():
            _collect(key, parts, seen)
            _collect(item, parts, seen)
    elif isinstance(value, list | tuple):
        parts.append(type(value).__name__)
        for item in value:
            _collect(item, parts, seen)
    elif isinstance(value, set | frozenset):
        parts.extend(sorted(map(_without_address, value)))
    elif isinstance(value, functools.partial):
        _collect((value.func, value.args, value.keywords), parts, seen)
    elif isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        if file and not is_of_a_library(file):
            parts.append(_without_layout(Path(file).read_text(encoding="utf-8", errors="replace")))
    elif inspect.ismethod(value):
        _collect((value.__func__, value.__self__), parts, seen)
    elif inspect.isfunction(value):
        _collect_function(value, parts, seen)
    elif isinstance(value, type):
        if not is_of_a_library(_file_of(value)):
            parts.append(_source(value))
            attributes = {name: item for name, item in vars(value).items() if not name.startswith("__")}
            _collect([*attributes.values(), *filter(inspect.isfunction, vars(value).values())], parts, seen)
    elif not is_of_a_library(_file_of(type(value))):  # an object of a user's class
        _collect((type(value), getattr(value, "__dict__", {})), parts, seen)
    else:  # a library's object: a date, an array, a path
        parts += [type(value).__qualname__, _without_address(value)]


def _collect_function(function: Any, parts: list[str], seen: dict[int, Any]) -> None:
    code = function.__code__
    if is_of_a_library(code.co_filename):
        return
    parts.append(_source(function))
    _collect((function.__defaults__, function.__kwdefaults__), parts, seen)
    for cell in function.__closure__ or ():
        try:
            _collect(cell.cell_contents, parts, seen)
        except ValueError:  # it is empty
            continue
    for name in sorted(set(_names_in(code))):
        if name in function.__globals__:
            _collect(function.__globals__[name], parts, seen)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, including inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _without_address(value: Any) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _file_of(value: type) -> str:
    try:
        return inspect.getfile(value)
    except (TypeError, OSError):  # it is built in, or made in a notebook
        return "<built in>" if value.__module__ == "builtins" else ""


def _source(value: Any) -> str:
    """Return a function's or class's source without comments and layout; the bytecode if no file contains it."""
    try:
        return _without_layout(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError):
        code = getattr(value, "__code__", None)
        return _bytecode(code) if code else value.__qualname__


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    return repr((code.co_code, code.co_names, constants))


def _without_layout(source: str) -> str:
    try:
        return ast.unparse(ast.parse(source))
    except SyntaxError:  # the line of a lambda
        return " ".join(source.split())
