"""End a command that fails with one readable line and an exit status instead of a traceback."""

import argparse
import contextlib
import difflib
import io
import itertools
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from grpo.core import INSTALLED, PACKAGE, ROOT, commands
from grpo.core.out_of_memory import is_out_of_memory
from grpo.core.processes import end_process_group, explain_lost, is_first_process, is_one_of_several, is_to_print
from grpo.core.text import printable, shorten
from grpo.hidden import hiding

# Exit statuses. Others: 128 + n after signal n, 1 for a bug
MISTAKE, STOPPED = 2, 3


class UserError(Exception):
    """A user's mistake: one readable line that names the value and the fix (exit status 2).

    Control characters in quoted text are escaped, so that it cannot change the terminal.

    Attributes:
        process: the number of the process that has failed; None: this one.
    """

    def __init__(self, message: str, process: int | None = None) -> None:
        self.process = process
        lines = " ".join(line.strip() for line in message.splitlines())  # libraries' reasons have many lines
        super().__init__(printable(lines))


class WrongResult(TypeError):
    """A result of the user's function that is none: no number of a reward, no verdict of a judge."""


USERS_ERRORS = (Exception, SystemExit)  # whatever the user's own function raises


class Interrupted(KeyboardInterrupt):
    """A signal outside of training: the run ends at once. Its text follows `Interrupted`, such as ` by SIGTERM`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ArgumentParser(argparse.ArgumentParser):
    """An argparse.ArgumentParser that raises UserError instead of printing the usage; no abbreviated flags."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def run_main(run: Callable[[], int]) -> int:
    """Run a command and return its exit status. A user's mistake prints one line (2), and so does Ctrl-C (130)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where it is not UTF-8
    try:
        status = run()
        end_process_group()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as error:
        line = f"Interrupted{error}"
        if is_to_print(line) if str(error) else is_first_process():
            print(line, file=sys.stderr, flush=True)
        if "TORCHELASTIC_RUN_ID" in os.environ or is_one_of_several():  # others may wait for this one forever
            os._exit(getattr(error, "status", 143))
        return getattr(error, "status", 130)
    except BrokenPipeError:  # the reader has closed the pipe, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if line := hiding(error):
            return _end_in(line)
        if error.name is None or "." in error.name:
            raise
        return _end_in(f"{error.name} is not installed; activate the virtual environment, or {_install(error)}")
    except UserError as error:
        return _end_in(str(error), error.process)
    except Exception as error:
        if line := hiding(error) or explain_lost(error) or users_mistake(error):
            return _end_in(str(UserError(line)))
        raise


def _install(missing: ModuleNotFoundError) -> str:
    """Return the command that installs a missing package, and if ours or a library imports it, all that they need."""
    frames = [frame.filename for frame in traceback.extract_tb(missing.__traceback__)]
    importing = [file for file in frames if not file.startswith("<")]
    if not is_of_a_library(importing[-1]):
        return f"pip install {missing.name}"
    return commands.install()


def _end_in(line: str, process: int | None = None) -> int:
    if process is None and not is_first_process():
        process = int(os.environ["RANK"])
    if is_to_print(line):
        number = f" [process {process}]" if process else ""
        print(f"error:{number} {line}", file=sys.stderr, flush=True)
    return MISTAKE


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """End an error message with the nearest valid value, or with all of them."""
    choices = list(choices)
    close = sorted((name for name in choices if value and name.startswith(value)), key=len)
    close = close or difflib.get_close_matches(value, choices, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    if len(choices) > 50:
        return "; --help_all lists all of them"
    return f"; use {', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else f"; use {choices[0]}"


# --- Libraries' exceptions ----------------------------------------------------------------------------------------

# Folders of code that is not the user's: this project, Python itself and installed packages, including those of a
# parent environment (`uv run --with`)
OUR_FOLDERS = tuple(PACKAGE.with_name(name) for name in ("grpo", "lean_grpo", "exact_answers", "benchmarks"))
LIBRARIES = (*OUR_FOLDERS, sysconfig.get_path("stdlib"))
CALLERS = ("experiment", "main")  # functions of train_grpo.py
SITES = {"site-packages", "dist-packages"}


@contextlib.contextmanager
def one_line(before: str = "", after: str = "", kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Turn exceptions of these kinds into UserErrors: `before`, the library's message, `after`.

    Out-of-memory errors pass through, since `Run` explains them.
    """
    try:
        yield
    except (UserError, BrokenPipeError):  # a closed pipe is no mistake: run_main
        raise
    except kinds as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{before}{reason_of(error)}{after}") from error


@contextlib.contextmanager
def users_code(where: str, after: str = "") -> Iterator[None]:
    """Turn what the user's code raises into a UserError: `where`, the exception with the user's line, `after`."""
    try:
        yield
    except USERS_ERRORS as error:
        raise UserError(f"{where}: {fault_of(error)}{after}") from error


def reason_of(error: BaseException) -> str:
    """Return an exception's message in one line."""
    if type(error).__name__ == "UnpicklingError":  # torch's message advises to run it
        return "it is a pickle that contains code, or a broken one; none of it was run"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    says_little = isinstance(error, LookupError | AttributeError | ArithmeticError) or not reason
    return f"{type(error).__name__}: {reason}".rstrip(": ") if says_little else reason


def fault_of(error: BaseException) -> str:
    """Describe an exception, with the innermost line in a user's file: `ValueError: no number (my_reward.py:12)`."""
    if isinstance(error, WrongResult):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not (is_of_a_library(frame.filename) or frame.filename.startswith("<"))]
    place = f" ({Path(users[-1].filename).name}:{users[-1].lineno})" if users else ""
    return shorten(f"{type(error).__name__}: {error}", 500) + place


def users_mistake(error: BaseException) -> str:
    """Describe an exception that the user's own code raises, or a library that it calls; "" for any other.

    What a library raises for a line of the script's `experiment` or `main` is not the user's: these call all of ours.
    """
    if isinstance(error, SyntaxError) and error.filename and not is_of_a_library(error.filename):
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    if isinstance(error, ImportError) and error.name == "rewards":
        return f"{error}; the shipped rewards.py has it: rename yours, or restore what it lacks"
    frames = traceback.extract_tb(error.__traceback__)
    above = itertools.dropwhile(lambda frame: is_of_a_library(frame.filename, ours=False), reversed(frames))
    last = next(above, None)
    if last is None or is_of_a_library(last.filename):
        return ""
    return fault_of(error) if last is frames[-1] or last.name not in CALLERS else ""


def is_of_a_library(file: str, ours: bool = True) -> bool:
    """True if a source file is ours (unless excluded), Python's own or installed, so not the user's.

    rewards.py, the script and examples/ are there to be edited, so they are the user's.
    """
    if INSTALLED and file.startswith(f"{ROOT}{os.sep}"):
        return False
    folders = LIBRARIES if ours else LIBRARIES[len(OUR_FOLDERS) :]
    is_inside = file.startswith((*(f"{folder}{os.sep}" for folder in folders), "<frozen", "<built in>"))
    return is_inside or not SITES.isdisjoint(Path(file).parts)
