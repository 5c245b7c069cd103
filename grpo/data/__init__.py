"""Rows of any source become prompts and gold answers."""
