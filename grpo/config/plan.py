"""`python -m grpo plan`: memory, time and cost of a run, by arithmetic alone; docs/scaling.md explains the formulas.

Nothing is loaded but the settings, so neither the device nor the weights have to be there. What is assumed has a best
and a worst value (case 0 and 1), and so has a plan's time.
"""

import argparse
import contextlib
import math
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil

from grpo.config import gpus, hardware
from grpo.core.checklist import counted
from grpo.core.errors import UserError, readable
from grpo.core.parsing import ArgumentParser
from grpo.core.settings import Config, Geometry, as_list
from grpo.policy import memory
from grpo.policy.loading import read_model_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SCRIPT = Path(__file__).resolve().parents[2] / "train_grpo.py"


# Known without a network
SIZES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip
MODELS = {
    "Qwen2.5-1.5B-Instruct": (28, 1536, 8960, 12, 2, 151936, True),
    "Qwen2.5-7B-Instruct": (28, 3584, 18944, 28, 4, 152064, False),
    "SmolLM2-135M-Instruct": (30, 576, 1536, 9, 3, 49152, True),
    "Llama-3.2-1B-Instruct": (16, 2048, 8192, 32, 8, 128256, True),
}

# GSM8K: rows of its splits that can be used, and the mean tokens of a prompt
ROWS, TEST_ROWS, PROMPT = 7472, 1319, 105.0
SPREAD = 0.728  # of the logarithm of completions' lengths: with a median of 200, 3 % are longer than 786
CONTEXT, FRAGMENTATION = 0.8e9, 0.1  # bytes of CUDA and its libraries; share that an allocator holds beyond tensors

# The best and the worst case, from other programs' figures
MATRIX = 0.45, 0.30  # share of the matrix rate that training reaches
READING = 0.8, 0.5  # share of the bandwidth that decoding reaches where launching kernels does not take longer
LAUNCHES = {"vllm": (2, 5), "continuous": (3, 7)}  # milliseconds of a decoding step of 28 layers, in CUDA graphs
EAGER = 20, 35  # the same, kernel by kernel: `lean` and `hf`
# Tried in this order where a run does not fit
SMALLER = "--vllm_enable_sleep_mode true", "--use_peft true", "--use_peft true --load_in_4bit true"


def model_config(name: str) -> "PretrainedConfig":
    """The configuration of a model: of MODELS without a network, or of a directory or a Hub id."""
    from transformers import LlamaConfig, Qwen2Config

    path = Path(name).expanduser()
    if path.is_dir() or path.name not in MODELS:
        return read_model_config(str(path) if path.is_dir() else name)
    kind = Qwen2Config if path.name.startswith("Qwen") else LlamaConfig
    sizes: dict[str, Any] = dict(zip(SIZES, MODELS[path.name], strict=True))
    return kind(**sizes)


# --- Arithmetic ---------------------------------------------------------------------------------------------------


def expected_longest(mean: float, count: int, limit: int) -> float:
    """The expected longest of so many completions, lognormal around their mean, cut at the limit."""
    median = mean / math.exp(SPREAD**2 / 2)
    at = NormalDist().inv_cdf(1 - 1 / (count + 1))
    return min(limit, max(mean, median * math.exp(SPREAD * at)))


