"""Start-up: a mistake is named before the libraries are imported."""

import subprocess
import sys

from helpers_runs import ROOT

MISTAKE = """
import sys
sys.path.insert(0, {root!r})
import train_grpo
assert train_grpo.main(["--no_such_flag", "1"]) == 2
assert not {{"torch", "transformers", "trl", "datasets", "wandb"}} & set(sys.modules)
"""


def test_a_wrong_flag_is_found_without_the_libraries():
    done = subprocess.run([sys.executable, "-c", MISTAKE.format(root=str(ROOT))], capture_output=True, text=True)
    assert done.returncode == 0 and "no_such_flag" in done.stderr, done.stderr
