"""A run on disk: its directory, record, checkpoints, trackers and report."""
