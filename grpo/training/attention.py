"""Packs through a model: how each attention implementation knows what a position of a pack sees.

Block masks are exact everywhere, but most of a block mask is work for nothing. So sdpa and FlashAttention compute each
segment with what it sees: on a CPU one by one, on a GPU all at once by variable-length attention, whose keys are
gathered from the prompt that a completion shares and from the completion itself.

Variable-length attention is torch's own (`torch.nn.attention.varlen`, the FlashAttention 2 that torch contains), so
that no package is needed. It has the same arguments in torch 2.11 to 2.13, but for `enable_gqa`, which 2.12 asks for
and 2.11 does not know; its kernels take fewer heads of keys in all of them.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from grpo.training import packing
from grpo.training.packing import Pack, Row

SIXTEEN_BITS = (torch.bfloat16, torch.float16)  # what FlashAttention computes in
WIDEST_HEAD = 256
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


@dataclass(frozen=True)
class Backend:
    """A way of computing packs.

    Attributes:
        name: what it is called where people read it.
        implementation: what the model runs with (`config._attn_implementation`).
        arguments: what the model is given for a pack, besides its tokens and positions.
        pack_tokens: positions of a pack where the user gave no number.
        multiple: the length of a pack is a multiple of it.
        dense: whether each layer computes the whole T × T square.
        note: why there is nothing better, where there should be.
    """

    name: str
    implementation: str
    arguments: Callable[[Pack], dict[str, Any]]
    pack_tokens: int
    multiple: int = 1
    dense: bool = False
    note: str | None = None


def candidates(
    implementation: str,
    device: torch.device,
    dtype: torch.dtype,
    config: PretrainedConfig | None = None,
) -> list[Backend]:
    """The ways of computing packs with what a model runs with, the best first; none where none is known.

    Args:
        implementation: `config._attn_implementation`.
        dtype: of the queries and keys: autocast's, or the weights' without autocast.
        config: the model's; None: nothing is known of it.
    """
    if implementation == "sdpa" and device.type == "cuda":
        why = why_no_varlen(device, dtype, config)
        note = f"packs are computed under a block mask: {why}" if why else None
        # lengths are rounded up, as each new shape costs a GPU a plan, and odd ones have slower kernels
        mask = Backend("sdpa with a block mask", "sdpa", block_mask, 2048, multiple=256, dense=True, note=note)
        return [mask] if why else [Backend("variable-length attention", "sdpa", _varlen, 8192), mask]
    if implementation == "sdpa":
        return [Backend("sdpa, segment by segment", "sdpa", _by_segment, 2048)]
    if implementation == "eager":
        return [Backend("eager with a block mask", "eager", _additive_mask, 2048, dense=True)]
    if implementation == "flex_attention":
        return [Backend("FlexAttention", "flex_attention", _flex, 8192)]
    if "flash" in implementation:  # flash_attention_2 and 3, and the kernels of the Hub that carry their name
        arguments = functools.partial(_flash, implementation)
        return [Backend("variable-length FlashAttention", implementation, arguments, 8192)]
    return []


def why_no_varlen(
    device: torch.device,
    dtype: torch.dtype,
    config: PretrainedConfig | None = None,
) -> str | None:
    """Why torch's variable-length attention cannot compute this model's packs on this GPU; see `candidates`.

    Settled from torch's sources (flash_api.cpp): Ampere or newer, 16 bits, heads of at most 256 numbers and a multiple
    of 8, no dropout inside attention. Models whose layers differ from their configuration are sorted out layer by
    layer, in `_sdpa_of_packs`.
    """
    if torch.version.hip:
        return "torch's variable-length attention is only known on NVIDIA GPUs"
    here = torch.cuda.is_available()
    if here and torch.cuda.get_device_capability(device) < (8, 0):
        return "torch's variable-length attention needs a GPU of the Ampere generation or newer"
    if here and not torch.backends.cuda.is_flash_attention_available():
        return "this torch was built without FlashAttention, and so without variable-length attention"
    if dtype not in SIXTEEN_BITS:
        return f"torch's variable-length attention computes in 16 bits, and this run in {str(dtype)[6:]}"
    text: Any = config.get_text_config() if config else None
    width = getattr(text, "head_dim", None)
    if width is None and hasattr(text, "hidden_size") and hasattr(text, "num_attention_heads"):
        width = text.hidden_size // text.num_attention_heads
    if isinstance(width, int) and not _fits(width):
        return f"torch's variable-length attention takes heads of at most {WIDEST_HEAD}, by eights, and not of {width}"
    dropout = [getattr(text, name, None) for name in ("attention_dropout", "attn_pdrop", "attn_dropout")]
    if any(isinstance(share, float) and share > 0 for share in dropout):
        return "torch's variable-length attention has no dropout, which this model's attention has"
    return None


def _fits(width: int) -> bool:
    return width <= WIDEST_HEAD and width % 8 == 0


def computing_dtype(mixed: str, weights: torch.dtype) -> torch.dtype:
    """What a model's attention computes in: autocast's number format (bf16, fp16 or no), or that of the weights."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed, weights)


