"""Shared by the benchmarks: the project on the path, models and a clock, a training run on made-up rollouts, tables.

They are scripts: `python benchmarks/bench_x.py` finds this module beside it.
"""

import contextlib
import ctypes
import gc
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2Config,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.training.trainer import LeanGRPOTrainer  # noqa: E402

TOKENIZER = ROOT / "assets" / "demo" / "model"
# Random Qwen2 models, as speed needs no trained weights: layers, hidden, intermediate, heads, vocabulary
RANDOM = {"9M": (5, 384, 1024, 6, 512), "1.5B": (28, 1536, 8960, 12, 151936)}
SPREAD = 0.728  # of the logarithm of completions' lengths: with a median of 200, 3 % are longer than 786

Gradients = Iterator[tuple[str, torch.Tensor]]


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def processor_seconds() -> float:
    """Of all processes that this one has started and that have ended by now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def clock(device: str) -> float:
    """Seconds: of the wall once a GPU has done what it was asked to; on a CPU of this process, summed over threads."""
    if device == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()


def matrix_rate(device: str, dtype: str) -> float:
    """Floating-point operations per second of a product of square matrices, the best of ten."""
    side, best = 8192 if device == "cuda" else 1024, math.inf
    left, right = (torch.randn(side, side, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    for _ in range(10):
        start = clock(device)
        torch.mm(left, right)
        best = min(best, clock(device) - start)
    return 2 * side**3 / best


def peak(device: str) -> int:
    """Bytes: the most that torch has held on the GPU since `clean`; on a CPU, that this process has."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def clean(device: str) -> None:
    """Give back what earlier work has left behind, and measure the peak anew."""
    gc.collect()  # a trainer and its callbacks hold each other
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(AttributeError, OSError):  # glibc on Linux; elsewhere the peak is the process'
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], width: int = 120) -> None:
    """The first column to the left, numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


# --- Models and prompts ---------------------------------------------------------------------------------------------


def model_config(model: str) -> Any:
    """The transformers configuration of a directory, or of a name in RANDOM."""
    if model not in RANDOM:
        return AutoConfig.from_pretrained(model, trust_remote_code=False)
    layers, hidden, intermediate, heads, vocabulary = RANDOM[model]
    return Qwen2Config(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads,
        num_key_value_heads=2, vocab_size=vocabulary, tie_word_embeddings=True, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip


def load_model(model: str, device: str, dtype: str, attention: str = "sdpa") -> Any:
    """The model on its device; a random one has the same weights every time."""
    torch.manual_seed(0)
    own = {"dtype": getattr(torch, dtype), "attn_implementation": attention, "trust_remote_code": False}
    if model not in RANDOM:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, **own)
        return loaded.to(device)
    with torch.device(device):  # drawn there, in its own type: 1.5B weights take minutes on a CPU
        return AutoModelForCausalLM.from_config(model_config(model), **own)


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(
        TOKENIZER if model in RANDOM else model, padding_side="left", trust_remote_code=False
    )
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def trainer_config(device: str, directory: str, **settings: Any) -> GRPOConfig:
    """A GRPOConfig of a run that logs and saves nothing."""
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # a run before this one may have set it
    return GRPOConfig(
        output_dir=directory, use_cpu=device == "cpu", report_to="none", save_strategy="no", disable_tqdm=True,
        logging_strategy="no", max_grad_norm=0.0, lr_scheduler_type="constant", learning_rate=1e-6, **settings,
    )  # fmt: skip


def load(model: str) -> tuple[Any, Any]:
    """A float32 model, a local directory or a Hub id, and its tokenizer."""
    return load_model(model, device(), "float32"), load_tokenizer(model)


def prompt_ids(file: str, tokenizer: Any, count: int, num_shots: int) -> list[list[int]]:
    """Token ids of the first questions of a file, in the xml format."""
    from grpo.data import prompts, sources
    from train_grpo import EXEMPLARS, PROMPT_FORMATS

    rows = sources.load_source(file)["train"].select(range(count))
    shots = EXEMPLARS[:num_shots]
    return prompts.tokenize([PROMPT_FORMATS["xml"].prompt(row["question"], shots) for row in rows], tokenizer)


def end_by_chance(model: Any, ends: list[int], mean_length: float) -> None:
    """Make each token the first of `ends` with the chance of 1 in `mean_length`: lengths of a geometric distribution.

    Called again, it sets another mean.
    """
    head, log_odds = model.get_output_embeddings(), math.log(mean_length - 1)
    if hasattr(head, "log_odds"):
        head.log_odds.fill_(log_odds)
        return
    # a buffer: it goes where the model goes
    head.register_buffer("log_odds", torch.full((), log_odds, device=head.weight.device), persistent=False)

    def hook(module: Any, inputs: tuple, logits: torch.Tensor) -> torch.Tensor:
        others = logits.clone()
        for end in ends:  # one by one: a list would be copied to the device, which waits for it
            others[..., end] = -math.inf
        others[..., ends[0]] = (others.float().logsumexp(-1) - module.log_odds).to(logits.dtype)
        return others

    head.register_forward_hook(hook)


# --- The training step --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training run on made-up rollouts of `batch_size` × `accumulation` completions, one optimizer step each.

    `trainer` is stock (TRL's GRPOTrainer) or lean, `model` a local directory or a name in RANDOM, `group` the rows of
    a prompt, `dead` the share of groups whose rewards are all the same. Weights in bfloat16 imply autocast.
    """

    trainer: str
    model: str = "9M"
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    pack_tokens: int | None = None
    loss_type: str = "dapo"
    beta: float = 0.0
    group: int = 8
    batch_size: int = 8
    accumulation: int = 4
    steps: int = 4
    median_length: float = 200.0
    max_completion_length: int = 786
    prompt_words: tuple[int, int] = (20, 120)
    dead: float = 0.0
    seed: int = 0


