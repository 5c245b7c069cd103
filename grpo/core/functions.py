"""Look beneath the bound parameters of the user's callables."""

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
    names, visited, waiting = set[str](), set[int](), list[Any]([function])
    while waiting:
        item: Any = waiting.pop()
        if isinstance(item, functools.partial):
            waiting += [*item.args, *item.keywords.values()]
            item = innermost(item)
        if id(item) in visited or len(visited) > MOST_READ:
            continue
        visited.add(id(item))
        if isinstance(item, str):
            names.add(item)
        elif isinstance(item, types.CodeType):
            waiting += item.co_consts
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, tuple | list | set | frozenset):
            waiting += item
        elif inspect.ismethod(item):
            waiting += [item.__func__, *_attributes(item.__self__)]
        elif inspect.isfunction(item):
            item = inspect.unwrap(item)
            used = set(_names_of(item.__code__))
            waiting += [item.__code__, *filter(_is_the_users, (item.__globals__.get(name) for name in used))]
            waiting += [cell.cell_contents for cell in item.__closure__ or () if cell != types.CellType()]
        elif _is_the_users(type(item)):
            waiting += _attributes(item)
        elif _is_the_users(item):
            waiting += vars(item).values()
        elif callable(item) and not inspect.isclass(item):
            waiting += [vars(type(item)).get("__call__"), *getattr(item, "__dict__", {}).values()]
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
        taken = [argument for argument in taken if argument.kind is inspect.Parameter.VAR_KEYWORD]
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
    inner = [
        constant
        for constant in code.co_consts
        if isinstance(constant, types.CodeType) and name in constant.co_freevars
    ]
    return any(_uses_whole(constant, name) for constant in inner)


def _attributes(instance: Any) -> list[Any]:
    """Return an object's attributes, and those of its classes."""
    classes = [kind for kind in type(instance).__mro__ if _is_the_users(kind)]
    of_classes = [attribute for kind in classes for attribute in vars(kind).values()]
    return [*of_classes, *getattr(instance, "__dict__", {}).values()]


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _is_the_users(item: Any) -> bool:
    """True for texts, and for functions and classes that are not a library's."""
    if inspect.isclass(item):
        module = sys.modules.get(item.__module__)
        return item.__module__ != "builtins" and _is_no_library(getattr(module, "__file__", None) or "")
    if inspect.isfunction(item):
        return _is_no_library(item.__code__.co_filename)
    return isinstance(item, str | tuple | list | dict | set | frozenset) or _is_the_users(type(item))


def _is_no_library(file: str) -> bool:
    return "site-packages" not in file and not file.startswith(sysconfig.get_path("stdlib"))
