"""Measure what was learned: evaluation, comparison, questions to a saved run, the X-ray."""
