"""Errors, processes and settings, which every other wing uses; it imports no other wing."""
