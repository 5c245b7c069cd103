"""Completions for many prompts at once, in a batch that stays full: rows that end leave it, waiting prompts enter.

`model.generate` computes every row of a batch until its longest completion ends. Answers have long tails, so most of
that work is for rows that have already ended. Greedy completions here are those of `model.generate`
(tests/policy/test_generation.py), in less time (benchmarks/bench_generation.py).
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from accelerate.state import PartialState
from accelerate.utils import gather_object
from peft import PeftModel
from tqdm import tqdm
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo.core.processes import say
from grpo.policy.decoding import NextToken, base_of, sampling_mode

if TYPE_CHECKING:
    from trl import GRPOConfig

Job = tuple[int, Sequence[int]]  # a number to know it by, and the prompt's token ids
Done = tuple[int, list[int], bool]  # a job's number, its token ids with the end token, and whether it was cut off
Completion = tuple[list[int], bool]  # token ids without the end token, and whether it was cut off


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, under GRPOConfig's names."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0  # model.generate alone follows it
    seed: int = 0

    @classmethod
    def like(cls, settings: "GRPOConfig | GenerationConfig") -> "Sampling":
        """As the rollouts with these settings are drawn."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return cls(**{name: getattr(settings, name) for name in names}, seed=getattr(settings, "seed", 0))

    def warpers(self) -> LogitsProcessorList:
        steps = LogitsProcessorList([TemperatureLogitsWarper(float(self.temperature))])
        if self.top_k:
            steps.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            steps.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            steps.append(MinPLogitsWarper(self.min_p))
        return steps


def eos_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion: the tokenizer's and all that the model declares (TRL does the same)."""
    declared = model.generation_config.eos_token_id
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return list(dict.fromkeys([tokenizer.eos_token_id, *declared]))


def training_autocast(training: "GRPOConfig", model: Any) -> torch.autocast:
    """Compute in the number format of a run's training.

    Accelerate casts in the forward of the model that it has trained, but not in that of one just loaded: the same
    weights would answer differently before and after.
    """
    number = torch.bfloat16 if training.bf16 else torch.float16
    return torch.autocast(model.device.type, number, enabled=training.bf16 or training.fp16)


def generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling | None = None,
    label: str = "evaluate",
) -> list[Completion]:
    """One completion per prompt, in the order of the prompts; greedy where `sampling` is None.

    All processes share the prompts among them, and all of them get all the completions. The model samples in
    `sampling_mode`; the global random state stays.

    Args:
        prompts: token ids; they are taken in order of length, so that little is padding.
        max_new_tokens: where a completion is cut off.
        batch_size: rows that are computed at once.
        label: what the progress bar is called.
    """
    state = PartialState()
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    share = [(index, prompts[index]) for index in order[state.process_index :: state.num_processes]]
    why_not = obstacle(model)
    if why_not is None and sampling and sampling.repetition_penalty != 1:
        why_not = "a repetition_penalty is set"
    if why_not:
        say(f"note: evaluation runs on model.generate, because {why_not}")
    complete = complete_by_generate if why_not else complete_in_full_batch
    hidden = len(share) < 2 or not state.is_main_process
    bar = tqdm(total=len(share), desc=label, unit=" answers", leave=False, disable=hidden or None)  # None: no terminal
    devices = [model.device] if model.device.type == "cuda" else []
    done = []
    with bar, sampling_mode(model), torch.random.fork_rng(devices, enabled=sampling is not None):
        if sampling:
            torch.manual_seed(sampling.seed + state.process_index)
        ends = eos_ids(model, tokenizer)
        for completion in complete(model, tokenizer, share, ends, max_new_tokens, batch_size, sampling):
            done.append(completion)
            bar.update()
    return [(ids if cut else ids[:-1], cut) for _, ids, cut in sorted(gather_object(done))]


def complete_in_full_batch(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    jobs: Sequence[Job],
    ends: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling | None = None,
) -> Iterator[Done]:
    """Complete the jobs: each one's number, token ids and whether it was cut off, as soon as it has ended.

    Args:
        ends: tokens that end a completion; the one that did is its last.
        sampling: draws from the global random state; None takes the likeliest token.
    """
    batch, waiting = _Batch(model, tokenizer, ends, max_new_tokens, sampling), deque(jobs)
    while waiting or batch.rows:
        free = batch_size - len(batch.rows)
        if waiting and 4 * free >= batch_size:  # several at once: a forward of one prompt wastes the machine
            batch.admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
        else:
            batch.step()
        yield from batch.leave()


def obstacle(model: Any) -> str | None:
    """Why this model cannot be decoded here, as the end of `because …`; None where it can."""
    if "unsloth" in sys.modules:
        return "Unsloth's models decode in a way of their own"
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return "its adapter adds tokens to the prompt"
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        return "it is spread over several devices"
    if forgets(model):  # rows cannot be moved between such caches
        return "its cache is not of the plain kind"
    base = base_of(model)
    accepted = signature(type(base).forward).parameters
    # the ALiBi of these counts from the attention mask, so that they need no positions
    counts = "position_ids" in accepted or base.config.model_type in ("bloom", "mpt")
    if "past_key_values" not in accepted or not counts:
        return "its forward takes no cache, or no positions, of the usual kind"
    return None


def forgets(model: Any) -> bool:
    """Whether a model has sliding windows or states, which do not keep each position apart."""
    layers = DynamicCache(config=model.config).layers
    return model._is_stateful or not all(type(layer) is DynamicLayer for layer in layers)


