"""What ends a run with one readable line instead of a traceback, and how libraries' exceptions become such a line."""

import contextlib
import difflib
import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo.core import out_of_memory
from grpo.core.redaction import mask, printable

# Exit statuses; 128 + n says that signal n ended the run, and 1 that something here is wrong
MISTAKE, STOPPED = 2, 3


class UserError(Exception):
    """A mistake of the user's, in one readable line that names the value and the remedy (exit status 2).

    It may quote what a user, a file or a library has said: secrets are masked, and what steers a terminal is escaped.
    """

    def __init__(self, message: str) -> None:
        lines = " ".join(line.strip() for line in message.splitlines())  # libraries' reasons have many lines
        super().__init__(printable(mask(lines)))


class Gone(UserError):
    """Another process of this run has ended, or does not answer; no bug of this one, and waiting would not help."""


class Interrupted(KeyboardInterrupt):
    """A signal came while nothing was being trained, so that there was nothing to finish first.

    Args:
        message: follows "Interrupted".
        status: the exit status that names the signal.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """The end of an error about a value that is none of these."""
    choices = list(choices)
    close = [name for name in choices if value and name.startswith(value)][:1]
    close = close or difflib.get_close_matches(value, choices, n=1)
    return f"; did you mean {close[0]}?" if close else f"; use {', '.join(choices[:-1])} or {choices[-1]}"


# --- Libraries' exceptions ----------------------------------------------------------------------------------------

# What gloo, NCCL and the store of torch.distributed say where a process has ended, or does not answer
GONE = re.compile(
    r"gloo.*(Connection (reset|closed|refused)|Broken pipe|[Tt]imed out|[Tt]imeout)"
    r"|ncclRemoteError|remote process exit|Watchdog caught collective operation timeout"
    r"|Connection (reset|closed) by (peer|remote)|Failed to recv, got 0 bytes"
)
# What safetensors (in Rust) and PyTorch's archives (in C++) say of a full disk
DISK_FULL = re.compile(
    r"No space left|os error (28|122|27)\b|quota exceeded|StreamWriter failed|unexpected pos \d+ vs"
)

# What requirements.txt installs and cannot be done without, as it is imported
REQUIRED = {
    *("accelerate", "datasets", "filelock", "huggingface_hub", "jinja2", "markupsafe", "math_verify", "matplotlib"),
    *("numpy", "pandas", "peft", "psutil", "rich", "safetensors", "torch", "tqdm", "transformers", "trl"),
    "yaml",
}


def origins(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception says that there is no room on the disk."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return (isinstance(error, OSError) and error.errno in full) or DISK_FULL.search(str(error)) is not None


def is_process_gone(error: BaseException) -> bool:
    """Whether an exception of torch.distributed says that another process has ended, or does not answer."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return False
    return _named(error, "DistNetworkError", "DistStoreError") or (
        isinstance(error, RuntimeError) and GONE.search(str(error)) is not None
    )


