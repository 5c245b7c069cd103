"""Check a run before its weights are loaded."""
