"""Find groups whose rewards are equal up to rounding.

In float32 the mean of eight 0.7 is not 0.7. Stock TRL takes what is left for a difference: each completion of such a
group gets an advantage of 6e-4, and AdamW, which ignores the scale of gradients, makes full steps of it.
"""

import torch
from trl.trainer.utils import nanstd

ROUNDING = torch.finfo(torch.float32).eps  # of a weighted reward: half of it from the reward, half from the weight
EPSILON = 1e-4  # TRL's, in the division by a standard deviation


def tied(rewards: torch.Tensor, weights: torch.Tensor, group: int, normalize_first: bool = False) -> torch.Tensor:
    """Return which groups of completions have equal weighted sums of rewards up to rounding: (groups,), boolean.

    The tolerance is what rounding to float32 changes in the summands, so differences between small rewards count, and
    summands of opposite signs may cancel. A reward that does not vary in a group adds nothing to the tolerance.
    Completions without any reward are ignored. A group without any reward, or with infinite sums, is not tied.

    Args:
        rewards: (completions, functions), NaN for None.
        weights: (functions,).
        group: the number of completions in a group.
        normalize_first: divide each reward by its standard deviation in the group, as in TRL's normalize_then_sum.
    """
    values, scale = rewards.detach().cpu().double().view(-1, group, len(weights)), weights.detach().cpu().double()
    scored = ~values.isnan().all(2, keepdim=True)
    instead = torch.zeros((), dtype=torch.double)  # of None, as in TRL
    if normalize_first:
        instead, scale = values.nanmean(1, keepdim=True), scale / (nanstd(values, dim=1, keepdim=True) + EPSILON)
    summands = (values.where(~values.isnan(), instead) * scale).nan_to_num(0.0, torch.inf, -torch.inf)
    rounding = (ROUNDING * summands.abs()).where(scored, 0.0)
    varies = ~_equal(summands, rounding, scored)
    sums, rounding = ((terms * varies).sum(2, keepdim=True) for terms in (summands, rounding))
    return (_equal(sums, rounding, scored) & scored.any(1, keepdim=True)).flatten()


def _equal(values: torch.Tensor, rounding: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Compare the scored completions of each group: (groups, completions, n) → (groups, 1, n)."""
    largest, least = values.where(scored, -torch.inf).amax(1, True), values.where(scored, torch.inf).amin(1, True)
    return (largest - least <= 2 * rounding.amax(1, True)) & (largest - least).lt(torch.inf)