def _named(error: BaseException, *names: str) -> bool:
    """By their names, so that no library is loaded to know its exceptions."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def is_from_hub(error: BaseException) -> bool:
    """Whether the Hub refuses something; no connection is an HTTPError, too."""
    return _named(error, "HTTPError", "LocalTokenNotFoundError", "OfflineModeIsEnabled")


@dataclass(frozen=True)
class Translation:
    """Which exceptions become which line, while what is being done.

    Attributes:
        doing: the activity that `readable` was entered with; empty: any.
        line: with {reason}, what the exception says, and the facts that `readable` was given.
        kind: of the UserError.
    """

    doing: str
    matches: Callable[[BaseException], bool]
    line: str
    kind: type[UserError] = UserError


GIVE_A_MODEL = "use a Hub id that can be reached, or a directory with config.json, weights and tokenizer files"
TRANSLATIONS = (
    Translation(
        "",
        lambda error: isinstance(error, ModuleNotFoundError) and error.name in REQUIRED,
        "{missing} is not installed; activate the virtual environment, or pip install -r requirements.txt",
    ),
    Translation(
        "the run",
        is_disk_full,
        "output_dir: the disk of {output!r} is full ({free}); {left}; free some space, or lower save_total_limit. "
        "{way_on}",
    ),
    Translation(
        "",
        is_process_gone,
        "another process of this run is gone or does not answer ({reason}); its own output, on whichever machine, "
        "says why (if it was only slow, raise ddp_timeout); {left}. {way_on}",
        Gone,
    ),
    Translation(
        "the run",
        lambda error: _named(error, "UnpicklingError"),  # torch's words advise to run it
        "resume_from_checkpoint: the checkpoint contains a pickle with code, or a broken one (none of it was run; "
        "{left}); use an earlier one",
    ),
    Translation(
        "loading",
        lambda error: _named(error, "UnpicklingError"),  # torch's words advise to run it
        "model_name_or_path: {name!r} does not load (its weights are a pickle that holds code or is broken; none of "
        "it was run); use weights in safetensors",
    ),
    Translation(
        "loading",
        lambda error: "attn_implementation" in str(error) or "FlashAttention" in str(error),
        "attn_implementation: {reason}; use flash_attention_2 with packed true, or sdpa",
    ),
    Translation(
        "loading",
        lambda error: "ignore_mismatched_sizes" in str(error),
        "model_name_or_path: {name!r} does not load (the shapes of its weights do not match its config.json); "
        + GIVE_A_MODEL,
    ),
    # files of a model may hold anything, and so may what the libraries raise for them
    Translation(
        "loading", lambda error: True, "model_name_or_path: {name!r} does not load ({reason}); " + GIVE_A_MODEL
    ),
    Translation("the Hub", is_from_hub, "push_to_hub: the Hub refuses the model ({reason}); {remedy}"),
    Translation(  # which creates the repository
        "the trainer",
        is_from_hub,
        "push_to_hub: the Hub refuses the model ({reason}); set a hub_model_id that you may write",
    ),
    Translation(  # of settings that contradict each other in a way only TRL knows
        "the trainer", lambda error: isinstance(error, ValueError | NotImplementedError | ImportError), "{whole}"
    ),
)


def translate(error: BaseException, doing: str, facts: dict[str, Any]) -> UserError | None:
    """The line for an exception, by the first translation that matches it; None: there is none.

    Args:
        facts: for the line; what is callable is called only where a line needs it.
    """
    for row in (row for row in TRANSLATIONS if row.doing in ("", doing)):
        if not row.doing and "left" not in facts:
            continue  # whoever knows what is left of the run is further out
        # a full disk and a process that is gone hide behind what the libraries in between make of them
        for found in origins(error) if row.doing in ("", "the run") else (error,):
            if row.matches(found):
                known = {key: value() if callable(value) else value for key, value in facts.items() if key in row.line}
                known |= {"reason": reason_of(found), "whole": str(found), "missing": getattr(found, "name", "")}
                return row.kind(row.line.format_map(defaultdict(str, known)).strip(" ;."))
    return None


def reason_of(error: BaseException) -> str:
    """What an exception says, in one line, without what only its library's developers need."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    reason = re.sub(r"^\[\S*gloo\S*\]\s*", "", reason).partition(". This is")[0].strip()
    says_little = isinstance(error, LookupError | AttributeError | ArithmeticError)
    return f"{type(error).__name__}: {reason}".rstrip(": ") if says_little or not reason else reason


@contextlib.contextmanager
def readable(doing: str = "", advice: Callable[[str], str] | None = None, **facts: Any) -> Iterator[None]:
    """Libraries' exceptions in here that a user can act on are UserErrors, by TRANSLATIONS; others pass.

    Args:
        doing: the activity, as TRANSLATIONS name it.
        advice: what to change where a device is full, and how to continue, by what the run was doing; None: only a
            caller without `doing` says that it is full.
        facts: what the lines need.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError):
            raise
        if full := next((each for each in origins(error) if out_of_memory.is_out_of_memory(each)), None):
            if advice is None and doing:
                raise
            remedy = f"; {advice(out_of_memory.phase_of(full))}" if advice else ""
            raise UserError(out_of_memory.in_words(full) + remedy) from error
        if (line := translate(error, doing, facts)) is None:
            raise
        raise line from error
