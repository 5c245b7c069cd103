"""`python -m grpo plan`: memory, time and cost of a run, by arithmetic alone; docs/scaling.md explains the formulas.

Nothing is loaded but the settings, so neither the device nor the weights have to be there. What is assumed has a best
and a worst value, and so has a plan's time.
"""

import argparse
import math
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from grpo.core.errors import UserError
from grpo.core.parsing import ArgumentParser
from grpo.core.settings import Geometry
from grpo.policy import memory

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SCRIPT = Path(__file__).resolve().parents[2] / "train_grpo.py"

# --- Facts: devices, models, texts --------------------------------------------------------------------------------


class Device(NamedTuple):
    """Bytes of memory, bytes read plus written a second, operations of a matrix product a second."""

    name: str
    memory: float
    bandwidth: float
    rate: float
    source: str = "data sheet"


# GB, TB/s, and TFLOP/s of 16-bit matrix products that are summed in float32 (data sheets, without sparsity)
GPUS = {
    "T4": (16, 0.32, 65), "L4": (24, 0.30, 121), "A10G": (24, 0.60, 70), "A10": (24, 0.60, 125),
    "A40": (48, 0.70, 150), "L40S": (48, 0.86, 362), "A6000": (48, 0.77, 155),
    "A100": (80, 2.04, 312), "A100-40": (40, 1.555, 312), "B200": (180, 8.0, 2250),
    "H100": (80, 3.0, 798), "H200": (141, 4.3, 769),  # rates measured with PyTorch 2.11
    "RTX 3060": (12, 0.36, 25), "RTX 3080": (10, 0.76, 60), "RTX 3090": (24, 0.94, 71),
    "RTX 4060": (8, 0.27, 30), "RTX 4070": (12, 0.50, 58), "RTX 4080": (16, 0.72, 97), "RTX 4090": (24, 1.01, 165),
    "RTX 5070": (12, 0.67, 62), "RTX 5080": (16, 0.96, 113), "RTX 5090": (32, 1.79, 210),
}  # fmt: skip

# Layers, hidden, intermediate, heads, key-value heads, vocabulary, tied: as in the config.json, which is not needed
MODELS = {
    "Qwen2.5-0.5B-Instruct": (24, 896, 4864, 14, 2, 151936, True),
    "Qwen2.5-1.5B-Instruct": (28, 1536, 8960, 12, 2, 151936, True),
    "Qwen2.5-3B-Instruct": (36, 2048, 11008, 16, 2, 151936, True),
    "Qwen2.5-7B-Instruct": (28, 3584, 18944, 28, 4, 152064, False),
    "SmolLM2-135M-Instruct": (30, 576, 1536, 9, 3, 49152, True),
    "Llama-3.2-1B-Instruct": (16, 2048, 8192, 32, 8, 128256, True),
}

# GSM8K: rows of its splits; mean tokens of a prompt by the tokenizer and chat template of SmolLM2-135M-Instruct, which
# splits numbers into digits as Qwen2.5's does. One training prompt has more than 256 tokens.
ROWS, TEST_ROWS, PROMPT = 7472, 1319, 105.0


def find_gpu(name: str) -> Device:
    """The device whose name this begins with: 4090, RTX 4090, A100-40, NVIDIA H100 80GB HBM3; UserError for others."""

    def plain(text: str) -> str:
        letters = "".join(letter for letter in text.upper() if letter.isalnum())
        for maker in ("NVIDIA", "GEFORCE", "TESLA", "RTX"):
            letters = letters.removeprefix(maker)
        return letters

    fitting = [known for known in GPUS if plain(name).startswith(plain(known))]
    if not fitting:
        raise UserError(
            f"gpu: {name!r} is not in the table; use one of {', '.join(GPUS)}, or --tflops, --bandwidth and --memory"
        )
    best = max(fitting, key=lambda known: len(plain(known)))
    gigabytes, terabytes, teraflops = GPUS[best]
    return Device(best, gigabytes * 1e9, terabytes * 1e12, teraflops * 1e12)


