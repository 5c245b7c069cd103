"""A pickle that makes a file when it is unpickled without restriction."""

import pickle
from pathlib import Path

import torch

RAN = Path("the-payload-ran")


class Payload:
    """Unpickled without restriction, it makes the file RAN."""

    def __reduce__(self):
        return open, (str(RAN.absolute()), "w")


def plant(path, raw=False):
    """Write it as torch.save does.

    Args:
        raw: True for a pickle alone, as torch saved before 1.6.
    """
    if raw:
        Path(path).write_bytes(pickle.dumps(Payload()))
    else:
        torch.save({"state": Payload()}, path)
