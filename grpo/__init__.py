"""What `train_grpo.py` stands on, in wings: each depends only on those below it (pyproject.toml, importlinter)."""
