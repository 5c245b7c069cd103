"""The trainer of a run, and its callbacks."""
