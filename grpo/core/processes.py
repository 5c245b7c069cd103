"""One process among several, on one machine or more: how they are started, meet, share a directory and end."""

import contextlib
import datetime
import gc
import importlib
import itertools
import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError, readable

SHARED_DIR_TIMEOUT = 10.0  # seconds after which the first process' file does not appear: network file systems are late
MEETINGS = itertools.count()
BEFORE_THE_END: list[Callable[[], None]] = []  # what else has to be ended before torch.distributed is


def is_first_process() -> bool:
    """Whether this is the first of a launcher's processes, or there is no launcher; known before torch is loaded."""
    return "LOCAL_RANK" not in os.environ or os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print once for all of a run's processes; accelerate's print does so once on every machine."""
    if is_first_process():
        print(text)


def show(*what: Any, **how: Any) -> None:
    """Print what rich can draw, above a progress bar that is under way; numbers get no colours of their own."""
    from rich.console import Console  # here: the start of a command does without libraries
    from tqdm import tqdm

    with tqdm.external_write_mode():
        Console(highlight=False).print(*what, **how)


def count() -> int:
    """The machines that a launcher says it has started this run on."""
    try:
        groups = os.environ.get("GROUP_WORLD_SIZE")  # torchrun's launchers
        return int(groups) if groups else int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError, ZeroDivisionError):
        return 1


def launch() -> str:
    """The words before `train_grpo.py` that start as many processes as there are, the same on every machine."""
    if "ACCELERATE_DYNAMO_USE_FULLGRAPH" in os.environ:  # which its launcher sets, and nobody else
        return f"accelerate launch {_options_of_accelerate() or '[its options as before]'}"
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun
    if not processes:
        return "python"
    if count() == 1:
        return f"torchrun --nproc_per_node={processes}"
    endpoint = f"{os.environ.get('MASTER_ADDR', 'localhost')}:{os.environ.get('MASTER_PORT', '29500')}"
    rendezvous = f"--rdzv_backend=c10d --rdzv_endpoint={endpoint}"  # --node_rank would differ on each
    return f"torchrun --nnodes={count()} --nproc_per_node={processes} {rendezvous}"


def _options_of_accelerate() -> str:
    """What precedes the script on the command line of the launcher, this process' parent; empty where it differs."""
    import psutil

    with contextlib.suppress(psutil.Error, AttributeError, ValueError):  # no parent any longer, or another one
        words = psutil.Process().parent().cmdline()
        if count() == 1:  # --machine_rank is not the same everywhere
            return shlex.join(words[words.index("launch") + 1 : words.index(sys.argv[0])])
    return ""


def on_each() -> str:
    """What precedes a command that has to be started on every machine."""
    return f", on each of the {count()} machines" if count() > 1 else ""


def speaker() -> str:
    """The prefix of an error's line: it names the process, unless it is the first."""
    if is_first_process():
        return "error:"
    machine = f", machine {int(os.environ.get('GROUP_RANK', 0)) + 1} of {count()}" if count() > 1 else ""
    return f"error: [process {os.environ['RANK']}{machine}]"


def is_other() -> bool:
    """Whether this is another machine than that of the first process."""
    return count() > 1 and os.environ.get("GROUP_RANK", "0") != "0"


def meet_on_cpu(settings: dict[str, Any]) -> None:
    """Let the processes of a run on CPUs meet, and wait for each other no longer than `ddp_timeout`.

    transformers does so itself on GPUs; on CPUs it ignores the setting (training_args.py), and the limit is 30 min.
    """
    if not settings["use_cpu"] or not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        return
    import torch.distributed as dist

    if int(os.environ["WORLD_SIZE"]) < 2 or dist.is_initialized():
        return
    # Functions in these have the group that exists at their import as a default, and would keep it for good
    for name in ("fsdp.sharded_grad_scaler", "nn.functional", "optim.zero_redundancy_optimizer"):
        importlib.import_module(f"torch.distributed.{name}")

    timeout = datetime.timedelta(seconds=settings["ddp_timeout"])
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    # Addresses of an earlier run's group, in the same processes, would be found under the same names
    store = dist.PrefixStore(f"meeting {next(MEETINGS)}", store)
    dist.init_process_group(
        settings["ddp_backend"] or "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
    )


# --- What they share ----------------------------------------------------------------------------------------------


def check_shared(directory: Path) -> None:
    """Check on all processes that they have the same directory, once the first one has made it.

    Checkpoints hold a part of each process, and all machines resume from them.

    Raises:
        UserError: on all processes alike, where one of them does not see this directory.
    """
    if "torch" not in sys.modules:  # it has answered at once
        return
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    from accelerate.utils import broadcast_object_list, gather_object

    first, name = is_first_process(), [f".shared-{uuid.uuid4().hex}"]
    if first:
        (directory / name[0]).touch()
    try:
        broadcast_object_list(name)
        own = f"{directory.resolve()} on {platform.node()}"
        seen = gather_object([(own, _appears(directory / name[0]))])
    finally:
        if first:
            (directory / name[0]).unlink(missing_ok=True)
    for process, (place, found) in enumerate(seen):
        if not found:
            raise UserError(
                f"output_dir: {seen[0][0]} is not the directory that process {process} has ({place}); all machines "
                "write one run and resume from its checkpoints: use an output_dir on a file system that they share, "
                "as an absolute path"
            )


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + SHARED_DIR_TIMEOUT
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        for parent in path.parents:
            with contextlib.suppress(OSError):
                os.listdir(parent)  # which makes NFS ask its server, instead of what it has found before
        time.sleep(0.2)
    return True


# --- The end ------------------------------------------------------------------------------------------------------


def end_process_group() -> None:
    """Wait for the other processes and end torch.distributed, once nothing refers to the run's trainer any more.

    Without it Python can abort after a complete run ("terminate called without an active exception"). A thread of
    gloo's releases a collective's tensors only after it has woken whoever waits for them, and takes the GIL for that
    (torch 2.13, ProcessGroupGloo.cpp, `runLoop`); a barrier refers to the collective before it, so that the tensors
    may last until the barrier itself is over. If Python is ending by then, it ends the thread at the GIL by
    `pthread_exit` (Python 3.11, ceval_gil.h, `take_gil`), which a C++ destructor does not survive
    (https://github.com/pytorch/pytorch/issues/190489). So gloo's threads are joined first: by the destructor of the
    process group, when the last reference to it goes. That one has to be Python's, which releases the GIL meanwhile;
    DDP's would keep it, and thread and process would wait for each other.

    Raises:
        Gone: another process has ended before its part of the run was done.
    """
    if "torch" not in sys.modules:  # it has answered at once
        return
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    from accelerate import PartialState

    gc.collect()  # the trainer, whose DDP refers to the group, is part of cycles
    with readable(left="The run had ended here, and all that it saved is complete"):
        PartialState().wait_for_everyone()
    while BEFORE_THE_END:
        BEFORE_THE_END.pop()()
    if torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
        torch.distributed.destroy_process_group()
        del group
