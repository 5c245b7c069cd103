"""Attention for packs in models that run on sdpa: each position attends to its own row only.

On a GPU FlashAttention 2 (the package's or torch's own) computes all segments at once. The keys of a completion are
gathered from its prompt and itself, so that a sliding window counts positions as in a row. On a CPU segments are
computed one by one. On a GPU without FlashAttention 2, sdpa computes the whole pack under a block mask: exact, but
without windows (trial.py refuses them), and most of the work is masked.
"""

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from lean_grpo import packing, wrappers
from lean_grpo.compiling import OptimizerSteps, failure, mark_dynamic
from lean_grpo.models import computed_in, windows
from lean_grpo.packing import Row

# needed from torch 2.12 on if keys have fewer heads than queries; unknown to 2.11
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
# Arguments of transformers' attention, which `_sdpa` hands on, that change its result: caps of scores, biases, sinks
NOT_HERE = "softcap", "position_bias", "s_aux"


@dataclass(frozen=True)
class Kernel:
    """A kernel for the attention of packs.

    Attributes:
        name: for messages.
        pack_tokens: the default number of positions in a pack.
        attend: FlashAttention 2 over segments. Its arguments are queries, keys and values (positions, heads, width),
            then `ends_q`, `ends_k`, `longest_q` and `longest_k` of packing.Keys, the scaling, and `before`: how many
            positions before its own a query attends to (-1: all). None: sdpa.
        by_segment: True if each segment is computed with its own keys only; False: with all keys, under a mask.
    """

    name: str
    pack_tokens: int
    attend: Callable[..., Any] | None = None
    by_segment: bool = True


def kernel(asked: str, device: torch.device, dtype: torch.dtype, config: Any) -> Kernel:
    """Choose the kernel for packs.

    Args:
        asked: `attn_implementation`; only flash_attention_2 looks for the package flash-attn.
        dtype: number format of queries and keys: autocast's, or the weights' without autocast.
        config: the model's configuration.
    """
    if not fits(device, dtype, config):
        return Kernel("sdpa", 2048, by_segment=device.type == "cpu")
    if asked == "flash_attention_2":
        try:
            from flash_attn import flash_attn_varlen_func
        except ImportError:
            pass
        else:
            return Kernel(
                "FlashAttention 2 (the package flash-attn)",
                8192,
                lambda *parts, scaling, before: flash_attn_varlen_func(
                    *parts, softmax_scale=scaling, causal=True, window_size=(before, 0)
                ),
            )
    return Kernel(
        "FlashAttention 2 (torch's own)",
        8192,
        # causal
        lambda *parts, scaling, before: varlen_attn(*parts, scale=scaling, window_size=(before, 0), **GROUPED),
    )


def fits(device: torch.device, dtype: torch.dtype, config: Any) -> bool:
    """True if FlashAttention 2 fits: Ampere or newer, 16 bits, heads of width 8, 16, …, 256, no dropout."""
    if device.type != "cuda":
        return False
    text = config.get_text_config()
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    dropout = [getattr(text, name, None) for name in ("attention_dropout", "attn_pdrop", "attn_dropout")]
    return (
        not torch.version.hip
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and dtype in (torch.bfloat16, torch.float16)
        and width <= 256
        and width % 8 == 0
        and not any(dropout)
    )


def register() -> None:
    """Teach transformers' sdpa to handle packs. Calls without a pack are unchanged."""
    AttentionInterface.register("sdpa", _sdpa)


