"""How a process ends: what it says last, and its exit status."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from grpo.core.errors import MISTAKE, Gone, UserError, origins, readable
from grpo.core.processes import end_process_group, is_first_process

HEAD_START = 10  # seconds for the first process to name a mistake: torchrun ends all processes when one does


def status_of(run: Callable[[], int]) -> int:
    """What `run` returns; the user's mistakes end in one line and status 2, Ctrl-C in one and 130.

    Where nobody reads its output any longer (`| head`), it ends as SIGPIPE would end it: quietly, with 141.
    """
    status = 141
    with pipe_may_close():
        found = _status_of(run)
        sys.stdout.flush()
        status = found
    return status


def _status_of(run: Callable[[], int]) -> int:
    try:
        with readable(left="nothing was trained in this session"):
            status = run()
        end_process_group()
        return status
    except KeyboardInterrupt as error:
        print(f"Interrupted{error}", file=sys.stderr, flush=True)
        if "TORCHELASTIC_RUN_ID" in os.environ:  # a launcher's; vLLM's start sets LOCAL_RANK
            _leave_at_once(143)  # its partners may wait for it in vain
        return getattr(error, "status", 130)
    except UserError as error:
        if not is_first_process():
            time.sleep(HEAD_START)
        process = "" if is_first_process() else f" [process {os.environ['RANK']}]"
        print(f"error:{process} {error}", file=sys.stderr, flush=True)
        if isinstance(error, Gone):
            _leave_at_once(MISTAKE)  # gloo's threads might wait for the one that is gone
        return MISTAKE


@contextlib.contextmanager
def pipe_may_close() -> Iterator[None]:
    """For what prints: `| head` may stop reading."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        if not any(isinstance(each, BrokenPipeError) for each in origins(error)):  # rich turns that into an exit
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_at_once(status: int) -> None:
    sys.stdout.flush()
    os._exit(status)
