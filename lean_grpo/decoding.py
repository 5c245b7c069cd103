"""Decode a batch token by token over buffers of fixed addresses; on a GPU a step is a CUDA graph.

A step of a model with 28 layers starts more than a thousand kernels. Python needs 20 to 35 ms for that, a GPU one to
three. A graph starts all of them at once, but repeats the addresses and shapes of its recording. So keys and values
are in buffers, a step writes at a position that is a tensor, and attention masks positions that are not written yet.
The buffers grow by ROOM positions; on a GPU rows that have ended leave when the buffers are copied. Weights change in
place between rollouts. Buffers and graphs live for one rollout.

Trust, then verify: the first steps on a GPU are computed eagerly, too. Where the two differ, a step waits for the GPU
or cannot be recorded, the model samples eagerly from then on, with one line.
"""

import math
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM = 128  # positions that the buffers grow by: fewer cost recordings, more cost attention over nothing
ALIGNED = 16  # the last room is rounded up to this: attention's kernels would copy other masks
# Positions that a forward of the common beginning has to save; on a GPU fewer take as long as it does
CPU_FORWARD, GPU_FORWARD = 64, 4096
REPLAYS = 2  # steps of a graph that are compared; the second one shows whether anything is frozen in it
LIMIT = 0.05  # most difference of their logits, relative to the logits' spread
# Operations that wait for the GPU, or whose result has a shape that depends on data
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "unique_dim", "unique_consecutive",
           "_unique", "_unique2", "repeat_interleave"}  # fmt: skip


@dataclass
class Place:
    """Where a step writes, for all layers.

    Attributes:
        used: positions in use, the index of the next one.
        slot: (1,) the same, on the device.
        shown: positions that attention reads.
    """

    used: int
    slot: torch.Tensor
    shown: int


class Slots(DynamicLayer):
    """A layer's keys and values (rows, heads, width, head width); a step writes one position of each row."""

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
        if not on_gpu(base) or cls.verdicts.get(base):
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

    @property
    def verified(self) -> bool:
        return self.base in self.verdicts

    def compare(self, found: torch.Tensor, wanted: torch.Tensor) -> str:
        """Return how a replayed step's logits differ from the eager ones; "" where they agree."""
        spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
        difference = ((found - wanted).norm() / spread).item()
        if not difference <= LIMIT:  # NaN does not pass
            return f"a step's logits differ by {100 * difference:.2g} % of their spread"
        self.compared += bool(self.recorded)
        if self.compared == REPLAYS:
            self.verdicts[self.base] = ""
        return ""


def reason_against_graphs(base: Any) -> str | None:
    """Return why this model's steps must not be recorded, or None. What a step computes is asked when it runs."""
    if not runs_on_sdpa(base):
        return f"the model's attention is {base.config._attn_implementation}"
    if getattr(base, "is_quantized", False):
        return "the weights are quantized"
    weights = list(base.parameters())
    sharded = any(isinstance(module, FSDPModule) for module in base.modules())
    if sharded or any(hasattr(weight, "ds_id") or weight.device != base.device for weight in weights):
        return "the weights are sharded or offloaded, so that they move"
    return None