def model_config(name: str) -> "PretrainedConfig":
    """The configuration of a model: of MODELS without a network, or of a directory or a Hub id."""
    from transformers import AutoConfig, LlamaConfig, Qwen2Config

    path = Path(name).expanduser()
    if path.is_dir() or path.name not in MODELS:
        return AutoConfig.from_pretrained(path if path.is_dir() else name, trust_remote_code=False)
    layers, hidden, intermediate, heads, key_value, vocabulary, tied = MODELS[path.name]
    return (Qwen2Config if path.name.startswith("Qwen") else LlamaConfig)(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=key_value,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )


def read_shape(settings: SimpleNamespace) -> memory.Shape:
    """The shape of the model that these settings train; UserError where it is not known."""
    from peft import LoraConfig

    name, adapter = settings.model_name_or_path, None
    if settings.use_peft:
        adapter = LoraConfig(r=settings.lora_r, target_modules=settings.lora_target_modules)
    try:
        shape = memory.shape(model_config(name), adapter)
    except (OSError, ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"model_name_or_path: {name!r} cannot be planned ({reason}); use a model's directory or Hub id, or one of "
            f"{', '.join(MODELS)}"
        ) from None
    if not shape.layers:
        raise UserError(f"model_name_or_path: the config.json of {name!r} lacks its layers' sizes; use another model")
    return shape


# --- Arithmetic ---------------------------------------------------------------------------------------------------

SPREAD = 0.728  # of the logarithm of completions' lengths: with a median of 200, 3 % are longer than 786
CONTEXT, FRAGMENTATION = 0.8e9, 1.1  # bytes of CUDA and its libraries; what an allocator holds beyond live tensors


class Pace(NamedTuple):
    """How near a run comes to what its device can do.

    Attributes:
        training: share of the matrix rate.
        reading: share of the bandwidth that decoding reaches where launches do not take longer.
        launch: seconds that a decoding step takes at least for each layer, to launch its kernels.
    """

    training: float
    reading: float
    launch: float


def paces(engine: str) -> tuple[Pace, Pace]:
    """Best and worst, from other programs' figures: milliseconds of a decoding step of 28 layers."""
    best, worst = {"vllm": (2, 5), "compiled": (3, 7)}.get(engine, (20, 35))
    return Pace(0.45, 0.8, best / 28e3), Pace(0.3, 0.5, worst / 28e3)


EVALUATION = "lean"  # the engine that answers the held-out questions


class Seconds(NamedTuple):
    """Of a whole run, but for loading, rewards, optimizer steps, checkpoints and what processes send each other."""

    generation: float
    training: float
    evaluation: float


