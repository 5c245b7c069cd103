"""Memory and work of an optimizer step, counted on fake tensors: shapes without numbers, so that no GPU is needed.

    python benchmarks/counted.py step         ours beside stock TRL's
    python benchmarks/counted.py preflight    preflight's estimate beside the counted peak
    python benchmarks/counted.py fits         what fits on which GPUs, by that estimate
    python benchmarks/counted.py sampling     a token step without vLLM: operations, host time, bytes; a rollout

Counted, not timed. Memory: the most bytes of tensors that are alive at once, without the CUDA context and what an
allocator keeps unused. Work: floating point operations of matrix products. Those of attention are 4 × the hidden size
for each query and key that it sees, and 2.5 times as many in the backward, on both sides without what causality hides;
stock computes padding, too. The old log-probabilities (a forward of both with vLLM) are not counted.

step       64 completions of 4 prompts, in stock's micro-batches of 16. The recipe: prompts of 70 to 130 tokens,
           lengths lognormal with mean 200 and sigma 0.4, cut at 786. Long prompts: 1,000 tokens, completions of 100
preflight  two full packs of 8,192 tokens. 8-bit states are allocated as bitsandbytes does, and not updated
sampling   a model with as many layers and heads, but narrow, so that the host's time is nearly all; it is that of a
           CPU, without CUDA's launches. Operations are those that compute, each at least one kernel; for compiled
           layers, the calls in what torch's compiler makes of one for a CPU. A graph is started once. Memory and
           recordings: 64 rows of 4 prompts of 256 tokens, whose lengths are drawn as above, or 786
fits       HYPERPARAMETERS and the flags after `--`: a device samples 64 completions of 786 tokens after prompts of
           256, without vLLM, with gradient checkpointing. The smallest GPU that has a tenth of its memory left
"""

import argparse
import contextlib
import logging
import math
import random
import re
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import common
import torch
import trl.trainer.utils
from peft import get_peft_model
from speed import RANDOM, print_table, random_config
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from trl import get_peft_config
from trl.kernels import chunked_logprob

from grpo.config.configure import configure
from grpo.core.settings import Config
from grpo.policy import memory
from lean_grpo import attention, compiling, decoding, models, packing, wrappers
from lean_grpo import sampling as sampler
from lean_grpo.compiling import TokenSteps
from lean_grpo.packing import Row
from train_grpo import HYPERPARAMETERS

MICRO_BATCH = HYPERPARAMETERS["per_device_train_batch_size"]
OPTIMIZERS = "adamw_torch", "adamw_torch_fused", "adamw_8bit"
FULL = [((number,) * 129, (0,) * 504) for number in range(2) for _ in range(16)]  # packs of 8,192
ADAPTER = {"false": "all weights", "true": "LoRA"}  # use_peft
GPUS = 16, 24, 40, 80  # GB


