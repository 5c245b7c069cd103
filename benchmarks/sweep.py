"""Train the same run with different flags and several seeds, and print one table of what each of them gained.

    python benchmarks/sweep.py controls --seeds 42 1 2
    python benchmarks/sweep.py controls --seeds 3 -- --config recipes/smollm2_sums.yaml --use_cpu true
    python benchmarks/sweep.py rates --arms "all 1e-4" "LoRA 1e-3" --output DIRECTORY -- --config demo --max_steps 30

The flags after `--` (the demo's, if you give none) come first, then the arm's, then the seed's; add an arm to SWEEPS
for an experiment of your own. Runs are DIRECTORY/<arm>-seed<seed>: a finished one is reused and an interrupted one
resumed, so that you can divide a long sweep.

controls   the real rewards against three that teach no answers: chance, the real rewards with the training rows' gold
           answers shuffled, and those that look at no gold answer. What these gain in lenient accuracy training
           gives away by itself. The last two are made for the demo's sums
rates      learning rates, of all weights and of an adapter
weights    weights in float32, in bfloat16, and in bfloat16 rounded by chance (torchao)
options    settings that may help
dynamic    groups whose rewards are all equal, replaced or not

A gain is paired by question. Its interval is Student's over the seeds, or the questions' for a single seed; so is that
of an arm's gain over the first arm's, paired by seed.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import common
from rich.console import Console
from rich.table import Table

from grpo.config.hardware import KEEPS_UPDATES
from grpo.core import jsonfiles
from grpo.core.errors import UserError, one_line
from grpo.report.files import RunFiles
from grpo.results import comparison
from grpo.results.comparison import change_of
from grpo.results.measures import LENIENT, STRICT, Measure
from grpo.results.record import status_of
from grpo.tools import compare

SUMS, HELD_OUT = (common.DEMO / f"{name}.jsonl" for name in ("train", "test"))
SHUFFLED = "{output}/shuffled.jsonl"
FORMAT = ["xmlcount_reward_func", "soft_format_reward_func", "strict_format_reward_func", "int_reward_func"]
RATES = ("5e-6", "1e-5", "2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "1e-3")
ADAPTER = ["--use_peft", "true"]

SWEEPS: dict[str, dict[str, list[str]]] = {
    "controls": {
        "real": [],
        "chance": ["--reward_funcs", "benchmarks.chance.chance_reward", "--allow_custom_rewards", "true"],
        "shuffled": ["--dataset_name", SHUFFLED, "--eval_dataset_name", str(HELD_OUT)],
        "format": ["--reward_funcs", *FORMAT],
    },
    "rates": {
        **{f"all {rate}": ["--learning_rate", rate] for rate in RATES},
        **{f"LoRA {rate}": ["--learning_rate", rate, *ADAPTER] for rate in RATES},
    },
    "weights": {
        "float32": ["--dtype", "float32"],
        "bfloat16": ["--dtype", "bfloat16"],
        "by chance": ["--dtype", "bfloat16", *KEEPS_UPDATES.split()],
    },
    "options": {
        "as given": [],
        "stock": ["--packed", "false", "--cache_implementation", "dynamic"],
        "KL penalty": ["--beta", "0.04"],
        "dr_grpo": ["--loss_type", "dr_grpo", "--scale_rewards", "none"],
    },
    "dynamic": {"without": [], "4 rounds": ["--dynamic_sampling", "4"]},
}


def write_shuffled(file: Path) -> None:
    """The demo's training rows with their gold answers in an order of chance, always the same one.

    Raises:
        FileExistsError: the file is another one.
    """
    rows = jsonfiles.read_lines(SUMS)
    answers = [row["answer"] for row in rows]
    random.Random(0).shuffle(answers)
    changed = ({**row, "answer": answer} for row, answer in zip(rows, answers, strict=True))
    text = "".join(json.dumps(row) + "\n" for row in changed)
    if not (file.is_file() and file.read_text(encoding="utf-8") == text):  # of an earlier start
        with file.open("x", encoding="utf-8") as new:
            new.write(text)


def is_finished(run: Path) -> bool:
    return status_of(run) == "finished"


# --- The table


def ends(runs: list[RunFiles], measure: Measure) -> str:
    before, after = (fmean(change_of(measure, run.comparison)[when] for run in runs) for when in ("before", "after"))
    return f"{100 * before:.1f} → {100 * after:.1f}"


def gain(runs: list[RunFiles], measure: Measure) -> str:
    if len(runs) == 1:
        return in_points(change_of(measure, runs[0].comparison))
    return with_interval(*comparison.mean_interval(compare.gains(runs, measure)))


def advantage(ours: Mapping[int, Path], others: Mapping[int, Path]) -> str:
    """Gain in lenient accuracy over the other arm's, on the seeds that both have."""
    seeds = [seed for seed in ours if seed in others]
    if not seeds or ours == others:
        return ""
    if len(seeds) == 1:  # both started from the same answers: the final ones are compared
        theirs, mine = (compare.read_evaluated(arm[seeds[0]]).samples("after") for arm in (others, ours))
        return in_points(change_of(LENIENT, comparison.compare(theirs, mine)))
    both = (compare.gains([compare.read_evaluated(arm[seed]) for seed in seeds], LENIENT) for arm in (ours, others))
    return with_interval(*comparison.mean_interval([mine - theirs for mine, theirs in zip(*both, strict=True)]))