@dataclass(frozen=True)
class Work:
    """A run as a plan sees it: its settings, its model's shape, and how long its texts are."""

    settings: SimpleNamespace
    geometry: Geometry
    shape: memory.Shape
    pack_tokens: int | None  # None: padded micro-batches
    shares_prompts: bool
    rows: int  # training questions
    completion: float  # mean tokens
    sharding: str

    @property
    def steps(self) -> int:
        if self.settings.max_steps > 0:
            return self.settings.max_steps
        return math.ceil(self.geometry.steps_per_epoch(self.rows) * self.settings.num_train_epochs)

    def longest(self, count: int) -> float:
        """The expected longest of so many completions, lognormal around their mean, cut at the limit."""
        median = self.completion / math.exp(SPREAD**2 / 2)
        at = NormalDist().inv_cdf(1 - 1 / (count + 1))
        return min(self.settings.max_completion_length, max(self.completion, median * math.exp(SPREAD * at)))

    def training_tokens(self) -> float:
        """Tokens that a device computes for an optimizer step."""
        s, completions = self.settings, self.geometry.per_step / self.geometry.world_size
        if not self.pack_tokens:
            return completions * (1.4 * PROMPT + self.longest(s.per_device_train_batch_size))
        prompts = completions / s.num_generations if self.shares_prompts else completions
        return prompts * (PROMPT - 1) + completions * self.completion

    def training_operations(self) -> float:
        """Floating-point operations of forward and backward for a token: of the weights, and of attention."""
        s, shape = self.settings, self.shape
        weights = shape.parameters - (shape.heads - 1) * shape.embedding  # an embedding is looked up
        again = 1 if s.gradient_checkpointing else 0
        passes = (2 if shape.adapter else 3) + again  # in forwards, of 2 a weight
        # The reference model, and the policy as it sampled, where TRL computes that again
        accumulated = self.geometry.steps_per_generation * s.num_iterations
        resampled = s.gradient_accumulation_steps % accumulated != 0
        resampled |= bool(s.use_vllm and s.vllm_importance_sampling_correction)
        others = (1 if s.beta else 0) + (1 / s.num_iterations if resampled else 0)
        attention = 4 * shape.layers * shape.query * (PROMPT + self.completion / 2)
        return 2 * weights * (passes + others) + attention * (3 + again + others)

    def decoding_bytes(self, rows: float) -> float:
        """Bytes of weights and cache that a decoding step reads."""
        s, shape = self.settings, self.shape
        number = 2 if s.bf16 or s.fp16 else memory.BYTES.get(str(s.dtype), 4)
        cache = rows * (PROMPT + self.completion / 2) * shape.layers * 2 * shape.key_value * number
        return shape.parameters * memory.BYTES.get(str(s.dtype), 4) + cache

    def decoding(self, device: Device, rows: float, pace: Pace) -> float:
        """Seconds of a decoding step: its launches, or weights and cache through the memory, whichever is longer."""
        return max(pace.launch * self.shape.layers, self.decoding_bytes(rows) / (device.bandwidth * pace.reading))

    @property
    def decoded(self) -> float:
        """Completions that a decoding step computes: `generate` carries on those that have ended."""
        rows = self.geometry.rollout // self.geometry.world_size
        kept = self.settings.generation in ("hf", "compiled")
        return rows if kept else rows * self.completion / self.longest(rows)

    def seconds(self, device: Device) -> tuple[Seconds, Seconds]:
        """The best and the worst."""
        best, worst = paces(self.settings.generation)
        evaluating, other = paces(EVALUATION)
        return self._seconds(device, best, evaluating), self._seconds(device, worst, other)

    def _seconds(self, device: Device, pace: Pace, evaluating: Pace) -> Seconds:
        s, rate = self.settings, device.rate * pace.training
        rows = self.geometry.rollout // self.geometry.world_size
        rollouts = self.steps * self.geometry.per_step / self.geometry.rollout / s.num_iterations
        read = rows / s.num_generations if s.generation == "lean" else rows  # prompts; lean reads equal ones once
        prefill = read * PROMPT * 2 * self.shape.parameters / rate
        at_once = s.per_device_eval_batch_size
        answers = 1 + s.eval_num_samples * (s.eval_num_samples > 1)  # greedy, and the samples besides
        questions = (s.eval_samples or TEST_ROWS) * answers / self.geometry.world_size
        answering = 2 * (self.longest(at_once) + questions * self.completion / at_once)  # before and after
        return Seconds(
            generation=rollouts * (prefill + self.longest(rows) * self.decoding(device, self.decoded, pace)),
            training=self.steps * self.training_tokens() * self.training_operations() / rate,
            evaluation=answering * self.decoding(device, at_once, evaluating),
        )

    def memory(self, device: Device) -> dict[str, float]:
        """Bytes on a device at the peak by what takes them, with what is assumed beside live tensors."""
        s, geometry = self.settings, self.geometry
        parts = memory.memory(
            self.shape,
            s,
            s,
            geometry.rollout // geometry.world_size,
            s.max_prompt_length or round(2.5 * PROMPT),
            self.pack_tokens,
            devices=geometry.world_size,
            sharding=self.sharding,
            device_memory=device.memory,
        )
        live = sum(size for part, size in parts.items() if part != "vLLM")
        return parts | {"allocator": (FRAGMENTATION - 1) * live, "CUDA context": CONTEXT}


