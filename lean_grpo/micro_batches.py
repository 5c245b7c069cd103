"""The micro-steps of one optimizer step: TRL's micro-batches, regrouped into packs with the same sum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lean_grpo import packing

Batch = dict[str, Any]  # tensors with one entry for each completion, and scalars

# How TRL 1.16 adds up a micro-batch of B completions. Of these loss types a completion's share is known beforehand, so
# that a micro-batch can be computed in parts; of any other it is not, and TRL's micro-batch stays whole.
MEANS = ("grpo", "dr_grpo", "sapo", "luspo")  # each completion's sum / B
SUMS = ("dapo", "cispo", "vespo")  # each completion's sum / a constant of the rollout
TOKEN_MEANS = ("bnpo",)  # each completion's sum / the micro-batch's tokens: stays in its micro-batch
KNOWN = MEANS + SUMS + TOKEN_MEANS


@dataclass(frozen=True)
class Plan:
    """The plan for the micro-batches that share a rollout and an optimizer step.

    Attributes:
        batches: TRL's own micro-batches.
        rows: all of them together.
        laid_out: their prompts and completions without padding.
        packs_of_micro_batch: for each micro-step its packs (rows, weight): the loss is the sum of weight × TRL's loss
            of these rows. A pack without rows moves nothing.
        computed: (rows,) false where a completion cannot move the policy.
        log_probs, entropies: (rows, C), filled in as they become known.
    """

    batches: list[Batch]
    rows: Batch
    laid_out: list[packing.Row]
    packs_of_micro_batch: list[list[tuple[list[int], float]]]
    computed: torch.Tensor
    log_probs: torch.Tensor
    entropies: torch.Tensor


def plan(
    batches: list[Batch],
    loss_type: str,
    skip_dead_rows: bool,
    make_packs: Callable[[list[packing.Row], int], list[list[int]]],
) -> Plan:
    """Spread the completions that can move the policy over the micro-steps.

    Args:
        batches: TRL's micro-batches.
        skip_dead_rows: whether completions without an advantage have no gradient.
        make_packs: divides rows among as many packs as other processes have; it gets the rows, and the positions that
            TRL computes at once.
    """
    rows = {
        key: torch.cat([batch[key] for batch in batches]) if value.ndim else value
        for key, value in batches[0].items()
        if value is not None
    }
    mask = rows["completion_mask"]
    computed = mask.any(1)
    if skip_dead_rows:  # nothing but the advantage moves the policy
        computed &= rows["advantages"] != 0
    ids, seen = (torch.cat([rows[f"prompt_{kind}"], rows[f"completion_{kind}"]], 1) for kind in ("ids", "mask"))
    laid_out = packing.rows_of(ids, seen, mask.shape[1])
    live = [row for row, moves in enumerate(computed.tolist()) if moves]
    made = make_packs([laid_out[row] for row in live], ids.numel() // len(batches))
    packs = [[live[number] for number in pack] for pack in made]
    factors = [1.0] * len(packs)
    if loss_type in MEANS:
        factors = [len(pack) * len(batches) / len(computed) for pack in packs]
    elif loss_type in TOKEN_MEANS:
        tokens = [len(completion) for _, completion in laid_out]
        factors = [sum(tokens[row] for row in pack) / max(sum(tokens), 1) for pack in packs]
    shares, count = list(zip(packs, factors, strict=True)), len(batches)
    turns = [shares[len(shares) * turn // count : len(shares) * (turn + 1) // count] for turn in range(count)]
    log_probs, entropies = torch.zeros(2, *mask.shape, device=mask.device)
    return Plan(batches, rows, laid_out, turns, computed, log_probs, entropies)