def in_points(measure: Mapping[str, float]) -> str:
    return with_interval(*(100 * measure[key] for key in ("difference", "difference_low", "difference_high")))


def with_interval(value: float, low: float | None, high: float | None) -> str:
    return f"{value:+.1f}" if low is None else f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def print_table(arms: Mapping[str, Mapping[int, Path]]) -> None:
    """A row for each arm that has finished runs."""
    finished = {arm: {seed: run for seed, run in runs.items() if is_finished(run)} for arm, runs in arms.items()}
    first = next(iter(finished))
    table = Table(title="Held-out accuracy in per cent, gains in points (95 % interval)")
    for heading in ("arm", "seeds", "lenient", "gain", f"less that of {first}", "strict", "gain"):
        table.add_column(heading)
    for arm, runs in finished.items():
        read = [compare.read_evaluated(run) for run in runs.values()]
        if read:
            lenient, strict = ((ends(read, measure), gain(read, measure)) for measure in (LENIENT, STRICT))
            table.add_row(arm, " ".join(map(str, runs)), *lenient, advantage(runs, finished[first]), *strict)
    Console(width=140).print(table)


def sweep(options: argparse.Namespace) -> None:
    arms, output = SWEEPS[options.sweep], options.output or Path(tempfile.mkdtemp())
    chosen = arms if options.arms is None else options.arms
    if unknown := set(chosen) - arms.keys():
        raise UserError(f"--arms: {', '.join(sorted(unknown))} is not an arm of {options.sweep}: {', '.join(arms)}")
    with one_line("--output: ", kinds=(OSError,)):
        output.mkdir(parents=True, exist_ok=True)
        write_shuffled(Path(SHUFFLED.format(output=output)))
    runs = {arm: {seed: output / f"{arm.replace(' ', '-')}-seed{seed}" for seed in options.seeds} for arm in arms}
    for arm in chosen:
        own = [flag.format(output=output) for flag in arms[arm]]
        for seed, run in runs[arm].items():
            if not is_finished(run):
                common.train([*options.flags, *own, "--seed", seed, "--run_name", run.name], run)
    print_table(runs)


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("sweep", choices=SWEEPS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--arms", nargs="*", help="train only these, and print what is finished")
    parser.add_argument("--output", type=Path, help="directory of the runs (default: a temporary one)")
    parser.set_defaults(flags=["--config", "demo"])
    return common.main(sweep, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
