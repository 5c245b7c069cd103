"""What benchmarks of whole runs share: arms trained over several seeds, what they learned, and the table of it.

An arm is a name and the flags of train_grpo.py that it adds to those of the experiment. Its runs are
DIRECTORY/<arm>-seed<seed>; what is finished there is reused.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bench_common  # noqa: F401, it puts the project on the path

from grpo.config import compare
from grpo.core.errors import UserError
from grpo.core.parsing import ArgumentParser
from grpo.evaluation import comparison, side_by_side
from grpo.evaluation.side_by_side import Estimate, Run
from grpo.runs import report
from grpo.runs.directory import recorded

DEMO = ["--config", "recipes/demo.yaml"]

Arms = Mapping[str, list[str]]


def parser(description: str | None) -> argparse.ArgumentParser:
    """With what all of them take: seeds, the directory of the runs, and which of them to train."""
    made = ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", nargs="+", type=int, default=[42])
    made.add_argument("--output", type=Path, help="directory of the runs, kept and reused (default: a temporary one)")
    made.add_argument("--arms", nargs="*", help="train only these; without a name, print what is finished")
    return made


def start(
    made: argparse.ArgumentParser, run: Callable[[argparse.Namespace, list[str]], None], default: Sequence[str] = DEMO
) -> int:
    """Call `run` with the parsed arguments and the flags after `--` (`default`, without any); the exit status."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            args, flags = made.parse_args(words[:at]), words[at + 1 :] or list(default)
            args.output = args.output or Path(temporary)
            args.output.mkdir(parents=True, exist_ok=True)
            run(args, flags)
        except (UserError, OSError) as error:  # OSError: a directory or file that cannot be read or written
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


def choose(arms: Mapping[str, Any], names: Sequence[str] | None, flag: str = "arms") -> dict[str, Any]:
    """The arms of these names, all of them for None; UserError for a name that is not there."""
    if unknown := [name for name in names or [] if name not in arms]:
        raise UserError(f"{flag}: there is no {unknown[0]!r}; choose from {', '.join(arms)}")
    return {name: flags for name, flags in arms.items() if names is None or name in names}


def train(flags: list[str], arms: Arms, seeds: Sequence[int], output: Path) -> None:
    """Train what is not finished, arm by arm; SystemExit with the status of a run that fails.

    UserError for flags that do not go with one of the arms, before the first of them trains.
    """
    compare.resolve_all([[*flags, *own] for own in arms.values()])
    for name, own in arms.items():
        print(f"{name}:", flush=True)
        _, status = compare.train(seeds, [*flags, *own, "--output_dir", str(output / name)])
        if status:
            sys.exit(status)


def read(arms: Iterable[str], seeds: Sequence[int], output: Path) -> dict[str, dict[int, Run]]:
    """The finished runs by arm and seed; arms without one are absent. UserError where there is none at all."""
    found = {}
    for name in arms:
        paths = {seed: output / f"{name}-seed{seed}" for seed in seeds}
        runs = {
            seed: side_by_side.read_run(path, path.name)
            for seed, path in paths.items()
            if recorded(path, "status") == "finished"
        }
        if runs:
            found[name] = runs
    if not found:
        asked = " or ".join(map(str, seeds))
        raise UserError(f"output: no arm with seed {asked} is finished in {str(output)!r}; train some, or set --seeds")
    return found


def advantage(runs: Mapping[int, Run], others: Mapping[int, Run]) -> Estimate | None:
    """The runs' gain in lenient accuracy less the others', with its 95 % interval; None without a seed in common.

    Of several seeds it is the mean of the differences seed by seed, with Student's interval. Of one seed (or where all
    seeds differ by the same) it is paired by question: of the final answers where both start from the same ones, and
    of what each question gained where they do not (other number formats).
    """
    seeds = [seed for seed in runs if seed in others]
    differences = [runs[seed].gains["lenient"].value - others[seed].gains["lenient"].value for seed in seeds]
    if found := side_by_side.spread(differences):
        return Estimate(found.mean, found.low, found.high)
    if not seeds:
        return None
    run, other = runs[seeds[0]], others[seeds[0]]
    if _starts(run) == _starts(other):
        return side_by_side.gains(comparison.compare(other.answers, run.answers))["lenient"]
    by_question = [
        100.0 * (after["lenient"] - before - other_after["lenient"] + other_before)
        for after, before, other_after, other_before in zip(
            run.answers, _starts(run), other.answers, _starts(other), strict=True
        )
    ]
    value, low, high = comparison.mean_interval(by_question)
    return Estimate(value, low, high) if low is not None and high is not None else None


def _starts(run: Run) -> list[bool]:
    """Whether each answer before training is right, leniently."""
    return [record["lenient"] for record in report.read_lines(run.path / "completions_before.jsonl")]


def accuracies(runs: Collection[Run], measure: str) -> list[str]:
    """Three cells, averaged over the runs: before and after with the interval of one run, that of the questions; the
    gain with its paired interval, of several runs Student's over the seeds.
    """
    cells = []
    for when in ("before", "after"):
        found = [getattr(run, when)[measure] for run in runs]
        value, low, high = (statistics.mean(getattr(each, key) for each in found) for key in ("value", "low", "high"))
        cells.append(f"{value:.1f} ({low:.0f}-{high:.0f})")
    gains = [run.gains[measure] for run in runs]
    spread = side_by_side.spread([gain.value for gain in gains])
    return [*cells, side_by_side.signed(Estimate(spread.mean, spread.low, spread.high) if spread else gains[0])]


def headings(measure: str) -> list[str]:
    """Of `accuracies`."""
    return [f"{measure} {when}" for when in ("before", "after", "gain")]


def warn(found: Mapping[str, Mapping[int, Run]]) -> None:
    """A line for each reason not to take the figures at face value."""
    for line in side_by_side.warnings([run for runs in found.values() for run in runs.values()]):
        print(f"warning: {line}")


def sample(found: Mapping[str, Mapping[int, Run]]) -> str:
    """What the figures are over: questions and seeds."""
    runs = [run for each in found.values() for run in each.values()]
    seeds = {seed for each in found.values() for seed in each}
    return f"{runs[0].n} held-out questions, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
