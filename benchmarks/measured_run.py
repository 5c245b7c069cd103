"""One measured run: a synthetic rollout trained on, or prompts completed. What train_step.py and gpu_check.py share.

Importing it costs nothing; torch and TRL are loaded where they are used.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DEMO = ROOT / "assets" / "demo" / "model"
RANDOM = ("9M", "1.5B")  # Qwen2 models of random weights, by name: speed needs no trained ones

Gradients = Iterator[tuple[str, Any]]  # names of parameters, and tensors


@dataclass(frozen=True)
class Run:
    """A training run on synthetic rollouts, of `batch_size` × `accumulation` completions each.

    Attributes:
        side: stock (TRL's GRPOTrainer) or lean.
        model: a local directory, a Hub id, or a name in RANDOM.
        dtype: of the weights; `autocast` computes in bfloat16 whatever they are.
        group: completions of a prompt.
        dead: the share of groups whose rewards are all the same.
        tf32: in what is float32; None leaves the process as it is.
    """

    side: str
    model: str = "9M"
    device: str = "cpu"
    dtype: str = "float32"
    autocast: bool = False
    tf32: bool | None = None
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
    seed: int = 0


def lengths(chance: random.Random, count: int, median: float, limit: int) -> list[int]:
    """Lognormal around a median; with the defaults, 3 % run into the limit."""
    from grpo.config.plan import SPREAD

    return [min(max(1, int(chance.lognormvariate(0, SPREAD) * median)), limit) for _ in range(count)]


def synchronize(device: str) -> None:
    """Wait for what a GPU was asked to do: without that, a clock measures how fast it is asked."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


@contextlib.contextmanager
def float32_products(tf32: bool | None) -> Iterator[None]:
    """Let a GPU round the factors of float32 products to TF32's 10 bits, or not; None leaves it as it is.

    GRPOConfig's tf32 sets the same switch, but through a function that transformers caches: for an answer that was
    given before in this process it does nothing.
    """
    import torch

    before = torch.backends.fp32_precision
    if tf32 is not None:
        torch.backends.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        torch.backends.fp32_precision = before


def peak(device: str) -> int:
    """Peak memory of this process since its start, or since `clean`: bytes."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_now(device: str) -> int:
    """What the peak is to be compared with: what is allocated on the GPU, or what the process has had up to now."""
    if device == "cuda":
        import torch

        return torch.cuda.memory_allocated()
    return peak(device)


def clean(device: str) -> None:
    """Give back what a run has left behind, and begin to watch the peak anew."""
    gc.collect()  # a trainer and its callbacks hold each other
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(AttributeError, OSError):  # glibc on Linux; elsewhere the peak is the process'
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO if model in RANDOM else model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def model_config(model: str) -> Any:
    from transformers import AutoConfig, Qwen2Config

    from grpo.config import plan

    if model not in RANDOM:
        return AutoConfig.from_pretrained(model)
    if model == "9M":
        config = Qwen2Config(
            vocab_size=512, hidden_size=384, intermediate_size=1024, num_hidden_layers=5, num_attention_heads=6,
            num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
    else:
        config = plan.model_config(model)
    tokenizer = load_tokenizer(model)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return config


def load_model(model: str, device: str, dtype: str, attention: str) -> Any:
    """The model on its device; a random one has the same weights every time."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    if model not in RANDOM:
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=attention).to(device)
    with torch.device(device):  # drawn there, in its own type: 1.5B weights take minutes on a CPU
        return AutoModelForCausalLM.from_config(
            model_config(model), dtype=getattr(torch, dtype), attn_implementation=attention
        )


def trainer_config(device: str, directory: str, **own: Any) -> Any:
    """A GRPOConfig of a run that logs and saves nothing."""
    from trl import GRPOConfig

    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # a run before this one may have set it
    return GRPOConfig(
        output_dir=directory, use_cpu=device == "cpu", report_to="none", save_strategy="no", disable_tqdm=True,
        logging_strategy="no", max_grad_norm=0.0, lr_scheduler_type="constant", learning_rate=1e-6, **own,
    )  # fmt: skip


