"""The tools of `python -m grpo`."""
