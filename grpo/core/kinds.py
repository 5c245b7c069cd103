"""Check the types of values that were read from JSON, which another program, version or person may have written.

A kind is an annotation (a type, union, list, tuple, mapping, TypedDict or dataclass), or a dict of kinds by key.
"""

import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.core.errors import UserError
from grpo.core.text import shorten

WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    types.NoneType: "null",
}
LARGEST = {int: 2**53, float: sys.float_info.max}  # beyond it a float is not exact, or infinite


def require(value: Any, kind: Any, where: str) -> None:
    """Raise UserError unless a value is of a kind, at any depth.

    Keys that an object's kind does not name are ignored, and so are missing ones that it does not require.

    Args:
        where: the file, with the line.
    """
    if problem := fault(value, kind):
        raise UserError(f"{where}: {problem}; correct it")


def fault(value: Any, kind: Any) -> str:
    """Return the first fault of a value, "" if it is of the kind, as `require` says it."""
    return next(_faults(value, kind, ""), "")


def is_number(value: Any) -> bool:
    """True for a finite number.

    >>> is_number(0.5), is_number(10**400), is_number(True)
    (True, False, False)
    """
    return _is_a(value, float)


def _faults(value: Any, kind: Any, name: str) -> Iterator[str]:
    """Yield each fault of a value.

    >>> list(_faults({"ends": [{"step": "x"}]}, {"ends": list[dict[str, int | None]]}, ""))
    ['ends[0].step is "x" instead of a whole number or null']
    """
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if Any in kinds:
        return
    fitting = next((option for option in kinds if _is_a(value, option)), None)
    if fitting is None:
        yield f"{name} is {_shown(value)} instead of {' or '.join(WORDS[_type(option)] for option in kinds)}"
    elif isinstance(value, dict):
        dot, kind_of = "." if name else "", _kinds_of_keys(fitting, value)
        for key in sorted(getattr(fitting, "__required_keys__", frozenset()) - value.keys()):
            yield f"{name}{dot}{key} is missing"
        for key in filter(kind_of.__contains__, value):
            yield from _faults(value[key], kind_of[key], f"{name}{dot}{shorten(key, 40)}")
    elif isinstance(value, list):
        of_items = [option for option in typing.get_args(fitting) if option is not ...] or [Any]
        for place, item in enumerate(value):
            yield from _faults(item, of_items[place % len(of_items)], f"{name}[{place}]")


def _is_a(value: Any, kind: Any) -> bool:
    """True if a value is of a kind's type, whatever it contains."""
    wanted = _type(kind)
    if wanted in LARGEST:
        return type(value) in (int, wanted) and abs(value) <= LARGEST[wanted]
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list) and len(value) == len(typing.get_args(kind))
    return type(value) is wanted


def _type(kind: Any) -> type:
    """Return the type that json.loads makes for a kind."""
    own: Any = typing.get_origin(kind) or kind
    if isinstance(own, Mapping) or dataclasses.is_dataclass(own) or issubclass(own, Mapping):
        return dict
    return list if own is not str and issubclass(own, Sequence) else own


def _kinds_of_keys(kind: Any, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the kinds of an object's values by key; one for all keys of `dict[str, kind]`."""
    if isinstance(kind, Mapping):
        return kind
    return dict.fromkeys(value, typing.get_args(kind)[1]) if typing.get_args(kind) else _hints(kind)


_hints = functools.cache(typing.get_type_hints)


def _shown(value: Any) -> str:
    return WORDS[type(value)] if isinstance(value, list | dict) else shorten(json.dumps(value), 40)
