"""Find, check and guard the rewards of a run."""
