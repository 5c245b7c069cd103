"""The package behind `train_grpo.py`. Each folder imports only the folders below it (pyproject.toml)."""

import grpo.core  # noqa: F401 - finds rewards.py

__version__ = "0.1.0"
