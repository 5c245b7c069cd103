"""What a callable of the user is, beneath its bound parameters."""

import functools
from collections.abc import Callable
from typing import Any


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of `functools.partial`s."""
    while isinstance(function, functools.partial):
        function = function.func
    return function