def train(run: Run, model: Any = None, on_gradients: Callable[[Gradients], None] | None = None) -> dict:
    """Train in this process, and say what it took. Generation is skipped, and its time is not counted.

    Args:
        model: in the place of run.model, which then names its tokenizer.
        on_gradients: is given the names and gradients of all parameters, before the first optimizer step.

    Returns:
        By optimizer step, the first included: `seconds` of forward and backward, `optimizer_seconds`, and `tokens` of
        the rollout (completions, and each distinct prompt once). In all: tokens `computed` and `useful` (as in
        train_step.py), `memory`, `parameters`, and how packs are computed, `backend`. The memory is the peak in bytes
        above what was there before.
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from grpo.training.base_trainer import use_no_triton
    from grpo.training.trainer import LeanGRPOTrainer

    before = memory_now(run.device)
    model = load_model(run.model, run.device, run.dtype, run.attention) if model is None else model
    tokenizer = load_tokenizer(run.model)
    chance = random.Random(run.seed)
    groups = run.batch_size * run.accumulation // run.group  # of a rollout
    words = ["a", "with", "boxes", "of", "pears", "and", "eggs", "find", "many", "they"]  # 1.3 tokens a word, as usual
    rows = [
        {"prompt": " ".join(chance.choice(words) for _ in range(chance.randint(*run.prompt_words))), "number": number}
        for number in range(groups * run.steps)
    ]
    dead = {row["number"] for row in rows if row["number"] % groups < run.dead * groups}
    vocabulary = min(len(tokenizer), model.config.get_text_config().vocab_size)
    sampled: list[dict] = []

    def sample(prompt_ids: list, *args: Any, **kwargs: Any) -> tuple:
        completions = []
        for length in lengths(chance, len(prompt_ids), run.median_length, run.max_completion_length):
            completions.append([chance.randrange(5, vocabulary) for _ in range(length)])
            if length < run.max_completion_length:
                completions[-1][-1] = tokenizer.eos_token_id
        sampled.append({"prompts": prompt_ids, "completions": completions})
        return completions, None

    def reward(completion_ids: list, number: list, **kwargs: Any) -> list[float]:
        sampled[-1]["live"] = [one not in dead for one in number]
        return [0.0 if one in dead else float(sum(ids) % 997) for ids, one in zip(completion_ids, number, strict=True)]

    seconds: list[float] = []
    optimizer_seconds: list[float] = []
    computed: list[int] = []
    generating = started = 0.0

    class Steps(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any, **kwargs: Any) -> None:
            if run.device == "cpu":  # LeanGRPOTrainer does it itself
                use_no_triton(optimizer)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal started
            if state.global_step == 0 and on_gradients is not None:
                trained = ((name, weight.grad) for name, weight in model.named_parameters())
                on_gradients((name, gradient) for name, gradient in trained if gradient is not None)
            synchronize(run.device)
            started = time.perf_counter()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            synchronize(run.device)
            optimizer_seconds.append(time.perf_counter() - started)

    with tempfile.TemporaryDirectory() as directory, float32_products(run.tf32):
        trainer = (GRPOTrainer if run.side == "stock" else LeanGRPOTrainer)(
            model=model,
            reward_funcs=reward,
            args=trainer_config(
                run.device, directory, per_device_train_batch_size=run.batch_size, num_generations=run.group,
                gradient_accumulation_steps=run.accumulation, max_completion_length=run.max_completion_length,
                max_steps=run.steps, loss_type=run.loss_type, beta=run.beta, optim=run.optim, seed=run.seed,
                gradient_checkpointing=run.checkpointing, bf16=run.autocast, shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Steps()],
            **({"pack_tokens": run.pack_tokens} if run.side == "lean" else {}),
        )  # fmt: skip
        precision = "bf16" if run.autocast else "no"
        if trainer.accelerator.mixed_precision != precision:
            raise RuntimeError(f"mixed precision is {trainer.accelerator.mixed_precision}, not {precision}")
        trainer._generate_single_turn = sample

        def count(module: Any, args: tuple, kwargs: dict) -> None:
            if torch.is_grad_enabled():
                computed.append(kwargs["input_ids"].numel())

        model.register_forward_pre_hook(count, with_kwargs=True)
        score, step = trainer._generate_and_score_completions, trainer.training_step

        def timed_score(inputs: Any) -> Any:
            nonlocal generating
            synchronize(run.device)
            start = time.perf_counter()
            output = score(inputs)
            synchronize(run.device)
            generating += time.perf_counter() - start
            return output

        def timed_step(*args: Any, **kwargs: Any) -> Any:
            nonlocal generating
            synchronize(run.device)
            start, generating = time.perf_counter(), 0.0
            output = step(*args, **kwargs)
            synchronize(run.device)
            seconds.append(time.perf_counter() - start - generating)
            return output

        trainer._generate_and_score_completions, trainer.training_step = timed_score, timed_step
        trainer.train()
    tokens, useful = [], 0
    for one in sampled:
        prompts = {tuple(prompt) for prompt in one["prompts"]}
        tokens.append(sum(map(len, prompts)) + sum(map(len, one["completions"])))
        live = [index for index, lives in enumerate(one["live"]) if lives]
        useful += sum(len(one["completions"][index]) for index in live)
        useful += sum(len(prompt) - 1 for prompt in {tuple(one["prompts"][index]) for index in live})
    width = run.accumulation
    return {
        "seconds": [sum(seconds[start : start + width]) for start in range(0, len(seconds), width)],
        "optimizer_seconds": optimizer_seconds,
        "tokens": tokens,
        "computed": sum(computed),
        "useful": useful,
        "memory": peak(run.device) - before,
        "pack_tokens": getattr(trainer, "pack_tokens", None),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "backend": getattr(getattr(trainer, "backend", None), "name", "padded"),
    }


def sample(
    model: str, device: str, dtype: str, engine: str, rows: int, mean_length: float, limit: int, prompt: int
) -> dict:
    """Complete `rows` prompts of `prompt` tokens, in groups of 8, through the engine that the trainer would use.

    The first rollout, which compiles and starts what there is to start, is not timed; there every completion ends
    after a few tokens. Lengths are geometric around `mean_length`, cut at `limit`, with every engine.
    """
    import torch
    from datasets import Dataset
    from trl import GRPOTrainer

    from benchmarks import generation
    from grpo.policy.generation import eos_ids

    tokenizer, chance = load_tokenizer(model), random.Random(0)
    own = generation.settings_of(engine)
    before = memory_now(device)
    with tempfile.TemporaryDirectory() as directory:
        policy = load_model(model, device, dtype, "sdpa")
        if engine == "vllm":  # reads its weights from a directory
            own |= {"vllm_mode": "colocate", "vllm_max_model_length": prompt + limit}
            if model in RANDOM:
                # A random 1.5B samples 151,936 ids, of which the demo's tokenizer knows 512, and vLLM would look up
                # text for each. Nothing here reads the text; without it vLLM uses no tokenizer. allowed_token_ids
                # would do, too, but adds a mask to every step.
                own["generation_kwargs"] = {"detokenize": False}
                policy.save_pretrained(directory)
                tokenizer.save_pretrained(directory)
                policy = load_model(directory, device, dtype, "sdpa")
        generation.end_by_chance(policy, eos_ids(policy, tokenizer), 2)
        trainer = GRPOTrainer(
            policy,
            lambda completions, **_: [0.0] * len(completions),
            trainer_config(
                device, directory, per_device_train_batch_size=rows, num_generations=8, max_completion_length=limit,
                gradient_checkpointing=False, bf16=dtype == "bfloat16", **own,
            ),
            Dataset.from_list([{"prompt": "1 + 1"}] * rows),
            processing_class=tokenizer,
        )  # fmt: skip
        if engine == "vllm":
            generation.end_vllm_by_chance(trainer)
        complete = generation.sampler(trainer, engine, 8)
        ids = [[chance.randrange(5, len(tokenizer)) for _ in range(prompt)] for _ in range(rows // 8)]
        prompts = [one for one in ids for _ in range(8)]
        complete(prompts)
        generation.set_mean_length(policy, mean_length)
        torch.manual_seed(0)
        synchronize(device)
        start = time.perf_counter()
        found = complete(prompts)
        synchronize(device)
        seconds = time.perf_counter() - start
    lengths = [len(one) for one in found]
    memory = peak(device) - before
    return {"seconds": seconds, "tokens": sum(lengths), "steps": max(lengths), "rows": len(found), "memory": memory}


def agreement(run: Run) -> dict[str, float]:
    """How far the bfloat16 gradients of stock and lean are from the float32 gradient of the same weights and rollout.

    Each distance is the norm of the difference over all parameters, relative to the norm of the float32 gradient.
    """
    import torch

    reference: dict[str, Any] = {}
    sums = dict.fromkeys(("stock", "lean", "between", "all"), 0.0)
    of_stock: dict[str, Any] = {}

    def keep(into: dict[str, Any]) -> Callable[[Gradients], None]:
        return lambda gradients: into.update((name, gradient.detach().clone()) for name, gradient in gradients)

    def compare(gradients: Gradients) -> None:
        for name, gradient in gradients:
            exact, stock, lean = reference[name].float(), of_stock[name].float(), gradient.float()
            pairs = {"stock": (stock, exact), "lean": (lean, exact), "between": (stock, lean)}
            for key, (one, other) in pairs.items():
                sums[key] += (one - other).square().sum().item()
            sums["all"] += exact.square().sum().item()

    settings = vars(run) | {"steps": 1, "optim": "sgd"}  # SGD keeps no state, which would take more than all the rest
    plain = Run(**settings | {"side": "stock", "attention": "sdpa", "checkpointing": False})
    exact = load_model(run.model, run.device, run.dtype, "sdpa").float()
    exact.config.dtype = torch.float32
    train(Run(**vars(plain) | {"dtype": "float32", "autocast": False, "tf32": False}), exact, keep(reference))
    del exact
    clean(run.device)
    train(plain, on_gradients=keep(of_stock))
    clean(run.device)
    train(Run(**settings | {"side": "lean"}), on_gradients=compare)
    norm = math.sqrt(sums.pop("all"))
    return {key: math.sqrt(value) / norm for key, value in sums.items()}
