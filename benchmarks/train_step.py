"""The training phase of stock TRL and of LeanGRPOTrainer, on the same synthetic rollouts and at the same settings.

    python benchmarks/train_step.py                                              9M parameters, on a CPU
    python benchmarks/train_step.py --model Qwen/Qwen2.5-1.5B-Instruct --device cuda --dtype bfloat16

Rollouts of 32 completions in groups of 8: lengths lognormal around 200 tokens, 3 % of which are cut at 786, prompts
of 20 to 120 words. Micro-batches of 8, accumulation 4, the rewards random (so that every group is live) or the same
for half of the groups. Generation is skipped and its time is not counted. Each side runs in a process of its own.

seconds     of the training phase (forward and backward) for one optimizer step, the mean of all steps but the
            first, and the smallest and largest; with --beta, the reference model's forward is not among them
efficiency  useful tokens / tokens computed. Useful are the completion tokens of live groups and, once for each
            distinct prompt of a rollout, all prompt tokens but the last
memory      the peak above what the imports take, MB
gradient    of the first step: the largest difference of a parameter's, relative to stock's, and both norms
limit       useful tokens × 6 × parameters / the rate of a matrix product, the time of a step that wastes nothing
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import gpu_machine, measured_run

MB = 2**20


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a local directory or a Hub id; without one, a random Qwen2 of 9M parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attn_implementation", default="sdpa")
    parser.add_argument("--loss_type", default="dapo")
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--max_completion_length", type=int, default=786)
    parser.add_argument("--median_length", type=float, default=200.0)
    parser.add_argument("--batch_size", type=int, default=8, help="completions of a micro-batch; groups of as many")
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pack_tokens", type=int)
    parser.add_argument("--dead", type=float, nargs="+", default=[0.0, 0.5], help="shares of groups without a signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=["stock", "lean"], help="measure one side here; used by this script itself")
    parser.add_argument("--gradients", help="where --side saves the first step's")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict:
    """One side, in this process."""
    import torch

    run = measured_run.Run(
        side=options.side,
        model=options.model or "9M",
        device=options.device,
        dtype=options.dtype,
        attention=options.attn_implementation,
        pack_tokens=options.pack_tokens,
        loss_type=options.loss_type,
        beta=options.beta,
        group=options.batch_size,
        batch_size=options.batch_size,
        accumulation=options.accumulation,
        steps=options.steps,
        median_length=options.median_length,
        max_completion_length=options.max_completion_length,
        dead=options.dead[0],
        seed=options.seed,
    )
    found = measured_run.train(
        run, on_gradients=lambda all: torch.save({n: gradient.float().cpu() for n, gradient in all}, options.gradients)
    )
    return found | {"seconds": found["seconds"][1:], "memory": found["memory"] / MB}


def difference(stock: str, lean: str) -> tuple[float, float, float]:
    """Of two files of gradients: the largest relative difference of a parameter's, and the norms of both."""
    import torch

    one, other = torch.load(stock, weights_only=True), torch.load(lean, weights_only=True)
    worst = max(((one[n] - other[n]).norm() / one[n].norm()).item() for n in one if one[n].any())
    norms = (torch.stack([g.norm() for g in side.values()]).norm().item() for side in (one, other))
    return worst, *norms


def main() -> None:
    options = settings()
    if options.side:
        print("\n" + json.dumps(measure(options)))
        return
    import torch
    import transformers
    import trl
    from rich.console import Console
    from rich.table import Table

    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    rate = gpu_machine.matrix_rate(options.device, options.dtype)
    table = Table(title=f"Training phase, {options.loss_type}, {options.dtype}, {options.attn_implementation}")
    for column in (
        "groups",
        "trainer",
        "seconds",
        "ratio",
        "efficiency",
        "memory, MB",
        "ratio",
        "gradient",
        "limit, s",
    ):
        table.add_column(column, justify="left" if column in ("groups", "trainer") else "right")
    for dead in options.dead:
        found, files = {}, {side: f"{tempfile.mkdtemp()}/{side}.pt" for side in ("stock", "lean")}
        for side, gradients in files.items():
            arguments = [word for word in sys.argv[1:]]
            command = [
                sys.executable,
                __file__,
                *arguments,
                "--dead",
                str(dead),
                "--side",
                side,
                "--gradients",
                gradients,
            ]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[side] = json.loads(output.strip().splitlines()[-1])
        worst, *norms = difference(*files.values())
        for side, one in found.items():
            stock, spent = found["stock"], fmean(one["seconds"])
            limit = one["useful"] / options.steps * 6 * one["parameters"] / rate
            table.add_row(
                f"{1 - dead:.0%} live" if side == "stock" else "",
                f"{side} ({one['backend']})",
                f"{spent:.2f} ({min(one['seconds']):.2f}-{max(one['seconds']):.2f})",
                f"{fmean(stock['seconds']) / spent:.2f}",
                f"{one['useful'] / one['computed']:.3f}",
                f"{one['memory']:,.0f}",
                f"{one['memory'] / stock['memory']:.2f}",
                f"{norms[0]:.6g}" if side == "stock" else f"{norms[1]:.6g} ({worst:.0e})",
                f"{limit:.2f}",
            )
    console = Console(width=150)
    console.print(table)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}"
    console.print(f"{device}, {versions}; {rate / 1e9:,.0f} GFLOP/s in a matrix product")


if __name__ == "__main__":
    main()
