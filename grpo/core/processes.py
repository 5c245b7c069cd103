"""Coordinate the processes of one run: which one prints and writes, how they end, and the end of the group."""

import contextlib
import gc
import json
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from trl import GRPOConfig

LOCK = "run.lock"  # of a run's directory
LOST = "another process of this run has ended; its own lines or the launcher's say why"
TOO_LATE = r"Timed out waiting (\d+)ms|ran for (\d+) milliseconds before timing out|wait timeout after (\d+)ms"
HEAD_START = 5  # seconds before another process prints a line that the first may have, too
REACH = 3  # seconds for reaching the launcher's store

UNSHARDED = "no sharding"  # as `sharding` calls plain training, of one process or by DDP


class GivenUp(KeyboardInterrupt):
    """A signal during an evaluation while training, which a resumed run repeats."""


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


def console(**options: Any) -> "Console":
    """Return rich's console. A closed pipe raises BrokenPipeError, as in print, where rich would end with status 1."""
    from rich.console import Console  # here: the start of a command does without libraries

    class Piped(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return Piped(**options)


def show(*objects: Any, **options: Any) -> None:
    """Print text, tables and panels above a running progress bar, without coloured numbers."""
    from tqdm import tqdm  # here: the start of a command does without libraries

    with tqdm.external_write_mode():
        console(highlight=False).print(*objects, **options)


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


def by_first_process(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, which the first process alone does."""
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([work() if is_first_process() else None])[0]


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


def by_all_processes(work: Callable[[Sequence[int]], Mapping[int, Any]], count: int) -> dict[int, Any]:
    """Return the results of `work` on 0, …, count - 1, which the processes share. All raise GivenUp if one does.

    Args:
        work: returns the results of a share, or of its beginning, by their numbers.
    """
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state, done, given_up = PartialState(), {}, False
    try:
        done = dict(work(range(state.process_index, count, state.num_processes)))
    except GivenUp:
        given_up = True
    shares = gather_object([(done, given_up)])
    if any(given_up for _, given_up in shares):
        raise GivenUp
    return {number: result for done, _ in shares for number, result in done.items()}


# --- How processes end --------------------------------------------------------------------------------------------


def explain_lost(error: BaseException) -> str:
    """Explain an exception of gloo, NCCL or their store about another process, which has ended or is late; else ""."""
    if not is_one_of_several():
        return ""
    if late := re.search(TOO_LATE, str(error)):
        seconds = int(next(filter(None, late.groups()))) / 1000
        waited = f"{seconds / 60:.0f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
        return (
            f"waited {waited} for another process, whose judge or reward may be slow; raise --ddp_timeout (seconds; "
            "processes without a GPU always wait 30 minutes)"
        )
    return LOST if re.search("gloo/transport|ncclRemoteError", str(error)) else ""


def is_one_of_several() -> bool:
    """True if a launcher has started this process and others. Does not need torch."""
    return {"LOCAL_RANK", "RANK"} <= os.environ.keys() and os.environ.get("WORLD_SIZE", "1") != "1"


def _store() -> Any:
    """Return the store through which processes found each other, and which torchrun keeps; None if out of reach."""
    if not is_one_of_several() or "torch" not in sys.modules:  # a command that was answered at once
        return None
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection((host, port), REACH).close()  # torch prints pages if it fails
        from torch.distributed import PrefixStore, TCPStore

        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=REACH))
        return PrefixStore(f"grpo/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    except (KeyError, ValueError, OSError, RuntimeError):
        return None


def leave_failure(line: str) -> None:
    """Leave for the other processes why this one fails; they keep the first line that one leaves."""
    with contextlib.suppress(RuntimeError):  # the store has ended
        if store := _store():
            store.compare_set("failure", "", json.dumps([int(os.environ["RANK"]), line]))


def forget_failure() -> None:
    """Clear what an earlier run of this command has left."""
    with contextlib.suppress(RuntimeError):
        if is_first_process() and (store := _store()):
            store.delete_key("failure")


def failure_left() -> tuple[int, str] | None:
    """Return which process has failed, and why, if it could leave that before it ended (a killed one cannot)."""
    with contextlib.suppress(RuntimeError):
        if (store := _store()) and store.check(["failure"]):
            process, line = json.loads(store.get("failure"))
            return process, line
    return None


def is_to_print(line: str) -> bool:
    """True in one process of a machine that ends with this line: its first, or another if that says nothing soon."""
    if not is_one_of_several():
        return True
    first, until, store = os.environ["LOCAL_RANK"] == "0", time.monotonic() + HEAD_START, _store()
    key, own = f"{os.environ.get('GROUP_RANK', '0')} {line}", os.environ["RANK"]
    try:
        with contextlib.suppress(KeyboardInterrupt):  # impatient
            while not first and time.monotonic() < until and not (store and store.check([key])):
                time.sleep(0.1)
        return store is None or store.compare_set(key, "", own).decode() == own
    except RuntimeError:
        return True


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
