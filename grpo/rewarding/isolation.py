"""Keep the global random states, such as while an evaluation calls rewards and the judge."""

import contextlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch


def keep_random_states() -> Callable[[], None]:
    """Return a function that restores the current random states of Python, NumPy and torch."""
    python, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)

    return restore


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch on exit, whatever draws numbers inside."""
    restore = keep_random_states()
    try:
        yield
    finally:
        restore()