def settings(*flags: str, **changes: Any) -> Config:
    """HYPERPARAMETERS on a GPU, which this machine need not have."""
    config = configure(HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", *flags])
    config.model.dtype = "bfloat16"
    fused = {"optim": "adamw_torch_fused"} if memory.optimizer(config.training) == "adamw_torch" else {}
    for name, value in {"use_cpu": False, "bf16": True, **fused, **changes}.items():
        setattr(config.training, name, value)
    return config


# --- Counting


class Counter(TorchDispatchMode):
    """The bytes that are alive, the most that there were, and the operations of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}  # bytes of each storage
        self.live = self.peak = self.operations = 0
        self.scored = 0  # where the masks of the present forward are true, which fake tensors cannot say

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        mask = args[1][0] if name in ("index", "_index_put_impl_") else None
        if mask is not None and mask.dtype == torch.bool:
            put = name != "index"
            out = args[0] if put else args[0].new_empty(self.scored, *args[0].shape[mask.ndim :])
        elif name == "masked_scatter_backward":
            out = args[0].new_empty(args[2])
        else:
            out = func(*args, **(kwargs or {}))
        if name in ("mm", "bmm", "addmm"):
            self.operations += 2 * out.numel() * args[name == "addmm"].shape[-1]
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        if (key := storage._cdata) not in self.alive:
            self.alive[key] = storage.nbytes()
            self.live += self.alive[key]
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.live -= self.alive.pop(key)


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """TRL's head scores only labelled positions, by Triton, and adds up in float32; FlashAttention computes packs."""
    head: dict[str, Any] = {
        "_use_triton": lambda device: True,
        "triton": SimpleNamespace(cdiv=lambda *sizes: 1),
        "_addmm_fp32": lambda total, a, b: torch.addmm(total, a, b, out_dtype=torch.float32, out=total),
    } | {f"_{way}_kernel": defaultdict(lambda: lambda *args, **kwargs: None) for way in ("forward", "backward")}

    def dropout(input: torch.Tensor, p: float, training: bool, inplace: bool) -> torch.Tensor:
        return torch.native_dropout(input, p, training)[0]  # a mask of bytes; a CPU's is of numbers

    attention.register()
    with (
        patch.multiple(chunked_logprob, create=True, **head),
        patch.object(trl.trainer.utils, "_use_triton", head["_use_triton"]),
        patch.object(torch.nn.functional, "dropout", dropout),
        patch.object(attention, "fits", lambda *_: True),
    ):
        yield


class EightBit:
    """The states of bitsandbytes' 8-bit AdamW; those of small weights and of embeddings stay in float32."""

    def __init__(self, model: torch.nn.Module) -> None:
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        self.states: list[torch.Tensor] = []
        for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
            whole = weight.numel() < 4096 or id(weight) in embeddings
            sizes = {torch.float32: weight.numel() if whole else weight.numel() // 256}  # a scale for each block
            sizes |= {} if whole else {torch.uint8: weight.numel()}
            self.states += [torch.empty(size, dtype=dtype) for dtype, size in sizes.items() for _ in range(2)]

    def step(self) -> None:
        """What it computes needs no memory to speak of."""


def optimizer(name: str, model: torch.nn.Module) -> Any:
    if name == "adamw_8bit":
        return EightBit(model)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    made = torch.optim.AdamW(trained, fused=name.endswith("fused"), foreach=not name.endswith("fused"))
    for weight in trained:
        weight.grad = torch.empty_like(weight)
    made.step()  # which makes the states
    made.zero_grad()
    return made


@as_on_a_gpu()
def count(side: str, model_config: Any, rows: Sequence[Row], config: Config) -> tuple[float, float, float]:
    """GB at the peak until the last backward and of the whole optimizer step, not the first one; its TFLOP."""
    training, text = config.training, model_config.get_text_config()
    kernel = attention.kernel("sdpa", torch.device("cpu"), torch.bfloat16, model_config)
    prompt, width = (max(len(row[part]) for row in rows) for part in (0, 1))
    chunks = [list(range(at, at + MICRO_BATCH)) for at in range(0, len(rows), MICRO_BATCH)]
    if side == "ours":
        chunks = packing.make_packs(rows, kernel.pack_tokens, MICRO_BATCH * (prompt + width))
    with torch.device("meta"):
        dtype = getattr(torch, str(config.model.dtype))
        model: Any = AutoModelForCausalLM.from_config(model_config, dtype=dtype, attn_implementation="sdpa")
        trl.trainer.utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        if peft_config := get_peft_config(config.model):
            model = get_peft_model(model, peft_config)
            model.enable_input_require_grads()
    with FakeTensorMode(allow_non_fake_inputs=True), Counter() as counter:
        model.to_empty(device="cpu").tie_weights()
        model.train()
        if training.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        attention._WITHOUT_MASK.add(model)  # as after its first step
        update = optimizer(str(getattr(training.optim, "value", training.optim)), model)
        counter.peak, counter.operations, pairs = counter.live, 0, 0
        for chosen in chunks:
            counter.scored = sum(len(rows[row][1]) for row in chosen)
            with torch.autocast("cpu", torch.bfloat16):
                if side == "ours":
                    pack = packing.lay_out(rows, chosen, width)
                    seen = [0 if own == parent else pack.sizes[parent] for own, parent in enumerate(pack.parents)]
                    pairs += sum(n * (n + 1) // 2 + n * before for n, before in zip(pack.sizes, seen, strict=True))
                    log_probs, _ = attention.score(model, kernel, rows, [chosen], width, torch.device("cpu"))
                else:
                    ids = torch.zeros(len(chosen), prompt + width, dtype=torch.long)
                    pairs += ids.numel() * (prompt + width + 1) // 2
                    output = model(input_ids=ids, attention_mask=ids + 1, labels=ids, fused_lm_head=True)
                    log_probs = output.log_probs
                    del output
            log_probs.sum().backward()
            del log_probs
        backward = counter.peak
        update.step()
    passes = 3.5 + bool(training.gradient_checkpointing)  # forward, forward again, and 2.5 for the backward
    operations = counter.operations + 4 * text.hidden_size * text.num_hidden_layers * passes * pairs
    return backward / 1e9, counter.peak / 1e9, operations / 1e12


def rollout(prompt: tuple[int, int], length: int | None = None, seed: int = 0) -> list[Row]:
    """Four groups of completions of `length` tokens, or of the recipe's lengths."""
    dice, rows = random.Random(seed), list[Row]()
    for number in range(4):
        ids = (number,) * dice.randint(*prompt)
        for _ in range(HYPERPARAMETERS["num_generations"]):
            drawn = length or round(dice.lognormvariate(math.log(200) - 0.4**2 / 2, 0.4))
            rows.append((ids, (0,) * min(max(drawn, 1), HYPERPARAMETERS["max_completion_length"])))
    return rows


def step(given: argparse.Namespace) -> None:
    """A row for each geometry and draw."""
    rollouts = {f"the recipe, draw {seed}": rollout((70, 130), seed=seed) for seed in range(given.draws)}
    first = rollouts["the recipe, draw 0"]
    at_limit = [*first[1:], (first[0][0], (0,) * HYPERPARAMETERS["max_completion_length"])]
    rollouts |= {"draw 0, one completion at the limit": at_limit, "long prompts": rollout((1000, 1000), 100)}
    cells = []
    for checkpointing in ("true", "false"):
        config = settings("--gradient_checkpointing", checkpointing)
        for name, rows in rollouts.items():
            stock, ours = (count(side, random_config(given.model), rows, config) for side in ("stock", "ours"))
            longest = max(len(completion) for _, completion in rows)
            cells.append([name, str(longest), "on" if checkpointing == "true" else "off"])
            for theirs, own in zip(stock, ours, strict=True):
                cells[-1].append(f"{theirs:.1f} → {own:.1f} ({theirs / own:.2f})")
    headings = "longest", "checkpointing", "backward, GB", "step, GB", "TFLOP (ratio)"
    print_table([f"{given.model}: stock → ours", *headings], cells)


def estimate(size: str, config: Config, **geometry: Any) -> float:
    """GB at the peak, by preflight's estimate."""
    shape = memory.shape(random_config(size), get_peft_config(config.model))
    return sum(memory.memory(shape, config.training, config.model, pack_tokens=8192, **geometry).values()) / 1e9


def preflight(given: argparse.Namespace) -> None:
    """A row for each model, what is trained of it, checkpointing and optimizer."""
    cells = []
    for size, adapter, checkpointing, optim in product(given.models, ADAPTER, ("true", "false"), OPTIMIZERS):
        config = settings("--use_peft", adapter, "--gradient_checkpointing", checkpointing, optim=optim)
        counted = max(count("ours", random_config(size), FULL, config)[:2])
        estimated = estimate(size, config, rollout_per_device=0, prompt_length=129)
        numbers = f"{counted:.1f}", f"{estimated:.1f}", f"{estimated / counted:.2f}"
        cells.append([f"{size}, {ADAPTER[adapter]}", optim, "on" if checkpointing == "true" else "off", *numbers])
    print_table(["model", "optimizer", "checkpointing", "counted, GB", "preflight, GB", "ratio"], cells)


def fits(given: argparse.Namespace) -> None:
    """A row for each model and what is trained of it: GB on each device, and the smallest GPU with room for them."""
    cells = []
    for size, adapter in product(("0.5B", "1.5B", "3B", "7B", "32B"), ADAPTER):
        config, found = settings("--use_peft", adapter, *given.flags), []
        answers = min(200, config.training.per_device_eval_batch_size)
        for devices in (1, 4, 8):
            needed = estimate(size, config, rollout_per_device=64, prompt_length=256, answers=answers, shards=devices)
            gpu = next((f"{gpu} GB" for gpu in GPUS if needed <= memory.SHARE * gpu), "none")
            found.append(f"{needed:.1f}: {gpu}")
        cells.append([f"{size}, {ADAPTER[adapter]}", *found])
    print_table(["GB a device: GPU", "one GPU", "4 GPUs, FSDP2", "8 GPUs, FSDP2"], cells)


# --- Sampling

PEAKS = {"A100": 2.04e12, "H100": 3.35e12}  # bytes a second
SETTINGS = "bfloat16", "under autocast", "with LoRA, under autocast"  # bfloat16 weights
STEPS = 8, 24  # tokens of two rollouts; their difference has no prompts
ROWS = 8


class Launches(TorchDispatchMode):
    """Count operations that compute something: neither views nor allocations."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Launches.found += not func.is_view and not func.overloadpacket.__name__.startswith(
            ("empty", "new_empty", "_unsafe_view")
        )
        return func(*args, **(kwargs or {}))


def narrow(size: str, setting: str) -> Any:
    """A model with as many layers and heads, whose computing takes next to nothing."""
    model_config = random_config(size)
    model_config.hidden_size, model_config.intermediate_size = 8 * model_config.num_attention_heads, 128
    model_config.vocab_size = 512
    model: Any = AutoModelForCausalLM.from_config(model_config, dtype=torch.bfloat16, attn_implementation="sdpa")
    adapter = settings("--use_peft", str("LoRA" in setting).lower()).model
    if peft_config := get_peft_config(adapter):
        model = get_peft_model(model, peft_config)
    return model.eval()


def by_ours(model: Any, tokens: int) -> None:
    pads: Any = SimpleNamespace(pad_token_id=0)
    sampler.complete(model, pads, ROWS * [[5, 6, 7]], [], tokens, sampler.Sampling())


def by_generate(model: Any, tokens: int) -> None:
    ids = torch.tensor(ROWS * [[5, 6, 7]])
    options = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": None}
    model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options)


def by_continuous_batching(model: Any, tokens: int) -> None:
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=tokens, pad_token_id=0, eos_token_id=-1)
    small = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=256, page_size=32)
    outputs = model.generate_batch(ROWS * [[5, 6, 7]], generation_config=config, continuous_batching_config=small)
    assert all(len(output.generated_tokens) == tokens for output in outputs.values())


WAYS = {"ours, eager": by_ours, "generate": by_generate, "continuous batching": by_continuous_batching}


def token_step(way: Callable[[Any, int], None], model: Any, setting: str) -> tuple[float, float]:
    """Operations of a token step, and the milliseconds of a CPU that the host needs for them."""
    plain = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        with Launches():  # modes belong to a thread, and continuous batching has its own
            plain(thread)

    counts, times = [], []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled="autocast" in setting):
        way(model, 2)
        for tokens in STEPS:
            taken = []
            for _ in range(3):
                start = time.process_time()
                way(model, tokens)
                taken.append(time.process_time() - start)
            times.append(min(taken))
            Launches.found = 0
            with Launches(), patch.object(threading.Thread, "run", run):
                way(model, tokens)
            counts.append(Launches.found)
    steps = STEPS[1] - STEPS[0]
    return (counts[1] - counts[0]) / steps, 1e3 * (times[1] - times[0]) / steps


CALLS = re.compile(r"^\s+(cpp_fused\w*\(|.*\bextern_kernels\.|.*\btorch\.ops\.)", re.MULTILINE)


def in_a_graph(model: Any, setting: str) -> tuple[int, int]:
    """Operations of a token step in its graph: with layers as they are, and compiled (for a CPU)."""
    base = wrappers.base_of(model)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled="autocast" in setting)
    decoder = decoding.Decoder(base, str(models.cache_argument(base)), [2], 9, sampler.Sampling().draw)
    layers = TokenSteps(base, compiling.layers_of(base))
    torch._dynamo.reset()
    with torch.no_grad(), autocast, sampler.lent_weights(base):
        decoder.read([[5, 6, 7]], [0] * ROWS, 0)
        found = []
        for skipped in (False, True):
            Launches.found = 0
            skip = layers.running(lambda number, layer, args, kwargs: args[0]) if skipped else contextlib.nullcontext()
            with skip, Launches():
                decoder._advance(fixed=True)
            found.append(Launches.found)
        attention.register()
        decoder.layers = layers
        with patch.object(torch._inductor.config, "fx_graph_cache", False):
            _, (code,) = run_and_get_code(decoder._fixed)  # all layers share it
    _, _, calls = code.partition("def call(")
    return found[0], found[1] + len(layers.layers) * len(CALLS.findall(calls))


def recordings(rows: Sequence[Row]) -> int:
    """Graphs of a rollout: one for each width of the buffers with more than one step."""
    first, last = (max(len(row[0]) for row in rows), max(len(row[0]) + len(row[1]) - 1 for row in rows))
    ends = [*range(decoding.rounded_up(first + 1, decoding.ROOM), last, decoding.ROOM), last]
    return sum(end - start > 1 for start, end in pairwise([first, *ends]))


def rollout_peak(model_config: Any, rows: int = 64, prompt: int = 256, limit: int = 786) -> float:
    """GB at the peak of a rollout whose rows all reach the limit, without the weights."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(model_config, dtype=torch.bfloat16, attn_implementation="sdpa")
    autocast = torch.autocast("cpu", torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), Counter() as counter, torch.no_grad(), autocast:
        model.to_empty(device="cpu").tie_weights()
        weights = counter.peak = counter.live
        draw = sampler.Sampling().draw
        decoder = decoding.Decoder(model, str(models.cache_argument(model)), [2], limit, draw)
        decoder.read([[number] * prompt for number in range(4)], [row * 4 // rows for row in range(rows)], 0)
        while True:  # one step in each width of the buffers
            decoder._advance(fixed=True)
            decoder.place.used = decoder.mask.shape[1]
            if decoder.place.used >= prompt + limit - 1:
                return (counter.peak - weights) / 1e9
            decoder.keep(torch.arange(rows))


def sampling(given: argparse.Namespace) -> None:
    """A row for each way to sample."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    narrow_models = {setting: narrow(given.model, setting) for setting in SETTINGS}
    cells = []
    for name, way in WAYS.items():
        steps = [token_step(way, model, setting) for setting, model in narrow_models.items()]
        cells.append([name, *(f"{count:,.0f}, {host:.1f} ms" for count, host in steps)])
    counts = [in_a_graph(model, setting) for setting, model in narrow_models.items()]
    cells.insert(1, ["ours, in one graph", *(f"{plain:,}" for plain, _ in counts)])
    cells.insert(2, ["ours, in one graph, layers compiled", *(f"{compiled:,}" for _, compiled in counts)])
    print_table([f"{given.model}: operations and host time of a token step", *SETTINGS], cells)

    model_config = random_config(given.model)
    shape = memory.shape(model_config)
    drawn = [rollout((256, 256), seed=seed) for seed in range(5)]
    at_limit = rollout((256, 256), HYPERPARAMETERS["max_completion_length"])
    cells = []
    for width in (384, 1056):
        moved = 2.0 * (shape.parameters + 64 * width * shape.layers * 2 * shape.key_value)
        cells.append([f"{width:,}", f"{moved / 1e9:.2f}", *(f"{1e3 * moved / rate:.1f}" for rate in PEAKS.values())])
    headings = "GB that a step reads", *(f"{gpu}, ms at least" for gpu in PEAKS)
    print_table(["64 rows, positions of the buffers", *headings], cells)

    config = settings()
    estimated = 64 * memory.row_bytes(shape, config.training, config.model, 256 + 786) / 1e9
    print(f"recordings in a rollout: {sorted(map(recordings, drawn))} as drawn, {recordings(at_limit)} at the limit")
    counted = rollout_peak(model_config)
    print(
        f"peak of a rollout at the limit, without weights: {counted:.2f} GB; preflight's estimate: {estimated:.2f} GB"
    )


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    options = commands.add_parser("step")
    options.set_defaults(run=step)
    options.add_argument("--model", default="1.5B", choices=RANDOM)
    options.add_argument("--draws", type=common.at_least(1), default=5, help="rollouts of the recipe's lengths")
    options = commands.add_parser("preflight")
    options.set_defaults(run=preflight)
    options.add_argument("--models", nargs="+", default=["0.5B", "1.5B", "3B", "7B"], choices=RANDOM)
    options = commands.add_parser("sampling")
    options.set_defaults(run=sampling)
    options.add_argument("--model", default="1.5B", choices=RANDOM)
    options = commands.add_parser("fits", help="flags of train_grpo.py follow `--`")
    options.set_defaults(run=fits, flags=[])
    return common.main(lambda given: given.run(given), parser, argv)


if __name__ == "__main__":
    sys.exit(main())
