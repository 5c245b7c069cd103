"""Regroup the micro-batches of an optimizer step into packs whose losses have the same sum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lean_grpo import packing

Batch = dict[str, Any]  # tensors and lists with one entry for each completion, scalars, and None

# How TRL 1.16 sums the losses of a micro-batch of B completions. With these loss types a completion's weight is known
# in advance, so a micro-batch can be computed in parts. With any other type TRL's micro-batch stays whole.
MEANS = ("grpo", "dr_grpo", "sapo", "luspo")  # each completion's sum / B
SUMS = ("dapo", "cispo", "vespo")  # each completion's sum / a constant of the rollout
TOKEN_MEANS = ("bnpo",)  # each completion's sum / the micro-batch's tokens: stays in its micro-batch
KNOWN = MEANS + SUMS + TOKEN_MEANS


@dataclass(frozen=True)
class Plan:
    """The plan for micro-batches of the same rollout and optimizer step.

    Attributes:
        batches: TRL's own micro-batches.
        rows: all micro-batches as one.
        laid_out: prompts and completions of all rows, without padding.
        packs_of_micro_batch: each micro-step's packs (row numbers, weight). Its loss is the sum of weight × TRL's loss
            of these rows. An empty pack contributes no gradient.
        computed: (rows,) False for completions with zero gradient.
        log_probs, entropies: (rows, C), filled in pack by pack.
    """

    batches: list[Batch]
    rows: Batch
    laid_out: list[packing.Row]
    packs_of_micro_batch: list[list[tuple[list[int], float]]]
    computed: torch.Tensor
    log_probs: torch.Tensor
    entropies: torch.Tensor


def reason_against(batches: list[Batch]) -> str | None:
    """Return why packs cannot express these micro-batches, which a subclass may have made, or None."""
    for batch in batches:
        mask = batch["completion_mask"]
        if packing.has_gaps(torch.cat([batch["prompt_mask"], mask], 1), mask.shape[1]):
            return "a mask of a micro-batch has gaps"
        if (mask != mask.bool()).any():
            return "a completion_mask has other values than 0 and 1"
    return None


def joined(parts: list[Any]) -> Any:
    """Join a value of several micro-batches."""
    if isinstance(parts[0], list):
        return [entry for part in parts for entry in part]
    return torch.cat(parts) if parts[0].ndim else parts[0]


def part(rows: Batch, chosen: list[int], index: torch.Tensor) -> Batch:
    """Return these rows as a micro-batch.

    Args:
        chosen, index: their numbers, as a list and on the device.
    """
    return {
        key: [value[row] for row in chosen] if isinstance(value, list) else value[index] if value.ndim else value
        for key, value in rows.items()
    }


def plan(
    batches: list[Batch],
    loss_type: str,
    skip_dead_rows: bool,
    make_packs: Callable[[list[packing.Row], int], list[list[int]]],
) -> Plan:
    """Distribute packs of completions with a gradient over the micro-steps.

    Args:
        batches: TRL's micro-batches.
        skip_dead_rows: True if completions with zero advantage have zero gradient.
        make_packs: divides rows into packs, the same number on all processes. Its arguments are the rows, and the
            positions of a padded micro-batch.
    """
    rows = {key: joined([batch[key] for batch in batches]) for key, value in batches[0].items() if value is not None}
    mask = rows["completion_mask"]
    computed = mask.any(1)
    if skip_dead_rows:  # zero advantage, zero gradient
        # one advantage for a completion, or one for each of its tokens
        computed &= (rows["advantages"] != 0).view(len(computed), -1).any(1)
    ids, seen = (torch.cat([rows[f"prompt_{kind}"], rows[f"completion_{kind}"]], 1) for kind in ("ids", "mask"))
    laid_out = packing.rows_of(ids, seen, mask.shape[1])
    live = [row for row, moves in enumerate(computed.tolist()) if moves]
    made = make_packs([laid_out[row] for row in live], ids.numel() // len(batches))
    packs = [[live[number] for number in pack] for pack in made]
    factors = [1.0] * len(packs)
    if loss_type in MEANS:
        factors = [len(pack) * len(batches) / len(computed) for pack in packs]
    elif loss_type in TOKEN_MEANS:
        tokens = (mask * rows["tool_mask"] if "tool_mask" in rows else mask).sum(1).tolist()
        factors = [sum(tokens[row] for row in pack) / max(sum(tokens), 1) for pack in packs]
    shares, count = list(zip(packs, factors, strict=True)), len(batches)
    turns = [shares[len(shares) * turn // count : len(shares) * (turn + 1) // count] for turn in range(count)]
    log_probs, entropies = torch.zeros(2, *mask.shape, device=mask.device)
    return Plan(batches, rows, laid_out, turns, computed, log_probs, entropies)