@dataclass(frozen=True)
class Plan:
    """A run on paper: its settings, its model's shape, its devices, and how long its texts are."""

    settings: SimpleNamespace
    geometry: Geometry
    shape: memory.Shape
    device: gpus.Device
    sharding: str
    pack_tokens: int | None  # None: padded micro-batches
    dense: bool  # packs are computed under a block mask
    questions: int  # of an epoch
    completion: float  # mean tokens
    notes: list[str] = field(default_factory=list)  # what differs from the settings as they were asked for

    @property
    def engine(self) -> str:
        """What samples: of `auto` what a GPU without vLLM gets."""
        alone = self.settings.use_unsloth or (self.geometry.world_size > 1 and memory.SHARED[self.sharding][0])
        return self.settings.generation if self.settings.generation != "auto" else "hf" if alone else "continuous"

    @property
    def steps(self) -> int:
        if self.settings.max_steps > 0:
            return self.settings.max_steps
        return math.ceil(self.geometry.steps_per_epoch(self.questions) * self.settings.num_train_epochs)

    @property
    def rows(self) -> int:
        """Completions that a device samples at once."""
        return self.geometry.rollout // self.geometry.world_size

    def longest(self, count: int) -> float:
        return expected_longest(self.completion, count, self.settings.max_completion_length)

    def training_tokens(self) -> float:
        """Tokens that a device computes for an optimizer step."""
        s, completions = self.settings, self.geometry.per_step / self.geometry.world_size
        if not self.pack_tokens:
            return completions * (1.4 * PROMPT + self.longest(s.per_device_train_batch_size))
        return completions / s.num_generations * (PROMPT - 1) + completions * self.completion

    def training_operations(self) -> float:
        """Floating-point operations of forward and backward for a token: of the weights, and of attention."""
        s, shape = self.settings, self.shape
        weights = shape.parameters - (shape.heads - 1) * shape.embedding  # an embedding is looked up
        again = 1 if s.gradient_checkpointing else 0
        passes = (2 if shape.adapter else 3) + again  # in forwards, of 2 operations a weight
        # The reference model, and the policy as it sampled, where TRL computes that again
        on_policy = s.gradient_accumulation_steps % (self.geometry.steps_per_generation * s.num_iterations) == 0
        resampled = not on_policy or (s.use_vllm and s.vllm_importance_sampling_correction)
        others = (1 if s.beta else 0) + (1 / s.num_iterations if resampled else 0)
        seen = self.pack_tokens if self.dense and self.pack_tokens else PROMPT + self.completion / 2
        attention = 4 * shape.layers * shape.query * seen
        return 2 * weights * (passes + others) + attention * (3 + again + others)

    def decoding(self, engine: str, rows: int, case: int) -> float:
        """Seconds of a decoding step: its launches, or weights and cache through the memory, whichever is longer."""
        s, shape = self.settings, self.shape
        size = 2 if s.bf16 or s.fp16 else memory.BYTES.get(str(s.dtype), 4)  # float32 weights have 16-bit copies
        cache = rows * (PROMPT + self.completion / 2) * shape.layers * 2 * shape.key_value
        took = self.device.engines.get(engine)
        launches = (took or LAUNCHES.get(engine, EAGER)[case]) / 28e3 * shape.layers
        share = READING[0 if took else case]  # what was measured has read, too
        return max(launches, (shape.parameters + cache) * size / (self.device.bandwidth * 1e12 * share))

    def seconds(self, case: int) -> dict[str, float]:
        """Of a whole run, without loading, rewards, optimizer, checkpoints and what processes send each other."""
        s, rate = self.settings, self.device.tflops * 1e12 * MATRIX[case]
        rollouts = self.steps * self.geometry.per_step / self.geometry.rollout / s.num_iterations
        prompts = self.rows / (1 if self.engine == "hf" else s.num_generations)  # the others read a group's once
        prefill = prompts * PROMPT * 2 * self.shape.parameters / rate
        at_once = s.per_device_eval_batch_size
        samples = 1 + s.eval_num_samples * (s.eval_num_samples > 1)  # greedy, and the samples besides
        greedy = (s.eval_samples or TEST_ROWS) / self.geometry.world_size
        answering = 2 * (self.longest(at_once) + greedy * samples * self.completion / at_once)  # before and after
        between = (self.steps - 1) // s.eval_every if s.eval_every else 0  # while it trains
        answering += between * (self.longest(at_once) + greedy * self.completion / at_once)
        evaluates = self.engine if self.engine in ("hf", "lean") else "continuous"
        decoding = self.longest(self.rows) * self.decoding(self.engine, self.rows, case)
        return {
            "generation": rollouts * (prefill + decoding),
            "training": self.steps * self.training_tokens() * self.training_operations() / rate,
            "evaluation": answering * self.decoding(evaluates, at_once, case),
        }

    def memory(self) -> dict[str, float]:
        """Bytes on a device at the peak by what takes them, with what is assumed beside live tensors."""
        s = self.settings
        parts = memory.memory(
            self.shape,
            s,
            s,
            self.rows,
            s.max_prompt_length or round(2.5 * PROMPT),
            self.pack_tokens,
            dense=self.dense,
            devices=self.geometry.world_size,
            sharding=self.sharding,
            device_memory=self.device.memory * 1e9,
        )
        if s.use_cpu:
            return parts
        live = sum(size for part, size in parts.items() if part != "vLLM")
        return parts | {"allocator": FRAGMENTATION * live, "CUDA context": CONTEXT}

    @property
    def peak(self) -> float:
        """GB of it."""
        return sum(self.memory().values()) / 1e9