def train(run: Run, on_gradients: Callable[[Gradients], None]) -> dict[str, Any]:
    """Train on made-up completions, and say what it took.

    Args:
        on_gradients: gets the names and gradients of all parameters before the first optimizer step.

    Returns:
        By optimizer step: `seconds` of forward and backward without making completions up, and `tokens` of the rollout
        (completions, and each distinct prompt once). In all: tokens `computed` and `useful` (those of live groups, but
        their prompts' last ones), `peak_bytes` above what was there before, `parameters`, `pack_tokens`, and how packs
        are computed, `kernel`.
    """
    clean(run.device)
    before = peak(run.device)
    model = load_model(run.model, run.device, run.dtype, run.attention)
    tokenizer = load_tokenizer(run.model)
    dice, asked = random.Random(run.seed), random.Random(-1 - run.seed)  # the first rollout is that of a shorter run
    groups = run.batch_size * run.accumulation // run.group  # of a rollout
    dead = run.group * math.ceil(run.dead * groups)  # completions of a rollout, its first ones
    rows = [
        {"prompt": f"{number}:" + " pears" * asked.randint(*run.prompt_words)} for number in range(groups * run.steps)
    ]
    vocabulary = min(len(tokenizer), model.config.get_text_config().vocab_size)
    computed: list[int] = []
    tokens: list[int] = []
    useful: list[int] = []
    scoring: list[float] = []  # seconds of a rollout, one an optimizer step
    stepping: list[float] = []  # seconds of a micro-batch, with the rollout's in the first

    def sample(prompt_ids: list, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        completions = []
        for _ in prompt_ids:
            length = min(max(1, int(dice.lognormvariate(0, SPREAD) * run.median_length)), run.max_completion_length)
            completions.append([dice.randrange(5, vocabulary) for _ in range(length)])
            if length < run.max_completion_length:
                completions[-1][-1] = tokenizer.eos_token_id
        distinct, live = (set(map(tuple, prompt_ids[first:])) for first in (0, dead))
        tokens.append(sum(map(len, completions)) + sum(map(len, distinct)))
        useful.append(sum(map(len, completions[dead:])) + sum(len(prompt) - 1 for prompt in live))
        return completions, None

    def reward(completion_ids: list, **kwargs: Any) -> list[float]:
        return [0.0] * dead + [float(sum(ids) % 997) for ids in completion_ids[dead:]]

    def count(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            computed.append(kwargs["input_ids"].numel())

    def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = clock(run.device)
            output = function(*args, **kwargs)
            seconds.append(clock(run.device) - start)
            return output

        return call

    class FirstGradients(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 0:
                found = ((name, weight.grad) for name, weight in model.named_parameters())
                on_gradients((name, gradient) for name, gradient in found if gradient is not None)

    with tempfile.TemporaryDirectory() as directory:
        trainer_class: Any = LeanGRPOTrainer if run.trainer == "lean" else GRPOTrainer
        trainer = trainer_class(
            model=model,
            reward_funcs=reward,
            args=trainer_config(
                run.device, directory, per_device_train_batch_size=run.batch_size, num_generations=run.group,
                gradient_accumulation_steps=run.accumulation, max_completion_length=run.max_completion_length,
                max_steps=run.steps, loss_type=run.loss_type, beta=run.beta, seed=run.seed,
                gradient_checkpointing=False, bf16=run.dtype == "bfloat16", shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[FirstGradients()],
            **({"pack_tokens": run.pack_tokens} if run.trainer == "lean" else {}),
        )  # fmt: skip
        torch.backends.cuda.enable_cudnn_sdp(False)  # as a run does
        model.register_forward_pre_hook(count, with_kwargs=True)
        trainer._generate_single_turn = sample
        trainer._generate_and_score_completions = timed(trainer._generate_and_score_completions, scoring)
        trainer.training_step = timed(trainer.training_step, stepping)
        trainer.train()
    steps = (sum(stepping[at : at + run.accumulation]) for at in range(0, len(stepping), run.accumulation))
    return {
        "seconds": [step - rollout for step, rollout in zip(steps, scoring, strict=True)],
        "tokens": tokens,
        "computed": sum(computed),
        "useful": sum(useful),
        "peak_bytes": peak(run.device) - before,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "pack_tokens": getattr(trainer, "pack_tokens", None),
        "kernel": getattr(getattr(trainer, "kernel", None), "name", "padded"),
    }
