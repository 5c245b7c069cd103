"""What a callable of the user is, beneath its bound parameters."""

import dis
import functools
import inspect
import sys
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
    """Return the texts in the code of a function, among them the names that it may read from a row.

    Functions that it calls are read, too, unless they are a library's; and attributes of objects and classes.

    >>> sorted(mentioned(lambda text, row: row["unit"] in text))
    ['unit']
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
            waiting += one.co_consts
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, tuple | list | set | frozenset):
            waiting += one
        elif inspect.ismethod(one):
            waiting += [one.__func__, *_attributes(one.__self__)]
        elif inspect.isfunction(one):
            one = inspect.unwrap(one)
            used = set(_names_of(one.__code__))
            waiting += [one.__code__, *filter(_is_the_users, (one.__globals__.get(name) for name in used))]
            waiting += [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
        elif _is_the_users(type(one)):
            waiting += _attributes(one)
        elif _is_the_users(one):
            waiting += vars(one).values()
        elif callable(one) and not inspect.isclass(one):
            waiting += [vars(type(one)).get("__call__"), *getattr(one, "__dict__", {}).values()]
    return names


def passes_on(function: Callable[..., Any], parameter: int | None = None) -> bool:
    """True if a function may read any column: it does more with the row than to take single cells out of it.

    Args:
        parameter: which one is the row; None: its keywords.

    >>> passes_on(lambda text, row: str(row) in text, 1), passes_on(lambda text, row: row["a"] in text, 1)
    (True, False)
    """
    function = innermost(function)
    try:
        taken = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return True
    if parameter is not None:
        taken = taken[parameter : parameter + 1]
    else:
        taken = [one for one in taken if one.kind is inspect.Parameter.VAR_KEYWORD]
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return bool(taken) and (code is None or _uses_whole(code, taken[0].name))


def parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's parameters; an empty set if it does not tell.

    >>> sorted(parameters(lambda completions, **kwargs: None))
    ['completions', 'kwargs']
    """
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _uses_whole(code: types.CodeType, name: str) -> bool:
    """True if code uses the variable otherwise than in `name[…]`, `name.get(…)`, `name.pop(…)` and `… in name`."""
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        values = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in values or not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            continue
        following = steps[at + 1 :]
        if following[0].opname in ("LOAD_METHOD", "LOAD_ATTR"):
            takes_a_cell = following[0].argval in ("get", "pop")
        else:  # what takes it from the stack
            depth, user = 1 if values[-1] == name else 2, step
            for user in following:
                depth += dis.stack_effect(user.opcode, user.arg, jump=False)
                if depth <= 1 and "JUMP" not in user.opname:
                    break
            takes_a_cell = user.opname in ("BINARY_SUBSCR", "CONTAINS_OP") or user.argrepr == "[]"
        if not takes_a_cell:
            return True
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType) and name in one.co_freevars]
    return any(_uses_whole(one, name) for one in inner)


def _attributes(one: Any) -> list[Any]:
    """Return an object's attributes, and those of its classes."""
    classes = [kind for kind in type(one).__mro__ if _is_the_users(kind)]
    found = [attribute for kind in classes for attribute in vars(kind).values()]
    return [*found, *getattr(one, "__dict__", {}).values()]


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _is_the_users(one: Any) -> bool:
    """True for texts, and for functions and classes that are not a library's."""
    if inspect.isclass(one):
        module = sys.modules.get(one.__module__)
        return one.__module__ != "builtins" and _is_no_library(getattr(module, "__file__", None) or "")
    if inspect.isfunction(one):
        return _is_no_library(one.__code__.co_filename)
    return isinstance(one, str | tuple | list | dict | set | frozenset) or _is_the_users(type(one))


def _is_no_library(file: str) -> bool:
    return "site-packages" not in file and not file.startswith(sysconfig.get_path("stdlib"))