# --- The command --------------------------------------------------------------------------------------------------


def read(argv: list[str]) -> tuple[argparse.Namespace, Plan]:
    """The flags of the command itself, and the plan that the others ask for; raises UserError."""
    import torch
    from peft import LoraConfig

    from grpo.config import resolve
    from grpo.data import sources
    from grpo.training import attention

    parser = ArgumentParser(
        prog="python -m grpo plan",
        description="Memory, time and cost of a run, by arithmetic alone: no weights are loaded. "
        "Takes every flag of train_grpo.py besides, such as --config recipes/fast_80gb.yaml.",
    )
    add = parser.add_argument
    add("--gpu", metavar="NAME", help=f"{', '.join(gpus.GPUS)}; default: this machine's, or H100 if it has none")
    add(
        "--check",
        type=Path,
        help=f"JSON of python -m grpo check on that GPU; default: {gpus.CHECK}, if it is of that GPU",
    )
    rate = "the GPU's matrix products in TFLOP/s; this and the next two describe a GPU, or correct --gpu"
    add("--tflops", type=float, help=rate)
    add("--bandwidth", type=float, help="the bandwidth of its memory in TB/s, reads plus writes")
    add("--memory", type=float, help="the size of its memory in GB")
    add("--devices", type=int, default=1, help="number of GPUs (default 1)")
    add("--sharding", choices=list(memory.SHARED), default="none", help="what several GPUs divide (docs/scaling.md)")
    add("--price", type=float, default=2.5, help="dollars per GPU-hour (default 2.5)")
    expected = "the mean length of completions (default 200)"
    add("--mean_completion_length", type=float, default=200.0, metavar="TOKENS", help=expected)
    add("--why", action="store_true", help="show the arithmetic, and what is assumed")
    given, others = parser.parse_known_args(argv)
    for key, value in vars(given).items():
        if type(value) in (int, float) and not 0 < value < 1e9:
            raise UserError(f"{key}: {value:g} is out of range; use a number above 0")
    merged = resolve.merge(runpy.run_path(str(SCRIPT))["HYPERPARAMETERS"], others, given.devices)
    settings = SimpleNamespace(**merged.settings)
    if settings.use_cpu:
        for key, value in vars(given).items():
            if key != "why" and value != parser.get_default(key):
                raise UserError(f"{key}: these settings train on the CPU; drop it, or add --use_cpu false --bf16 true")
        notes, early = hardware.fit_to_cpu(vars(settings), merged.typed, merged.chosen), False
        device = gpus.Device("this machine's CPU", psutil.virtual_memory().total / 1e9, 0, 0)
    else:
        rates = {key: getattr(given, key) for key in ("memory", "bandwidth", "tflops")}
        device = gpus.choose(given.gpu, given.check, **rates)
        early, quantized = device.name in gpus.BEFORE_AMPERE, settings.load_in_4bit or settings.load_in_8bit
        notes = hardware.fit_number_formats(vars(settings), merged.typed, quantized, device.name if early else None)
        if not given.tflops and not _in_16_bits(settings):
            raise UserError(
                "tflops: these settings compute in float32, and the table has 16-bit rates; add --gpu and --tflops"
            )
    name, adapter = settings.model_name_or_path, None
    if settings.use_peft:
        adapter = LoraConfig(r=settings.lora_r, target_modules=settings.lora_target_modules)
    with readable("loading", name=name):
        architecture = model_config(name)
        shape = memory.shape(architecture, adapter)
    kind = torch.device("cpu" if settings.use_cpu else "cuda")
    backend = attention.of_settings(vars(settings), kind, architecture, (7, 5) if early else (8, 0))
    names, questions = as_list(settings.dataset_name), 0
    for name in names:  # those that are not here are taken for GSM8K
        local = Path(name).exists()
        questions += len(sources.take_split(sources.load_source(name), settings.dataset_split)) if local else ROWS
    if not shape.layers:
        raise UserError(f"model_name_or_path: the config.json of {name!r} lacks its layers' sizes; use another model")
    planned = Plan(
        settings=settings,
        geometry=merged.geometry,
        shape=shape,
        device=device,
        sharding=given.sharding,
        pack_tokens=(settings.pack_tokens or backend.pack_tokens) if backend else None,
        dense=bool(backend and backend.dense),
        questions=min(settings.max_samples or questions, questions),
        completion=min(given.mean_completion_length, settings.max_completion_length),
        notes=[note.removeprefix("note: ") for note in (*notes, backend and backend.note) if note],
    )
    if merged.frees_checkpointing and given.sharding == "none" and not settings.use_unsloth:
        memory.choose_checkpointing(settings, planned.memory, planned.device.memory * 1e9)
    return given, planned


