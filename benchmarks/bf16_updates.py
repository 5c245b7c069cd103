"""How far do bfloat16 weights get, of the way of float32 ones, at learning rate 5e-6? By optimizer, step after step.

    python benchmarks/bf16_updates.py

Weights N(0, 0.18), as large as SmolLM2-135M's, gradients of a constant drift and noise of five times its size, the
inline betas and weight decay. A cell is the share of the way that float32 weights with torch's AdamW have gone by then
(the displacement's component along theirs); 1 is no loss. The optimizers are made by transformers from GRPOConfig's
`optim`, as in a run.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Trainer
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.training import optimizer as own
from train_grpo import HYPERPARAMETERS

INLINE = ("learning_rate", "adam_beta1", "adam_beta2", "weight_decay")
STEPS, SIZE = (5, 20, 50, 100, 200, 400), 20_000


def displacements(
    optim: str, dtype: torch.dtype, sparse: bool = False, dithered: bool = True, steps: Sequence[int] = STEPS
) -> dict[int, torch.Tensor]:
    """What so many optimizer steps add to `SIZE` weights that are stored in `dtype`; float64, shape (SIZE,)."""
    generator = torch.Generator().manual_seed(0)
    start = (0.18 * torch.randn(SIZE, generator=generator)).to(torch.bfloat16)
    weights = torch.nn.Parameter(start.clone().to(dtype))
    settings = {name: HYPERPARAMETERS[name] for name in INLINE}
    args = GRPOConfig(output_dir="unused", optim=optim, use_cpu=True, bf16=False, **settings)
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
    optimizer = optimizer_class([weights], **{"weight_decay": args.weight_decay, **options})
    own.use_no_triton(optimizer)
    if dithered:
        own.dither(optimizer, seed=1)
    drift, found = torch.randn(SIZE, generator=generator), {}
    for step in range(1, max(steps) + 1):
        noise = 5 * torch.randn(SIZE, generator=generator)
        if sparse:  # as of rows of an embedding that few tokens touch
            noise *= 4.5 * (torch.rand(SIZE, generator=generator) < 0.05)
        weights.grad = (1e-4 * (drift + noise)).to(dtype)
        optimizer.step()
        if step in steps:
            found[step] = weights.detach().double() - start.double()
    return found


def share(moved: torch.Tensor, reference: torch.Tensor) -> float:
    """The component of a displacement along another, relative to it."""
    return ((moved * reference).sum() / reference.square().sum()).item()


ROWS: dict[str, tuple[str, torch.dtype, bool, int]] = {  # and the bytes of a weight with its state
    "adamw_torch, float32": ("adamw_torch", torch.float32, False, 4 + 8),
    "stable_adamw, float32": ("stable_adamw", torch.float32, True, 4 + 8),
    "adamw_torch, bfloat16": ("adamw_torch", torch.bfloat16, False, 2 + 4),
    "stable_adamw, bfloat16": ("stable_adamw", torch.bfloat16, True, 2 + 4 + 2),
    "the same, not dithered": ("stable_adamw", torch.bfloat16, False, 2 + 4 + 2),
}


def main() -> None:
    print(f"{'optim, weights':26}{'gradients':11}{'bytes':6}" + "".join(f"{f'step {step}':>10}" for step in STEPS))
    for sparse in (False, True):
        reference = displacements("adamw_torch", torch.float32, sparse)
        for name, (optim, dtype, dithered, size) in ROWS.items():
            found = displacements(optim, dtype, sparse, dithered)
            cells = "".join(f"{share(found[step], reference[step]):10.2f}" for step in STEPS)
            print(f"{name:26}{'sparse' if sparse else 'dense':11}{size:<6}{cells}")


if __name__ == "__main__":
    main()
