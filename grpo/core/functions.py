"""What a callable of the user is, beneath its bound parameters."""

import functools
import inspect
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any

MOST_READ = 10_000  # functions and constants


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of `functools.partial`s."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def mentioned(function: Callable[..., Any]) -> set[str]:
    """Return the names that a function may read from a row: its parameters, and the texts and attributes of its code.

    Functions that it calls are read, too, unless they are a library's.

    >>> sorted(mentioned(lambda text, row: row["unit"] in text))
    ['row', 'text', 'unit']
    """
    names, seen, waiting = set[str](), set[int](), list[Any]([function])
    while waiting:
        one: Any = waiting.pop()
        if isinstance(one, functools.partial):
            waiting += [*one.args, *one.keywords.values()]
            one = innermost(one)
        if id(one) in seen or len(seen) > MOST_READ:
            continue
        seen.add(id(one))
        if isinstance(one, str):
            names.add(one)
        elif isinstance(one, types.CodeType):
            names.update(one.co_varnames, one.co_names)
            waiting += one.co_consts
        elif isinstance(one, tuple | list | set | frozenset | dict):
            waiting += one
        elif inspect.ismethod(one):
            waiting += [one.__func__, *vars(one.__self__).values()] if hasattr(one.__self__, "__dict__") else []
        elif inspect.isfunction(one):
            one = inspect.unwrap(one)
            used = set(_names_of(one.__code__))
            waiting += [one.__code__, *filter(_is_the_users, (one.__globals__.get(name) for name in used))]
            waiting += [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
        elif callable(one) and not inspect.isclass(one):
            waiting += [vars(type(one)).get("__call__"), *getattr(one, "__dict__", {}).values()]
    return names


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _is_the_users(one: Any) -> bool:
    """True for texts, and for functions that are not a library's."""
    if inspect.isfunction(one):
        file = one.__code__.co_filename
        return "site-packages" not in file and not file.startswith(sysconfig.get_path("stdlib"))
    return isinstance(one, str | tuple | list)
