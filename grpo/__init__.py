"""The package behind `train_grpo.py`, in wings: each depends only on those below it (pyproject.toml)."""
