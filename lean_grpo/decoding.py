"""Decode a batch token by token over buffers of fixed addresses; on a GPU a step is a CUDA graph.

A step of a model with 28 layers starts more than a thousand kernels. Python needs 20 to 35 ms for that, a GPU one to
three. A graph starts all of them at once, but repeats the addresses and shapes of its recording. So keys and values
are in buffers, a step writes at a position that is a tensor, and attention masks positions that are not written yet.
A step also draws the next tokens, so that the host only starts graphs, and looks at the tokens now and then. Layers
are compiled where that pays (compiling.py). The buffers grow by ROOM positions; on a GPU rows that have ended leave
when the buffers are copied. Weights change in place between rollouts. Buffers and graphs live for one rollout.

Trust, then verify: the first steps on a GPU are computed eagerly, too. Where the two differ, the layers run as they
are. Where they still differ, a step waits for the GPU or cannot be recorded, the model samples eagerly from then on,
with one line.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import DynamicCache, DynamicLayer

from lean_grpo import attention, compiling, models
from lean_grpo.compiling import TokenSteps
from lean_grpo.models import computed_in, runs_on_sdpa, windows

ROOM = 512  # positions that the buffers grow by: fewer cost recordings, more cost attention over nothing
ALIGNED = 16  # the last room is rounded up to this: attention's kernels would copy other masks
# Positions that a forward of the common beginning has to save; on a GPU fewer take as long as it does
CPU_FORWARD, GPU_FORWARD = 64, 4096
REPLAYS = 2  # steps of a graph that are compared; the second one shows whether anything is frozen in it
# Largest mean divergence of their next-token distributions with 16-bit or TF32 rounding: in nats, and as a share of
# what these distributions say beyond an even one. Float32 has a hundredth of both. Measured on a CPU, compiled or not:
# SmolLM2-135M 2e-3 nats (a mask that is off by one: 9e-3 to 3e-2; positions: 3e-2 and more), the demo's model 4e-4
# (5e-2 and 0.9 on average), random weights of 0.5B parameters 6e-5 (6e-3 to 1e-2; 1e-3 to 2e-3), in float32 6e-8.
# On an H200 the logits of random weights of 1.5B parameters differed by 3.9 % of their spread: a share of 1.5e-3
LIMIT, SHARE, EXACT, LEAST = 5e-3, 4e-3, 0.01, 1e-6
# Operations that wait for the GPU, or whose result has a shape that depends on data
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "unique_dim", "unique_consecutive",
           "_unique", "_unique2", "repeat_interleave"}  # fmt: skip


@dataclass
class Place:
    """Places where a step writes, for all layers.

    Attributes:
        used: positions in use, the index of the next one.
        slot: (1,) the same, on the device.
        shown: positions that attention reads.
    """

    used: int
    slot: torch.Tensor
    shown: int


class Slots(DynamicLayer):
    """A layer's keys and values (rows, heads, width, head width); a step writes one position of each row.

    Layers with a sliding window keep all positions, too: attention masks those before it.
    """

    keys: Any
    values: Any
    place: Place | None = None  # None: the prompts are read, and positions are appended

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # rotary positions make keys float32; attention would round all of them at each step
        key_states, value_states = (part.to(computed_in(part)) for part in (key_states, value_states))
        if self.place is None:
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys.index_copy_(2, self.place.slot, key_states)
        self.values.index_copy_(2, self.place.slot, value_states)
        return self.keys[:, :, : self.place.shown], self.values[:, :, : self.place.shown]

    def get_seq_length(self) -> int:
        return self.place.used if self.place else super().get_seq_length()

    def spread(self, positions: torch.Tensor) -> None:
        """Copy one row's positions to many rows: row n gets positions[n] (rows, positions)."""
        if self.is_initialized:  # not where it shares the keys of another layer
            self.keys, self.values = (part[0][:, positions].transpose(0, 1) for part in (self.keys, self.values))

    def move(self, rows: torch.Tensor, place: Place, width: int) -> None:
        """Copy these rows into new buffers."""
        if self.is_initialized:
            for name in ("keys", "values"):
                old = getattr(self, name)
                # with zeros, since masked positions have to be finite
                setattr(self, name, torch.nn.functional.pad(old[rows], (0, 0, 0, width - old.shape[2])))
        self.place = place


