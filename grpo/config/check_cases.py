"""What `python -m grpo check` and the benchmarks measure: a machine, a training step, a way to sample a rollout.

Each function runs in the calling process, on one device.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import math
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
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
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available
from trl import GRPOConfig, GRPOTrainer

from grpo.config.plan import SPREAD
from grpo.core import gpu
from grpo.core.checklist import counted
from grpo.core.errors import UserError
from grpo.policy import engines, memory, vllm
from grpo.policy.generation import eos_ids
from grpo.runs.record import versions
from grpo.training import attention as packs
from grpo.training import packable, packing, selfcheck
from grpo.training.trainer import LeanGRPOTrainer

TOKENIZER = Path(__file__).resolve().parents[2] / "assets" / "demo" / "model"
# Random Qwen2 models, as speed needs no trained weights: layers, hidden, intermediate, heads, vocabulary
RANDOM = {"2M": (4, 192, 768, 6, 512), "9M": (5, 384, 1024, 6, 512), "1.5B": (28, 1536, 8960, 12, 151936)}

Gradients = Iterator[tuple[str, torch.Tensor]]


# --- The machine --------------------------------------------------------------------------------------------------


def machine(model: str | None = None) -> dict[str, Any]:
    """What the device is, and the two rates that nothing here can exceed.

    Args:
        model: a directory or a name in RANDOM; None: one that fits the device.

    Returns:
        `device` (type, name, bytes of memory), `versions`, `attention` that can be tried, each with a way to compute
        packs, `model` (as given, its name
        and number of parameters), and `limits`: bytes a second of a copy (read plus written), operations a second of
        a matrix product by number format.
    """
    gpu.prepare()
    attention, dtype = ["sdpa"], torch.float32
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        kind, name, total = "cuda", about.name, about.total_memory
        flash = {"flash_attention_2": is_flash_attn_2_available(), "flash_attention_3": is_flash_attn_3_available()}
        dtype = torch.bfloat16
        attention += ["flex_attention", *(each for each, available in flash.items() if available)]
    else:
        kind, name, total = "cpu", f"CPU, {counted(torch.get_num_threads(), 'thread')}", psutil.virtual_memory().total
    model = model or ("1.5B" if kind == "cuda" else "2M")
    called = f"a random Qwen2 of {model} parameters" if model in RANDOM else Path(model).resolve().name
    rates = {dtype: matrix_rate(kind, dtype) for dtype in ("bfloat16", "float32")}
    return {
        "device": {"type": kind, "name": name, "memory": total},
        "versions": versions(),
        "attention": [
            (name, way.name)
            for name in attention
            for way in packs.candidates(name, torch.device(kind), dtype, model_config(model))
        ],
        "model": {"given": model, "name": called, "parameters": memory.shape(model_config(model)).parameters},
        "limits": {"copy_bytes_per_second": copy_rate(kind), "matrix_flops_per_second": rates},
    }


def matrix_rate(device: str, dtype: str) -> float:
    """Floating-point operations per second of a product of square matrices, the best of ten."""
    side = 8192 if device == "cuda" else 1024
    left, right = (torch.randn(side, side, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    return 2 * side**3 / _fastest(lambda: torch.mm(left, right), device)


def copy_rate(device: str) -> float:
    """Bytes read plus bytes written per second by a copy far larger than any cache, the best of ten."""
    source = torch.ones(2**30 if device == "cuda" else 2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _fastest(lambda: target.copy_(source), device)


def _fastest(function: Callable[[], Any], device: str) -> float:
    best = math.inf
    for _ in range(10):
        start = clock(device)
        function()
        best = min(best, clock(device) - start)
    return best


def clock(device: str) -> float:
    """Seconds: of the wall once a GPU has done what it was asked to; on a CPU of this process, summed over threads."""
    if device == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> int:
    """Bytes: the most that torch has held on the GPU since `clean`; on a CPU, that this process has."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def clean(device: str) -> None:
    """Give back what a case has left behind, and watch the peak anew; RuntimeError where the device is lost."""
    gc.collect()  # a trainer and its callbacks hold each other
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(AttributeError, OSError):  # glibc on Linux; elsewhere the peak is the process'
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    torch.ones(1, device=device).item()


# --- Models -------------------------------------------------------------------------------------------------------


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