def digits(value: float) -> str:
    """Two significant digits.

    >>> digits(1234), digits(0.0567), digits(3.14)
    ('1,200', '0.057', '3.1')
    """
    return f"{float(f'{value:.2g}'):,.10g}"


def between(best: float, worst: float) -> str:
    low, high = digits(best), digits(worst)
    return low if low == high else f"{low} to {high}"


UNITS = (1, "seconds", 100), (60, "minutes", 100 * 60), (3600, "hours", math.inf)


def spell(best: float, worst: float) -> str:
    """Seconds in the unit that suits them.

    >>> spell(8, 19), spell(660, 960), spell(4680, 10800)
    ('8 to 19 seconds', '11 to 16 minutes', '1.3 to 3 hours')
    """
    size, unit = next((size, unit) for size, unit, most in UNITS if worst < most)
    return f"{between(best / size, worst / size)} {unit}"


def dollars(amount: float) -> str:
    """Two significant digits.

    >>> dollars(3.34), dollars(47.2), dollars(1234)
    ('$3.30', '$47', '$1,200')
    """
    return f"${float(f'{amount:.2g}'):,.2f}".removesuffix(".00")


def duration(
    config: Config, shape: memory.Shape, questions: int, pack_tokens: int | None, dense: bool, gpu: str
) -> str:
    """How long this run takes on this GPU, for preflight; UserError where no rate of it is known."""
    settings = SimpleNamespace(**config.settings())
    if not _in_16_bits(settings):
        raise UserError("the table has 16-bit rates")
    completion = min(200.0, settings.max_completion_length)
    run = Plan(
        settings=settings,
        geometry=config.geometry,
        shape=shape,
        device=gpus.choose(gpu),
        sharding="none",
        pack_tokens=pack_tokens,
        dense=dense,
        questions=questions,
        completion=completion,
    )
    seconds = [sum(run.seconds(case).values()) for case in (0, 1)]
    rates = f", rates of {run.device.source}" if run.device.source else ""
    return f"about {spell(*seconds)} if completions average {completion:g} tokens (python -m grpo plan{rates})"


def _in_16_bits(settings: SimpleNamespace) -> bool:
    return bool(settings.bf16 or settings.fp16 or settings.dtype in ("bfloat16", "float16"))


def what_fits(argv: list[str]) -> str:
    """What makes these flags fit their GPU."""
    for flags in SMALLER:
        with contextlib.suppress(UserError):
            plan = read([*argv, *flags.split()])[1]
            if plan.peak <= plan.device.memory:
                return f"{flags} takes {digits(plan.peak)} GB, which fits"
    return "a smaller --model_name_or_path, or more --devices with --sharding fsdp2"


