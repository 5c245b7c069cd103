"""What was learned: evaluation, comparison, inference, the X-ray."""
