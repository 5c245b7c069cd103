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
and the order of the shuffled answers are the same with each seed.
"""

import argparse
import inspect
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import bench_runs
from bench_common import print_table

import rewards
from grpo.config import compare
from grpo.core.errors import UserError
from grpo.data import sources
from grpo.evaluation import side_by_side

CHANCE = ["--reward_funcs", "benchmarks.random_reward.chance_reward", "--allow_custom_rewards", "true"]
CHANCE += ["--reward_weights", "1"]


def permuted(rows: Sequence[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """The rows, with their answers in an order of chance, the same for each seed; a few are right by luck."""
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
    if settings["answer_column"] not in rows.column_names:
        raise UserError(f"controls: {name} has no column {settings['answer_column']!r} whose values could be shuffled")
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


BY_RIGHT_ANSWERS = ("keep_best", "load_best_model_at_end", "filter_pass_rate", "curriculum", "skip_unsolved")
SIDES: dict[str, Callable[[dict[str, Any], Path], list[str]]] = {  # their flags, by the settings and the directory
    "real": lambda settings, output: [],
    "random": lambda settings, output: CHANCE,
    "shuffled": lambda settings, output: shuffled(settings, output / "shuffled.jsonl"),
    "format": lambda settings, output: format_only(settings),
}


def run(args: argparse.Namespace, flags: list[str]) -> None:
    chosen, settings = bench_runs.choose(SIDES, args.arms), compare.resolve(flags)
    for key in BY_RIGHT_ANSWERS:
        if settings[key]:
            raise UserError(f"{key}: it chooses by right answers, which a control must not see; drop it")
    arms = {side: make(settings, args.output) for side, make in chosen.items()}
    bench_runs.train(flags, arms, args.seeds, args.output)
    found = bench_runs.read(SIDES, args.seeds, args.output)
    measures = ("lenient", "strict")
    headings = ["rewards", *(heading for measure in measures for heading in bench_runs.headings(measure))]
    rows = [
        [_of(side, runs), *(cell for measure in measures for cell in bench_runs.accuracies(runs.values(), measure))]
        for side, runs in found.items()
    ]
    title = f"Accuracy in per cent, gains in points, with 95 % intervals: {bench_runs.sample(found)}"
    print_table(title, headings, rows, width=160)
    bench_runs.warn(found)
    rows, real = [], found.pop("real", {})
    for side, runs in found.items():
        less = bench_runs.advantage(real, runs)
        rows.append([_of(f"real less {side}", real.keys() & runs), side_by_side.signed(less) if less else "-"])
    print_table("The lenient gain with the real rewards, less that of the control", ["", "points"], rows)


def _of(side: str, seeds: Iterable[int]) -> str:
    """A side and the seeds that its row is over: some may not be trained yet."""
    return f"{side} ({', '.join(map(str, sorted(seeds)))})"


if __name__ == "__main__":
    sys.exit(bench_runs.start(bench_runs.parser(__doc__), run))
