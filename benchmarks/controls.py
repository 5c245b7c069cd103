"""Does a model learn from its rewards? The same training with the real ones and with three that teach no answers.

    python benchmarks/controls.py
    python benchmarks/controls.py --seeds 1 2 3 -- --config recipes/smollm2.yaml --eval_dataset_name openai/gsm8k
    python benchmarks/controls.py --output DIRECTORY        keeps the runs there, and reuses those that are finished

    real       the rewards of the flags (recipes/demo.yaml, where there are none)
    random     a reward drawn by chance for each completion
    shuffled   the real rewards, on training rows whose gold answers are permuted; the held-out ones stay right
    format     those of the real rewards that look at no gold answer

What random, shuffled and format gain in lenient accuracy is what training gives away by itself. That the model learned
to answer is the difference between the real rewards' gain and theirs: paired by question, over seeds by seed.
"""

import argparse
import inspect
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_common import print_table

import rewards
from grpo.config import compare
from grpo.core.errors import UserError
from grpo.data import sources
from grpo.evaluation import comparison, side_by_side
from grpo.evaluation.side_by_side import Estimate, Run

DEMO = ["--config", "recipes/demo.yaml"]
CHANCE = ["--reward_funcs", "benchmarks.random_reward.chance_reward", "--allow_custom_rewards", "true"]
CHANCE += ["--reward_weights", "1"]


def permuted(rows: Sequence[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """The rows, each with the answer of another one, chosen by chance and always alike."""
    answers = [row[column] for row in rows]
    random.Random(0).shuffle(answers)
    return [{**row, column: answer} for row, answer in zip(rows, answers, strict=True)]


def shuffled(settings: dict[str, Any], file: Path) -> list[str]:
    """Flags that train on the run's rows with permuted answers, which are written to this file."""
    name = settings["dataset_name"]
    if not isinstance(name, str) or not settings["eval_dataset_name"]:
        raise UserError(
            "controls: one --dataset_name and an --eval_dataset_name, whose answers stay right, are needed"
        )
    rows = sources.take_split(sources.load_source(name, settings["dataset_config"]), settings["dataset_split"])
    changed = permuted(rows.to_list(), settings["answer_column"])
    file.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    held_out = settings["eval_dataset_name"]
    names = [held_out] if isinstance(held_out, str) else held_out
    return ["--dataset_name", str(file), "--dataset_split", "train", "--eval_dataset_name", *names]


def format_only(settings: dict[str, Any]) -> list[str]:
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


def train(flags: list[str], seeds: list[int], output: Path) -> dict[str, list[Run]]:
    """The finished runs of each side, by seed; SystemExit with the status of a run that fails."""
    settings = compare.resolve(flags)
    sides = {
        "real": [],
        "random": CHANCE,
        "shuffled": shuffled(settings, output / "shuffled.jsonl"),
        "format": format_only(settings),
    }
    directories = {}
    for side, own in sides.items():
        print(f"{side}:", flush=True)
        directories[side], status = compare.train(seeds, [*flags, *own, "--output_dir", str(output / side)])
        if status:
            sys.exit(status)
    runs = side_by_side.read([path for paths in directories.values() for path in paths])
    return {side: [runs.pop(0) for _ in seeds] for side in sides}


def average(found: Sequence[Estimate]) -> Estimate:
    """One run's own estimate, or the mean of several with Student's interval."""
    spread = side_by_side.spread([each.value for each in found])
    return Estimate(spread.mean, spread.low, spread.high) if spread else found[0]


def advantage(real: Sequence[Run], control: Sequence[Run]) -> Estimate:
    """The real rewards' gain in lenient accuracy less the control's, with its 95 % interval.

    All sides start from the same answers, so of one seed it is the paired difference of the final ones.
    """
    if len(real) == 1:
        compared = comparison.compare(control[0].answers, real[0].answers)
        return side_by_side.gains(compared)["lenient"]
    differences = [
        ours.gains["lenient"].value - theirs.gains["lenient"].value for ours, theirs in zip(real, control, strict=True)
    ]
    spread = side_by_side.spread(differences)
    return Estimate(statistics.mean(differences), spread.low, spread.high)


def main() -> int:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--output", type=Path, help="directory of the runs (default: a temporary one)")
    args, flags = parser.parse_args(words[:at]), words[at + 1 :] or DEMO
    with tempfile.TemporaryDirectory() as temporary:
        output = args.output or Path(temporary)
        output.mkdir(parents=True, exist_ok=True)
        try:
            runs = train(flags, args.seeds, output)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    measures = ("lenient", "strict")
    rows = []
    for side, found in runs.items():
        cells = [side]
        for measure in measures:
            for each in ("before", "after", "gains"):
                estimate = average([getattr(run, each)[measure] for run in found])
                cells.append(side_by_side.signed(estimate) if each == "gains" else plain(estimate))
        rows.append(cells)
    headings = ["rewards", *(f"{measure} {each}" for measure in measures for each in ("before", "after", "gain"))]
    count = f"{runs['real'][0].n} held-out questions, {len(args.seeds)} seed{'s' * (len(args.seeds) > 1)}"
    print_table(f"Accuracy in per cent, gains in points, with 95 % intervals: {count}", headings, rows, width=160)
    sides = [side for side in runs if side != "real"]
    rows = [[f"real less {side}", side_by_side.signed(advantage(runs["real"], runs[side]))] for side in sides]
    print_table("The lenient gain with the real rewards, less that of the control", ["", "points"], rows)
    return 0


def plain(found: Estimate) -> str:
    return f"{found.value:.1f} ({found.low:.0f}-{found.high:.0f})"


if __name__ == "__main__":
    sys.exit(main())
