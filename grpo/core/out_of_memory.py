"""A device that is full, and what it was doing: `phase` marks what a piece of code is for."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo.core.errors import OutOfMemory

if TYPE_CHECKING:
    from transformers import Trainer

SAYS_SO = re.compile(
    r"out of memory|not enough memory: you tried to allocate|ALLOC_FAILED"
    r"|Free memory on device"  # vLLM's, where it starts
)
START, EVALUATION, GENERATION = "loading", "the evaluation", "generation"
REWARDS, SCORING, TRAINING = "the rewards", "scoring the rollout", "the training step"
OPTIMIZER, CHECKPOINT = "the optimizer step", "saving the checkpoint"


def is_one(error: BaseException) -> bool:
    """Whether an exception says that a device has no memory left."""
    if isinstance(error, OutOfMemory):
        return True
    # torch.OutOfMemoryError is a RuntimeError, the CPU allocator raises one, and so do cuBLAS and NCCL
    return isinstance(error, RuntimeError | ValueError) and SAYS_SO.search(str(error)) is not None


@contextlib.contextmanager
def phase(name: str, trainer: "Trainer | None" = None) -> Iterator[None]:
    """Whatever finds no memory in here does so in this phase; the innermost one counts.

    What a trainer does for a rollout is part of an evaluation while its model is in evaluation mode.
    """
    model = getattr(trainer, "model", None)
    if name in (GENERATION, REWARDS, SCORING) and model is not None and not model.training:
        name = EVALUATION
    try:
        yield
    except OutOfMemory:
        raise
    except (RuntimeError, ValueError) as error:
        if not is_one(error):
            raise
        raise OutOfMemory(name, str(error), getattr(trainer, "pack_tokens", None)) from error
