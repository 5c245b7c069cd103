"""Measure what a model learned: evaluation, comparison of runs, questions to a saved run, the X-ray."""