class View:
    """A layer's buffers as its compiled forward sees them: tensors alone, whatever the layer's number is."""

    def __init__(self, slots: Slots, slot: torch.Tensor) -> None:
        self.keys, self.values, self.slot = slots.keys, slots.values, slot

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.keys.index_copy_(2, self.slot, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.slot, value_states.to(self.values.dtype))
        return self.keys, self.values


class Waits(TorchDispatchMode):
    """Count operations that wait for a GPU, by name: a graph cannot hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        copies = name in ("_to_copy", "copy_")
        tensors = [leaf for leaf in tree_leaves((args, out)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.ndim or copies}
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in WAITING or by_mask or len(devices) > 1:
            self.found[name] += 1
        return out


class Graphs:
    """The CUDA graphs of one rollout; they share one pool of memory and end together."""

    # why a model samples eagerly; "" once its graphs are verified
    verdicts: ClassVar[weakref.WeakKeyDictionary[torch.nn.Module, str]] = weakref.WeakKeyDictionary()
    stream: ClassVar[Any] = None  # one for the process: libraries keep memory for each that they meet

    def __init__(self, base: torch.nn.Module) -> None:
        self.base = base
        Graphs.stream = Graphs.stream or torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.recorded: list[torch.cuda.CUDAGraph] = []
        self.compared = 0

    @classmethod
    def of(cls, base: Any) -> "Graphs | None":
        """Return the graphs of a new rollout; None where its steps run eagerly."""
        if not models.on_gpu(base) or cls.verdicts.get(base):
            return None
        if reason := reason_against_graphs(base):
            cls.refuse(base, reason)
            return None
        return cls(base)

    @classmethod
    def refuse(cls, base: Any, reason: str) -> None:
        cls.verdicts[base] = reason
        if PartialState().is_main_process:
            print(f"note: decoding steps are not replayed as CUDA graphs, which is slower: {reason}")

    def compare(self, found: torch.Tensor, wanted: torch.Tensor) -> str:
        """Return how a replayed step's logits differ from the eager ones, of rows that go on; "" where they agree."""
        if not len(wanted):
            return ""
        nats, limit = divergence(found, wanted), min(LIMIT, SHARE * knowledge(wanted))
        if not nats <= max(limit * (1 if rounds(self.base) else EXACT), LEAST):  # NaN does not pass
            return f"a step's next tokens diverge by {nats:.2g} nats"
        self.compared += bool(self.recorded)
        return ""

    def forget(self) -> None:
        """Compare again from the start."""
        self.recorded, self.compared = [], 0


def knowledge(logits: torch.Tensor) -> float:
    """Return what next-token distributions say beyond an even one of all possible tokens, in nats, on average."""
    log_chances = logits.log_softmax(-1)
    entropies = -torch.where(log_chances.isneginf(), 0.0, log_chances.exp() * log_chances).sum(-1)
    return (logits.isfinite().sum(-1).log() - entropies).mean().item()


def rounds(base: torch.nn.Module) -> bool:
    """True if a forward of this model rounds its products to 16 bits or TF32."""
    embedding: Any = base.get_input_embeddings()  # type: ignore[operator]
    exact = torch.get_float32_matmul_precision() == "highest"
    return computed_in(embedding.weight) != torch.float32 or not exact


