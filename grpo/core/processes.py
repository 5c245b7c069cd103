"""One process among several: how they are started, meet and end."""

import datetime
import gc
import importlib
import itertools
import os
import sys
from typing import Any

from grpo.core.errors import readable

MEETINGS = itertools.count()


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


def launch() -> str:
    """The words before `train_grpo.py` that start as many processes as there are."""
    if "ACCELERATE_DYNAMO_USE_FULLGRAPH" in os.environ:  # which its launcher sets, and nobody else
        return "accelerate launch [its options as before]"
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun, and by vLLM's start
    if not processes or "TORCHELASTIC_RUN_ID" not in os.environ:
        return "python"
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":  # several machines
        return "torchrun [its options as before]"
    return f"torchrun --nproc_per_node={processes}"


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
    if vllm := sys.modules.get("vllm.distributed.parallel_state"):
        vllm.cleanup_dist_env_and_memory()  # otherwise Python's exit looks for its groups in vain
    if torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
        torch.distributed.destroy_process_group()
        del group
