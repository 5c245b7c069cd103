"""Start-up: what is said before the libraries are imported, and while they are."""

import signal
import subprocess
import sys
import time

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


def as_usual():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` has ignored


SCRIPT = (
    "import runpy, sys; sys.path.insert(0, {root!r}); runpy.run_path({root!r} + '/train_grpo.py', run_name='__main__')"
)