class Decoder:
    """Reads prompts, then a token of each row at a time. Rows may be dropped in between."""

    def __init__(self, base: Any, cache_name: str, ends: Sequence[int], limit: int) -> None:
        """Make a decoder.

        Args:
            base: a model with a plain cache.
            cache_name: the cache's name in the model's forward.
            ends: tokens that end a row. What follows in it is masked, and stays at the row's last position.
            limit: most tokens of a row after its prompt.
        """
        self.base, self.cache_name, self.limit, self.device = base, cache_name, limit, base.device
        self.cache: Any = DynamicCache(config=base.config)
        self.cache.layers = [Slots() for _ in self.cache.layers]
        self.ends = torch.tensor(ends, dtype=torch.long, device=self.device)
        self.windows = windows(base.config)
        self.graphs = Graphs.of(base)

    def read(self, prompts: Sequence[Sequence[int]], copies: Sequence[int], pad: int) -> torch.Tensor:
        """Read distinct prompts once, and their common beginning once for all of them.

        Args:
            prompts: token ids.
            copies: for each row of the batch, the index of its prompt.
            pad: the token of padding, on the left of what is not common.

        Returns:
            The logits after the prompts (rows, vocabulary), float32.
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
        self._move(rows, longest)
        return logits[rows] if len(prompts) < len(copies) else logits

    def _worth_sharing(self, prompts: Sequence[Sequence[int]]) -> int:
        """Count the first positions to compute once for all prompts; 0 if that is not worth it."""
        alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
        common = min(len(list(alike)), max(map(len, prompts)) - 1)
        # on a CPU a seed decides the samples, and in 16 bits another order of sums would change some
        rounds = self.base.dtype != torch.float32 or torch.is_autocast_enabled(self.device.type)
        least = GPU_FORWARD if on_gpu(self.base) else math.inf if rounds else CPU_FORWARD
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
        self.ids = torch.zeros_like(self.positions)
        self.warm = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read the rows' next tokens (rows,). Return the logits after them (rows, vocabulary), float32."""
        if self.full:
            self._move(torch.arange(len(tokens), device=self.device), self.place.used)
        self.ids.copy_(tokens[:, None])
        self.alive.mul_((self.ids != self.ends).all(1, keepdim=True))
        if self.graphs is None:
            logits = self._compute()
        else:
            logits = self._replay(self.graphs) if self.graphs.verified else self._verify(self.graphs)
        self.place.used += 1
        return logits

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self.base(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
            **{self.cache_name: self.cache},
        )  # fmt: skip
        return output.logits[:, -1].float()

    def _compute(self, fixed: bool = False) -> torch.Tensor:
        """Compute a step; `fixed`: in the same shapes at each step, over the whole buffers."""
        self.mask.index_copy_(1, self.place.slot, self.alive)
        self.positions.add_(self.alive)
        self.place.shown = self.mask.shape[1] if fixed else self.place.used + 1
        mask = self._whole_mask() if fixed else self.mask[:, : self.place.shown]
        logits = self._forward(self.ids, mask, self.positions)
        self.place.slot.add_(1)
        return logits

    def _whole_mask(self) -> Any:
        """Return the mask over the whole buffers (rows, 1, 1, width), or one for each kind of layer."""
        mask = self.mask[:, None, None].bool()
        if not any(self.windows):
            return mask
        window = next(window for window in self.windows if window)
        near = mask & (torch.arange(mask.shape[-1], device=self.device) > self.place.slot - window)
        return near if all(self.windows) else {"full_attention": mask, "sliding_attention": near}

    def _replay(self, graphs: Graphs) -> torch.Tensor:
        """Compute a step by the graph of these buffers, which is recorded at their second step."""
        if self.graph is None and not self.warm:  # libraries set themselves up at their first call
            self.warm = True
            graphs.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(graphs.stream):
                logits = self._compute(fixed=True)
            torch.cuda.current_stream().wait_stream(graphs.stream)
            return logits
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            own = {"pool": graphs.pool, "stream": graphs.stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(self.graph, **own):  # computes nothing; other threads (NCCL's) may go on
                self.logits = self._compute(fixed=True)
            graphs.recorded.append(self.graph)
        self.graph.replay()
        return self.logits

    def _verify(self, graphs: Graphs) -> torch.Tensor:
        """Compute a step eagerly, then as a graph's; stay with the eager one where they differ."""
        positions = self.positions.clone()
        wanted = self._compute()
        self._rewind(positions)
        try:
            with Waits() as waits, torch.cuda.stream(torch.cuda.current_stream()):  # a failed recording leaves its own
                found = self._replay(graphs)
            names = ", ".join(sorted(waits.found))
            reason = f"a step waits for the GPU ({names})" if names else graphs.compare(found, wanted)
        except Exception as error:  # a library may refuse to be recorded in its own way
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            for generator in torch.cuda.default_generators:  # otherwise it still takes draws for recorded ones
                generator.graphsafe_set_state(generator.clone_state())
        if not reason:
            return found
        self.graphs = None
        graphs.refuse(self.base, reason)
        self._rewind(positions)
        return self._compute()

    def _rewind(self, positions: torch.Tensor) -> None:
        self.positions.copy_(positions)
        self.place.slot.fill_(self.place.used)


def computed_in(tensor: torch.Tensor) -> torch.dtype:
    """Return the number format in which attention takes this tensor: autocast's, or its own without autocast."""
    device = tensor.device.type
    cast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if cast else tensor.dtype


def on_gpu(model: Any) -> bool:
    return model.device.type == "cuda"


def runs_on_sdpa(model: Any) -> bool:
    return model.config._attn_implementation == "sdpa"


def windows(config: Any) -> list[int | None]:
    """List how many positions each layer attends to at most, itself included; None: all of them."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if (types := getattr(text, "layer_types", None)) is None:
        return [window] * text.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in types]


def rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
