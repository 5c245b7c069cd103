"""Real commands, of one process or of several: each imports its libraries anew, so a test of one is slow."""

import os
import subprocess
import sys


def command(script, argv=(), processes=1, directory=".", timeout=280, **environment):
    """The CompletedProcess of a script, run to its end without a terminal on so many processes of this machine."""
    started = start(script, argv, processes, directory, **environment)
    try:
        out, err = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        started.terminate()  # which torchrun passes on
        raise
    return subprocess.CompletedProcess(started.args, started.returncode, out, err)


def start(script, argv=(), processes=1, directory=".", launcher=(), **environment):
    """The Popen of a script: its own process, or torchrun's, which passes a signal on to the several."""
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return subprocess.Popen(
        [sys.executable, *launcher, str(script), *map(str, argv)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd=directory,
    )