def score(
    model: torch.nn.Module,
    kernel: Kernel,
    rows: Sequence[Row],
    packs: Sequence[Sequence[int]],
    width: int,
    device: torch.device,
    layers: OptimizerSteps | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute log-probabilities of the completions' tokens, and entropies if the model's head returns them.

    Args:
        model: a model on sdpa, after `register`, with TRL's fused head (`trl.trainer.utils.add_fused_lm_head`).
        packs: row numbers of each pack; an empty pack runs a dummy forward and adds zero.
        width: length of a row of the result.
        layers: the model's, to compute by their compiled function where all of them take packs by FlashAttention 2.

    Returns:
        Both (rows, width), 0 for padding and for rows in no pack. A backward works even if all are 0.
    """
    scored, cells = [], []
    sliding = windows(wrappers.base_of(model).config)
    for chosen in packs:
        pack = packing.lay_out(rows, chosen, width, device)
        keys = packing.keys(pack) if kernel.attend else None
        segments = Segments(pack.sizes, pack.parents, keys, kernel.attend, sliding)
        needless = kernel.by_segment and model in _WITHOUT_MASK
        mask = (
            torch.ones(1, 1, 1, 0, dtype=torch.bool, device=device) if needless else packing.visible(pack)[None, None]
        )
        compiled: Any = nullcontext()
        if layers and needless and keys and chosen:
            compiled = layers.running(_compiled(layers, segments))
        with compiled:
            output = model(
                input_ids=pack.input_ids,
                attention_mask=mask,
                position_ids=pack.position_ids,
                shift_labels=pack.labels,
                fused_lm_head=True,
                **({"pack": segments} if kernel.by_segment else {}),
            )
        if len(segments.layers) == len(sliding):
            _WITHOUT_MASK.add(model)
        outputs = (values[0] for values in (output.log_probs, output.entropy) if values is not None)
        scored.append([values.index_select(0, pack.scored) for values in outputs])
        cells.append(pack.cells)
    order = torch.cat(cells)
    filled = [
        torch.zeros(len(rows) * width, device=device).scatter(0, order, torch.cat(values)).view(len(rows), width)
        for values in zip(*scored, strict=True)
    ]
    return filled[0], filled[1] if len(filled) > 1 else None


def _compiled(layers: OptimizerSteps, segments: "Segments") -> Callable[..., Any]:
    """Return what computes a layer of a pack: the compiled function, or the layer as it is where that fails."""
    assert segments.keys and segments.attend
    views = {window: View.of(segments.keys, segments.attend, window) for window in segments.windows}

    def run(number: int, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if layers.base not in layers.refused:
            for tensor in tree_leaves((args, {**kwargs, "pack": None})):
                if isinstance(tensor, torch.Tensor) and tensor.ndim in (2, 3):
                    mark_dynamic(tensor, 1)
            try:
                return layers.compute(layer, args, {**kwargs, "pack": views[segments.windows[number]]})
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler may fail in its own way
                layers.refuse(layers.base, failure(error))
        return type(layer).forward(layer, *args, **kwargs)

    return run


# Models whose layers all take `pack`, so that none reads the mask (T × T, a gigabyte at 32,000 positions). They get a
# mask without columns, which no attention can use by mistake.
_WITHOUT_MASK: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def need_no_mask_either(known: torch.nn.Module, models: Sequence[torch.nn.Module]) -> None:
    """Let models of the same architecture do without a mask if `known` does."""
    if known in _WITHOUT_MASK:
        _WITHOUT_MASK.update(models)


@dataclass(frozen=True)
class Segments:
    """A pack's segments, passed to each layer's attention as the keyword argument `pack`."""

    sizes: list[int]
    parents: list[int]
    keys: packing.Keys | None = None  # with a kernel's `attend`
    attend: Callable[..., Any] | None = None
    windows: Sequence[int | None] = ()  # of each layer
    layers: set[torch.nn.Module] = field(default_factory=set)  # attention layers that have received it

    def window_of(self, attention: Any) -> int | None:
        """Return how many positions this attention layer sees, its own included; None: all of them."""
        return self.windows[attention.layer_idx] if any(self.windows) else None


@dataclass(frozen=True)
class View:
    """A pack's segments as a compiled layer sees them: tensors, and numbers that are the same for all packs.

    Attributes:
        lengths: tensors as long as the longest queries and keys: as a number each would be compiled anew.
    """

    index: torch.Tensor
    ends_q: torch.Tensor
    ends_k: torch.Tensor
    lengths: tuple[torch.Tensor, torch.Tensor]
    attend: Callable[..., Any]
    window: int | None

    @classmethod
    def of(cls, keys: packing.Keys, attend: Callable[..., Any], window: int | None) -> "View":
        one = keys.index[:1]
        lengths = one.expand(keys.longest_q), one.expand(keys.longest_k)
        for tensor in (keys.index, keys.ends_q, keys.ends_k, *lengths):
            mark_dynamic(tensor, 0)
        return cls(keys.index, keys.ends_q, keys.ends_k, lengths, attend, window)


def _sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    pack: Segments | View | None = None,
    grouped: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' sdpa; in a pack, each segment attends only to its own keys.

    Args:
        query: (1, heads, T, width); key and value may have fewer heads. Without a pack (rows, heads, T, width).
        pack: None: not a pack.
        grouped: T is 1, and the queries of a key's head are computed together. transformers does so, but for compiled
            layers, where it copies keys and values for each of their queries.

    Returns:
        (1, T, heads, width), and None for the weights.

    Raises:
        ValueError: the model wants something of its attention that packs do not compute.
    """
    if grouped and not any(kwargs.get(name) is not None for name in NOT_HERE):
        rows, heads, _, width = query.shape
        query = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
        return output.reshape(rows, 1, heads, value.shape[-1]), None
    if pack is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    if wanted := [name for name in NOT_HERE if kwargs.get(name) is not None]:
        raise ValueError(f"attention in packs has no {wanted[0]}")
    if isinstance(pack, Segments):
        pack.layers.add(module)
        window = pack.window_of(module)
        if pack.keys is None or pack.attend is None:
            return _one_by_one(query, key, value, dropout, scaling, pack, window), None
        pack = View.of(pack.keys, pack.attend, window)
    # under autocast, float32 rotary positions make queries and keys float32; round them, as sdpa would
    parts = [tensor[0].transpose(0, 1).to(computed_in(query)) for tensor in (query, key, value)]
    parts[1:] = [_Gather.apply(tensor, pack.index) for tensor in parts[1:]]
    ends = pack.ends_q, pack.ends_k, *(length.shape[0] for length in pack.lengths)
    return pack.attend(*parts, *ends, scaling=scaling, before=pack.window - 1 if pack.window else -1)[None], None


def _one_by_one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    scaling: float | None,
    pack: Segments,
    window: int | None,
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    queries, keys, values = (
        tensor.split(pack.sizes, dim=2) for tensor in (query, repeat_kv(key, groups), repeat_kv(value, groups))
    )
    outputs = []
    for segment, parent in enumerate(pack.parents):
        own = segment == parent
        seen = [segment] if own else [parent, segment]
        length, before = pack.sizes[segment], 0 if own else pack.sizes[parent]
        causal = own and not (window and window < length)  # needs no mask
        mask = None if causal else torch.ones(length, before + length, dtype=torch.bool).tril(before)
        if mask is not None and window:
            mask.triu_(before - window + 1)
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                queries[segment],
                torch.cat([keys[index] for index in seen], dim=2),
                torch.cat([values[index] for index in seen], dim=2),
                attn_mask=mask,
                dropout_p=dropout,
                scale=scaling,
                is_causal=causal,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


class _Gather(torch.autograd.Function):
    """Gather rows (K,) of a tensor (T, heads, width), and sum their gradients in float32.

    A prompt's rows get a gradient from each of its completions; torch would sum them in 16 bits.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.length = len(tensor)
        return tensor.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        summed = wide.new_zeros(ctx.length, *gradient.shape[1:]).index_add_(0, index, wide)
        return summed.to(gradient.dtype), None
