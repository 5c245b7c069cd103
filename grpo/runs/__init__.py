"""Keep a run on disk: its directory, record, checkpoints."""
