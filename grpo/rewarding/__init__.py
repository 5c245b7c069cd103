"""Which rewards a run uses, and what keeps them honest."""
