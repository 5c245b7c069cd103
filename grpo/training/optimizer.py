"""torch-optimi's StableAdamW (`optim: stable_adamw`), made to work everywhere and to move bfloat16 weights at once."""

from typing import Any

import optimi
import torch


def use_no_triton(optimizer: Any) -> None:
    """Let an optimizer of torch-optimi compute with torch alone, on CPUs and on weights that FSDP shards.

    optimi 0.3 chooses its Triton kernel wherever Triton is installed, which torch from PyPI brings along, and fails
    there in the first step: it looks at a list of weights that is still empty.
    """
    for group in optimizer.param_groups:
        if "triton" in group:
            group["triton"] = False


def dither(optimizer: Any, seed: int) -> None:
    """Start StableAdamW's Kahan compensation of bfloat16 weights at random, within half a unit of their last place.

    Started at 0, no weight moves before its updates add up to that half unit: one of 0.1 at a learning rate of 5e-6
    for 49 steps one way. Started at random, weights move from the first step, on average as float32 ones do. Of large
    ones small updates are still lost, since the compensation has 8 bits, too: of 5e-6 some above 0.25, most above 0.5.
    """
    if not isinstance(optimizer, optimi.StableAdamW):
        return
    generators: dict[torch.device, torch.Generator] = {}
    init_state = optimizer._init_state

    def dithered(group: dict[str, Any], state: dict[str, Any], param: torch.Tensor) -> None:
        new = "kahan_comp" not in state  # a resumed run has it
        init_state(group, state, param)
        if new and param.dtype == torch.bfloat16 and state["kahan_comp"] is not None:
            weights, rest = (getattr(each, "_local_tensor", each) for each in (param.detach(), state["kahan_comp"]))
            device = weights.device
            generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
            drawn = weights.flatten().clone()
            for part in drawn.split(2**24):  # all at once, its float32 would take the memory of four embeddings
                size = part.abs()
                unit = (size.view(torch.int16) + 1).view(torch.bfloat16) - size  # to the next number
                part.copy_((torch.rand(part.shape, generator=generator, device=device) - 0.5) * unit)
            drawn = drawn.view_as(weights)
            # By itself it moves no weight: ties, and the half as wide spacing below powers of two, would
            rest.copy_(torch.where(weights + drawn == weights, drawn, drawn / 2))

    optimizer._init_state = dithered