def complete_by_generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    jobs: Sequence[Job],
    ends: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling | None,
) -> Iterator[Done]:
    """The same by `model.generate`, for models with an `obstacle`."""
    drawn = sampling or Sampling(top_k=50)  # the defaults of what greedy decoding ignores
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=sampling is not None,
        # model repositories ship sampling defaults (Qwen2.5's repetition_penalty is 1.1): not ours
        num_beams=1,
        repetition_penalty=drawn.repetition_penalty,
        temperature=float(drawn.temperature),
        top_p=drawn.top_p,
        top_k=drawn.top_k,
        min_p=drawn.min_p,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    for start in range(0, len(jobs), batch_size):
        batch = jobs[start : start + batch_size]
        inputs = {"input_ids": [list(prompt) for _, prompt in batch]}
        padded = tokenizer.pad(inputs, padding_side="left", return_tensors="pt").to(model.device)
        output = model.generate(**padded, generation_config=config)
        for (job, _), row in zip(batch, output[:, padded["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((position for position, token in enumerate(row) if token in ends), None)
            yield job, row if end is None else row[: end + 1], end is None


class _GrowingLayer(DynamicLayer):
    """A cache layer with room to grow: transformers' own copies all keys and values for each new token."""

    room = 64  # tokens
    keys: torch.Tensor
    values: torch.Tensor

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.hold(key_states, value_states)
            return self.keys, self.values
        start, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if end > self.buffers[0].shape[2]:
            self.hold(self.keys, self.values)
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.buffers = [_pad(keys, right=self.room), _pad(values, right=self.room)]
        self.keys, self.values = (buffer[:, :, : keys.shape[2]] for buffer in self.buffers)


def _pad(tensor: torch.Tensor, left: int = 0, right: int = 0) -> torch.Tensor:
    """Zeros before or after, along a cache's length (its last but one dimension)."""
    return torch.nn.functional.pad(tensor, (0, 0, left, right))


@dataclass
class _Row:
    job: int
    ids: list[int] = field(default_factory=list)
    done: bool = False


class _Batch:
    """The rows that are being completed, right-aligned: the cache, the attention mask and the last token of each."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        ends: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None,
    ) -> None:
        self.next = NextToken(model, tokenizer, sampling)
        self.ends, self.max_new_tokens = ends, max_new_tokens
        self.config, self.device = self.next.base.config, self.next.base.device
        self.depth = len(DynamicCache(config=self.config).layers)
        self.rows: list[_Row] = []
        self.cache: DynamicCache
        self.layers: list[_GrowingLayer]  # of the cache
        self.mask: torch.Tensor  # (rows, positions)
        self.tokens: torch.Tensor  # (rows,)

    def admit(self, jobs: list[Job]) -> None:
        """Take in new rows; samples of the same prompt are computed once up to its end."""
        wanted = [tuple(prompt) for _, prompt in jobs]
        prompts = list(dict.fromkeys(wanted))
        cache, layers = DynamicCache(config=self.config), [_GrowingLayer() for _ in range(self.depth)]
        cache.layers = list(layers)
        logits, mask = self.next.read(prompts, cache)
        if len(prompts) < len(jobs):
            places = {prompt: place for place, prompt in enumerate(prompts)}
            copies = torch.tensor([places[prompt] for prompt in wanted], device=self.device)
            logits, mask = logits[copies], mask[copies]
            for layer in layers:
                layer.hold(layer.keys[copies], layer.values[copies])
        tokens = self.next.choose(logits)
        if self.rows:  # both are right-aligned: the shorter one is padded on the left
            length = max(mask.shape[1], self.mask.shape[1])
            left, other = length - self.mask.shape[1], length - mask.shape[1]
            for old, new in zip(self.layers, layers, strict=True):
                old.hold(
                    torch.cat([_pad(old.keys, left), _pad(new.keys, other)]),
                    torch.cat([_pad(old.values, left), _pad(new.values, other)]),
                )
            pad = torch.nn.functional.pad
            mask = torch.cat([pad(self.mask, (left, 0)), pad(mask, (other, 0))])
            tokens = torch.cat([self.tokens, tokens])
        else:
            self.cache, self.layers = cache, layers
        self.rows += [_Row(job) for job, _ in jobs]
        self.mask, self.tokens = mask, tokens
        self._note(len(jobs))

    def step(self) -> None:
        """One more token for every row."""
        # what a row that has ended still computes is nobody's: masked, it needs no further position
        running = self.mask.new_tensor([[not row.done] for row in self.rows])
        self.mask = torch.cat([self.mask, running], dim=1)
        positions = self.mask.sum(-1, keepdim=True) - 1
        self.tokens = self.next.choose(self.next.logits(self.tokens[:, None], positions, self.mask, self.cache))
        self._note(len(self.rows))

    def _note(self, count: int) -> None:
        """Write the new tokens down, for the last `count` rows."""
        for row, token in zip(self.rows[-count:], self.tokens[-count:].tolist(), strict=True):
            if not row.done:
                row.ids.append(token)
                row.done = token in self.ends or len(row.ids) == self.max_new_tokens

    def leave(self) -> Iterator[Done]:
        """Give what has ended and take it out of the batch, unless it is too little to be worth a copy of the rest."""
        left = [row for row in self.rows if row.done]
        if not left or 8 * len(left) < len(self.rows):
            return
        yield from ((row.job, row.ids, row.ids[-1] not in self.ends) for row in left)
        stay = [index for index, row in enumerate(self.rows) if not row.done]
        self.rows = [self.rows[index] for index in stay]
        if self.rows:
            kept = torch.tensor(stay, device=self.device)
            self.tokens, self.mask = self.tokens[kept], self.mask[kept]
            unused = self.mask.shape[1] - int(self.mask.sum(-1).max())  # the longest may have left
            self.mask = self.mask[:, unused:]
            for layer in self.layers:
                layer.hold(layer.keys[kept, :, unused:], layer.values[kept, :, unused:])
