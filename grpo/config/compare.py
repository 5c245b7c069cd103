"""`python -m grpo compare`: finished runs side by side, or one command trained with several seeds and then compared.

    python -m grpo compare outputs/first outputs/second
    python -m grpo compare --seeds 1 2 3 -- --config recipes/demo.yaml

The flags after `--` are those of train_grpo.py. It is run once per seed, in <output_dir>-seed1, <output_dir>-seed2, …;
what is finished there is reused and what was interrupted is resumed, so the same command continues after a stop.
"""

import argparse
import multiprocessing
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from grpo.core.errors import MISTAKE, UserError
from grpo.core.parsing import ArgumentParser
from grpo.core.redaction import printable
from grpo.evaluation import side_by_side
from grpo.runs.directory import holds_run, recorded

SCRIPT = Path(__file__).resolve().parents[2] / "train_grpo.py"
# What --seeds decides for each run, and what does not train
NOT_AFTER = ("seed", "resume_from_checkpoint", "overwrite_run", "dry_run", "eval_only", "ask", "merge_only")

# Each seed has its own, or the free memory decides (and nothing that is learned depends on it)
MAY_DIFFER = side_by_side.NAMES | {"seed", "gradient_checkpointing", "activation_checkpointing"}


def resolve(flags: list[str]) -> dict[str, Any]:
    """The settings of a run with these flags, as run.json records them; raises UserError."""
    return resolve_all([flags])[0]


def resolve_all(commands: Sequence[list[str]]) -> list[dict[str, Any]]:
    """The settings of several runs, each by its flags; UserError for the first one that cannot be run."""
    # in a process of its own, which takes torch and CUDA with it when it ends
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_resolve, commands))


def _resolve(flags: list[str]) -> dict[str, Any]:
    from grpo.config import resolve
    from grpo.runs.resume import as_json

    # nothing is written here, and each run has a directory of its own
    argv = [*flags, "--overwrite_run", "true"]
    return as_json(resolve.resolve(runpy.run_path(str(SCRIPT))["HYPERPARAMETERS"], argv).settings())


def train(seeds: Sequence[int], flags: list[str]) -> tuple[list[Path], int]:
    """Run the command once per seed, one after another, until one fails.

    Returns:
        the runs' directories, and the first failure's exit status, else 0.

    Raises:
        UserError: a flag that --seeds decides, an invalid setting, or a finished run with other settings.
    """
    typed = {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in flags if word.startswith("--")}
    if taken := [name for name in NOT_AFTER if name in typed]:
        raise UserError(f"{taken[0]}: --seeds trains and chooses seeds and directories itself; drop --{taken[0]}")
    settings = resolve(flags)
    runs = {seed: Path(f"{settings['output_dir']}-seed{seed}") for seed in seeds}
    finished = {seed for seed, run in runs.items() if recorded(run, "status") == "finished"}
    for seed in finished:
        _refuse_other_settings(runs[seed], settings)
    for number, (seed, run) in enumerate(runs.items(), 1):
        how = "finished, reused" if seed in finished else "resumed" if holds_run(run) else "trained"
        print(printable(f"Seed {seed} ({number} of {len(runs)}): {run}, {how}"), flush=True)
        if seed in finished:
            continue
        names = ["--seed", str(seed), "--output_dir", str(run), "--run_name", f"{settings['run_name']}-seed{seed}"]
        resume = ["--resume_from_checkpoint", "auto"] if holds_run(run) else []
        if status := start([*flags, *names, *resume]):
            then = f"the same command continues there (delete {run} to train this seed from the start)"
            print(printable(f"Seed {seed} ended with status {status}: {then}"), file=sys.stderr)
            return list(runs.values()), status
    return list(runs.values()), 0


def _refuse_other_settings(run: Path, settings: dict[str, Any]) -> None:
    then = recorded(run, "settings") or {}
    keys = sorted(settings.keys() & then.keys() - MAY_DIFFER)
    if other := [f"{key} {then[key]}, now {settings[key]}" for key in keys if then[key] != settings[key]]:
        named = "; ".join([*other[:3], *["…"] * (len(other) > 3)])
        raise UserError(
            f"seeds: {str(run)!r} is finished, with other settings ({named}); use another --output_dir, or delete it"
        )


def start(argv: list[str]) -> int:
    """Run train_grpo.py to its end; its exit status, as a shell has it.

    Ctrl-C and SIGTERM end the run as ever, with a checkpoint, and what would come after it, too.
    """
    process, received = subprocess.Popen([sys.executable, str(SCRIPT), *argv]), list[int]()

    def end(number: int, frame: Any) -> None:
        received.append(number)
        if number == signal.SIGTERM:  # Ctrl-C the terminal sends to both
            process.terminate()

    handlers = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received and status == 0:  # it had just finished
        return 128 + received[0]
    return status if status >= 0 else 128 - status


def main(argv: list[str] | None = None) -> int:
    """Print the comparison and write its page; mistakes are one line and exit status 2."""
    words = sys.argv[1:] if argv is None else argv
    own, dashes, flags = (words, [], []) if "--" not in words else _cut(words)
    parser = ArgumentParser(
        prog="python -m grpo compare",
        usage="%(prog)s [--output FILE.html] RUN RUN ...\n       %(prog)s [--output FILE.html] --seeds 1 2 3 -- FLAGS",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="directories of runs")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="train first, once with each of these seeds")
    parser.add_argument("--output", type=Path, default=Path("compare.html"), help="the page (default: compare.html)")
    try:
        given, unknown = parser.parse_known_args(own)
        if given.seeds and (unknown or not dashes):
            raise UserError("seeds: the flags of train_grpo.py follow after --: --seeds 1 2 3 -- --config demo")
        if unknown or (dashes and not given.seeds):
            raise UserError(f"{(unknown or flags or dashes)[0]}: no such flag; see {parser.prog} --help")
        if given.output.suffix != ".html" or not given.output.absolute().parent.is_dir():
            raise UserError(f"output: {str(given.output)!r} is not a .html file in a directory that exists")
        if given.seeds:
            if given.runs or len(set(given.seeds)) < 2:
                raise UserError("seeds: at least two different ones are needed, and no RUN beside them")
            given.runs, status = train(list(dict.fromkeys(given.seeds)), flags)
            if status:
                return status
        compared = side_by_side.compare(side_by_side.read(given.runs))
        try:
            page = side_by_side.write(compared, given.output)
        except OSError as error:
            name = str(given.output)
            raise UserError(f"output: {name!r} cannot be written ({error.strerror}); use another name") from None
    except (UserError, OSError) as error:  # OSError: a run that may not be read
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return MISTAKE
    side_by_side.print_all(compared)
    print(printable(str(page)))
    return 0


def _cut(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The words before `--`, itself, and those after it."""
    at = words.index("--")
    return words[:at], words[at : at + 1], words[at + 1 :]
