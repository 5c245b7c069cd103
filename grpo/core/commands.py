"""Command lines for a user to copy: the run's own, the one that resumes it, and those of the tools."""

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.core import INSTALLED, PACKAGE, ROOT

FORWARDED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # torchrun's default


def program(script: str) -> str:
    """Return the script's name for a command to copy: as it was started, or its path."""
    started, path = sys.argv[0], Path(script).resolve()
    if started and Path(started).resolve() == path:
        return started
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def tool(*words: str, anywhere: bool = False) -> str:
    """Return the command line of a tool, such as `python -m grpo report outputs/demo`, that runs from this directory.

    Of a clone it names the tools' path elsewhere than there, or to run anywhere.
    """
    by_name = INSTALLED or (Path.cwd() == ROOT and not anywhere)
    start = ["-m", "grpo"] if by_name else [str(PACKAGE)]
    return shlex.join(["python", *start, *words])


def file(name: str) -> str:
    """Return the path of a shipped file for a command to copy: its name, in the clone."""
    return name if Path.cwd() == ROOT else shlex.quote(str(ROOT / name))


def install() -> str:
    """Return the command that installs all that this project needs."""
    return 'pip install "lean-grpo[script]"' if INSTALLED else f"pip install -r {file('requirements.txt')}"


def launcher() -> str:
    """Return a command's launcher, such as `torchrun --nproc_per_node=4`, or `python` for one process."""
    if {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "ACCELERATE_USE_DEEPSPEED"} & os.environ.keys():  # its launcher's alone
        return "accelerate launch [its options as before]"
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun, and by vLLM's start
    if not processes or "TORCHELASTIC_RUN_ID" not in os.environ:
        return "python"
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":  # several machines
        return "torchrun [its options as before]"
    signals = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", FORWARDED)
    option = "" if signals == FORWARDED else f" --signals-to-handle={shlex.quote(signals)}"
    return f"torchrun --nproc_per_node={processes}{option}"


def line(launcher: str | None, program: str, argv: Sequence[str]) -> str:
    """Return the command that started a run; a call of `main` without a launcher, which passed rows from Python.

    >>> line("python", "train_grpo.py", ["--run_name", "my run"]), line(None, "train_grpo.py", [])
    ("python train_grpo.py --run_name 'my run'", 'train_grpo.main([], dataset=...)')
    """
    if launcher is None:
        return f"{Path(program).stem}.main({list(argv)}, dataset=...)"
    return f"{launcher} {shlex.join([program, *argv])}"


def resume(started: Mapping[str, Any], run: Path) -> str:
    """Return the command that resumes a run.

    Args:
        started: `launcher`, `program` and `argv` of its last session, as in run.json.
        run: its directory, which may have been moved since.
    """
    words = [*without(started["argv"], ("output_dir", "resume_from_checkpoint")), "--output_dir", str(run)]
    return line(started["launcher"], started["program"], [*words, "--resume_from_checkpoint", "auto"])


def without(argv: Sequence[str], settings: Collection[str]) -> Iterator[str]:
    """Yield a command line's words without these flags and their values."""
    words = iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_") in settings:
            if not equals:
                next(words, None)
        else:
            yield word
