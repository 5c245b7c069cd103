"""Start-up: what is said before the libraries are imported, and while they are."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers_runs import ROOT


def test_a_missing_package_is_one_line(tmp_path):
    """As in a shell whose virtual environment is not active."""
    words = [sys.executable, "-S", "-c", SCRIPT.format(root=str(ROOT)), "--config", "demo"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "is not installed; activate the virtual environment" in line


def test_ctrl_c_while_they_are_imported_is_one_line():
    words = [sys.executable, str(ROOT / "train_grpo.py"), "--config", "demo"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=as_usual)
    time.sleep(1.5)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (130, "Interrupted\n")


@pytest.mark.parametrize("words", [["train_grpo.py", "--config", "nope"], ["grpo/__main__.py", "merge", "nope"]])
@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, None)],
    ids=["unset", "own count", "own policy"],
)
def test_idle_threads_sleep_soon_unless_you_say_otherwise(words, given, spins):
    """torch reads the variable when it is imported; a second run on the CPU would wait for threads that spin."""
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    words = [sys.executable, "-c", SPINS.format(root=str(ROOT), script=words[0]), *words[1:]]
    done = subprocess.run(words, capture_output=True, text=True, env={**environment, **given, "PYTHONPATH": str(ROOT)})
    assert done.stdout == f"{spins}\n", done.stderr


def as_usual():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` has ignored


SCRIPT = (
    "import runpy, sys; sys.path.insert(0, {root!r}); runpy.run_path({root!r} + '/train_grpo.py', run_name='__main__')"
)
SPINS = """
import os, runpy, sys
class AtTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, AtTorch())
sys.argv[0] = {root!r} + "/{script}"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
