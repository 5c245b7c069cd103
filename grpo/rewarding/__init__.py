"""The rewards of a run, and the checks that keep them honest."""
