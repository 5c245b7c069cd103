"""Memory and time of a run on another machine, by arithmetic alone; docs/scaling.md explains the formulas.

Where an assumption is wide it has two values, and a plan so two times.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

from grpo.config import rates
from grpo.policy import memory

SPREAD = 0.728  # of the lengths' logarithm: with a median of 200, 3 % are above 786
CONTEXT, FRAGMENTATION = 0.8e9, 1.1  # bytes of CUDA and its libraries; what an allocator holds beyond live tensors
LIBRARIES = 0.8e9  # bytes of a process on a CPU beside model and tensors, measured in the demo
# Seconds a layer that one decoding step takes at least, to launch its kernels: best and worst
LAUNCH = {"vllm": (2e-3 / 28, 5e-3 / 28), "compiled": (3e-3 / 28, 7e-3 / 28)}
EAGER = (20e-3 / 28, 35e-3 / 28)


@dataclass(frozen=True)
class Pace:
    """How near a run comes to what its device can do.

    Attributes:
        training: share of the matrix rate.
        counted: whether that share is gpu_check's, which counts completions and each prompt once, and no attention.
        reading: share of the bandwidth that decoding reaches where it is not its launches that take the time.
        launch, launch_eager: seconds a layer and decoding step of the rollout's engine, and of the evaluation's.
    """

    training: float
    counted: bool
    reading: float
    launch: float
    launch_eager: float


def assumed(engine: str) -> tuple[Pace, Pace]:
    """Best and worst, where nothing was measured."""
    launch = LAUNCH.get(engine, EAGER)
    return Pace(0.45, False, 0.8, launch[0], EAGER[0]), Pace(0.3, False, 0.5, launch[1], EAGER[1])


@dataclass(frozen=True)
class Work:
    """What a plan is made of: the settings and shape of a run, and how long its texts are."""

    settings: SimpleNamespace
    geometry: Any
    shape: memory.Shape
    pack_tokens: int | None
    shares_prompts: bool
    rows: int
    mean: float  # tokens of a completion
    live: float  # share of completions whose group has a signal
    prompt: float  # tokens of a prompt
    sharding: str = "none"

    @property
    def engine(self) -> str:
        return "hf" if self.settings.generation == "auto" else self.settings.generation

    def longest(self, count: int) -> float:
        """The expected longest of so many completions, lognormal around their mean, cut at the limit."""
        median = self.mean / math.exp(SPREAD**2 / 2)
        at = NormalDist().inv_cdf(1 - 1 / (count + 1))
        return min(self.settings.max_completion_length, max(self.mean, median * math.exp(SPREAD * at)))


def training_tokens(work: Work, counted: bool = False) -> float:
    """Tokens that a device computes for an optimizer step, or (`counted`) those that gpu_check counts of them."""
    s, completions = work.settings, work.geometry.per_step / work.geometry.world_size
    live = work.live if work.pack_tokens and s.beta == 0 else 1.0
    if counted:
        return live * completions * (work.prompt / s.num_generations + work.mean)
    if not work.pack_tokens:
        return completions * (1.4 * work.prompt + work.longest(s.per_device_train_batch_size))
    prompts = completions / s.num_generations if work.shares_prompts else completions
    return live * (prompts * (work.prompt - 1) + completions * work.mean)


def training_operations(work: Work, tokens: float, counted: bool = False) -> float:
    """Floating-point operations of forward and backward: of the weights, and of attention's own products."""
    s, shape = work.settings, work.shape
    weights = shape.parameters - (shape.heads - 1) * shape.embedding  # an embedding is looked up
    passes = (2 if shape.adapter else 3) + (1 if s.gradient_checkpointing else 0)  # in forwards, of 2 a weight
    # The reference model, and the policy as it sampled, where TRL computes that again
    again = s.gradient_accumulation_steps % (work.geometry.steps_per_generation * s.num_iterations) != 0
    again |= bool(s.use_vllm and s.vllm_importance_sampling_correction)
    others = int(bool(s.beta)) + again / s.num_iterations
    if counted:
        return tokens * 2 * weights * (passes + others)
    seen = work.prompt + work.mean / 2
    attention = 4 * shape.layers * shape.query * seen
    return tokens * (2 * weights * (passes + others) + attention * (3 + bool(s.gradient_checkpointing) + others))


