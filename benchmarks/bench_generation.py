"""Seconds of one rollout by our sampler, side by side with stock TRL's `generate`.

    python benchmarks/bench_generation.py MODEL QUESTIONS.jsonl [--mean_length 120] [--max_completion_length 400]

Both sides sample the same prompts with the same seeds. `--mean_length` makes every token the last one with the same
chance, so that lengths are long-tailed whatever the model: a geometric distribution, cut at max_completion_length.
Without it the model ends its completions itself. Since the sides draw other lengths, they are compared by tokens per
second (of processor time on a CPU).
"""

import argparse
import tempfile
from pathlib import Path
from statistics import fmean, median

import torch
from bench_common import LeanGRPOTrainer, clock, device, end_by_chance, load, print_table, prompt_ids, trainer_config
from datasets import Dataset
from trl import GRPOTrainer

from grpo.policy.sampling import end_tokens


def prepare(given: argparse.Namespace) -> LeanGRPOTrainer:
    """A trainer that samples both ways."""
    model, tokenizer = load(given.model)
    if given.mean_length:
        end_by_chance(model, end_tokens(model, tokenizer), given.mean_length)
    with tempfile.TemporaryDirectory() as directory:
        config = trainer_config(
            device(), directory, bf16=False, per_device_train_batch_size=given.rows, gradient_checkpointing=False,
            num_generations=given.num_generations, max_completion_length=given.max_completion_length,
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": "1 + 1"}] * given.rows)
        return LeanGRPOTrainer(
            model, lambda completions, **_: [0.0] * len(completions), config, rows, processing_class=tokenizer,
            packed=False,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a local directory or a Hub id")
    parser.add_argument("questions", help="rows with `question` and `answer`")
    parser.add_argument("--rows", type=int, default=64, help="completions of one rollout")
    parser.add_argument("--num_generations", type=int, default=8)
    parser.add_argument("--max_completion_length", type=int, default=400)
    parser.add_argument("--mean_length", type=float, default=None, help="tokens; unset: as the model ends them")
    parser.add_argument("--num_shots", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="rollouts that are timed, after one that is not")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    _, tokenizer = load(given.model)
    ids = prompt_ids(given.questions, tokenizer, given.rows // given.num_generations, given.num_shots)
    wanted = [prompt for prompt in ids for _ in range(given.num_generations)]
    trainer = prepare(given)
    sides = {"generate": GRPOTrainer._generate_single_turn, "ours": LeanGRPOTrainer._generate_single_turn}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    lengths: dict[str, list[list[int]]] = {name: [] for name in sides}
    for seed in range(given.rounds + 1):  # the first one warms up, and compiles; the sides take turns
        for name, sample in sides.items():
            torch.manual_seed(seed)
            start = clock(device())
            found = sample(trainer, wanted, None, {}, given.num_generations)[0]
            seconds[name].append(clock(device()) - start)
            lengths[name].append([len(tokens) for tokens in found])
    rates = {name: sum(map(sum, lengths[name][1:])) / sum(seconds[name][1:]) for name in sides}
    rows = []
    for name, rate in rates.items():
        drawn = [length for rollout in lengths[name][1:] for length in rollout]
        cut = fmean(length == given.max_completion_length for length in drawn)
        times = f"{median(seconds[name][1:]):.1f}", f"{seconds[name][0]:.1f}"
        ratio = f"{rate / rates[next(iter(rates))]:.2f}"
        rows.append([name, *times, f"{fmean(drawn):.0f}", f"{100 * cut:.1f} %", f"{rate:.0f}", ratio])
    title = f"{Path(given.model).name}: rollouts of {given.rows} completions in groups of {given.num_generations}, "
    title += f"cut at {given.max_completion_length} tokens, {device()}, float32; medians of {given.rounds}"
    headings = ["sampled by", "seconds", "first rollout", "mean length", "cut off", "tokens per second", "ratio"]
    print_table(title, headings, rows)


if __name__ == "__main__":
    main()
