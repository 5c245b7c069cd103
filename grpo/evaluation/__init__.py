"""Measure what a model learned: evaluations before, while and after training."""
