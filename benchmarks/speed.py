"""Seconds against stock TRL at the same settings, side by side on one machine.

    python benchmarks/speed.py step                    the training step on made-up rollouts
    python benchmarks/speed.py sampling                a rollout by our sampler and by TRL's `generate`
    python benchmarks/speed.py loop                    optimizer steps with their rollouts, of made-up lengths
    python benchmarks/speed.py run -- --config demo    a whole run of train_grpo.py, with its start and evaluations

On a CPU seconds are those of processor time, summed over threads, which other programs hardly change; on a GPU they
are the clock's. Read the ratios. `--ways` chooses the rows: stock TRL and ours, and ours with compiled layers, without
CUDA graphs, with float32 weights, with LoRA, or with four times the completions. Compiling and the graphs need a GPU.

step       rollouts of completions in groups of 8: lengths lognormal around 200 tokens, 3 % of them cut at 786, prompts
           of 20 to 120 tokens. A row for each side, seed and share of groups whose rewards differ ("live"). Seconds of
           one optimizer step: the mean of all but the first. Efficiency: useful tokens / computed tokens; useful are
           the completion tokens of live groups and, once for each of their prompts, its tokens but the last. Of peak:
           6 N floating point operations for each useful token, where N counts the weights of all linear layers (of the
           head, too, which a prompt's tokens do not need), as a share of what multiplications by these layers' weights
           alone reach in the same process, at best. Memory: the peak above what was there before. Gradient: the first
           step's norm. Each way has a process of its own
sampling   every token is the last one with the same chance, so that lengths are long-tailed whatever the model. The
           ways draw other lengths: compare tokens a second. A token step: a rollout's seconds divided by its longest
           completion. The first rollout warms up; its seconds are those of the others and of compiling
loop       the ways one after the other, each in a process of its own. Lengths as in sampling. Without the first step,
           which warms up; its length decides what buffers and packs there are, so take several steps
run        two runs with the flags of train_grpo.py after `--`: with TRL's step and `generate`, and as they are. The
           phases are seconds of the clock, the whole run also processor time
"""

import argparse
import math
import multiprocessing
import os
import platform
import random
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import common
import torch
from datasets import Dataset
from peft import LoraConfig
from rich.console import Console
from rich.table import Table
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    Qwen2Config,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from grpo.core import jsonfiles, versions
from grpo.core.errors import UserError, one_line
from grpo.data import sources
from grpo.policy.answering import end_tokens
from grpo.task import prompts
from lean_grpo import LeanGRPOTrainer, gpu
from lean_grpo.compiling import OptimizerSteps, TokenSteps
from lean_grpo.decoding import Graphs
from train_grpo import EXEMPLARS

