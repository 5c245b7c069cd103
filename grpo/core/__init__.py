"""Errors, processes and settings. All other folders use it; it imports none of them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # this repository, whose files are found wherever a command runs
