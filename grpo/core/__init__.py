"""Errors, processes and settings, which every other wing uses; it imports no other wing."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # this repository, whose files are found wherever a command runs