def of_settings(
    settings: Mapping[str, Any],
    device: torch.device,
    config: PretrainedConfig | None = None,
) -> Backend | None:
    """The backend that a run with all these settings begins with, as far as they say; None: its steps are not packed.

    Args:
        config: the model's; None: nothing is known of it.
    """
    if not settings["packed"] or settings["use_unsloth"]:
        return None
    mixed = "bf16" if settings["bf16"] else "fp16" if settings["fp16"] else "no"
    dtype = computing_dtype(mixed, getattr(torch, str(settings["dtype"]), torch.float32))  # auto: what the files hold
    implementation = settings["attn_implementation"] or "sdpa"
    return next(iter(candidates(implementation, device, dtype, config)), None)


def score(
    model: torch.nn.Module,
    backend: Backend,
    rows: Sequence[Row],
    packs: Sequence[Sequence[int]],
    width: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of the completions' tokens, and entropies where the model's head gives them.

    Args:
        model: with TRL's fused head (`trl.trainer.utils.add_fused_lm_head`).
        packs: numbers of rows; an empty one is computed and counts for nothing.
        width: length of a row of the result.

    Returns:
        Both (rows, width), 0 where there is no token or it is in no pack. They depend on the weights even where all
        are 0.
    """
    scored, cells = [], []
    for chosen in packs:
        pack = packing.lay_out(rows, chosen, width, device, backend.multiple)
        output = model(
            input_ids=pack.input_ids,
            position_ids=pack.position_ids,
            shift_labels=pack.labels,
            fused_lm_head=True,
            **backend.arguments(pack),
        )
        where = pack.labels != packing.IGNORED
        scored.append([values[where] for values in (output.log_probs, output.entropy) if values is not None])
        cells.append(pack.cells)
    order = torch.cat(cells)
    filled = [
        torch.zeros(len(rows) * width, device=device).scatter(0, order, torch.cat(values)).view(len(rows), width)
        for values in zip(*scored, strict=True)
    ]
    return filled[0], filled[1] if len(filled) > 1 else None


# --- What a model is given ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segments:
    """What a layer's attention is given besides its mask, as the keyword argument `pack`."""

    mask: torch.Tensor | None  # (1, 1, T, T), what the model was given
    sizes: list[int]
    parents: list[int]
    keys: packing.Keys | None  # None: computed segment by segment


def block_mask(pack: Pack) -> dict[str, Any]:
    return {"attention_mask": packing.visible(pack)[None, None]}


def _additive_mask(pack: Pack) -> dict[str, Any]:
    seen = packing.visible(pack)[None, None]
    return {"attention_mask": torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -torch.inf)}