# Random Qwen2 models, as speed needs no trained weights: layers, hidden, intermediate, heads, key heads, vocabulary
RANDOM = {
    "9M": (5, 384, 1024, 6, 2, 512),
    "135M": (30, 576, 1536, 9, 3, 49152),
    "0.5B": (24, 896, 4864, 14, 2, 151936),
    "1.5B": (28, 1536, 8960, 12, 2, 151936),
    "3B": (36, 2048, 11008, 16, 2, 151936),
    "7B": (28, 3584, 18944, 28, 4, 152064),
    "32B": (64, 5120, 27648, 40, 8, 152064),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GROUP = 8  # completions of a prompt
ROWS = 2048  # positions of the multiplications that peak is measured by


@dataclass(frozen=True)
class Way:
    """A way to train and sample; `rows` multiplies the completions of a rollout."""

    trainer: type[GRPOTrainer] = LeanGRPOTrainer
    compiled: bool = False
    graphs: bool = True
    dtype: str | None = None  # of the weights; None: as given
    lora: bool = False
    rows: int = 1

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Compile layers, or not, whatever is planned; sample with CUDA graphs, or without."""
        worth = 0 if self.compiled else sys.maxsize
        graphs = nullcontext() if self.graphs else patch.object(Graphs, "of", return_value=None)
        with patch.object(TokenSteps, "worth", worth), patch.object(OptimizerSteps, "worth", worth), graphs:
            yield


WAYS = {
    "stock": Way(GRPOTrainer),
    "ours": Way(),
    "no graphs": Way(graphs=False),
    "compiled": Way(compiled=True),
    "compiled, float32 weights": Way(compiled=True, dtype="float32"),
    "compiled, LoRA": Way(compiled=True, lora=True),
    "compiled, 4 times the rows": Way(compiled=True, rows=4),
}


def clock() -> float:
    """Seconds: processor time of this process on a CPU, of the wall once a GPU has done its work."""
    if DEVICE == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes() -> int:
    """The most that torch has held on the GPU, or that this process has had."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The command, the machine and the versions, then the table."""
    print(f"\npython benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}")
    print(f"{machine()}; {versions.line()}")
    table = Table()
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


def machine() -> str:
    if DEVICE == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return f"{name}, {torch.get_num_threads()} threads"


# --- Models and trainers


def random_config(name: str) -> Qwen2Config:
    layers, hidden, intermediate, heads, key_heads, vocabulary = RANDOM[name]
    return Qwen2Config(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads,
        num_key_value_heads=key_heads, vocab_size=vocabulary, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=hidden < 3000,  # as the published ones
    )  # fmt: skip


def load_model(name: str, dtype: str) -> Any:
    """The model of a directory or Hub id, or a random one with the same weights every time."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
    if name not in RANDOM:
        with one_line(f"--model {name}: ", kinds=(OSError, ValueError)):
            loaded: Any = AutoModelForCausalLM.from_pretrained(name, **options)
        return loaded.to(DEVICE)
    with torch.device(DEVICE):  # drawn there: 1.5B weights take minutes on a CPU
        return AutoModelForCausalLM.from_config(random_config(name), **options)


def load_tokenizer(name: str) -> Any:
    with one_line(f"--model {name}: ", kinds=(OSError, ValueError)):
        directory = common.DEMO / "model" if name in RANDOM else name
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def trainer_of(way: Way, model: Any, tokenizer: Any, rows: list[dict], reward: Any, **settings: Any) -> Any:
    """A trainer that saves nothing."""
    if DEVICE == "cuda":
        gpu.prepare(True)  # as a run does
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=DEVICE == "cpu", report_to="none", save_strategy="no",
        disable_tqdm=True, logging_steps=1, max_grad_norm=1e9, lr_scheduler_type="constant", learning_rate=1e-6,
        gradient_checkpointing=False, shuffle_dataset=False, **settings,
    )  # fmt: skip
    adapter = LoraConfig(r=16, lora_alpha=64, target_modules="all-linear") if way.lora else None
    return way.trainer(
        model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, peft_config=adapter,
    )  # fmt: skip


# --- The training step


class Seconds(TrainerCallback):
    """Seconds of each optimizer step: forward, backward and the optimizer."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.start = clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.found.append(clock() - self.start)


def linear_layers(model: Any) -> list[torch.nn.Linear]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)]


def matmul_peak(model: Any) -> float:
    """Floating point operations a second, by the clock of a step, in multiplications by each of the model's layers."""
    layers = linear_layers(model)
    inputs = {
        layer.in_features: torch.randn(ROWS, layer.in_features, dtype=layer.weight.dtype, device=DEVICE)
        for layer in layers
    }
    seconds = []
    with torch.no_grad():
        for _ in range(6):  # the first round warms up
            begun = clock()
            for layer in layers:
                torch.nn.functional.linear(inputs[layer.in_features], layer.weight)
            seconds.append(clock() - begun)
    return 2 * ROWS * sum(layer.weight.numel() for layer in layers) / min(seconds)


def measure_step(side: str, live: float, seed: int, given: argparse.Namespace) -> dict[str, float]:
    """Train on made-up rollouts, in a process of its own."""
    with WAYS[side].chosen():
        return _measure_step(WAYS[side], live, seed, given)


