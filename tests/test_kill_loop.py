"""benchmarks/kill_loop.py, for three rounds: a start, a step and a save are killed, and the run ends as it would have.

`python benchmarks/kill_loop.py --rounds 20` is the long one; tests/README.md has its figures.
"""

import subprocess
import sys

import pytest
from helpers_runs import ROOT


@pytest.mark.slow
def test_a_run_killed_at_random_ends_bit_by_bit_as_any():
    argv = [sys.executable, str(ROOT / "benchmarks" / "kill_loop.py"), "--rounds", "3"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run 0 came to its end: bit by bit the uninterrupted run" in done.stdout
    assert done.stdout.count("; resumes from") == 3
