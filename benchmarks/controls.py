"""Does a model learn from its rewards? The same training with the real ones and with three that teach no answers.

    python benchmarks/controls.py
    python benchmarks/controls.py --seeds 1 2 3 -- --config recipes/smollm2_sums.yaml
    python benchmarks/controls.py --output DIRECTORY --arms shuffled    trains this alone, and keeps all runs there

    real       the rewards of the flags (recipes/demo.yaml, where there are none)
    random     a reward drawn by chance for each completion
    shuffled   the real rewards, on training rows whose gold answers are permuted; the held-out ones stay right
    format     those of the real rewards that look at no gold answer

What random, shuffled and format gain in lenient accuracy is what training gives away by itself. That the model learned
to answer is the difference between the real rewards' gain and theirs: paired by question, over seeds by seed. Chance
and the order of the shuffled answers are the same with each seed. Runs are DIRECTORY/<arm>-seed<seed>; a finished one
is reused, and an interrupted one resumed.
"""

import argparse
import inspect
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench_common import ROOT, print_table

import rewards
import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import ArgumentParser, UserError
from grpo.data import sources
from grpo.evaluation import compare, comparison
from grpo.runs.directory import holds_run, read_record
from grpo.runs.report import read_lines

CHANCE = ["--reward_funcs", "benchmarks.random_reward.chance_reward", "--allow_custom_rewards", "true"]
CHANCE += ["--reward_weights", "1"]


def permuted(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """The rows, with their answers in an order of chance, the same for each seed; a few are right by luck."""
    answers = [row[column] for row in rows]
    random.Random(0).shuffle(answers)
    return [{**row, column: answer} for row, answer in zip(rows, answers, strict=True)]


def shuffled(settings: Mapping[str, Any], file: Path) -> list[str]:
    """Flags that train on the run's rows with permuted answers, which are written to this file."""
    name, held_out = settings["dataset_name"], settings["eval_dataset_name"]
    if not isinstance(name, str) or not isinstance(held_out, str):  # questions would be cut from the shuffled rows
        raise UserError(
            "controls: one --dataset_name and an --eval_dataset_name, whose answers stay right, are needed"
        )
    rows = sources.take_split(sources.load_source(name, settings["dataset_config"]), settings["dataset_split"])
    changed = permuted(rows.to_list(), settings["answer_column"])
    file.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    return ["--dataset_name", str(file), "--dataset_split", "train", "--eval_dataset_name", held_out]


def format_only(settings: Mapping[str, Any]) -> list[str]:
    """Flags that keep those rewards, with their weights, that look at no gold answer."""
    names = settings["reward_funcs"]
    weights = settings["reward_weights"] or [1.0] * len(names)
    kept = {
        name: weight
        for name, weight in zip(names, weights, strict=True)
        if name in rewards.REWARD_FUNCS
        and not {"answer", "judge"} & inspect.signature(rewards.REWARD_FUNCS[name]).parameters.keys()
    }
    if not kept:
        raise UserError("controls: all of these rewards need a gold answer; add a format reward")
    return ["--reward_funcs", *kept, "--reward_weights", *map(str, kept.values())]


ARMS: dict[str, Callable[[Mapping[str, Any], Path], list[str]]] = {  # their flags, by the settings and the directory
    "real": lambda settings, output: [],
    "random": lambda settings, output: CHANCE,
    "shuffled": lambda settings, output: shuffled(settings, output / "shuffled.jsonl"),
    "format": lambda settings, output: format_only(settings),
}


def train(flags: list[str], run: Path, seed: int) -> None:
    """Train one run to its end, unless it is finished; SystemExit with its status where it fails."""
    if read_record(run, "status") == "finished":
        return
    own = ["--seed", str(seed), "--output_dir", str(run), "--run_name", run.name]
    own += ["--resume_from_checkpoint", "auto"] if holds_run(run) else []
    if status := subprocess.run([sys.executable, str(ROOT / "train_grpo.py"), *flags, *own]).returncode:
        sys.exit(status)


def advantage(ours: Mapping[int, Path], others: Mapping[int, Path]) -> str:
    """The runs' gain in lenient accuracy over the others', in points; a dash without a seed in common.

    Of several seeds it is the mean of the differences seed by seed, with Student's interval; of one seed the
    difference of the final answers, paired by question (all arms start from the same answers).
    """
    seeds = [seed for seed in ours if seed in others]
    if len(seeds) == 1:
        before, after = (read_lines(runs[seeds[0]] / "completions_after.jsonl") for runs in (others, ours))
        return paired(comparison.compare(before, after)["lenient"])
    found = [compare.gains([compare.read(runs[seed]) for seed in seeds], "lenient") for runs in (ours, others)]
    return in_points(*mean_of([mine - other for mine, other in zip(*found, strict=True)]))


ENDS = ("before", "after")


def mean_of(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    return comparison.mean_interval(values) if values else (None, None, None)


def paired(compared: Mapping[str, float]) -> str:
    return in_points(*(100 * compared[f"difference{end}"] for end in ("", "_low", "_high")))


def in_points(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.1f}" if low is None else f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def print_results(arms: Mapping[str, Mapping[int, Path]]) -> None:
    """Print each arm's gain, and the real rewards' over each control's; of the runs that are finished."""
    runs = {
        arm: {seed: run for seed, run in some.items() if read_record(run, "status") == "finished"}
        for arm, some in arms.items()
    }
    rows = []
    for arm, some in runs.items():
        found = [compare.read(run) for run in some.values()]
        for measure in ("lenient", "strict") if found else ():
            ends = [fmean(100 * run["evaluations"][when][f"accuracy_{measure}"] for run in found) for when in ENDS]
            one = found[0]["comparison"].get(measure) if len(found) == 1 else None
            gain = paired(one) if one else in_points(*mean_of(compare.gains(found, measure)))
            rows.append([f"{arm} ({', '.join(map(str, some))}), {measure}", *(f"{end:.1f}" for end in ends), gain])
    print_table("Accuracy in per cent, gains in points (95 % interval over the seeds)", ["", *ENDS, "gain"], rows)
    rows = [[f"real less {arm}", advantage(runs["real"], runs[arm])] for arm in runs if arm != "real"]
    print_table("The lenient gain with the real rewards, less that of the control", ["", "points"], rows)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument(
        "--output", type=Path, help="directory of the runs, kept and reused (default: a temporary one)"
    )
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS), help="train only these")
    try:
        args, flags = parser.parse_args(words[:at]), words[at + 1 :] or ["--config", "demo"]
        output = args.output or Path(tempfile.mkdtemp())
        output.mkdir(parents=True, exist_ok=True)
        # nothing is written there; each run has a directory of its own
        settings = configure(train_grpo.HYPERPARAMETERS, [*flags, "--output_dir", str(output / "none")]).settings()
        own = {arm: ARMS[arm](settings, output) for arm in args.arms}
        for arm, more in own.items():
            for seed in args.seeds:
                train([*flags, *more], output / f"{arm}-seed{seed}", seed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_results({arm: {seed: output / f"{arm}-seed{seed}" for seed in args.seeds} for arm in ARMS})
    return 0


if __name__ == "__main__":
    sys.exit(main())
