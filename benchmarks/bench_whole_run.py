"""A whole run of train_grpo.py, as it is and with TRL's own training step and generation, side by side.

    python benchmarks/bench_whole_run.py --config recipes/demo.yaml
    python benchmarks/bench_whole_run.py --model_name_or_path SMOLLM2 --dataset_name GSM8K.jsonl --num_shots 1 \\
        --reward_funcs benchmarks.random_reward.random_reward --allow_custom_rewards true --report_to none \\
        --use_cpu true --beta 0 --eval_samples 8 --max_completion_length 128 --num_generations 8 \\
        --max_steps 3 --per_device_train_batch_size 16 --gradient_accumulation_steps 1

All flags are those of train_grpo.py. Three sides run one after the other in processes of their own: stock (TRL's
step and `generate`), packed only (TRL's `generate`), and the run as given. A random model samples other texts on
each side, so compare the means. Seconds are sums over the steps; "other" is start-up, evaluation and report.
"""

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench_common import ROOT, print_table, processor_seconds

GENERATE = ["--cache_implementation", "dynamic"]  # its default, which TRL's `generate` alone takes
SIDES = {
    "stock": ["--packed", "false", *GENERATE],
    "packed": GENERATE,
    "as given": [],
}


def run(flags: list[str]) -> dict[str, float]:
    """Seconds of a run by what takes them, and tokens per completion."""
    output = Path(tempfile.mkdtemp()) / "run"
    start, used = time.perf_counter(), processor_seconds()
    own = [*flags, "--logging_steps", "1", "--output_dir", str(output)]  # every step, however short the run
    command = [sys.executable, str(ROOT / "train_grpo.py"), *sys.argv[1:], *own]
    subprocess.run(command, check=True, stdout=sys.stderr)
    total, used = time.perf_counter() - start, processor_seconds() - used
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "step_time" in step and "loss" in step]
    counts = [now["step"] - before["step"] for before, now in pairwise([{"step": 0}, *steps])]

    def total_of(key: str) -> float:  # a log holds the mean of the steps since the one before
        return sum(count * step[key] for count, step in zip(counts, steps, strict=True))

    generation, rewards, all_of_it = map(total_of, ("time/generation", "time/rewards", "step_time"))
    return {
        "training phase": all_of_it - generation - rewards,
        "generation": generation,
        "rewards": rewards,
        "steps": all_of_it,
        "other": total - all_of_it,
        "whole run": total,
        "processor time": used,
        "tokens per completion": total_of("completions/mean_length") / sum(counts),
    }


def main() -> None:
    found = {name: run(flags) for name, flags in SIDES.items()}
    headings = ["", *(heading for name in found for heading in (name, "ratio"))]
    rows = []
    for key, reference in found["stock"].items():
        cells = [key]
        for one in found.values():
            cells += [f"{one[key]:.1f}", f"{reference / one[key]:.2f}" if one[key] else "-"]
        rows.append(cells)
    print_table(f"Seconds of {' '.join(sys.argv[1:3])}", headings, rows)
    share = found["stock"]["training phase"] / found["stock"]["whole run"]
    print(f"The training phase is {share:.0%} of the stock run")


if __name__ == "__main__":
    main()