def _flex(pack: Pack) -> dict[str, Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    own, parent = packing.segments(pack)

    def sees(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & ((own[query] == own[key]) | (parent[query] == own[key]))

    length = len(own)
    return {"attention_mask": create_block_mask(sees, 1, None, length, length, device=own.device.type)}


def _by_segment(pack: Pack, keys: packing.Keys | None = None) -> dict[str, Any]:
    AttentionInterface.register("sdpa", _sdpa_of_packs)  # transformers' own where there is no pack
    # a model whose layers do not pass the segments on to the attention still has the mask
    given = block_mask(pack)
    return {**given, "pack": Segments(given["attention_mask"], pack.sizes, pack.parents, keys)}


def _varlen(pack: Pack) -> dict[str, Any]:
    return _by_segment(pack, packing.keys(pack))


def _flash(implementation: str, pack: Pack) -> dict[str, Any]:
    registered = AttentionInterface()[implementation]
    if getattr(registered, "func", None) is not _flash_of_packs:
        AttentionInterface.register(implementation, functools.partial(_flash_of_packs, registered))
    return {"attention_mask": None, "pack": Segments(None, pack.sizes, pack.parents, packing.keys(pack))}


# --- What a layer computes ----------------------------------------------------------------------------------------


def _sdpa_of_packs(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    pack: Segments | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' sdpa, which computes each segment of a pack with nothing but what it sees.

    A layer that alters the mask (learned biases, windows) or adds to the scores has all of it computed by
    transformers' own function, and so has one that variable-length attention cannot take.

    Args:
        query: (1, heads, T, width); key and value may have fewer heads.
        pack: None: this is not a pack.

    Returns:
        (1, T, heads, width), and None for the weights.
    """
    adds = any(kwargs.get(name) is not None for name in ("position_bias", "softcap", "cache"))
    if pack is not None and not adds and _same(attention_mask, pack.mask):
        if pack.keys is None:
            return _one_by_one(query, key, value, dropout, scaling, pack), None
        # rotary positions in float32 make queries and keys float32 under autocast, which sdpa, too, would round
        device = query.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        sizes = {query.shape[-1], key.shape[-1], value.shape[-1]}
        if dtype in SIXTEEN_BITS and len(sizes) == 1 and _fits(query.shape[-1]) and not dropout:
            return _all_at_once(query.to(dtype), key.to(dtype), value.to(dtype), scaling, pack.keys), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)


def _one_by_one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    scaling: float | None,
    pack: Segments,
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
        mask = None if own else torch.ones(length, before + length, dtype=torch.bool).tril(before)
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                queries[segment],
                torch.cat([keys[index] for index in seen], dim=2),
                torch.cat([values[index] for index in seen], dim=2),
                attn_mask=mask,
                dropout_p=dropout,
                scale=scaling,
                is_causal=own,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _all_at_once(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, keys: packing.Keys
) -> torch.Tensor:
    attend: Callable[..., Any] = varlen_attn
    gathered = [_Gather.apply(tensor[0].transpose(0, 1), keys.index) for tensor in (key, value)]
    output = attend(
        query[0].transpose(0, 1),
        *gathered,
        keys.ends_q,
        keys.ends_k,
        keys.longest_q,
        keys.longest_k,
        scale=scaling,
        window_size=(-1, 0),  # causal
        **GROUPED,
    )
    return cast(torch.Tensor, output)[None]


def _flash_of_packs(
    registered: Callable[..., Any],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    pack: Segments | None = None,
    **kwargs: Any,
) -> Any:
    """Transformers' FlashAttention (`registered`), with the keys that the segments of a pack see."""
    if pack is None or pack.keys is None:
        return registered(module, query, key, value, attention_mask, *args, **kwargs)
    keys = pack.keys
    key, value = (_Gather.apply(part[0].transpose(0, 1), keys.index).transpose(0, 1)[None] for part in (key, value))
    ends = {"cu_seq_lens_q": keys.ends_q, "cu_seq_lens_k": keys.ends_k}
    longest = {"max_length_q": keys.longest_q, "max_length_k": keys.longest_k}
    return registered(module, query, key, value, None, *args, **kwargs, **ends, **longest)


class _Gather(torch.autograd.Function):
    """Rows of a tensor (T, heads, width) by their numbers (K,): (K, heads, width).

    A prompt's rows get a gradient from each of its completions; torch would add these up in 16 bits.
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


def _same(mask: torch.Tensor | None, given: torch.Tensor | None) -> bool:
    """Whether this is the mask that was given, in the same memory: comparing T * T values would take time."""
    if mask is None or given is None or mask.dtype != given.dtype or mask.shape != given.shape:
        return False
    return mask.data_ptr() == given.data_ptr() and mask.stride() == given.stride()
