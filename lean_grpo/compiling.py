"""Compute a model's decoder layers by one compiled function, which all layers, widths and numbers of rows share.

A layer starts some forty kernels, most of them for a few numbers. Compiled, about half are left, and for Python the
layer is one call. Compiling takes some seconds, once if all layers share it: so the layer and its buffers are
arguments, and its number is not a constant. Packs take it once for each of training, scoring and the trial at the
start. Where there is no compiler (Triton and a C compiler), where a layer cannot be compiled whole or layers differ
too much, they run as they are, with one line.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
from accelerate import PartialState
from torch._dynamo.utils import counters
from transformers.modeling_layers import GradientCheckpointingLayer

from lean_grpo import norms

SETTINGS = {
    "allow_unspec_int_on_nn_module": True,  # a layer's number is no constant
    "recompile_limit": 64,  # of all models of the process
}
KINDS = 4  # most compilations in one pass through the layers: dense ones and experts, with and without a window

Models = weakref.WeakKeyDictionary[torch.nn.Module, Any]


class CompiledLayers:
    """A model's layers while a context replaces their forward; a subclass for each way to compute them.

    Attributes:
        forward: computes a layer with its arguments. Each subclass has one, since Dynamo keeps what it compiled by
            function.
        unit: what compiling makes faster.
        worth: number of them from which compiling takes less time than it saves.
        backend: torch.compile's.
        planned: how many are still to come with a model.
        refused: why a model's layers run as they are.
        verified: models whose compiled layers agreed with those as they are.
    """

    forward: ClassVar[Any]
    unit: ClassVar[str]
    worth: ClassVar[int]
    backend: ClassVar[Any] = "inductor"
    planned: ClassVar[Models]
    refused: ClassVar[Models]
    verified: ClassVar[Models]

    def __init_subclass__(cls) -> None:
        cls.planned, cls.refused, cls.verified = Models(), Models(), Models()

    def __init__(self, base: torch.nn.Module, layers: Sequence[torch.nn.Module]) -> None:
        self.base, self.layers = base, layers
        self.function: Any = torch.compile(self.forward, backend=self.backend, fullgraph=True)

    @classmethod
    def plan(cls, base: Any, count: int) -> None:
        """Say how many are to come with a model from now on."""
        cls.planned[base] = count
        cls.refused.pop(base, None)

    @classmethod
    def of(cls, base: Any) -> Self | None:
        """Return a model's layers if compiling them pays; None where they run as they are."""
        if base not in cls.planned or base in cls.refused:
            return None
        layers = layers_of(base)
        if cls.planned[base] < cls.worth:
            cls.refuse(base, f"it would take longer than it saves in {cls.planned[base]:,} {cls.unit}")
        elif reason := reason_against(layers):
            cls.refuse(base, reason)
        else:
            return cls(base, layers)
        return None

    @classmethod
    def refuse(cls, base: Any, reason: str) -> None:
        cls.refused[base] = reason
        if PartialState().is_main_process:
            print(f"note: layers are not compiled for {cls.unit}: {reason}")

    def compute(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a layer by the compiled function. It raises whatever compiling or the layer raises."""
        before = counters["stats"]["unique_graphs"]
        output = self.function(layer, args, kwargs)
        self.made += counters["stats"]["unique_graphs"] - before
        if self.made > KINDS:
            raise RuntimeError(f"the layers differ: more than {KINDS} would be compiled")
        return output

    @contextlib.contextmanager
    def running(self, run: Callable[[int, Any, tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
        """Replace the layers' forward by `run`, a function of the layer's number, the layer and its arguments."""
        self.made = 0  # compilations in this context
        try:
            for number, layer in enumerate(self.layers):
                vars(layer)["forward"] = _bound(run, number, layer)
            with torch._dynamo.config.patch(SETTINGS):
                yield
        finally:
            for layer in self.layers:
                vars(layer).pop("forward", None)


class TokenSteps(CompiledLayers):
    """Layers for a token of each row, over buffers (decoding.py)."""

    unit, worth = "token steps", 10_000  # each 2 ms faster on an H200, where compiling took 7 s

    @staticmethod
    def forward(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return type(layer).forward(layer, *args, **kwargs)


class OptimizerSteps(CompiledLayers):
    """Layers for packs, forward and backward (attention.py)."""

    unit, worth = "optimizer steps", 1_000  # compiling them, and their backward, takes longer

    @staticmethod
    def forward(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return type(layer).forward(layer, *args, **kwargs)


def _bound(run: Callable[..., Any], number: int, layer: torch.nn.Module) -> Callable[..., Any]:
    return lambda *args, **kwargs: run(number, layer, args, kwargs)


def layers_of(base: Any) -> list[torch.nn.Module]:
    """List a model's decoder layers."""
    return [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]


def reason_against(layers: Sequence[torch.nn.Module]) -> str | None:
    """Return why these layers cannot be replaced, or None. Whether they compile is tried."""
    if not layers or [_number_of(layer) for layer in layers] != list(range(len(layers))):
        return "the model's layers are not numbered"
    inside = [module for layer in layers for module in layer.modules()]
    if any("forward" in vars(module) and not norms.is_replaced(module) for module in inside):
        return "another library has replaced their forward"
    if any(module._forward_hooks or module._forward_pre_hooks for module in inside):
        return "they have hooks"  # Dynamo does not ask whether another layer has the same ones
    return None


def recomputes_outside() -> bool:
    """True if transformers checkpoints a layer's call, and not its forward, which is itself again by the backward."""
    return "__call__" in vars(GradientCheckpointingLayer)


def _number_of(layer: torch.nn.Module) -> Any:
    """Return the index of a layer's keys and values in the cache; None if it does not say."""
    found = {getattr(module, "layer_idx", None) for module in layer.modules()} - {None}
    return found.pop() if len(found) == 1 else None


def mark_dynamic(tensor: torch.Tensor, dimension: int) -> None:
    """Compile for any size of this dimension; a size of 1 is a case of its own."""
    torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def failure(error: Exception) -> str:
    """Say that a compiler failed, which each does in its own way."""
    return f"they cannot be compiled ({in_one_line(error)})"
