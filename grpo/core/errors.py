"""Mistakes as one readable line and an exit status, instead of a traceback."""

import argparse
import contextlib
import difflib
import errno
import os
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from grpo.core.processes import end_process_group, is_first_process
from grpo.core.text import printable

# Exit statuses; 128 + n says that signal n ended the run, and 1 that something here is wrong
MISTAKE, STOPPED = 2, 3
HEAD_START = 10  # seconds for the first process to name a mistake: torchrun ends all processes when one does


class UserError(Exception):
    """A user's mistake: one readable line that names the value and the fix (exit status 2).

    It may quote a user, a file or a library; characters that steer a terminal are escaped.
    """

    def __init__(self, message: str) -> None:
        lines = " ".join(line.strip() for line in message.splitlines())  # libraries' reasons have many lines
        super().__init__(printable(lines))


class Interrupted(KeyboardInterrupt):
    """A signal came while nothing was being trained, so that there was nothing to finish first.

    Args:
        message: follows "Interrupted".
        status: the exit status that names the signal.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, without abbreviated flags, and a mistake is a UserError instead of the whole usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def run_main(run: Callable[[], int]) -> int:
    """Run a command and return its status: a user's mistake is one line and status 2, Ctrl-C one line and 130."""
    try:
        status = run()
        end_process_group()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as error:
        print(f"Interrupted{error}", file=sys.stderr, flush=True)
        if "TORCHELASTIC_RUN_ID" in os.environ:  # a launcher's; its partners may wait for it in vain
            os._exit(143)
        return getattr(error, "status", 130)
    except BrokenPipeError:  # `| head` has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if error.name is None or "." in error.name:
            raise
        return _end_in(f"{error.name} is not installed; activate the virtual environment, or pip install it")
    except UserError as error:
        return _end_in(str(error))


def _end_in(line: str) -> int:
    if not is_first_process():
        time.sleep(HEAD_START)
    process = "" if is_first_process() else f" [process {os.environ['RANK']}]"
    print(f"error:{process} {line}", file=sys.stderr, flush=True)
    return MISTAKE


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """The end of an error: the nearest valid value, or all of them."""
    choices = list(choices)
    close = sorted((name for name in choices if value and name.startswith(value)), key=len)
    close = close or difflib.get_close_matches(value, choices, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    if len(choices) > 50:
        return "; --help_all lists all of them"
    return f"; use {', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else f"; use {choices[0]}"


# --- Libraries' exceptions ----------------------------------------------------------------------------------------

# Folders of code that is not the user's: ours, Python's own, what is installed
ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (ROOT / "grpo", ROOT / "lean_grpo", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


@contextlib.contextmanager
def one_line(before: str = "", after: str = "", kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Turn exceptions of these kinds into UserErrors: the library's message, between two texts.

    Out of memory passes through: `Run` explains it.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{before}{reason_of(error)}{after}") from error


def reason_of(error: BaseException) -> str:
    """An exception's message, in one line."""
    if type(error).__name__ == "UnpicklingError":  # torch's words advise to run it
        return "it is a pickle that contains code, or a broken one; none of it was run"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    says_little = isinstance(error, LookupError | AttributeError | ArithmeticError) or not reason
    return f"{type(error).__name__}: {reason}".rstrip(": ") if says_little else reason


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own files in an exception's traceback: `my_reward.py:12`; "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not (is_of_a_library(frame.filename) or frame.filename.startswith("<"))]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def is_of_a_library(file: str) -> bool:
    """Whether a file of code is ours, Python's own or an installed one, and not the user's."""
    return file.startswith((*(f"{folder}{os.sep}" for folder in LIBRARIES), "<frozen", "<built in>"))


def origins(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception says that there is no room on the disk."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # safetensors (in Rust) and PyTorch's archives (in C++) have words of their own
    said = r"No space left|os error (28|122|27)\b|quota exceeded|StreamWriter failed|unexpected pos \d+ vs"
    return full or re.search(said, str(error)) is not None


# --- A device without memory --------------------------------------------------------------------------------------

# The innermost of these functions in a traceback says what a run was doing, and what takes less there
WHAT_TAKES_LESS = {
    "measure": ("the evaluation", "a smaller per_device_eval_batch_size"),
    "_generate_single_turn": (
        "generation",
        "fewer completions at once (steps_per_generation), or a smaller max_completion_length",
    ),
    "_calculate_rewards": ("the rewards", "a smaller model in your reward"),
    "_generate_and_score_completions": ("scoring the rollout", "a smaller pack_tokens"),
    "training_step": ("the training step", "a smaller pack_tokens, gradient_checkpointing true, or use_peft true"),
    "misfit": ("the training step", "a smaller pack_tokens, gradient_checkpointing true, or use_peft true"),
    "_save_checkpoint": ("saving the checkpoint", "use_peft true"),
    "_inner_training_loop": ("the optimizer step", "use_peft true, or optim adamw_bnb_8bit"),
}
OTHERWISE = ("loading", "a smaller model, load_in_4bit with use_peft, or a smaller vllm_gpu_memory_utilization")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device has no memory left."""
    said = r"out of memory|not enough memory: you tried to allocate|ALLOC_FAILED"
    said += r"|Free memory on device|No available memory for the cache blocks"  # vLLM's, where it starts
    # torch.OutOfMemoryError is a RuntimeError, the CPU allocator raises one, and so do cuBLAS and NCCL
    return isinstance(error, RuntimeError | ValueError) and re.search(said, str(error)) is not None


def out_of_memory(error: BaseException) -> str:
    """The step that ran out of memory, and the settings that take less, in one line."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    known = (WHAT_TAKES_LESS[name] for name in reversed(names) if name in WHAT_TAKES_LESS)
    doing, remedy = next(known, OTHERWISE)
    found = re.search(r"ried to allocate ([\d.]+ (?:[KMG]i)?B|\d+ bytes)", str(error))
    asked = f" (it asked for {found[1]} more)" if found else ""
    return f"out of memory in {doing}{asked}; use {remedy} (docs/troubleshooting.md, Out of memory)"
