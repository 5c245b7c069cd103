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
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
MB = 2**20
SPREAD = 0.728  # of the lengths' logarithm: 3 % of 200 × e^(0.728 z) are above 786


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


def lengths(chance: random.Random, count: int, median: float, limit: int) -> list[int]:
    """Lognormal around a median; with the defaults, 3 % run into the limit."""
    return [min(max(1, int(chance.lognormvariate(0, SPREAD) * median)), limit) for _ in range(count)]


def peak(device: str) -> float:
    """Peak memory of this process, MB."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(options: argparse.Namespace) -> dict:
    """One side, in this process."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo.trainer import LeanGRPOTrainer

    torch.manual_seed(0)
    before = 0.0 if options.device == "cuda" else peak(options.device)
    tokenizer = AutoTokenizer.from_pretrained(options.model or ROOT / "assets" / "demo" / "model")
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=options.dtype, attn_implementation=options.attn_implementation
        )
    else:
        model = Qwen2ForCausalLM._from_config(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=384,
                intermediate_size=1024,
                num_hidden_layers=5,
                num_attention_heads=6,
                num_key_value_heads=2,
                tie_word_embeddings=True,
            ),
            dtype=getattr(torch, options.dtype),
            attn_implementation=options.attn_implementation,
        )
    size, rollout = options.batch_size, options.batch_size * options.accumulation
    chance = random.Random(options.seed)
    words = ["a", "with", "boxes", "of", "pears", "and", "eggs", "find", "many", "they"]  # 1.3 tokens a word, as usual
    rows = [
        {"prompt": " ".join(chance.choice(words) for _ in range(chance.randint(20, 120))), "number": number}
        for number in range(options.accumulation * options.steps)
    ]
    dead = {
        row["number"] for row in rows if row["number"] % options.accumulation < options.dead[0] * options.accumulation
    }
    vocabulary = min(len(tokenizer), model.config.vocab_size)
    sampled: list[dict] = []

    def sample(prompt_ids: list, *args, **kwargs) -> tuple:
        completions = []
        for length in lengths(chance, len(prompt_ids), options.median_length, options.max_completion_length):
            completions.append([chance.randrange(5, vocabulary) for _ in range(length)])
            if length < options.max_completion_length:
                completions[-1][-1] = tokenizer.eos_token_id
        sampled.append({"prompts": prompt_ids, "completions": completions})
        return completions, None

    def reward(completion_ids: list, number: list, **kwargs) -> list[float]:
        sampled[-1]["live"] = [one not in dead for one in number]
        return [0.0 if one in dead else float(sum(ids) % 997) for ids, one in zip(completion_ids, number, strict=True)]

    class First(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            if state.global_step == 0:
                torch.save({n: p.grad.float().cpu() for n, p in model.named_parameters()}, options.gradients)

    trainer = (GRPOTrainer if options.side == "stock" else LeanGRPOTrainer)(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=size, num_generations=size,
            gradient_accumulation_steps=options.accumulation, max_completion_length=options.max_completion_length,
            max_steps=options.steps, loss_type=options.loss_type, beta=options.beta, learning_rate=1e-6,
            max_grad_norm=0.0, lr_scheduler_type="constant", optim="adamw_torch", report_to="none",
            save_strategy="no", disable_tqdm=True, gradient_checkpointing=False, seed=options.seed,
            use_cpu=options.device == "cpu", bf16=False, shuffle_dataset=False, logging_strategy="no",
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[First()],
        **({"pack_tokens": options.pack_tokens} if options.side == "lean" else {}),
    )  # fmt: skip
    trainer._generate_single_turn = sample
    computed, seconds, generating = [], [], 0.0

    def count(module, args, kwargs) -> None:
        if torch.is_grad_enabled():
            computed.append(kwargs["input_ids"].numel())

    model.register_forward_pre_hook(count, with_kwargs=True)
    stock_score, stock_step = trainer._generate_and_score_completions, trainer.training_step

    def score(inputs):
        nonlocal generating
        start = time.perf_counter()
        output = stock_score(inputs)
        generating += time.perf_counter() - start
        return output

    def step(*args, **kwargs):
        nonlocal generating
        start, generating = time.perf_counter(), 0.0
        output = stock_step(*args, **kwargs)
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start - generating)
        return output

    trainer._generate_and_score_completions, trainer.training_step = score, step
    trainer.train()
    useful = 0
    for one in sampled:
        live = [index for index, lives in enumerate(one["live"]) if lives]
        useful += sum(len(one["completions"][index]) for index in live)
        useful += sum(len(prompt) - 1 for prompt in {tuple(one["prompts"][index]) for index in live})
    width = options.accumulation
    steps = [sum(seconds[start : start + width]) for start in range(0, len(seconds), width)]
    return {
        "seconds": steps[1:],
        "memory": peak(options.device) - before,
        "computed": sum(computed),
        "useful": useful,
        "rollout": rollout,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "backend": getattr(getattr(trainer, "backend", None), "name", "padded"),
    }


def matrix_rate(device: str, dtype: str) -> float:
    """Floating-point operations per second of a product of square matrices, the best of ten."""
    import torch

    side = 8192 if device == "cuda" else 2048
    left, right = (torch.randn(side, side, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


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
    rate = matrix_rate(options.device, options.dtype)
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
