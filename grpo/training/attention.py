"""Packs through a model: how each attention implementation knows what a position of a pack sees.

Block masks are exact everywhere; on a CPU most of a block mask is work for nothing, so there sdpa computes each
segment by itself (a third of the time, forward and backward).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from grpo.core.settings import ScriptArguments
from grpo.training import packing
from grpo.training.packing import Pack, Row


@dataclass(frozen=True)
class Backend:
    """How packs are computed: what it is called, whether it can share prompts, and what the model is given."""

    name: str
    shares_prompts: bool
    arguments: Callable[[Pack], dict[str, Any]]
    pack_tokens: int  # positions of a pack where the user gave no number


def choose(implementation: str, device: torch.device) -> Backend | None:
    """The backend for what a model runs with (`config._attn_implementation`), or None where there is none."""
    if implementation == "sdpa" and device.type == "cpu":
        return Backend("sdpa, segment by segment", True, _block_mask_and_spans, 2048)
    if implementation == "sdpa":
        return Backend("sdpa with a block mask", True, _block_mask, 4096)
    if implementation == "eager":
        return Backend("eager with a block mask", True, _additive_mask, 2048)
    if implementation == "flex_attention":
        return Backend("FlexAttention", True, _flex, 8192)
    if "flash" in implementation:  # flash_attention_2 and 3, and the kernels of the Hub that carry their name
        return Backend("variable-length FlashAttention, prompts not shared", False, _varlen, 8192)
    return None


def budget(script: ScriptArguments, implementation: str, device: torch.device) -> int | None:
    """Tokens that a training step computes at once; None where it is not packed."""
    backend = choose(implementation, device) if script.packed and not script.use_unsloth else None
    return (script.pack_tokens or backend.pack_tokens) if backend else None


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
        pack = packing.lay_out(rows, chosen, width, device, backend.shares_prompts)
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


def _block_mask(pack: Pack) -> dict[str, Any]:
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


def _varlen(pack: Pack) -> dict[str, Any]:
    ends = torch.tensor([0, *pack.sizes], device=pack.input_ids.device).cumsum(0, dtype=torch.int32)
    longest = max(pack.sizes)
    return {
        "attention_mask": None,
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends),
        **dict.fromkeys(("max_length_q", "max_length_k"), longest),
    }


def _block_mask_and_spans(pack: Pack) -> dict[str, Any]:
    AttentionInterface.register("sdpa", _sdpa_by_segment)  # transformers' own where there are no segments
    # a model whose layers do not pass the segments on to the attention still has the mask
    given = _block_mask(pack)
    return {
        **given,
        "pack_mask": given["attention_mask"],
        "pack_sizes": pack.sizes,
        "pack_parents": pack.parents,
    }


def _sdpa_by_segment(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    pack_mask: torch.Tensor | None = None,
    pack_sizes: list[int] | None = None,
    pack_parents: list[int] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' sdpa, which computes each segment of a pack by itself.

    A model that alters the mask (learned biases, windows), or adds to the scores, has all of it computed by
    transformers' own function.

    Args:
        query: (1, heads, T, width); key and value may have fewer heads.
        pack_mask: (1, 1, T, T), the mask that the model was given; None: this is not a pack.
        pack_sizes: positions of each segment.
        pack_parents: for each segment, the one that it sees besides itself.

    Returns:
        (1, T, heads, width), and None for the weights.
    """
    adds = any(kwargs.get(name) is not None for name in ("position_bias", "softcap", "cache"))
    if pack_mask is None or pack_sizes is None or pack_parents is None or adds or not _same(attention_mask, pack_mask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    groups = query.shape[1] // key.shape[1]
    queries, keys, values = (
        tensor.split(pack_sizes, dim=2) for tensor in (query, repeat_kv(key, groups), repeat_kv(value, groups))
    )
    outputs = []
    for segment, parent in enumerate(pack_parents):
        own = segment == parent
        seen = [segment] if own else [parent, segment]
        length, before = pack_sizes[segment], 0 if own else pack_sizes[parent]
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
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _same(mask: torch.Tensor | None, given: torch.Tensor) -> bool:
    """Whether this is the mask that was given, in the same memory: comparing T * T values would take time."""
    if mask is None or mask.dtype != given.dtype or mask.shape != given.shape:
        return False
    return mask.data_ptr() == given.data_ptr() and mask.stride() == given.stride()
