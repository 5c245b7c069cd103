"""The package behind `train_grpo.py`. Each folder imports only the folders below it (pyproject.toml)."""

try:
    import grpo.core  # noqa: F401 - finds rewards.py
except Exception as error:
    from grpo.hidden import hiding

    if line := hiding(error):
        raise ImportError(line) from error
    raise

__version__ = "0.1.0"
