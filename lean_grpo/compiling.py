"""Compute a model's decoder layers by one compiled function, which all layers, widths and numbers of rows share.

A layer starts some forty kernels, most of them for a few numbers. Compiled, about half are left, and for Python the
layer is one call. Compiling takes some seconds once, if all layers share it: so the layer and its buffers are
arguments, and its number is not a constant. Where there is no compiler (Triton and a C compiler), or a layer cannot be
compiled whole, the layers run as they are, with one line.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from transformers.modeling_layers import GradientCheckpointingLayer

# Token steps from which compiling takes less time than it saves (about 2 ms each, on an H200)
WORTH = 10_000
SETTINGS = {
    "allow_unspec_int_on_nn_module": True,  # a layer's number is no constant
    "recompile_limit": 64,  # of all models of the process; a kind of layer takes one or two
}

Run = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class CompiledLayers:
    """A model's layers while a context replaces their forward.

    Attributes:
        backend: torch.compile's.
        refused: why a model's layers run as they are.
        planned: token steps that are still to come with a model.
    """

    backend: ClassVar[str] = "inductor"
    refused: ClassVar[weakref.WeakKeyDictionary[torch.nn.Module, str]] = weakref.WeakKeyDictionary()
    planned: ClassVar[weakref.WeakKeyDictionary[torch.nn.Module, int]] = weakref.WeakKeyDictionary()
    verified: ClassVar[weakref.WeakSet[torch.nn.Module]] = weakref.WeakSet()  # models whose steps agreed when compiled

    def __init__(self, base: torch.nn.Module, layers: Sequence[torch.nn.Module]) -> None:
        self.base, self.layers = base, layers
        self.function: Any = torch.compile(_forward, backend=self.backend, fullgraph=True)

    @classmethod
    def of(cls, base: Any) -> "CompiledLayers | None":
        """Return a model's layers if compiling them pays; None where they run as they are."""
        if base not in cls.planned or base in cls.refused:
            return None
        layers = layers_of(base)
        if cls.planned[base] < WORTH:
            cls.refuse(base, f"{cls.planned[base]:,} token steps would take less time than compiling")
        elif reason := reason_against(layers):
            cls.refuse(base, reason)
        else:
            return cls(base, layers)
        return None

    @classmethod
    def refuse(cls, base: Any, reason: str) -> None:
        cls.refused[base] = reason
        if PartialState().is_main_process:
            print(f"note: decoder layers are not compiled: {reason}")

    def compute(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a layer. It raises whatever compiling or the layer raises."""
        return self.function(layer, args, kwargs)

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """Replace the layers' forward by `run`, a function of the layer and its arguments."""
        for layer in self.layers:
            vars(layer)["forward"] = _Bound(run, layer)
        try:
            with torch._dynamo.config.patch(SETTINGS):
                yield
        finally:
            for layer in self.layers:
                del vars(layer)["forward"]


def layers_of(base: Any) -> list[torch.nn.Module]:
    """List a model's decoder layers."""
    return [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]


def number_of(layer: torch.nn.Module) -> int:
    """Return the index of a layer's keys and values in the cache; -1 if it does not say."""
    found: set[Any] = {getattr(module, "layer_idx", None) for module in layer.modules()} - {None}
    number = found.pop() if len(found) == 1 else -1
    return number if isinstance(number, int) else -1


def reason_against(layers: Sequence[torch.nn.Module]) -> str | None:
    """Return why these layers cannot be replaced, or None. Whether they compile is tried."""
    if not layers or [number_of(layer) for layer in layers] != list(range(len(layers))):
        return "the model's layers are not numbered"
    inside = [module for layer in layers for module in layer.modules()]
    if any("forward" in vars(module) for module in inside):
        return "another library has replaced their forward"
    if any(module._forward_hooks or module._forward_pre_hooks for module in inside):
        return "they have hooks"  # Dynamo does not ask whether another layer has the same ones
    return None


def mark_dynamic(tensor: torch.Tensor, dimension: int) -> None:
    """Compile for any size of this dimension; a size of 1 is a case of its own."""
    torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _forward(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


class _Bound:
    """`functools.partial`, without what Dynamo would guard."""

    def __init__(self, run: Run, layer: torch.nn.Module) -> None:
        self.run, self.layer = run, layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.layer, args, kwargs)
