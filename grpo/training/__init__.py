"""The optimizer step, and what watches it."""
