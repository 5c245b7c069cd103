"""Continuous batching on a cache of fixed size: every step is the same work on the same memory, on a GPU a CUDA graph.

On a GPU a token of `model.generate` costs some 1,250 kernel launches of 20 µs, whatever the batch. A graph replays
them in one. Its tensors stay where they are: a cache of rows × positions, each row's last token and its length. Rows
that end make room for waiting prompts, or for a graph of half as many rows; attention reads the first 256, 512, …
positions. Weights are read where they are: after an optimizer step in place the same graph follows the new ones.

Why not transformers' own continuous batching (`generate_batch`, 5.17 to 5.23)? By its sources:
- With sdpa all requests are one row: 64 queries see 64 × 800 keys through a mask (input_outputs.py,
  build_attention_mask), in as many thread blocks as there are heads, 12 for Qwen2.5-1.5B on the 132 processors of an
  H100; the keys are gathered and repeated for each layer. That is no faster than `generate`. Its fast path, by block
  tables (initialization.py, ensure_decode_fast_path_is_available), needs flash-attn or a kernel of the Hub.
- It computes in a thread of its own (continuous_api.py, start), which the caller's autocast does not reach, and under
  accelerate's, around the forward, its cache of the weights' format refuses 16-bit keys (index_copy_). So float32
  weights have to become 16-bit ones.
- The thread takes requests while others arrive, so the batches and the draws of a seed depend on timing, and starting
  it seeds torch's global generator (distributed.py, set_tp_seed): a resumed run would differ.

What only a GPU shows, by the sources of torch 2.11 to 2.13 and transformers:
- A query of one token attends without repeating the keys for each of its heads (sdpa_attention.py, pack_gqa); 5.17
  still repeats them, which costs memory traffic.
- Nothing in a step waits for the device or depends on its values: a 4D mask is used as it is (masking_utils.py,
  _preprocess_mask_arguments), positions are given, the draw is torch.multinomial's without its checks. Where a model
  does wait (experts by `nonzero`, "dynamic" rotary scaling, 8-bit weights), torch's debug mode for such waits refuses
  the step before its capture: a line says so, and steps run uncaptured.
- Nothing follows a capture that fails all the same: the allocator (pytorch#180395) and the generator may take it to be
  under way for good, so an error ends the run.
- The first step of each shape runs before its capture, on the same side stream, and is the result; the capture itself
  computes nothing. Draws are those of the default generator, whose state capture leaves alone and a replay advances as
  the step itself does (CUDAGeneratorImpl): a seed gives the same tokens captured or not, so a resumed run is the same.
- Autocast's cached 16-bit weights must not outlive a capture, nor be read by one: the cache is cleared around it.
- Graphs share a memory pool: only the tensors above, allocated outside, live from one replay to the next.
"""

import os
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, DynamicLayer

from grpo.core import out_of_memory
from grpo.core.errors import UserError, origins, reason_of
from grpo.core.processes import say
from grpo.policy.decoding import NextToken, base_of, free_memory, in_autocast, is_sharded
from grpo.policy.memory import LENGTHS

if TYPE_CHECKING:
    from grpo.policy.generation import Done, Job, Sampling

LOOK = 8  # tokens between two looks at which rows have ended, which wait for the device
FEWEST = 8  # rows of the smallest graph
SHARE = 0.5  # of the free memory, for the cache at most


def unfit(model: Any) -> str | None:
    """Why a model that `generation.obstacle` passes cannot be decoded here, as the end of `because …`."""
    base = base_of(model)
    if is_sharded(model):  # gathered anew each time, elsewhere
        return "its weights are sharded"
    if not base._supports_attention_backend or getattr(base.config, "alibi", False):
        return "its attention takes no mask of another's making"
    if base.config._attn_implementation in (None, "sdpa", "eager") or base._supports_sdpa:
        return None
    return f"its attention, {base.config._attn_implementation}, takes no mask of another's making"


