"""Keep the global random states while an evaluation calls rewards and the judge."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch on exit, whatever draws numbers inside."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
