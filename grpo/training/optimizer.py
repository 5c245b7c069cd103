"""Build a run's optimizer before its record begins, so that what a library refuses is one line."""

import warnings
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from grpo.core.errors import one_line


def build(trainer: Any) -> None:
    """Build a trainer's optimizer, and checkpoint a tiny forward with its arguments.

    transformers would do both in `train`, after the evaluation before training; it keeps this optimizer. With FSDP and
    DeepSpeed, which divide the weights first, it builds its own.

    Raises:
        UserError: a library refuses `optim`, `optim_args` or `gradient_checkpointing_kwargs`.
    """
    args = trainer.args
    if args.gradient_checkpointing and args.gradient_checkpointing_kwargs:
        with one_line("gradient_checkpointing_kwargs: "), warnings.catch_warnings(action="ignore"):
            checkpoint(torch.neg, torch.ones(1, requires_grad=True), **args.gradient_checkpointing_kwargs).backward()
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        with one_line(f"optim_args: {args.optim_args}: " if args.optim_args else "optim: "):
            trainer.create_optimizer()
            if type(trainer.optimizer).__module__.startswith("torchao."):  # which compiles its first step
                torch.compile(torch.neg, fullgraph=True)(torch.ones(1, device=trainer.accelerator.device))
