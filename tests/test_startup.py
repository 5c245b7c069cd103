"""Start-up: a mistake is named before the libraries are imported."""

import subprocess
import sys

from helpers_runs import ROOT


def test_a_wrong_flag_is_found_without_the_libraries():
    words = [sys.executable, "-X", "importtime", str(ROOT / "train_grpo.py"), "--no_such_flag", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "error: --no_such_flag: no such flag" in done.stderr
    imported = {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
    }
    assert "grpo.config.begin" in imported
    assert not {"torch", "transformers", "trl", "datasets", "wandb"} & imported