def divergence(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the mean divergence in nats of next-token distributions, given as logits (rows, vocabulary).

    A token that is impossible in both (a masked vocabulary) is no difference; in one of them, an infinite one. NaN in
    either gives NaN.
    """
    expected, other = wanted.log_softmax(-1), found.log_softmax(-1)
    terms = expected.exp() * (expected - other)
    terms = torch.where(expected.isneginf() & other.isneginf(), 0.0, terms)
    terms = torch.where(expected.isneginf() & other.isfinite(), torch.inf, terms)
    return terms.sum(-1).mean().item()


def reason_against_graphs(base: Any) -> str | None:
    """Return why this model's steps must not be recorded, or None. What a step computes is asked when it runs."""
    if not runs_on_sdpa(base):
        return f"the model's attention is {base.config._attn_implementation}"
    weights = list(base.parameters())
    sharded = any(isinstance(module, FSDPModule) for module in base.modules())
    if sharded or any(hasattr(weight, "ds_id") or weight.device != base.device for weight in weights):
        return "the weights are sharded or offloaded, so that they move"
    return None


class Decoder:
    """Reads prompts, then draws a token of each row at a time. Rows may be dropped in between.

    Attributes:
        tokens: (rows, limit) what has been drawn, on the device; 0 where nothing has.
    """

    def __init__(
        self,
        base: Any,
        cache_name: str,
        ends: Sequence[int],
        limit: int,
        choose: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Make a decoder.

        Args:
            base: a model with a plain cache.
            cache_name: the cache's name in the model's forward.
            ends: tokens that end a row. What follows in it is masked, and stays at the row's last position.
            limit: most tokens of a row after its prompt.
            choose: draws a token (rows,) from logits (rows, vocabulary), float32.
        """
        self.base, self.cache_name, self.limit, self.device = base, cache_name, limit, base.device
        self.choose = choose
        self.cache: Any = DynamicCache(config=base.config)
        self.cache.layers = [Slots() for _ in self.cache.layers]
        self.ends = torch.tensor(ends, dtype=torch.long, device=self.device)
        self.windows = windows(base.config)
        self.graphs = Graphs.of(base)
        self.layers = TokenSteps.of(base) if self.graphs else None
        if self.layers:
            attention.register()  # it groups queries

    def read(self, prompts: Sequence[Sequence[int]], copies: Sequence[int], pad: int) -> None:
        """Read distinct prompts once, and their common beginning once for all of them. Draw the first tokens.

        Args:
            prompts: token ids.
            copies: for each row of the batch, the index of its prompt.
            pad: the token of padding, on the left of what is not common.
        """
        longest = max(map(len, prompts))
        before = torch.tensor([[longest - len(prompt)] for prompt in prompts], device=self.device)  # padding
        ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=self.device)
        positions = torch.arange(longest, device=self.device) - before
        self.mask, positions = (positions >= 0).long(), positions.clamp(min=0)
        if common := self._worth_sharing(prompts):
            whole = [len(prompt) for prompt in prompts].index(longest)  # a prompt without padding
            self._forward(*(part[whole : whole + 1, :common] for part in (ids, self.mask, positions)))
            for layer in self.cache.layers:
                layer.spread(positions[:, :common])  # padding gets the first one, which is masked
        logits = self._forward(ids[:, common:], self.mask, positions[:, common:])
        self.capacity = longest + self.limit - 1  # the last token is not read
        self.positions = positions[:, -1:]
        self.alive = torch.ones_like(self.positions)
        rows = torch.tensor(copies, device=self.device)
        self.ids = torch.zeros_like(self.positions)
        self.tokens = self.ids.new_zeros(len(prompts), self.limit)
        self.drawn = torch.zeros(1, dtype=torch.long, device=self.device)
        self._move(rows, longest)
        self._draw(logits[rows] if len(prompts) < len(copies) else logits)

    def _worth_sharing(self, prompts: Sequence[Sequence[int]]) -> int:
        """Count the first positions to compute once for all prompts; 0 if that is not worth it."""
        alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
        common = min(len(list(alike)), max(map(len, prompts)) - 1)
        # on a CPU a seed decides the samples, and in 16 bits another order of sums would change some
        rounds = self.base.dtype != torch.float32 or torch.is_autocast_enabled(self.device.type)
        least = GPU_FORWARD if models.on_gpu(self.base) else math.inf if rounds else CPU_FORWARD
        # without sdpa some models read a mask in another way
        return common if common * (len(prompts) - 1) >= least and runs_on_sdpa(self.base) else 0

    @property
    def full(self) -> bool:
        """True if the next step takes larger buffers."""
        return self.place.used == self.mask.shape[1]

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all but these rows of the batch, by index."""
        self._move(rows, self.place.used)

    def _move(self, rows: torch.Tensor, used: int) -> None:
        """Copy these rows into buffers with room for more positions."""
        width = max(used, min(rounded_up(used + 1, ROOM), rounded_up(self.capacity, ALIGNED)))
        self.place = Place(used, torch.tensor([used], device=self.device), used)
        for layer in self.cache.layers:
            layer.move(rows, self.place, width)
        mask = self.mask.new_zeros(len(rows), width)
        mask[:, :used] = self.mask[rows, :used]
        self.mask, self.positions, self.alive = mask, self.positions[rows], self.alive[rows]
        self.ids, self.tokens = self.ids[rows], self.tokens[rows]
        self.warm = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self) -> None:
        """Read each row's last token, and draw the next one."""
        if self.full:
            self._move(torch.arange(len(self.ids), device=self.device), self.place.used)
        if self.graphs is None:
            self._advance()
        elif self._is_verified():
            self._replay(self.graphs)
        else:
            self._verify(self.graphs)
        self.place.used += 1

    def _forward(self, ids: torch.Tensor, mask: Any, positions: torch.Tensor) -> torch.Tensor:
        output = self.base(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
            **{self.cache_name: self.cache},
        )  # fmt: skip
        return output.logits[:, -1].float()

    def _compute(self, fixed: bool = False) -> torch.Tensor:
        """Return a step's logits; `fixed`: in the same shapes at each step, over the whole buffers."""
        self.alive.mul_((self.ids != self.ends).all(1, keepdim=True))
        self.mask.index_copy_(1, self.place.slot, self.alive)
        self.positions.add_(self.alive)
        self.place.shown = self.mask.shape[1] if fixed else self.place.used + 1
        mask = self._whole_mask() if fixed else self.mask[:, : self.place.shown]
        logits = self._forward(self.ids, mask, self.positions)
        self.place.slot.add_(1)
        return logits

    def _draw(self, logits: torch.Tensor) -> None:
        self.ids.copy_(self.choose(logits)[:, None])
        self.tokens.index_copy_(1, self.drawn, self.ids)
        self.drawn.add_(1)

    def _advance(self, fixed: bool = False) -> torch.Tensor:
        logits = self._compute(fixed)
        self._draw(logits)
        return logits

    def _whole_mask(self) -> Any:
        """Return the mask over the whole buffers (rows, 1, 1, width) as what is added to scores.

        With sliding windows, one for each kind of layer. sdpa would turn booleans into numbers in each layer. The
        least number, instead of -inf, keeps rows finite that see nothing, as they ended longer ago than a window.
        """
        dtype = computed_in(self.base.get_input_embeddings().weight)
        mask = self.mask[:, None, None].bool()
        nothing, least = torch.zeros(mask.shape, dtype=dtype, device=self.device), torch.finfo(dtype).min
        full = nothing.masked_fill(~mask, least)
        if not any(self.windows):
            return full
        window = next(window for window in self.windows if window)
        is_far = torch.arange(mask.shape[-1], device=self.device) <= self.place.slot - window
        near = full.masked_fill(is_far, least)
        return near if all(self.windows) else {"full_attention": full, "sliding_attention": near}

    # CUDA graphs

    def _fixed(self) -> torch.Tensor:
        """Compute a step as it is recorded, by compiled layers where there are some."""
        if self.layers is None:
            return self._advance(fixed=True)
        views = {number: View(slots, self.place.slot) for number, slots in enumerate(self.cache.layers)}
        with self.layers.running(lambda number, *given: self._compiled(views.pop(number, None), *given)):
            return self._advance(fixed=True)

    def _compiled(self, view: View | None, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a layer over its own view of the buffers."""
        assert self.layers is not None
        if view is None:  # its second run has another part of the cache (Dory)
            raise RuntimeError("a layer runs more than once in a step")
        args = tuple(view if value is self.cache else value for value in args)
        kwargs = {name: view if value is self.cache else value for name, value in kwargs.items()}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for tensor in (view.keys, view.values, *given):
            compiling.mark_dynamic(tensor, 0)
        for tensor in given:
            if tensor.ndim == 4:  # a mask
                compiling.mark_dynamic(tensor, 3)
        for tensor in (view.keys, view.values):
            compiling.mark_dynamic(tensor, 2)
        return self.layers.compute(layer, args, {**kwargs, "grouped": True})

    def _is_verified(self) -> bool:
        return self.base in (Graphs.verdicts if self.layers is None else TokenSteps.verified)

    def _replay(self, graphs: Graphs) -> torch.Tensor:
        """Compute a step by the graph of these buffers, which is recorded at their second step. Return its logits."""
        if self.graph is None and not self.warm:
            self.warm = True
            return self._warm_up(graphs)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            own = {"pool": graphs.pool, "stream": graphs.stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(self.graph, **own):  # computes nothing; other threads (NCCL's) may go on
                self.logits = self._fixed()
            graphs.recorded.append(self.graph)
        self.graph.replay()
        return self.logits

    def _warm_up(self, graphs: Graphs) -> torch.Tensor:
        """Compute a step before it is recorded: libraries set themselves up, and layers compile."""
        before = self._state()
        graphs.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(graphs.stream):
            try:
                logits = self._fixed()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler may fail in its own way
                if self.layers is None:
                    raise
                self._drop_layers(graphs, compiling.failure(error))
                self._restore(before)
                logits = self._fixed()
        torch.cuda.current_stream().wait_stream(graphs.stream)
        return logits

    def _drop_layers(self, graphs: Graphs, reason: str) -> None:
        TokenSteps.refuse(self.base, reason)
        self.layers = None
        graphs.forget()

    def _verify(self, graphs: Graphs) -> None:
        """Compute a step eagerly, then as a graph's; stay with the eager one where they differ."""
        before = self._state()
        wanted = self._compute()
        rows = self.alive[:, 0].bool()  # those that have ended are not compared
        self._restore(before)
        with Waits() as waits:
            self._advance(fixed=True)
        reason = f"a step waits for the GPU ({', '.join(sorted(waits.found))})" if waits.found else ""
        while not reason:
            self._restore(before)
            reason = self._agrees(graphs, wanted[rows], rows)
            if not reason:
                return
            if self.layers is None:
                break
            self._drop_layers(graphs, reason)
            self.graph, self.warm, reason = None, False, ""
        self.graphs = None
        graphs.refuse(self.base, reason)
        self._restore(before)
        self._advance()

    def _agrees(self, graphs: Graphs, wanted: torch.Tensor, rows: torch.Tensor) -> str:
        """Compute a step as a graph's. Return how the logits of these rows differ from the wanted ones; "" if not."""
        try:
            found = self._replay(graphs)
        except Exception as error:  # a library may refuse to be recorded in its own way
            for generator in torch.cuda.default_generators:  # otherwise it still takes draws for recorded ones
                generator.graphsafe_set_state(generator.clone_state())
            return compiling.in_one_line(error)
        reason = graphs.compare(found[rows], wanted)
        if not reason and graphs.compared == REPLAYS:
            if self.layers is None:
                Graphs.verdicts[self.base] = ""
            else:
                TokenSteps.verified[self.base] = ""
        return reason

    def _changing(self) -> tuple[torch.Tensor, ...]:
        return self.ids, self.alive, self.positions, self.place.slot, self.drawn

    def _state(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Copy what a step changes, but for what it writes again, and the random state."""
        return [tensor.clone() for tensor in self._changing()], generator_of(self.device).get_state()

    def _restore(self, state: tuple[list[torch.Tensor], torch.Tensor]) -> None:
        for tensor, value in zip(self._changing(), state[0], strict=True):
            tensor.copy_(value)
        generator_of(self.device).set_state(state[1])


def generator_of(device: torch.device) -> torch.Generator:
    """Return the device's own random generator, which draws come from."""
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


def rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