# --- The command --------------------------------------------------------------------------------------------------


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m grpo plan",
        description="Memory, time and cost of a run, by arithmetic alone: no weights are loaded. "
        "Takes every flag of train_grpo.py besides, such as --config recipes/fast_80gb.yaml.",
    )
    add = parser.add_argument
    add("--gpu", metavar="NAME", help="such as 4090, A100 or H100; default: this machine's, or H100 if it has none")
    add("--tflops", type=float, help="16-bit matrix products of a GPU that the table lacks, TFLOP/s")
    add("--bandwidth", type=float, help="of its memory, TB/s")
    add("--memory", type=float, help="GB of it")
    add("--devices", type=int, default=1, help="number of GPUs (default 1)")
    add("--sharding", choices=list(memory.SHARED), default="none", help="what several GPUs divide (docs/scaling.md)")
    add("--price", type=float, default=2.5, help="of a GPU and hour (default 2.5)")
    add("--mean_completion_length", type=float, default=200.0, metavar="TOKENS", help="(default 200)")
    add("--why", action="store_true", help="show the arithmetic, and what is assumed")
    return parser


def read(argv: list[str]) -> tuple[argparse.Namespace, Work, Device]:
    """The plan that a command line asks for; raises UserError."""
    import torch

    from grpo.config import resolve
    from grpo.training import attention

    ours, others = _parser().parse_known_args(argv)
    for key, value in vars(ours).items():
        if isinstance(value, int | float) and key != "why" and not 0 < value < 1e9:
            raise UserError(f"{key}: {value:g} is out of range; use a number above 0")
    merged = resolve.merge(runpy.run_path(str(SCRIPT))["HYPERPARAMETERS"], others, ours.devices)
    settings = SimpleNamespace(**merged.settings)
    settings.optim = SimpleNamespace(value=settings.optim)  # as GRPOConfig has it
    if settings.use_cpu:
        raise UserError("use_cpu: a plan is about GPUs; drop it (--dry_run true estimates the memory of a CPU)")
    settings.generation = "hf" if settings.generation == "auto" else settings.generation
    backend = attention.choose(settings.attn_implementation, torch.device("cuda")) if settings.packed else None
    work = Work(
        settings=settings,
        geometry=merged.geometry,
        shape=read_shape(settings),
        pack_tokens=(settings.pack_tokens or backend.pack_tokens) if backend else None,
        shares_prompts=bool(backend and backend.shares_prompts),
        rows=min(settings.max_samples or ROWS, ROWS),
        completion=min(ours.mean_completion_length, settings.max_completion_length),
        sharding=ours.sharding,
    )
    return ours, work, _device(ours, settings)


def _device(ours: argparse.Namespace, settings: SimpleNamespace) -> Device:
    import torch

    half = settings.bf16 or settings.fp16 or settings.dtype in ("bfloat16", "float16")
    if ours.memory and ours.bandwidth and ours.tflops:
        found = Device(ours.gpu or "a GPU", 0, 0, 0)
    else:
        here = torch.cuda.get_device_name() if torch.cuda.device_count() else "H100"
        found = find_gpu(ours.gpu or here)
        if not half and not ours.tflops:
            raise UserError("tflops: these settings compute in float32, and the table has 16-bit rates; add --tflops")
    own = {"memory": (ours.memory, 1e9), "bandwidth": (ours.bandwidth, 1e12), "rate": (ours.tflops, 1e12)}
    changed = {key: value * unit for key, (value, unit) in own.items() if value}
    return found._replace(**changed, source="given" if changed else found.source)


def digits(value: float) -> str:
    """Two significant digits.

    >>> digits(1234), digits(0.0567), digits(3.14)
    ('1,200', '0.057', '3.1')
    """
    if not value:
        return "0"
    places = 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def between(one: float, other: float) -> str:
    low, high = digits(min(one, other)), digits(max(one, other))
    return low if low == high else f"{low} to {high}"


