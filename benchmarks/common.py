"""Shared by the benchmarks: the command line and its mistakes, and runs of train_grpo.py. Import it before torch."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "assets" / "demo"
sys.path.insert(0, str(ROOT))

from grpo.core.errors import ArgumentParser, run_main  # noqa: E402
from grpo.core.processes import let_idle_threads_sleep  # noqa: E402
from grpo.runs.directory import holds_run  # noqa: E402

let_idle_threads_sleep()  # threads that spin take processor time; train_grpo.py sets it, too


def parser(doc: str | None) -> ArgumentParser:
    """Return a benchmark's parser, with its docstring as the help."""
    return ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def at_least(least: int) -> Callable[[str], int]:
    """Return an option's type: whole numbers of at least this."""

    def whole_number(value: str) -> int:
        if not value.isdecimal() or int(value) < least:
            raise argparse.ArgumentTypeError(f"{value} is not a whole number of at least {least}")
        return int(value)

    return whole_number


def above(limit: float) -> Callable[[str], float]:
    """Return an option's type: numbers above this."""

    def number(value: str) -> float:
        if not float(value) > limit:
            raise argparse.ArgumentTypeError(f"{value} is not a number above {limit:g}")
        return float(value)

    return number


def main(benchmark: Callable[[argparse.Namespace], int | None], parser: ArgumentParser, argv: Any = None) -> int:
    """Parse a command line, run the benchmark with its options, and return the exit status.

    What follows `--` are flags of train_grpo.py: `flags`, where the parser has a default for them.
    """

    def run() -> int:
        words = sys.argv[1:] if argv is None else list(argv)
        at = words.index("--") if "--" in words else len(words)
        options = parser.parse_args(words[:at])
        if flags := words[at + 1 :]:
            if "flags" not in options:
                parser.error(f"{' '.join(flags)}: no run of train_grpo.py takes these flags")
            options.flags = flags
        return benchmark(options) or 0

    return run_main(run)


def start(flags: Iterable[object], output: Path, processes: int = 1, **options: Any) -> subprocess.Popen:
    """Start a run of train_grpo.py in this directory, or resume the one that it contains.

    Args:
        processes: above 1, torchrun starts as many.
        options: those of Popen.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    resume = ["--resume_from_checkpoint", "auto"] if holds_run(output) else []
    command = [sys.executable, *(torchrun if processes > 1 else []), ROOT / "train_grpo.py"]
    command += [*flags, "--output_dir", output, *resume]
    return subprocess.Popen(list(map(str, command)), **options)


def train(flags: Sequence[object], output: Path) -> None:
    """Train to the end; SystemExit with the run's status where it fails."""
    with start(flags, output, stdout=sys.stderr) as run:
        if status := run.wait():
            sys.exit(status)