def _measure_step(way: Way, live: float, seed: int, given: argparse.Namespace) -> dict[str, float]:
    before = peak_bytes()
    model, tokenizer = load_model(given.model, way.dtype or given.dtype), load_tokenizer(given.model)
    dice, asked = random.Random(seed), random.Random(-1 - seed)
    groups = given.completions * way.rows // given.group
    dead = given.group * round((1 - live) * groups)  # the first completions of a rollout: their rewards are the same
    word = len(tokenizer(" pears", add_special_tokens=False)["input_ids"])
    rows = [
        {"prompt": f"{n}:" + " pears" * (asked.randint(*given.prompt_tokens) // word)}
        for n in range(groups * given.steps)
    ]
    vocabulary = min(len(tokenizer), model.config.vocab_size)
    computed: list[int] = []
    useful: list[int] = []

    def sample(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        completions = []
        for _ in prompt_ids:
            length = max(1, round(dice.lognormvariate(math.log(given.median_length), given.spread)))
            ids = [dice.randrange(5, vocabulary) for _ in range(length - 1)] + [tokenizer.eos_token_id]
            completions.append(ids[: given.max_completion_length])
        useful.append(
            sum(map(len, completions[dead:])) + sum(len(ids) - 1 for ids in set(map(tuple, prompt_ids[dead:])))
        )
        return completions, None

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [0.0] * dead + [float(sum(ids) % 997) for ids in completion_ids[dead:]]

    def count(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            computed.append(kwargs["input_ids"].numel())

    trainer = trainer_of(
        way, model, tokenizer, rows, reward, per_device_train_batch_size=given.micro_batch, max_steps=given.steps,
        gradient_accumulation_steps=given.completions * way.rows // given.micro_batch, bf16=given.dtype == "bfloat16",
        max_completion_length=given.max_completion_length, num_generations=given.group,
    )  # fmt: skip
    trainer._generate_single_turn = sample
    trainer.remove_callback(PrinterCallback)
    seconds = Seconds()
    trainer.add_callback(seconds)
    model.register_forward_pre_hook(count, with_kwargs=True)
    trainer.train()
    memory = (peak_bytes() - before) / 2**20
    weights = sum(layer.weight.numel() for layer in linear_layers(model))
    reached = 6 * weights * sum(useful[1:]) / sum(seconds.found[1:])
    return {
        "seconds": fmean(seconds.found[1:]),
        "efficiency": sum(useful) / sum(computed),
        "of peak": reached / matmul_peak(model),
        "memory": memory,
        "gradient": trainer.state.log_history[0]["grad_norm"],
    }


def in_own_process(measure: Any, *args: Any) -> dict[str, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # raises if it is killed
        found: dict[str, float] = pool.submit(measure, *args).result()
    return found


def step(given: argparse.Namespace) -> None:
    rows = []
    for live in given.live:
        for seed in given.seeds:
            found = {side: in_own_process(measure_step, side, live, seed, given) for side in given.ways}
            first = found[given.ways[0]]["seconds"] / WAYS[given.ways[0]].rows
            for side, one in found.items():
                ratio = first * WAYS[side].rows / one["seconds"]
                cells = [f"{one['seconds']:.2f}", f"{ratio:.2f}", f"{one['efficiency']:.3f}"]
                cells += [f"{one['of peak']:.0%}", f"{one['memory']:,.0f}"]
                rows.append([f"{live:.0%} live, seed {seed}: {side}", *cells, f"{one['gradient']:.6g}"])
    headings = "seconds", "ratio a completion", "efficiency", "of peak", "memory, MB", "gradient"
    print_table([given.model, *headings], rows)


# --- Sampling


def end_by_chance(model: Any, ends: list[int], mean_length: float) -> None:
    """Make each token the first of `ends` with the chance 1 / `mean_length`: geometric lengths."""

    def hook(module: Any, inputs: tuple, logits: torch.Tensor) -> torch.Tensor:
        others = logits.clone()
        for end in ends:  # one by one: a list would be copied to the device, which waits for it
            others[..., end] = -math.inf
        others[..., ends[0]] = (others.float().logsumexp(-1) - math.log(mean_length - 1)).to(logits.dtype)
        return others

    model.get_output_embeddings().register_forward_hook(hook)


def sampling(given: argparse.Namespace) -> None:
    asked = sources.load_source(given.questions, setting="--questions")["train"][: given.completions // GROUP]
    tokenizer = load_tokenizer(given.model)
    chats = [prompts.XML.prompt(row["question"], EXEMPLARS[:1]) for row in asked]
    ids = [prompt for prompt in prompts.tokenized(chats, tokenizer) for _ in range(GROUP)]
    trainers = {}
    for side in given.ways:
        way = WAYS[side]
        model = load_model(given.model, way.dtype or given.dtype)
        end_by_chance(model, end_tokens(model.generation_config, tokenizer), given.mean_length)
        trainers[side] = trainer_of(
            way, model, tokenizer, [{"prompt": "1 + 1"}] * GROUP, lambda completions, **_: [0.0] * len(completions),
            per_device_train_batch_size=GROUP, max_completion_length=given.max_completion_length,
            bf16=given.dtype == "bfloat16", num_generations=GROUP,
        )  # fmt: skip
    seconds: dict[str, list[float]] = {side: [] for side in trainers}
    lengths: dict[str, list[list[int]]] = {side: [] for side in trainers}
    for seed in range(given.rounds + 1):  # the first round warms up; the ways take turns
        for side, trainer in trainers.items():
            torch.manual_seed(seed)
            start = clock()
            with WAYS[side].chosen():
                completions, *_ = trainer._generate_single_turn(ids * WAYS[side].rows, None, {}, GROUP)
            seconds[side].append(clock() - start)
            lengths[side].append(list(map(len, completions)))
    rates = {side: sum(map(sum, lengths[side][1:])) / sum(seconds[side][1:]) for side in trainers}
    rows = []
    for side, rate in rates.items():
        steps = sum(map(max, lengths[side][1:]))
        cells = [seconds[side][0], fmean(seconds[side][1:]), 1e3 * sum(seconds[side][1:]) / steps]
        mean = fmean(map(fmean, lengths[side][1:]))
        ratio = rate / rates[given.ways[0]]
        rows.append([side, *(f"{cell:.1f}" for cell in cells), f"{mean:.0f}", f"{rate:.0f}", f"{ratio:.2f}"])
    headings = "first rollout, s", "rollout, s", "token step, ms", "mean length", "tokens a second", "ratio"
    print_table([Path(given.model).name, *headings], rows)


# --- The loop: a rollout, then its optimizer step


def measure_loop(side: str, given: argparse.Namespace) -> dict[str, float]:
    """Sample and train, in a process of its own."""
    with WAYS[side].chosen():
        return _measure_loop(WAYS[side], given)


def _measure_loop(way: Way, given: argparse.Namespace) -> dict[str, float]:
    before = peak_bytes()
    model, tokenizer = load_model(given.model, way.dtype or given.dtype), load_tokenizer(given.model)
    end_by_chance(model, end_tokens(model.generation_config, tokenizer), given.mean_length)
    many = given.completions * way.rows
    rows = [{"prompt": f"{n}:" + " pears" * 40} for n in range(many // GROUP * given.steps)]
    trainer = trainer_of(
        way, model, tokenizer, rows, lambda completion_ids, **_: [float(sum(ids) % 997) for ids in completion_ids],
        per_device_train_batch_size=given.micro_batch, max_completion_length=given.max_completion_length,
        gradient_accumulation_steps=many // given.micro_batch, max_steps=given.steps,
        bf16=given.dtype == "bfloat16", num_generations=GROUP,
    )  # fmt: skip
    sample, sampled, tokens = trainer._generate_single_turn, [], []

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        completions, *rest = sample(*args, **kwargs)
        sampled.append(clock() - start)
        tokens.append(sum(map(len, completions)))
        return completions, *rest

    trainer._generate_single_turn = timed
    seconds = Seconds()
    trainer.add_callback(seconds)
    trainer.train()
    return {
        "first step, s": seconds.found[0],
        "seconds a step": fmean(seconds.found[1:]),
        "sampling": fmean(sampled[1:]),
        "the rest": fmean(seconds.found[1:]) - fmean(sampled[1:]),
        "mean length": fmean(tokens[1:]) / many,
        "tokens sampled a second": sum(tokens[1:]) / sum(sampled[1:]),
        "memory, MB": (peak_bytes() - before) / 2**20,
    }


def loop(given: argparse.Namespace) -> None:
    found = {side: in_own_process(measure_loop, side, given) for side in given.ways}
    keys = list(found[given.ways[0]])
    print_table([given.model, *keys], [[side, *(f"{one[key]:,.4g}" for key in keys)] for side, one in found.items()])


# --- A whole run

SIDES = {
    "stock": ["--packed", "false", "--cache_implementation", "dynamic"],  # which our sampler leaves to generate
    "ours": [],
}


def processor_seconds() -> float:
    """Processor time of all processes that this one has started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def measure_run(flags: list[str]) -> dict[str, float]:
    output = Path(tempfile.mkdtemp()) / "run"
    start, used = time.perf_counter(), processor_seconds()
    common.train([*flags, "--logging_steps", "1"], output)
    whole, used = time.perf_counter() - start, processor_seconds() - used
    lines = jsonfiles.read_lines(output / "metrics.jsonl")
    steps = [line for line in lines if "step_time" in line and "loss" in line]
    counts = [now["step"] - before["step"] for before, now in pairwise([{"step": 0}, *steps])]

    def total(key: str) -> float:  # a log has the mean of the steps since the one before
        return sum(count * line[key] for count, line in zip(counts, steps, strict=True))

    sampled, rewarded = total("time/generation"), total("time/rewards")
    return {
        "training": total("step_time") - sampled - rewarded,
        "sampling": sampled,
        "rewards": rewarded,
        "whole run": whole,
        "whole run, processor time": used,
        "tokens a completion": total("completions/mean_length") / sum(counts),
    }


def whole_run(given: argparse.Namespace) -> None:
    found = {side: measure_run([*given.flags, *own]) for side, own in SIDES.items()}
    rows = []
    for key, reference in found["stock"].items():
        ratios = (f" ({reference / one[key]:.2f})" if one[key] else "" for one in found.values())
        rows.append([key, *(f"{one[key]:.1f}{ratio}" for one, ratio in zip(found.values(), ratios, strict=True))])
    print_table(["seconds (ratio)", *found], rows)


def share(value: str) -> float:
    found = float(value)
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not a share above 0 and at most 1")
    return found


def check_geometry(given: argparse.Namespace) -> None:
    """Raise UserError where completions do not fill groups or micro-batches, or prompts have no length."""
    fewest, most = getattr(given, "prompt_tokens", (1, 1))
    if fewest > most:
        raise UserError(f"--prompt_tokens {fewest} {most}: at least {fewest} and at most {most}; swap them")
    for what, size in (("groups", given.group), ("micro-batches", given.micro_batch)):
        if given.completions % size:
            raise UserError(f"--completions {given.completions}: these do not fill {what} of {size}; use a multiple")


def benchmark(given: argparse.Namespace) -> None:
    if given.what != "run":
        check_geometry(given)
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    given.run(given)


def main(argv: list[str] | None = None) -> int:
    whole = common.at_least
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    found = {}
    for run, model, completions, longest in (
        (step, "9M", 32, 786), (sampling, str(common.DEMO / "model"), 64, 400), (loop, "9M", 64, 400)
    ):  # fmt: skip
        found[run] = options = commands.add_parser(run.__name__)
        options.set_defaults(run=run, group=GROUP, micro_batch=GROUP)
        options.add_argument("--model", default=model, help=f"a directory, a Hub id, or of {', '.join(RANDOM)}")
        options.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
        options.add_argument("--completions", type=whole(1), default=completions, help="of a rollout")
        options.add_argument("--max_completion_length", type=whole(1), default=longest)
        ways = list(WAYS)[:2] if DEVICE == "cpu" else list(WAYS)
        options.add_argument("--ways", nargs="+", default=ways, choices=WAYS, help="the table's rows", metavar="WAY")
    for run, micro_batch, steps in ((step, 8, 4), (loop, 16, 3)):
        options = found[run]
        computed = "completions that stock computes at once"
        options.add_argument("--micro_batch", type=whole(1), default=micro_batch, help=computed)
        options.add_argument("--steps", type=whole(2), default=steps, help="optimizer steps")
    for run in (sampling, loop):
        found[run].add_argument(
            "--mean_length", type=common.above(1), default=120, help="of the completions, in tokens"
        )
    options = found[step]
    options.add_argument("--group", type=whole(2), default=GROUP, help="completions of a prompt")
    options.add_argument("--prompt_tokens", type=whole(1), nargs=2, default=[20, 120], help="at least and at most")
    options.add_argument("--median_length", type=common.above(0), default=200, help="of the completions, in tokens")
    options.add_argument("--spread", type=float, default=0.728, help="of their logarithms; 0: all are alike")
    options.add_argument("--live", type=share, nargs="+", default=[1.0, 0.5], help="shares of live groups")
    options.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the lengths")
    options = found[sampling]
    options.add_argument("--questions", default=str(common.DEMO / "test.jsonl"), help="rows with `question`")
    options.add_argument("--rounds", type=whole(1), default=3, help="rollouts of each side that are timed")
    commands.add_parser("run", help="flags of train_grpo.py follow `--`").set_defaults(run=whole_run, flags=[])
    return common.main(benchmark, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
