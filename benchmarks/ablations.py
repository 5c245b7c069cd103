"""What does each option gain? Runs with and without it, before and after, on the same held-out questions.

    python benchmarks/ablations.py --seeds 1 2 3
    python benchmarks/ablations.py --group formats --seeds 1 2 --output DIRECTORY -- --config recipes/smollm2.yaml ...
    python benchmarks/ablations.py --output DIRECTORY --arms filter two-stages    trains these alone
    python benchmarks/ablations.py --output DIRECTORY --arms                      trains nothing, prints what is there

    options    base, and each option at equal time: as many steps as fit into the base's seconds, start-up included
    curve      TRL's own training step and the packed one, both sampling by model.generate: the same curve?
    formats    weights in float32 and in bfloat16, each with Kahan summation and plain AdamW, all computed under
               bfloat16 autocast; and float32 throughout

The flags after `--` are those of every run (DEMO below, where there are none: the demo's recipe, stopped where it has
room to get better). Seconds are processor time on a CPU, the clock's on a GPU, without the two evaluations, which are
the same for all. Two short runs of the base say what its start and its step cost, one of an arm what its start or its
step costs instead, unless it only changes what a completion earns: DIRECTORY/pilots.json.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import bench_runs
from bench_common import device, print_table, processor_seconds

from grpo.config import compare
from grpo.core.errors import UserError
from grpo.evaluation import side_by_side
from grpo.evaluation.side_by_side import Run
from grpo.runs import report

# The whole recipe ends at 96 %, where nothing can show what it gains
DEMO = [*bench_runs.DEMO, "--learning_rate", "5e-5", "--max_steps", "15", "--eval_every", "none"]
STAGES = [  # of recipes/two_stage.yaml; max_steps stretches them
    {
        "name": "format",
        "reward_funcs": ["xmlcount_reward_func", "soft_format_reward_func", "strict_format_reward_func"],
    },
    {
        "name": "correctness",
        "reward_funcs": ["correctness_reward_func", "int_reward_func", "soft_format_reward_func"],
        "reward_weights": [1.0, 1.0, 0.5],
    },
]
SHARES = (1, 3)  # of the steps, as there
KAHAN, PLAIN = ["--optim", "stable_adamw"], ["--optim", "adamw_torch"]
GROUPS = ("options", "curve", "formats")
STARTS_LONGER, STEPS_DIFFER = ("filter", "curriculum"), ("stock",)  # all others only change what completions earn


def arms(group: str, settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """The arms of a group by name, the first of them what the others are held against; `settings` are the base's."""
    if group == "curve":
        hf = ["--generation", "hf", "--logging_steps", "1"]
        return {"lean-step": [*hf, "--packed", "true"], "stock-step": [*hf, "--packed", "false"]}
    if group == "formats":
        weights = {
            "float32": ["--dtype", "float32", "--bf16", "true"],
            "bf16": ["--dtype", "bfloat16", "--bf16", "true"],
        }
        optimizers = {"kahan": KAHAN, "plain": PLAIN}
        found = {f"{a}-{b}": [*weights[a], *optimizers[b]] for a in weights for b in optimizers}
        return {**found, "float32-throughout": ["--dtype", "float32", "--bf16", "false", *KAHAN]}
    questions = str(trained_on(settings))
    stages = [{**stage, "max_steps": share} for stage, share in zip(STAGES, SHARES, strict=True)]
    return {
        "base": [],
        "stock": ["--packed", "false", "--generation", "hf"],
        "filter": ["--filter_pass_rate", "0.1", "0.9", "--max_samples", questions],
        "curriculum": ["--curriculum", "true", "--max_samples", questions],
        "two-stages": ["--stages", json.dumps(stages)],
        "adaptive": ["--adaptive_rewards", "all"],
        "skip-unsolved": ["--skip_unsolved", "true"],
    }


def trained_on(settings: Mapping[str, Any]) -> int:
    """Questions that the base run trains on, so that no more are sampled to filter or sort them; needs max_steps."""
    if settings["max_steps"] < 1:
        raise UserError("ablations: the base's --max_steps is needed, since it says how long every arm may take")
    names = ("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps")
    steps, batch, accumulation = (settings[name] for name in names)
    questions = steps * batch * accumulation // settings["num_generations"]
    return min(questions, settings["max_samples"] or questions)


@dataclass(frozen=True)
class Cost:
    """Seconds of a run: `start` whatever its length, and `step` for each optimizer step."""

    start: float
    step: float

    def seconds(self, steps: int) -> float:
        return self.start + steps * self.step

    def steps(self, seconds: float) -> int:
        """Whole optimizer steps that fit; 0 where none does."""
        return max(0, int((seconds - self.start) / self.step + 1e-9))


def costs(pilots: Mapping[str, Mapping[int, float]], names: Iterable[str]) -> dict[str, Cost]:
    """What the arms cost, by the seconds of short runs (by steps): two of the base, the longer one of the others."""
    (few, short), (many, long) = sorted(pilots["base"].items())
    step = (long - short) / (many - few)
    if step <= 0:
        raise UserError("ablations: the longer pilot took no longer than the shorter one; use longer --pilots")
    base = Cost(short - few * step, step)
    found = dict.fromkeys(names, base)
    for name in found.keys() & pilots.keys():
        ((steps, seconds),) = [max(pilots[name].items())]
        if name in STARTS_LONGER:
            found[name] = Cost(seconds - steps * base.step, base.step)
        elif name in STEPS_DIFFER:
            found[name] = Cost(base.start, (seconds - base.start) / steps)
    return found


