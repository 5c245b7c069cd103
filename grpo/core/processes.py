"""Coordinate the processes of one run: which one prints and writes, and the end of the process group."""

import contextlib
import gc
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl import GRPOConfig

LOCK = "run.lock"  # of a run's directory
LOST = "another process of this run has ended; its own lines or the launcher's say why"

UNSHARDED = "no sharding"  # as `sharding` calls plain training, of one process or by DDP


class GivenUp(KeyboardInterrupt):
    """A signal during work that a resumed run repeats: an evaluation while training, or a rollout's sampling."""


def is_first_process() -> bool:
    """True in the first process of a launcher, or without a launcher. Does not need torch."""
    return "LOCAL_RANK" not in os.environ or os.environ.get("RANK", "0") == "0"


def ignore_old_names() -> None:
    """Ignore the warning of transformers 5.23 about a name that TRL and PEFT still use."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)


def let_idle_threads_sleep() -> None:
    """Let idle OpenMP threads sleep soon, so that two runs on one CPU do not slow each other down.

    Call this before importing torch, which reads the variable once. It costs nothing on a GPU, where
    runs hardly use these threads. A value in the environment is kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def say(text: str) -> None:
    """Print in the first process only (accelerate's print: in each machine's first process)."""
    if is_first_process():
        print(text)


def show(*objects: Any, **options: Any) -> None:
    """Print text, tables and panels above a running progress bar, without coloured numbers."""
    from rich.console import Console  # here: the start of a command does without libraries
    from tqdm import tqdm

    with tqdm.external_write_mode():
        Console(highlight=False).print(*objects, **options)


def is_locked(run: Path) -> bool:
    """True if a process writes a run there now, or if this user may not test that."""
    from filelock import FileLock, Timeout  # here: the start of a command does without libraries

    if not (run / LOCK).exists():
        return False
    try:
        with FileLock(run / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def largest(number: int) -> int:
    """Return the largest of all processes' numbers."""
    import torch  # here: the start of a command does without libraries
    from accelerate import PartialState
    from accelerate.utils import gather

    state = PartialState()
    return number if state.num_processes == 1 else int(gather(torch.tensor([number], device=state.device)).max())


def by_first_process(work: Callable[[], Any], window: contextlib.AbstractContextManager[Any] | None = None) -> Any:
    """Return the result of `work`, which the first process alone does. All raise GivenUp if it does.

    Args:
        window: entered for the work, such as one in which a signal raises GivenUp.
    """
    from accelerate.utils import broadcast_object_list

    result, given_up = None, False
    if is_first_process():
        try:
            with window or contextlib.nullcontext():
                result = work()
        except GivenUp:
            given_up = True
    result, given_up = broadcast_object_list([result, given_up])
    if given_up:
        raise GivenUp
    return result


def sharding(training: "GRPOConfig") -> str:
    """Name how settings or a launcher shard weights and optimizer state. A checkpoint resumes only in its own way."""
    if training.deepspeed_plugin:
        return f"DeepSpeed ZeRO-{training.deepspeed_plugin.zero_stage}"
    # of the settings, which override a launcher's
    fsdp, launched = training.fsdp_plugin_args, os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    if fsdp is None and not launched:
        return UNSHARDED
    by_default = os.environ.get("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT")  # accelerate's for FSDP2
    return f"FSDP ({(fsdp or {}).get('state_dict_type', by_default).upper()})"


def first_difference(record: Any, compare: Callable[[Any, Any], str]) -> str:
    """Compare the records of all processes with the first process' one. All processes must call it.

    Args:
        compare: returns in words how the second record differs from the first; "" if it does not.

    Returns:
        The first process that differs, and how; "" if none does. The same in all processes.
    """
    from accelerate.utils import broadcast_object_list, gather_object

    (first,) = broadcast_object_list([record])
    found = enumerate(gather_object([compare(first, record)]))
    return next((f"process {rank} differs from the first in {words}" for rank, words in found if words), "")


def is_process_lost(error: BaseException) -> bool:
    """True if an exception of gloo or NCCL reports that another process of the run has ended."""
    return re.search("gloo/transport|ncclRemoteError", str(error)) is not None


def end_process_group() -> None:
    """Wait for the other processes, then destroy the process group while Python holds its last reference.

    Otherwise gloo's threads may abort a finished run (https://github.com/pytorch/pytorch/issues/190489).
    """
    if "torch" not in sys.modules:  # the command was answered at once
        return
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    from accelerate import PartialState

    gc.collect()  # the trainer, whose DDP refers to the group, is part of cycles
    PartialState().wait_for_everyone()
    if vllm := sys.modules.get("vllm.distributed.parallel_state"):
        vllm.cleanup_dist_env_and_memory()  # otherwise Python's exit looks for its groups in vain
    if torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
        torch.distributed.destroy_process_group()
        del group
