"""RMS norms as one kernel: torch's own, for norms of a model that compute the same.

A model's own RMS norm is eight operations, each of which reads and writes all positions. torch's `rms_norm` is one
kernel on a GPU, and nearer to the exact value, since it rounds once. Which norms equal it is not known by name but
tried in float64. All others stay as they are, and so do all outside 16 bits.
"""

import copy
import inspect
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import rms_norm

SMALL_FORMATS = torch.bfloat16, torch.float16
EPSILONS = "variance_epsilon", "eps", "epsilon"  # attributes of norms
ROUNDING = 1e-6  # largest relative difference of equal norms, since most compute in float32 whatever they get


def fits(device: torch.device) -> bool:
    """True if the kernel pays: on a GPU, but not on AMD's, where some have wrong gradients (pytorch#183861)."""
    return device.type == "cuda" and not torch.version.hip


def replace(*models: torch.nn.Module) -> None:
    """Compute the RMS norms of models by torch's kernel from now on, in 16 bits; `restore` undoes it.

    The norms get a `forward` of their own. It takes weights from the module, so that copies, shards and adapters work.
    """
    for module in _modules(models):
        if "forward" not in vars(module) and (forward := _equal(module)):  # nobody else has replaced it
            module.forward = MethodType(forward, module)


def restore(*models: torch.nn.Module) -> None:
    """Compute the norms of models as their classes do again."""
    for module in _modules(models):
        if is_replaced(module):
            del module.forward


def is_replaced(module: torch.nn.Module) -> bool:
    """True for a norm that torch's kernel computes."""
    return getattr(vars(module).get("forward"), "__func__", None) in (_by_weight, _by_one_plus_weight)


def _modules(models: tuple[torch.nn.Module, ...]) -> list[Any]:
    return [module for model in models for module in model.modules()]


def _by_weight(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    if not _in_16_bits(self.weight, hidden_states):
        return type(self).forward(self, hidden_states)
    with _without_autocast(hidden_states):
        return rms_norm(hidden_states, self.weight.shape, self.weight, _epsilon(self))


def _by_one_plus_weight(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    if not _in_16_bits(self.weight, hidden_states):
        return type(self).forward(self, hidden_states)
    with _without_autocast(hidden_states):  # in float32, since 16 bits would round 1 + weight
        wide = rms_norm(hidden_states.float(), self.weight.shape, 1 + self.weight.float(), _epsilon(self))
        return wide.to(hidden_states.dtype)


# Pickled methods are looked up by name: the norms of an unpickled model are computed by their classes
_by_weight.__name__ = _by_one_plus_weight.__name__ = "forward"


def _in_16_bits(weight: torch.Tensor, hidden_states: torch.Tensor) -> bool:
    """True if both have the same 16-bit format: torch computes others in several kernels."""
    return weight.dtype == hidden_states.dtype and weight.dtype in SMALL_FORMATS


def _without_autocast(tensor: torch.Tensor) -> Any:
    """Return a context without autocast, which would cast to float32 and return that."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _epsilon(module: Any) -> float | None:
    values = (getattr(module, name, None) for name in EPSILONS)
    return next((value for value in values if isinstance(value, float)), None)


def _equal(module: Any) -> Any:
    """Return the function above that equals a module's forward, or None."""
    kind, epsilon = type(module), _epsilon(module)
    shape: Any = getattr(module._parameters.get("weight"), "shape", ())
    if kind.__module__.startswith("torch.") or len(module._parameters) != 1 or len(shape) != 1 or epsilon is None:
        return None
    if not shape[0] or len(inspect.signature(kind.forward).parameters) != 2:  # ZeRO-3's part of a weight; a gate
        return None
    chance = torch.Generator().manual_seed(0)  # not the run's
    scales = torch.logspace(-4, 4, 9, dtype=torch.float64)[:, None]  # of the epsilon, and far larger
    weight, numbers = (torch.randn(*size, generator=chance, dtype=torch.float64) for size in (shape, (2, 9, *shape)))
    numbers = numbers * scales
    try:
        found, small = (
            _computed(module, weight.to(dtype), numbers.to(dtype)) for dtype in (torch.float64, torch.bfloat16)
        )
    except Exception:  # custom code may raise anything
        return None
    if getattr(found, "shape", None) != numbers.shape or small.dtype != torch.bfloat16:
        return None
    for forward, factor in ((_by_weight, weight), (_by_one_plus_weight, 1 + weight)):
        expected = rms_norm(numbers, shape, factor, epsilon)
        if ((found - expected).norm(dim=-1) <= ROUNDING * expected.norm(dim=-1)).all():
            return forward
    return None


def _computed(module: Any, weight: torch.Tensor, numbers: torch.Tensor) -> Any:
    """Compute a module's own forward with another weight."""
    probe = copy.copy(module)
    probe._parameters = {"weight": torch.nn.Parameter(weight, requires_grad=False)}
    return type(module).forward(probe, numbers)
