"""Command lines of the program, of one process or of several, that do not import its libraries each time.

A server imports them once, and each process of a command is a fork of it, with its own environment, directory and
output; what torchrun does for its processes is done here. A few tests run the `real` command.
"""

import importlib
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PRELOADED = (
    "datasets",
    "peft",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.nn.functional",
    "matplotlib.pyplot",
    "grpo.config.preflight",
    "grpo.config.configure",
    "grpo.evaluation.before_after",
    "grpo.training.setup",
)
SERVER = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Ended:
    """Like subprocess.CompletedProcess; `statuses` has each process'."""

    returncode: int
    stdout: str
    stderr: str
    statuses: tuple[int, ...]


def preload():
    """Run by the server."""
    for name in PRELOADED:
        importlib.import_module(name)


class Command:
    """A command that has been started, which is ended by `wait`."""

    def __init__(self, script, argv, ranks, directory="."):
        """Start a process with each of these environments, which have no more than what differs from ours."""
        self.log = Path(f".command-{time.monotonic_ns()}").resolve()
        words = [str(script), *map(str, argv)]
        _start_server()
        self.processes = []
        for own in ranks:
            environment = {**os.environ, "COLUMNS": "100", **own}
            # a fork inherits no session of its own; daemons would end with the server
            process = SERVER.Process(target=_become, args=(words, environment, str(directory), str(self.log)))
            process.start()
            self.processes.append(process)

    def wait(self, timeout=280):
        """What it came to; as torchrun, a process that fails has the others stopped."""
        end, left = time.monotonic() + timeout, {each.sentinel: each for each in self.processes}
        while left:
            for sentinel in wait(left, timeout=max(0.0, end - time.monotonic())) or left:
                process = left.pop(sentinel)
                if process.is_alive():  # it is too late
                    process.kill()
                process.join()
                if process.exitcode:
                    for other in left.values():
                        other.terminate()
        statuses = tuple(each.exitcode for each in self.processes)
        texts = [Path(f"{self.log}.{name}").read_text(errors="replace") for name in ("out", "err")]
        for name in ("out", "err"):
            Path(f"{self.log}.{name}").unlink()
        failed = next((status for status in statuses if status), 0)
        return Ended(failed if len(statuses) == 1 else int(bool(failed)), *texts, statuses)


def command(script, argv=(), processes=1, real=False, directory=".", timeout=280, **environment):
    """Run a script to its end, without a terminal, on so many processes of this machine."""
    if real:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        words = [sys.executable, *(launcher if processes > 1 else []), str(script), *map(str, argv)]
        environment = {**os.environ, "COLUMNS": "100", **environment}
        return subprocess.run(
            words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, cwd=directory,
            timeout=timeout,
        )  # fmt: skip
    return start(script, argv, processes, directory, **environment).wait(timeout)


def start(script, argv=(), processes=1, directory=".", **environment):
    ranks = torchrun_variables(processes) if processes > 1 else [{}]
    return Command(script, argv, [{**rank, **environment} for rank in ranks], directory)


def on_two_machines(script, argv=(), directories=(".", ".")):
    """What a command of one process on each comes to; no machine knows what becomes of the other."""
    ranks = zip(torchrun_variables(machines=2), directories, strict=True)
    machines = [Command(script, argv, [rank], directory) for rank, directory in ranks]
    return [machine.wait() for machine in machines]


def torchrun_variables(processes=1, machines=1):
    """What torchrun tells each of its processes, machine by machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    whole = {"WORLD_SIZE": processes * machines, "LOCAL_WORLD_SIZE": processes, "GROUP_WORLD_SIZE": machines}
    whole |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    whole |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    ranks = [
        {**whole, "RANK": machine * processes + local, "LOCAL_RANK": local, "GROUP_RANK": machine}
        for machine in range(machines)
        for local in range(processes)
    ]
    return [{name: str(value) for name, value in rank.items()} for rank in ranks]


def _start_server():
    """Once a process of the tests, in the environment and the directory of the first command."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "COLUMNS")}
    os.environ.update(PYTHONPATH=os.pathsep.join([str(ROOT), str(HERE)]), COLUMNS="100")
    SERVER.set_forkserver_preload(["preloaded"])
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _become(words, environment, directory, log):
    """A fork becomes the process of a command."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((0, None), (1, "out"), (2, "err")):
        path = os.devnull if name is None else f"{log}.{name}"
        opened = os.open(path, os.O_RDONLY if name is None else os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    sys.argv = words
    own = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(words[0]).resolve().parent), *filter(None, own)]
    runpy.run_path(words[0], run_name="__main__")