class _Slots(DynamicLayer):
    """A cache layer whose rows are written at positions of their own, in memory that stays."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.at = keys, values, at[:, None, None, None]
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            held.scatter_(2, self.at.expand(-1, *new.shape[1:]), new.to(held.dtype))
        return self.keys, self.values


class Decoder:
    """The cache and the step. It serves one rollout after the other of the same model and the same `sampling`."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, sampling: "Sampling | None") -> None:
        self.next = NextToken(model, tokenizer, sampling)
        self.base, self.device = self.next.base, self.next.base.device
        self.captures = self.device.type == "cuda"
        self.rows = self.length = 0
        self.stream: Any = None  # for good: the allocator keeps memory for each one
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self.rows = self.length = 0
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys, values: (rows, heads, length, width)
        self.tokens = self.lengths = torch.empty(0)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self.addresses: list[int] = []
        self.pool: Any = None

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for layer in self.layers for tensor in layer)

    def reserve(self, rows: int, length: int, prompt: Sequence[int]) -> int:
        """Have a cache of so many rows and positions, or as many rows as the memory takes: how many it has."""
        addresses = [tensor.data_ptr() for tensor in (*self.base.parameters(), *self.base.buffers())]
        if addresses != self.addresses:  # another copy of the weights: the graphs read the old one
            self._forget_graphs()
            self.addresses = addresses
        if self.rows >= rows and self.length >= length:
            return self.rows
        most = getattr(self.base.config.get_text_config(decoder=True), "max_position_embeddings", None) or length
        rows, length = max(rows, self.rows), max(length, self.length)
        length = max(length, min(-(-length // LENGTHS) * LENGTHS, most))
        self.close()
        self.addresses = addresses
        cache: Any = DynamicCache(config=self.base.config)
        self.next.read([list(prompt[:1])], cache)  # tells the layers' sizes, whatever the model
        # (1, heads, 1, width), in the format that attention multiplies in: autocast would convert all of the cache
        sizes = [(in_autocast(layer.keys), in_autocast(layer.values)) for layer in cache.layers]
        position = sum(tensor.numel() * tensor.element_size() for layer in sizes for tensor in layer)
        fit = int(SHARE * free_memory(self.device)) // (position * length)
        self.rows, self.length = max(1, min(rows, fit)), length
        self.layers = [
            (
                keys.new_zeros(self.rows, keys.shape[1], length, keys.shape[3]),
                values.new_zeros(self.rows, values.shape[1], length, values.shape[3]),
            )
            for keys, values in sizes
        ]
        self.tokens = torch.zeros(self.rows, dtype=torch.long, device=self.device)
        self.lengths = torch.zeros(self.rows, dtype=torch.long, device=self.device)  # positions in the cache
        return self.rows

    def admit(self, prompts: Sequence[Sequence[int]], places: Sequence[int]) -> list[int]:
        """Read prompts into these rows, equal ones once, and draw each one's first token."""
        wanted = [tuple(prompt) for prompt in prompts]
        distinct = list(dict.fromkeys(wanted))
        cache: Any = DynamicCache(config=self.base.config)
        logits, mask = self.next.read(distinct, cache)
        number = {prompt: index for index, prompt in enumerate(distinct)}
        copies = torch.tensor([number[prompt] for prompt in wanted], device=self.device)
        rows = torch.tensor(list(places), device=self.device)
        width = mask.shape[1]
        first = width - mask.sum(-1, keepdim=True)  # where a prompt begins: it was padded on the left
        order = (first + torch.arange(width, device=self.device)).clamp(max=width - 1)[copies, None, :, None]
        for layer, held in zip(cache.layers, self.layers, strict=True):
            for read, kept in zip((layer.keys, layer.values), held, strict=True):
                kept[rows, :, :width] = read[copies].take_along_dim(order, 2).to(kept.dtype)
        tokens = self.next.choose(logits[copies])
        self.tokens[rows], self.lengths[rows] = tokens, mask.sum(-1)[copies]
        return tokens.tolist()

    def move(self, rows: Sequence[int], places: Sequence[int]) -> None:
        """Copy rows to other, free places."""
        source, target = (torch.tensor(list(which), device=self.device) for which in (rows, places))
        for tensor in (*(tensor for layer in self.layers for tensor in layer), self.tokens, self.lengths):
            tensor[target] = tensor[source]

    def advance(self, count: int, rows: int, length: int) -> list[list[int]]:
        """`count` more tokens of the first rows, which have fewer than `length` positions after it: (count, rows)."""
        length = min(-(-length // LENGTHS) * LENGTHS, self.length)
        drawn = []
        for _ in range(count):
            graph = self.graphs.get((rows, length))
            if graph is not None:
                graph.replay()
            elif self.captures:
                self._capture(rows, length)
            else:
                self._step(rows, length)
            drawn.append(self.tokens[:rows].clone())
        return torch.stack(drawn).tolist()

    def _step(self, rows: int, length: int) -> None:
        at = self.lengths[:rows].clamp(max=length - 1)  # rows without a completion stay within the cache
        seen = (torch.arange(length, device=self.device) <= at[:, None])[:, None, None]
        if self.base.config._attn_implementation == "eager":  # adds its mask
            seen = torch.zeros(seen.shape, dtype=self.base.dtype, device=self.device).masked_fill(~seen, -torch.inf)
        cache = DynamicCache(config=self.base.config)
        cache.layers = [_Slots(keys[:rows, :, :length], values[:rows, :, :length], at) for keys, values in self.layers]
        logits = self.next.logits(self.tokens[:rows, None], at[:, None], seen, cache)
        self.tokens[:rows].copy_(self.next.choose(logits))
        self.lengths[:rows].add_(1)

    def _capture(self, rows: int, length: int) -> None:
        """A step, and the graph for the next ones of this shape, if there can be one.

        Raises:
            UserError: a capture failed, and nothing else may be tried in this process.
        """
        self.stream = self.stream or torch.cuda.Stream(self.device)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        # the outer one of two: `torch.cuda.graph` leaves its own stream only where the capture succeeds
        with torch.cuda.stream(self.stream):
            if where := self._step_or_wait(rows, length):
                self.captures = False
                say(f"note: sampling runs without CUDA graphs: this model's forward waits for the GPU ({where})")
                self._step(rows, length)
            else:
                self._record(rows, length)
        current.wait_stream(self.stream)

    def _step_or_wait(self, rows: int, length: int) -> str | None:
        """A step, unless it waits for the device, which a graph cannot: then where, and the state is as before."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")  # is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            self._step(rows, length)  # tokens and lengths, the last it writes, are written without waiting
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return f"{frame.name} in {os.path.basename(frame.filename)}, line {frame.lineno}"
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return None

    def _record(self, rows: int, length: int) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.clear_autocast_cache()
        try:
            # other threads may use the GPU meanwhile (a data loader that pins memory)
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                self._step(rows, length)
        except RuntimeError as error:
            *_, first = origins(error)  # the end of a capture that has failed raises, too
            if out_of_memory.is_one(first):
                raise first from None
            raise UserError(
                f"generation: this model's forward cannot be recorded as a CUDA graph ({reason_of(first)}), "
                "or the GPU's memory is too small for it; use --generation lean"
            ) from error
        finally:
            torch.clear_autocast_cache()
        self.graphs[rows, length] = graph


@dataclass
class _Row:
    job: int
    prompt: int  # tokens
    ids: list[int] = field(default_factory=list)


def complete_continuously(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    jobs: "Sequence[Job]",
    ends: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: "Sampling | None" = None,
    decoder: Decoder | None = None,
) -> "Iterator[Done]":
    """As `generation.complete_in_full_batch`, for models that are not `unfit`, in `sampling_mode`.

    Args:
        decoder: one for this model and this sampling that keeps its cache and its graphs for later calls.
    """
    if not jobs:
        return
    longest = max(len(prompt) for _, prompt in jobs) + max_new_tokens
    decoder = decoder or Decoder(model, tokenizer, sampling)
    count = min(decoder.reserve(min(batch_size, len(jobs)), longest, jobs[0][1]), batch_size)
    slots: list[_Row | None] = [None] * count
    waiting, last = deque(jobs), set(ends)
    while waiting or any(slots):
        free = [place for place, row in enumerate(slots) if row is None]
        if waiting and 4 * len(free) >= count:  # several at once: a forward of one prompt wastes the machine
            new = [waiting.popleft() for _ in range(min(len(free), len(waiting)))]
            places = free[: len(new)]
            for place, (job, prompt) in zip(places, new, strict=True):
                slots[place] = _Row(job, len(prompt))
            drawn = [dict(zip(places, decoder.admit([prompt for _, prompt in new], places), strict=True))]
        else:
            size = _close_ranks(decoder, slots)
            running = [row for row in slots[:size] if row]
            steps = min(LOOK, max(max_new_tokens - len(row.ids) for row in running))
            length = max(row.prompt + len(row.ids) for row in running) + steps - 1
            drawn = [dict(enumerate(tokens)) for tokens in decoder.advance(steps, size, length)]
        for tokens in drawn:
            for place, token in tokens.items():
                row = slots[place]
                if row is None:  # it ended in an earlier step of this look
                    continue
                row.ids.append(token)
                if token in last or len(row.ids) == max_new_tokens:
                    slots[place] = None
                    yield row.job, row.ids, token not in last


def _close_ranks(decoder: Decoder, slots: list[_Row | None]) -> int:
    """Move rows to the front where a smaller step then holds them all: how many rows the step has."""
    taken = [place for place, row in enumerate(slots) if row]
    size = FEWEST  # powers of two up to all rows: few shapes, and the same ones whatever an earlier call asked for
    while size < len(taken):
        size *= 2
    size = min(size, len(slots))
    outside = [place for place in taken if place >= size]
    holes = [place for place in range(size) if slots[place] is None][: len(outside)]
    if outside:
        decoder.move(outside, holes)
        for place, hole in zip(outside, holes, strict=True):
            slots[hole], slots[place] = slots[place], None
    return size
