"""What a model's configuration, signature and device say about how it computes."""

import sys
from collections.abc import Set
from inspect import signature
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer


def parameters_of(model: Any) -> Set[str]:
    """Return the names of the arguments of the model's forward."""
    return signature(type(model).forward).parameters.keys()


def cache_argument(model: Any) -> str | None:
    """Return the name of the cache in the model's forward (transformers 5.24 renamed it); None without one."""
    return next((name for name in ("cache", "past_key_values") if name in parameters_of(model)), None)


def has_plain_cache(model: Any) -> bool:
    """True if the model caches keys and values alone: of each position, or of a window that its masks have, too."""
    try:
        layers, slides = DynamicCache(config=model.config).layers, windows(model.config)
    except Exception:  # configurations lack what transformers reads (Blt), and custom ones may raise anything
        return False
    kinds = DynamicLayer, DynamicSlidingWindowLayer
    if model._is_stateful or any(type(layer) not in kinds for layer in layers):
        return False
    if [getattr(layer, "sliding_window", None) for layer in layers] != slides:  # chunks are cached as windows are
        return False
    # a window has to be in the model's masks, and not only in its cache (Moshi)
    places = {sys.modules[type(module).__module__] for module in model.modules()}
    return not any(slides) or any(hasattr(place, "create_sliding_window_causal_mask") for place in places)


def windows(config: Any) -> list[int | None]:
    """List how many positions each layer attends to at most, itself included; None: all of them."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if (types := getattr(text, "layer_types", None)) is None:
        return [window] * text.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in types]


def computed_in(tensor: torch.Tensor) -> torch.dtype:
    """Return the number format in which attention takes this tensor: autocast's, or its own without autocast."""
    device = tensor.device.type
    cast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if cast else tensor.dtype


def on_gpu(model: Any) -> bool:
    return model.device.type == "cuda"


def runs_on_sdpa(model: Any) -> bool:
    return model.config._attn_implementation == "sdpa"
