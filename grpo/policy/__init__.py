"""The model: loading, memory, and its answers."""