def answer(ours: argparse.Namespace, work: Work, device: Device) -> list[str]:
    """The four lines: memory, time, cost and what limits the run."""
    best, worst = work.seconds(device)
    peak = sum(work.memory(device).values())
    fits = "fits" if peak <= device.memory else "does not fit"
    unit, seconds = ("hours", 3600) if sum(worst) > 1800 else ("minutes", 60)
    phases = ", ".join(
        f"{name} {between(getattr(best, name) / seconds, getattr(worst, name) / seconds)}" for name in Seconds._fields
    )
    total = between(sum(best) / seconds, sum(worst) / seconds)
    cost = between(*(sum(each) / 3600 * ours.devices * ours.price for each in (best, worst)))
    phase = max(Seconds._fields, key=lambda name: getattr(best, name))
    limit = f"{phase}, {getattr(best, phase) / sum(best):.0%} of the time"
    if peak > device.memory:
        limit = "memory; --use_peft true takes less"
    elif phase == "generation" and work.settings.generation == "hf":
        limit += "; vLLM samples faster (recipes/fast_80gb.yaml)"
    many = f"each of {ours.devices} × " if ours.devices > 1 else ""
    return [
        f"memory  about {digits(peak / 1e9)} GB of {device.memory / 1e9:,.0f} GB on {many}{device.name}: {fits}",
        f"time    {total} {unit} for {work.steps:,} optimizer steps: {phases}",
        f"cost    {cost} at {ours.price:g} a device and hour (--price)",
        f"limit   {limit}",
    ]


def why(work: Work, device: Device) -> list[str]:
    """The arithmetic behind the answer, and what it assumes."""
    geometry, shape, settings = work.geometry, work.shape, work.settings
    best, worst = paces(settings.generation)
    one, other = (each.training / work.steps for each in work.seconds(device))
    rows, rate = geometry.rollout // geometry.world_size, digits(device.rate / 1e12)
    decoding = between(*(1e3 * work.decoding(device, work.decoded, pace) for pace in (best, worst)))
    launches = between(*(1e3 * shape.layers * pace.launch for pace in (best, worst)))
    tokens, completions = work.training_tokens(), work.steps * geometry.per_step
    operations = digits(tokens * work.training_operations() / 1e12)
    parts = ", ".join(f"{part} {digits(size / 1e9)}" for part, size in work.memory(device).items() if size > 5e7)
    over = "" if settings.max_steps > 0 else f" over {work.rows:,} questions of GSM8K"
    return [
        f"model       {shape.parameters / 1e6:,.1f} million parameters, {shape.trained / 1e6:,.1f} million trained",
        f"device      {device.memory / 1e9:,.0f} GB, {digits(device.bandwidth / 1e12)} TB/s, {rate} TFLOP/s of matrix "
        f"products ({device.source})",
        f"memory      in GB: {parts}",
        f"geometry    {geometry.describe().removeprefix('Geometry: ')}",
        f"steps       {work.steps:,} optimizer steps{over}, {completions:,} completions, "
        f"{digits(completions * work.completion / 1e6)} million tokens",
        f"generation  {work.longest(rows):,.0f} decoding steps a rollout (the expected longest of {rows} completions) "
        f"× {decoding} ms",
        f"training    {tokens:,.0f} tokens a step and device: {operations} × 10^12 operations / ({rate} × 10^12 a "
        f"second × {between(best.training, worst.training)}) = {between(one, other)} s",
        f"assumed     completions of {work.completion:.0f} tokens on average (--mean_completion_length), prompts of "
        f"{PROMPT:.0f}; decoding at {between(best.reading, worst.reading)} of the bandwidth, at least {launches} ms",
        "left out    start-up, rewards, optimizer steps, checkpoints, what devices send each other",
    ]


def main(argv: list[str] | None = None) -> int:
    """Print the plan; mistakes are one line and exit status 2."""
    try:
        ours, work, device = read(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join([*answer(ours, work, device), *(why(work, device) if ours.why else ())]))
    return 0
