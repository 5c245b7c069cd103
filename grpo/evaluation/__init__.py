"""What was learned: evaluation, comparison, questions to a saved run, the X-ray."""
