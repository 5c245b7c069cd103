"""The global random states while something is asked beside the training: rewards and the judge of an evaluation."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Give Python, NumPy and torch the states back that they have now, whatever draws in between."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