def pilot(flags: list[str], steps: int, directory: str) -> float:
    """Seconds of a short run with next to no evaluation, which finds no pass rates of an earlier one."""
    own = ["--max_steps", str(steps), "--eval_samples", "8", "--eval_every", "none", "--save_strategy", "no"]
    clock = time.perf_counter if device() == "cuda" else processor_seconds
    before = clock()
    with mock.patch.dict(os.environ, HF_DATASETS_CACHE=f"{directory}/cache"):
        if status := compare.start([*flags, *own, "--output_dir", f"{directory}/run"]):
            sys.exit(status)
    return clock() - before


def measure(flags: list[str], chosen: Mapping[str, list[str]], lengths: Sequence[int], file: Path) -> None:
    """Write the seconds of the short runs that these arms need and that the file does not have yet.

    UserError where the file has those of other flags.
    """
    known = read_pilots(file)
    if known and (then := json.loads(file.read_text())["flags"]) != flags:
        raise UserError(f"output: {str(file)!r} is of runs with {' '.join(then)}; use another --output, or delete it")
    for name in chosen:
        needed = sorted(lengths) if name == "base" else [max(lengths)] * (name in STARTS_LONGER + STEPS_DIFFER)
        for steps in [] if name in known else needed:
            with tempfile.TemporaryDirectory() as directory:
                print(f"{name}: what do {steps} steps cost?", flush=True)
                known.setdefault(name, {})[steps] = pilot([*flags, *chosen[name]], steps, directory)
        file.write_text(json.dumps({"flags": flags, "seconds": known}, indent=1) + "\n")


def read_pilots(file: Path) -> dict[str, dict[int, float]]:
    """Seconds by arm and steps; empty where nothing was measured."""
    found = json.loads(file.read_text())["seconds"] if file.exists() else {}
    return {name: {int(steps): seconds for steps, seconds in each.items()} for name, each in found.items()}


def equal_time(known: Mapping[str, Cost], steps: int) -> dict[str, int]:
    """Steps of each arm that fit into the seconds of the base's; UserError where none does."""
    budget = known["base"].seconds(steps)
    found = {name: cost.steps(budget) for name, cost in known.items()} | {"base": steps}
    if none := [name for name, count in found.items() if not count]:
        raise UserError(f"ablations: {none[0]} starts for longer than the base runs; use a larger --max_steps")
    return found


def apart(run: Run, other: Run) -> dict[str, float]:
    """The largest difference of what both logged at the same step, relative to the size it has on average."""
    logged = [{row["step"]: row for row in report.read_metrics(each.path, "reward")} for each in (run, other)]
    found = {}
    for key in ("grad_norm", "reward"):
        pairs = [(logged[0][step][key], logged[1][step][key]) for step in logged[0] if step in logged[1]]
        size = sum(abs(one) for one, _ in pairs) / len(pairs)
        found[key] = max(abs(one - two) for one, two in pairs) / size
    return found


def run(args: argparse.Namespace, flags: list[str]) -> None:
    if not 0 < min(args.pilots) < max(args.pilots):
        raise UserError(f"pilots: {args.pilots} are not two different numbers of steps; use 4 12")
    settings = compare.resolve(flags)
    steps = settings["max_steps"]
    every = arms(args.group, settings)
    chosen = bench_runs.choose(every, args.arms)
    known, lengths = {}, dict.fromkeys(every, steps)
    if args.group == "options":
        file = args.output / "pilots.json"
        if chosen:
            measure(flags, {"base": every["base"], **chosen}, args.pilots, file)
        if pilots := read_pilots(file):
            known = costs(pilots, every)
            lengths |= equal_time({name: known[name] for name in ("base", *chosen)}, steps)
    timed = {name: [*own, "--max_steps", str(lengths[name])] for name, own in chosen.items()}
    bench_runs.train(flags, timed, args.seeds, args.output)
    found = bench_runs.read(every, args.seeds, args.output)
    reference, rows = next(iter(every)), []
    for name, runs in found.items():
        less = bench_runs.advantage(runs, found.get(reference, {})) if name != reference else None
        count = next(iter(runs.values())).steps or 0
        cells = [name, str(len(runs)), str(count)]
        cells += [f"{known[name].seconds(count):.0f}" if name in known else "-"]
        rows.append(
            [*cells, *bench_runs.accuracies(runs.values(), "lenient"), side_by_side.signed(less) if less else ""]
        )
    title = f"Accuracy in per cent, gains in points, with 95 % intervals: {bench_runs.sample(found)}"
    headings = ["arm", "runs", "steps", "seconds", *bench_runs.headings("lenient"), f"gain less {reference}'s"]
    print_table(title, headings, rows, width=150)
    bench_runs.warn(found)
    if args.group == "curve" and len(found) == 2:
        ours, stock = found.values()
        for seed in ours.keys() & stock.keys():
            parts = [f"{key} {gap:.1e}" for key, gap in apart(ours[seed], stock[seed]).items()]
            print(f"Seed {seed}, the largest difference of a step, relative to the mean: {', '.join(parts)}")


def parser() -> argparse.ArgumentParser:
    made = bench_runs.parser(__doc__)
    made.add_argument("--group", choices=GROUPS, default=GROUPS[0])
    made.add_argument("--pilots", nargs=2, type=int, default=(4, 12), help="steps of the short runs")
    return made


if __name__ == "__main__":
    sys.exit(bench_runs.start(parser(), run, DEMO))
