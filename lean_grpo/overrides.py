"""Find what overrides the methods that a library's own code calls on `self`.

The names are read from the library's bytecode, and an override is looked for in every class of an object and in the
object itself: a subclass, a mixin before or behind, `trainer._compute_loss = …`, a replaced method of the library.
"""

import contextlib
import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])
DECORATORS = {"contextlib", "torch", "transformers"}  # packages that a library's own methods are wrapped by
_VOUCHED: list[Any] = []  # as objects: functools.wraps would copy an attribute to whatever wraps them


def same_loss(method: Method) -> Method:
    """Declare that an override changes neither micro-batches nor their loss, so that packs stay exact with it.

    The outermost decorator of a method that only surrounds `super()`'s, to time it for example.
    """
    _VOUCHED.append(method)
    return method


@contextlib.contextmanager
def replaced(thing: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Replace methods of an object, by name."""
    found = vars(thing)
    earlier = {name: found[name] for name in methods if name in found}
    found.update(methods)
    try:
        yield
    finally:
        for name in methods:
            del found[name]
        found.update(earlier)


class Methods:
    """The methods that a class calls on `self`, directly or not, as they were when this was made."""

    def __init__(
        self, stock: type, *entries: str, beyond: Sequence[str] = (), libraries: tuple[str, ...] = ()
    ) -> None:
        """Read them.

        Args:
            stock: a library's class.
            entries: the methods to start from.
            beyond: methods that may be overridden, with all that only they call.
            libraries: packages whose classes may override the other methods, but no entry.
        """
        self.stock, self.entries, self.libraries = stock, entries, libraries
        self.members: dict[str, list[Any]] = {}  # by name, what each of stock's classes has for it
        names = list(entries)
        while names:
            name = names.pop()
            owners = [cls for cls in stock.__mro__ if cls is not object and name in vars(cls)]
            if not owners or name in self.members or name in beyond:
                continue
            members = [_function(vars(cls)[name]) for cls in owners]
            # one that another module has put there before is an override, too
            self.members[name] = [
                member
                for cls, member in zip(owners, members, strict=True)
                if not (callable(member) or hasattr(member, "__get__")) or _comes_from(member, (cls.__module__,))
            ]
            names += [called for member in members for called in _called(member)]

    def override(self, thing: Any, behind: type | None = None) -> str | None:
        """Name the first override in an object or its classes, as `Mine overrides compute_loss`; None without one.

        Args:
            behind: look for an entry alone, in the classes that this one's `super()` reaches.
        """
        classes = type(thing).__mro__
        owners = classes[classes.index(behind) + 1 :] if behind else (thing, *classes)
        for owner in owners:
            found = vars(owner)
            for name in self.entries if behind else self.members:
                if name in found and not self._is_known(owner, name, _function(found[name])):
                    if owner is thing or owner in self.stock.__mro__:
                        return f"{name} of {type(thing).__name__ if owner is thing else owner.__name__} is replaced"
                    return f"{owner.__name__} overrides {name}"
        return None

    def _is_known(self, owner: Any, name: str, member: Any) -> bool:
        may_override = isinstance(owner, type) and name not in self.entries  # an object is nobody's but the user's
        if may_override and owner.__module__.startswith(self.libraries) and _comes_from(member, self.libraries):
            return True
        return any(member is known for known in (*self.members[name], *_VOUCHED))


def _comes_from(member: Any, modules: tuple[str, ...]) -> bool:
    """True if a function is of these modules, and whatever wraps it of its package or of DECORATORS.

    Its globals say so: `functools.wraps` gives a wrapper the name and module of what it wraps.
    """
    found = []
    while member is not None:
        found.append(getattr(member, "__globals__", {}).get("__name__", ""))
        member = getattr(member, "__wrapped__", None)
    *around, own = found
    packages = {own.partition(".")[0], *DECORATORS}
    return own.startswith(modules) and all(name.partition(".")[0] in packages for name in around)


def _function(member: Any) -> Any:
    """Return the function of a method, a static method or a property."""
    return getattr(member, "__func__", None) or getattr(member, "fget", None) or member


def _called(member: Any) -> Iterator[str]:
    code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
    return _asked_of_self(code) if code else iter(())


def _asked_of_self(code: CodeType) -> Iterator[str]:
    """Yield the names of the attributes that this code, and code inside it, reads from `self`."""
    before: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and before == "self":
            yield instruction.argval
        # newer Pythons load two variables at once
        loaded = instruction.argval
        before = loaded[-1] if loaded and isinstance(loaded, tuple) else loaded
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _asked_of_self(constant)
