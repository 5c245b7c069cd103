"""How much of AdamW's progress survives on bfloat16 weights at learning rate 5e-6, by optimizer.

    python benchmarks/bf16_updates.py

Weights N(0, 0.03), gradients of a constant drift and noise of the same size, 200 steps with the inline betas and
weight decay. `moved` is the mean displacement relative to float32 weights with torch's AdamW; 1 is no loss. The
optimizers are made by transformers from GRPOConfig's `optim`, as in a run.
"""

import sys
from pathlib import Path

import torch
from transformers import Trainer
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.training.base_trainer import use_no_triton
from train_grpo import HYPERPARAMETERS

INLINE = ("learning_rate", "adam_beta1", "adam_beta2", "weight_decay")
STEPS, SIZE = 200, 20_000


def displacement(optim: str, dtype: torch.dtype, sparse_gradients: bool = False, seed: int = 0) -> torch.Tensor:
    """What `STEPS` optimizer steps add to `SIZE` weights that are stored in `dtype`; float64, shape (SIZE,)."""
    generator = torch.Generator().manual_seed(seed)
    start = (0.03 * torch.randn(SIZE, generator=generator)).to(torch.bfloat16)
    weights = torch.nn.Parameter(start.clone().to(dtype))
    settings = {name: HYPERPARAMETERS[name] for name in INLINE}
    args = GRPOConfig(output_dir="unused", optim=optim, use_cpu=True, bf16=False, **settings)
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
    optimizer = optimizer_class([weights], **{"weight_decay": args.weight_decay, **options})
    use_no_triton(optimizer)
    drift = torch.randn(SIZE, generator=generator)
    for _ in range(STEPS):
        noise = torch.randn(SIZE, generator=generator)
        if sparse_gradients:  # as of rows of an embedding that few tokens touch
            noise *= 4.5 * (torch.rand(SIZE, generator=generator) < 0.05)
        weights.grad = (1e-4 * (drift + noise)).to(dtype)
        optimizer.step()
    return weights.detach().double() - start.double()


def main() -> None:
    print(f"{'optim':22}{'weights':10}{'gradients':12}{'moved':>8}{'unchanged':>12}{'bytes a weight, with state':>30}")
    for sparse in (False, True):
        reference = displacement("adamw_torch", torch.float32, sparse).abs().mean()
        for optim, dtype, size in (
            ("adamw_torch", torch.float32, 4 + 8),
            ("adamw_torch", torch.bfloat16, 2 + 4),
            ("stable_adamw", torch.bfloat16, 2 + 4 + 2),
            ("stable_adamw", torch.float32, 4 + 8),
        ):
            moved = displacement(optim, dtype, sparse)
            share, unchanged = moved.abs().mean() / reference, (moved == 0).double().mean()
            name = str(dtype).removeprefix("torch.")
            print(f"{optim:22}{name:10}{'sparse' if sparse else 'dense':12}{share:8.3f}{unchanged:11.0%}{size:>18}")


if __name__ == "__main__":
    main()