# --- The training step --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training run on made-up rollouts of `batch_size` × `accumulation` completions, one optimizer step each.

    `trainer` is stock (TRL's GRPOTrainer) or lean, `model` a local directory or a name in RANDOM, `group` the rows of
    a prompt, `dead` the share of groups whose rewards are all the same, `cudnn` whether sdpa may use cuDNN, which
    runs keep off. Weights in bfloat16 imply autocast.
    """

    trainer: str
    model: str = "9M"
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    checkpointing: bool = False
    pack_tokens: int | None = None
    loss_type: str = "dapo"
    beta: float = 0.0
    optim: str = "adamw_torch"
    group: int = 8
    batch_size: int = 8
    accumulation: int = 4
    steps: int = 4
    median_length: float = 200.0
    max_completion_length: int = 786
    prompt_words: tuple[int, int] = (20, 120)
    dead: float = 0.0
    cudnn: bool = False
    seed: int = 0


def train(run: Run, model: Any = None, on_gradients: Callable[[Gradients], None] | None = None) -> dict[str, Any]:
    """Train on made-up completions, and say what it took.

    Args:
        model: replaces run.model, which then names its tokenizer only.
        on_gradients: gets the names and gradients of all parameters before the first optimizer step.

    Returns:
        By optimizer step: `seconds` of forward and backward without making completions up, and `tokens` of the rollout
        (completions, and each distinct prompt once). In all: tokens `computed` and `useful` (those of live groups, but
        their prompts' last ones), `peak_bytes` above what was there before, `parameters`, `pack_tokens`, and how packs
        are computed, `backend`.
    """
    clean(run.device)
    before = peak(run.device)
    model = load_model(run.model, run.device, run.dtype, run.attention) if model is None else model
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
            if state.global_step == 0 and on_gradients is not None:
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
                max_steps=run.steps, loss_type=run.loss_type, beta=run.beta, optim=run.optim, seed=run.seed,
                gradient_checkpointing=run.checkpointing, bf16=run.dtype == "bfloat16", shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[FirstGradients()],
            **({"pack_tokens": run.pack_tokens} if run.trainer == "lean" else {}),
        )  # fmt: skip
        torch.backends.cuda.enable_cudnn_sdp(run.cudnn)
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
        "backend": getattr(getattr(trainer, "backend", None), "name", "padded"),
    }


def train_and_compare(compare: bool = True, **options: Any) -> dict[str, Any]:
    """`train`, and `distance`: of the first step's gradient from stock TRL's in float32, relative to its norm."""
    run = Run(**options)
    if not compare:
        return train(run)
    exact = _exact_gradients(
        replace(
            run, trainer="stock", attention="sdpa", checkpointing=True, steps=1, optim="sgd", pack_tokens=None,
            cudnn=False,
        )
    )  # fmt: skip
    squares = [0.0, 0.0]

    def measure(found: Gradients) -> None:
        for name, gradient in found:
            expected = exact[name].to(gradient.device)
            squares[0] += (gradient.float() - expected).square().sum().item()
            squares[1] += expected.square().sum().item()

    return train(run, on_gradients=measure) | {"distance": math.sqrt(squares[0] / squares[1])}


@functools.lru_cache(maxsize=1)
def _exact_gradients(run: Run) -> dict[str, torch.Tensor]:
    """Of the first step, in float32, from weights that were rounded to `run.dtype`."""
    model, exact = load_model(run.model, run.device, run.dtype).float(), dict[str, torch.Tensor]()
    model.config.dtype = torch.float32
    plain = replace(run, dtype="float32")
    train(plain, model, lambda found: exact.update((name, gradient.cpu().clone()) for name, gradient in found))
    return exact


# --- The rollout --------------------------------------------------------------------------------------------------


def end_by_chance(model: Any, ends: list[int], mean_length: float) -> None:
    """Make each token the first of `ends` with the chance of 1 in `mean_length`: lengths of a geometric distribution.

    Called again, it sets another mean.
    """
    head, log_odds = model.get_output_embeddings(), math.log(mean_length - 1)
    if hasattr(head, "log_odds"):
        head.log_odds.fill_(log_odds)
        return
    # a buffer: it goes where the model goes, and CUDA graphs read it anew
    head.register_buffer("log_odds", torch.full((), log_odds, device=head.weight.device), persistent=False)

    def hook(module: Any, inputs: tuple, logits: torch.Tensor) -> torch.Tensor:
        others = logits.clone()
        for end in ends:  # one by one: a list would be copied to the device, which waits for it
            others[..., end] = -math.inf
        others[..., ends[0]] = (others.float().logsumexp(-1) - module.log_odds).to(logits.dtype)
        return others

    head.register_forward_hook(hook)


def end_vllm_by_chance(trainer: Any) -> None:
    """The same for vLLM's own copy of the model, which has no hooks: each request gets its length."""
    llm = trainer.vllm_generation.llm
    head, generate = trainer.model.get_output_embeddings(), llm.generate

    def with_lengths(prompts: list, sampling_params: Any, **kwargs: Any) -> Any:
        drawn = torch.empty(len(prompts)).geometric_(torch.sigmoid(-head.log_odds).item()).long().tolist()
        each = [copy.copy(sampling_params) for _ in prompts]
        for params, length in zip(each, drawn, strict=True):
            params.max_tokens, params.ignore_eos = min(length, params.max_tokens), True
        return generate(prompts, sampling_params=each, **kwargs)

    llm.generate = with_lengths


def sample(
    engine: str, model: str, device: str, dtype: str, rows: int, mean_length: float, limit: int, prompt: int
) -> dict[str, Any]:
    """Complete `rows` prompts of `prompt` tokens three times, in groups of 8, by the engine as a run uses it.

    Lengths are geometric, cut at `limit`, with every engine: around 2 in the first rollout, which compiles and starts
    what there is to start, then around `mean_length`.

    Returns:
        `seconds` and generated `tokens` of the last two rollouts, which draw the same, so that every shape of the last
        one is known. In all: `peak_bytes`, and `off` as the self-check judges the engine.

    Raises:
        UserError: this engine does not run with this model here.
    """
    gpu.prepare()
    settings: dict[str, Any] = {engines.SWITCH_OF[engine]: True} if engine in engines.SWITCH_OF else {}
    clean(device)
    before, tokenizer, dice = peak(device), load_tokenizer(model), random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        policy = load_model(model, device, dtype)
        if engine == "vllm":  # reads its weights from a directory
            vllm.check_installed(on_cpu=device == "cpu")
            settings |= {"vllm_mode": "colocate", "vllm_max_model_length": prompt + limit}
            if model in RANDOM:
                settings["generation_kwargs"] = {"detokenize": False}  # most of its ids have no text
                policy.save_pretrained(directory)
                tokenizer.save_pretrained(directory)
                policy = load_model(directory, device, dtype)
        trainer = LeanGRPOTrainer(
            policy,
            _no_reward,
            trainer_config(
                device, directory, per_device_train_batch_size=rows, num_generations=8, max_completion_length=limit,
                gradient_checkpointing=False, bf16=dtype == "bfloat16", **settings,
            ),
            Dataset.from_list([{"prompt": "1 + 1"}] * rows),
            processing_class=tokenizer, generation=engine,
        )  # fmt: skip
        if selfcheck.engine_of(trainer) != engine:
            raise UserError(f"generation: {engine} does not run with this model; see the note above")
        ids = [[dice.randrange(5, len(tokenizer)) for _ in range(prompt)] for _ in range(rows // 8)]
        torch.manual_seed(0)
        trial = selfcheck.try_engine(trainer, ids)
        if trial.fault:
            raise UserError(trial.fault)
        end_by_chance(policy, eos_ids(policy, tokenizer), 2)
        if engine == "vllm":
            end_vllm_by_chance(trainer)
        prompts = [one for one in ids for _ in range(8)]
        seconds, tokens = [], []
        for mean in (2, mean_length, mean_length):  # the second meets every shape that the third is timed with
            torch.manual_seed(0)
            end_by_chance(policy, [], mean)
            start = clock(device)
            tokens.append(sum(map(len, trainer._generate_single_turn(prompts, None, {}, 8)[0])))
            seconds.append(clock(device) - start)
    return {"seconds": seconds[1:], "tokens": tokens[1:], "peak_bytes": peak(device) - before, "off": trial.off}


def _no_reward(completions: list[Any], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


# --- One pack -----------------------------------------------------------------------------------------------------


def attend(attention: str, backend: str, model: str, device: str, dtype: str, prompt: int) -> dict[str, Any]:
    """Forward and backward of one pack, as the self-check of a run computes it (training/selfcheck.py).

    Args:
        attention: what the model runs with, and `backend`, the name of the way to compute packs with it.
        prompt: tokens of a prompt.

    Returns:
        `tokens_per_second`, `seconds` for the pack, `off` from float32's gradient, and `peak_bytes`.

    Raises:
        UserError: its gradient is wrong, or the model cannot be computed so.
    """
    gpu.prepare()
    clean(device)
    before, tokenizer, dice = peak(device), load_tokenizer(model), random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        trainer = LeanGRPOTrainer(
            load_model(model, device, dtype, attention),
            _no_reward,
            trainer_config(device, directory, num_generations=8, bf16=dtype == "bfloat16"),
            Dataset.from_list([{"prompt": "1 + 1"}] * 8),
            processing_class=tokenizer,
        )
        ways = {way.name: way for way in packable.candidates(trainer)}
        if trainer.backend is None or backend not in ways:
            raise UserError(f"attn_implementation: {backend} does not run with this model; see the note above")
        ids = [[dice.randrange(5, len(tokenizer)) for _ in range(prompt)] for _ in range(8)]
        gradients = selfcheck.Gradients(trainer, ids)
        trial = gradients.try_out(ways[backend])
    if trial.fault or not trial.seconds:
        raise UserError(trial.fault)
    seconds = trial.seconds * packing.cost(gradients.timed)
    return {
        "seconds": seconds,
        "tokens_per_second": 1 / trial.seconds,
        "off": trial.off,
        "peak_bytes": peak(device) - before,
    }
