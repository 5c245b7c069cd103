"""The package behind `train_grpo.py`. Each folder imports only the folders below it (pyproject.toml)."""