def answer(plan: Plan, price: float, argv: list[str]) -> list[str]:
    """Memory, time, cost and what limits the run that these flags ask for; and notes, where there are any.

    Of a run on a CPU memory and steps, of one that does not fit memory and what would fit.
    """
    device, size = plan.device, plan.geometry.world_size
    fits = plan.peak <= device.memory
    many = f"each of {size} × " if size > 1 else ""
    lines = [
        f"memory  about {digits(plan.peak)} GB of {device.memory:,.0f} GB on {many}{device.name}: "
        + ("fits" if fits else "does not fit")
    ]
    steps = counted(plan.steps, "optimizer step")
    if plan.settings.use_cpu:
        lines.append(
            f"time    {steps}; train_grpo.py with the same flags and --dry_run true measures how long they take"
        )
    elif not fits:
        lines.append(f"limit   memory; {what_fits(argv)}")
    else:
        best, worst = plan.seconds(0), plan.seconds(1)
        total, hourly = (sum(best.values()), sum(worst.values())), price * size / 3600
        phases = ", ".join(f"{phase} {spell(best[phase], worst[phase])}" for phase in best)
        cost = " to ".join(dict.fromkeys(dollars(seconds * hourly) for seconds in total))
        phase = max(best, key=lambda phase: best[phase])
        limit = f"{phase}, {best[phase] / total[0]:.0%} of the time"
        now = plan.decoding(plan.engine, plan.rows, 1)
        if phase == "generation" and plan.decoding("vllm", plan.rows, 1) < 0.9 * now:
            limit += "; vLLM samples faster (--generation vllm)"
        lines += [
            f"time    {spell(*total)} for {steps}: {phases}",
            f"cost    {cost} at ${price:,.2f} per GPU-hour (--price)",
            f"limit   {limit}",
        ]
    by_check = [f"with the rates that were measured ({device.source})"] if device.source else []
    return lines + [f"note    {note}" for note in (*by_check, *plan.notes)]


def why(plan: Plan) -> list[str]:
    """The arithmetic behind the answer, and what it assumes."""
    shape, engine, rows = plan.shape, plan.engine, plan.rows
    completions = plan.steps * plan.geometry.per_step
    parts = ", ".join(f"{part} {digits(size / 1e9)}" for part, size in plan.memory().items() if size > 5e7)
    lines = [
        f"model       {shape.parameters / 1e6:,.1f} million parameters, {shape.trained / 1e6:,.1f} million trained",
        f"memory      in GB: {parts}",
        f"steps       {plan.steps:,} × {plan.geometry.per_step} = {completions:,} completions, "
        f"{digits(completions * plan.completion / 1e6)} million tokens",
    ]
    if plan.settings.use_cpu:
        return lines
    decoding = between(*(1e3 * plan.decoding(engine, rows, case) for case in (0, 1)))
    training = between(*(plan.seconds(case)["training"] / plan.steps for case in (0, 1)))
    return [
        *lines,
        f"generation  {plan.longest(rows):,.0f} decoding steps a rollout (the expected longest of {rows} completions) "
        f"× {decoding} ms ({engine})",
        f"training    {plan.training_tokens():,.0f} tokens a step and device × "
        f"{digits(plan.training_operations() / 1e9)} GFLOP at {MATRIX[1]} to {MATRIX[0]} of "
        f"{plan.device.tflops:,.0f} TFLOP/s: {training} s",
        f"assumed     {plan.questions:,} questions an epoch, prompts of {PROMPT:.0f} tokens, completions of "
        f"{plan.completion:.0f} (--mean_completion_length); docs/scaling.md has the rest, and what is excluded",
    ]


def main(argv: list[str] | None = None) -> int:
    """Print the plan; mistakes are one line and exit status 2."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        given, plan = read(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*answer(plan, given.price, argv), *(why(plan) if given.why else ()), sep="\n")
    return 0