def optimizer_bytes(work: Work) -> float:
    """Bytes that the update and the clipping read and write on a device."""
    s, devices = work.settings, work.geometry.world_size
    mixed = work.sharding if (s.bf16 or s.fp16) and devices > 1 else "none"
    _, trained, state = memory._bytes(work.shape, s, s.optim.value, mixed)
    return (2 * trained + 3 * trained + 2 * state) / (devices if memory.SHARED[work.sharding][2] else 1)


def decoding(work: Work, gpu: rates.Gpu, rows: float, launch: float, reading: float) -> float:
    """Seconds of a decoding step: its launch, or weights and cache through the memory, whichever is longer."""
    s, shape = work.settings, work.shape
    number = 2 if s.bf16 or s.fp16 else memory.BYTES.get(str(s.dtype), 4)
    cache = rows * (work.prompt + work.mean / 2) * shape.layers * 2 * shape.key_value * number
    weights = shape.parameters * memory.BYTES.get(str(s.dtype), 4)
    return max(launch * shape.layers, (weights + cache) / (gpu.bandwidth * reading))


@dataclass(frozen=True)
class Seconds:
    """Of a whole run, by what takes them."""

    generation: float
    training: float
    optimizer: float
    evaluation: float

    @property
    def total(self) -> float:
        return self.generation + self.training + self.optimizer + self.evaluation


def steps(work: Work) -> int:
    if work.settings.max_steps > 0:
        return work.settings.max_steps
    return math.ceil(work.geometry.steps_per_epoch(work.rows) * work.settings.num_train_epochs)


def time(work: Work, gpu: rates.Gpu, pace: Pace) -> Seconds:
    """The seconds of a run; not in it: loading, rewards, checkpoints, what processes tell each other."""
    s, count = work.settings, steps(work)
    rows = work.geometry.rollout // work.geometry.world_size
    rollouts = count * work.geometry.per_step / work.geometry.rollout / s.num_iterations
    longest = work.longest(rows)
    kept = 1.0 if work.engine in ("hf", "compiled") else work.mean / longest  # vLLM and lean let go what has ended
    read = rows / s.num_generations if work.engine == "lean" else rows  # prompts; lean reads equal ones once
    prefill = read * work.prompt * 2 * work.shape.parameters / (gpu.rate * pace.training)
    at_once = s.per_device_eval_batch_size
    answers = 1 + s.eval_num_samples * (s.eval_num_samples > 1)  # greedy, and the samples besides
    questions = (s.eval_samples or rates.TEST_ROWS) * answers / work.geometry.world_size
    evaluating = 2 * (work.longest(at_once) + questions * work.mean / at_once)  # decoding steps, before and after
    operations = training_operations(work, training_tokens(work, pace.counted), pace.counted)
    return Seconds(
        generation=rollouts * (prefill + longest * decoding(work, gpu, rows * kept, pace.launch, pace.reading)),
        training=count * operations / (gpu.rate * pace.training),
        optimizer=count * optimizer_bytes(work) / gpu.bandwidth,
        evaluation=evaluating * decoding(work, gpu, at_once, pace.launch_eager, pace.reading),
    )


def memory(work: Work, gpu: rates.Gpu) -> dict[str, float]:
    """estimates.memory, and what is assumed for libraries and, on a GPU, for CUDA and its allocator."""
    s, geometry = work.settings, work.geometry
    parts = memory.memory(
        work.shape, s, s, geometry.rollout // geometry.world_size, s.max_prompt_length or round(2.5 * work.prompt),
        work.pack_tokens, geometry.world_size, work.sharding, gpu.memory,
    )  # fmt: skip
    if s.use_cpu:
        return parts | {"libraries": LIBRARIES}
    live = sum(size for part, size in parts.items() if part != "vLLM")
    return parts | {"allocator": (FRAGMENTATION - 1) * live, "CUDA context": CONTEXT}


def overheads(work: Work) -> list[str]:
    """What `memory` assumes beside live tensors, in words."""
    if work.settings.use_cpu:
        return [f"- {LIBRARIES / 1e9:g} GB for Python and the libraries: measured on Linux"]
    return [
        f"- {CONTEXT / 1e9:g} GB for CUDA, {FRAGMENTATION - 1:.0%} of live tensors that the allocator keeps unused: "
        "assumed"
    ]


def two(value: float) -> str:
    """Two significant digits.

    >>> two(1234), two(0.0567), two(3.14)
    ('1,200', '0.057', '3.1')
    """
    if not value:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def between(one: float, other: float) -> str:
    low, high = two(min(one, other)), two(max(one, other))
    return low if low == high else f"{low} to {high}"
