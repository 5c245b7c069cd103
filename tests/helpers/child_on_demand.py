"""A worker's process of `python -m grpo check`, in a module of its own, which a new process imports quickly."""

import os
import signal
import sys
import time

from grpo.config import check


def child(log, pipe):
    """A worker's process that does to itself what it is asked to."""
    check.enter(log)
    while True:
        what = pipe.recv()["kind"]
        if what == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "leave":
            sys.exit("CUDA error: an illegal memory access was encountered")
        if what == "hang":
            time.sleep(600)
        pipe.send({"found": os.getpid()} | ({"lost": True} if what == "lose" else {}))
