"""The training phase of stock TRL and of LeanGRPOTrainer, on the same made-up rollouts and at the same settings.

    python benchmarks/bench_train_step.py                                           9M parameters, on a CPU
    python benchmarks/bench_train_step.py --model DIRECTORY --device cuda --dtype bfloat16

Rollouts of 32 completions in groups of 8: lengths lognormal around 200 tokens, 3 % of which are cut at 786, prompts
of 20 to 120 words. Micro-batches of 8, accumulation 4, the rewards random (so that every group is live) or the same
for half of the groups. Making completions up is not counted. Each side runs in a process of its own.

seconds     of forward and backward for one optimizer step, the mean of all steps but the first, and the smallest and
            largest; processor time / threads on a CPU. With --beta, the reference model's forward is not among them
efficiency  useful tokens / tokens computed. Useful are the completion tokens of live groups and, once for each
            distinct prompt of a rollout, all prompt tokens but the last
memory      the peak above what the imports take, MB
gradient    of the first step: the largest difference of a parameter's, relative to stock's
limit       useful tokens × 6 × parameters / the rate of a matrix product, the time of a step that wastes nothing
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import torch
from bench_common import Run, matrix_rate, print_table, train


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    settings = {"model", "device", "dtype", "attention", "loss_type", "beta", "median_length", "batch_size"}
    settings |= {"max_completion_length", "accumulation", "steps", "seed"}
    for field in dataclasses.fields(Run):
        if field.name in settings:
            parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument("--pack_tokens", type=int)
    parser.add_argument("--dead", type=float, nargs="+", default=[0.0, 0.5], help="shares of groups without a signal")
    parser.add_argument("--side", help=argparse.SUPPRESS)  # measure it in this process, and save its gradients
    return parser.parse_args()


def measure(given: argparse.Namespace) -> None:
    settings = {key: value for key, value in vars(given).items() if key not in ("side", "dead")}
    trainer, gradients = given.side.split(":")
    run = Run(trainer=trainer, dead=given.dead[0], group=given.batch_size, **settings)
    found = train(
        run, on_gradients=lambda all: torch.save({name: grad.float().cpu() for name, grad in all}, gradients)
    )
    print("\n" + json.dumps(found))


def difference(stock: str, lean: str) -> float:
    """Of two files of gradients: the largest relative difference of a parameter's."""
    one, other = torch.load(stock, weights_only=True), torch.load(lean, weights_only=True)
    return max(((one[name] - other[name]).norm() / one[name].norm()).item() for name in one if one[name].any())


def main() -> None:
    given = arguments()
    if given.side:
        measure(given)
        return
    rate, rows = matrix_rate(given.device, given.dtype), []
    for dead in given.dead:
        found, files = {}, {}
        for side in ("stock", "lean"):
            files[side] = str(Path(tempfile.mkdtemp()) / f"{side}.pt")
            own = ["--dead", str(dead), "--side", f"{side}:{files[side]}"]
            command = [sys.executable, __file__, *sys.argv[1:], *own]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[side] = json.loads(output.strip().splitlines()[-1])
        worst, reference = difference(*files.values()), fmean(found["stock"]["seconds"][1:])
        for side, one in found.items():
            seconds = one["seconds"][1:]
            rows.append([
                f"{1 - dead:.0%} live: {side} ({one['kernel']})",
                f"{fmean(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
                f"{reference / fmean(seconds):.2f}",
                f"{one['useful'] / one['computed']:.3f}",
                f"{one['peak_bytes'] / 2**20:,.0f}",
                f"{worst:.0e}" if side == "lean" else "",
                f"{one['useful'] / given.steps * 6 * one['parameters'] / rate:.2f}",
            ])  # fmt: skip
    device = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    title = f"Training phase, {given.loss_type}, {given.dtype}, {given.attention}; {device}, {rate / 1e9:,.0f} GFLOP/s"
    print_table(title, ["", "seconds", "ratio", "efficiency", "memory, MB", "gradient", "limit, s"], rows, width=130)


if __name__ == "__main__":
    main()
