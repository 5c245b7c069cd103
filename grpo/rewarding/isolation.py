"""Keep the global random states while rewards and judges, which are the user's code, or an evaluation draw numbers."""

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
def random_states_kept(seed: str = "") -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch on exit, whatever is drawn or seeded inside.

    Args:
        seed: start inside from states that follow from this text, so that other texts draw other numbers; "": from
            the current states.
    """
    restore = keep_random_states()
    try:
        if seed:
            random.seed(seed)
            np.random.seed(random.getrandbits(32))
            torch.manual_seed(random.getrandbits(63))
        yield
    finally:
        restore()
