"""What `train_grpo.py` is built on, in wings: each depends only on those below it (pyproject.toml, importlinter)."""
