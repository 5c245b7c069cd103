"""A batch that is kept full: completions that end leave it, and waiting prompts take their places.

`model.generate` computes every row of a batch until the longest completion ends. Answers have long tails, so most of
that work is for rows that have already ended.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftModel
from transformers.cache_utils import DynamicCache, DynamicLayer

Job = tuple[int, Sequence[int]]  # a number to know it by, and the prompt's token ids


def refilled(
    model: Any,
    tokenizer: Any,
    jobs: Sequence[Job],
    ends: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: Any = None,
) -> Iterator[tuple[int, list[int], bool]]:
    """Complete the jobs: each one's number, token ids and whether it was cut off, as soon as it has ended.

    Args:
        ends: tokens that end a completion; the one that did is its last.
        sampling: a `generation.Sampling`; None takes the likeliest token.
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
    # sliding windows and states forget, and rows could not be moved between caches that did
    layers = DynamicCache(config=model.config).layers
    if model._is_stateful or not all(type(layer) is DynamicLayer for layer in layers):
        return "its cache is not of the plain kind"
    return None


class _Layer(DynamicLayer):
    """A cache layer with room to grow: transformers' own copies all keys and values for each new token."""

    room = 64

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
    ended: bool = False  # by an end token
    cut: bool = False


class _Batch:
    """The rows that are being completed, right-aligned: the cache, the attention mask and the last token of each.

    `seen` are the tokens that a row's prompt and completion hold, (rows, vocabulary), where repetition is penalised.
    """

    def __init__(self, model: Any, tokenizer: Any, ends: Sequence[int], max_new_tokens: int, sampling: Any) -> None:
        # a PEFT model's layers hold the adapter themselves, and its own forward hides what the model's takes
        self.model = model.get_base_model() if isinstance(model, PeftModel) else model
        self.tokenizer, self.ends, self.max_new_tokens = tokenizer, ends, max_new_tokens
        self.warpers = sampling.warpers() if sampling else None
        self.penalty = sampling.repetition_penalty if sampling else 1.0
        self.random = None  # the device's global generator
        if sampling and sampling.seed is not None:
            self.random = torch.Generator(model.device).manual_seed(sampling.seed + PartialState().process_index)
        self.accepts = set(signature(type(self.model).forward).parameters)  # an instance may be wrapped
        self.rows: list[_Row] = []

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> Any:
        """Of the next token of every row, (rows, vocabulary)."""
        optional = {"position_ids": positions, "logits_to_keep": 1}
        arguments = {key: value for key, value in optional.items() if key in self.accepts}
        output = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **arguments)
        return output.logits[:, -1].float()

    def _choose(self, logits: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        if self.warpers is None:
            return logits.argmax(-1)
        if seen is not None:
            logits = torch.where(seen, torch.where(logits < 0, logits * self.penalty, logits / self.penalty), logits)
        tokens = torch.multinomial(self.warpers(None, logits).softmax(-1), 1, generator=self.random)
        if seen is not None:
            seen.scatter_(1, tokens, True)
        return tokens.squeeze(1)

    def admit(self, jobs: list[Job]) -> None:
        """Take in new rows; samples of the same prompt are computed once up to its end."""
        wanted = [tuple(prompt) for _, prompt in jobs]
        prompts = list(dict.fromkeys(wanted))
        padded = {"input_ids": [list(prompt) for prompt in prompts]}
        inputs = self.tokenizer.pad(padded, padding_side="left", return_tensors="pt").to(self.model.device)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        cache = DynamicCache(config=self.model.config)
        cache.layers = [_Layer() for _ in cache.layers]
        logits = self._logits(ids, (mask.cumsum(-1) - 1).clamp(min=0), mask, cache)
        seen = None
        if self.penalty != 1:  # padding does not count as a token of the prompt
            seen = torch.zeros_like(logits, dtype=mask.dtype).scatter_add_(1, ids, mask).bool()
        if len(prompts) < len(jobs):
            places = {prompt: place for place, prompt in enumerate(prompts)}
            copies = torch.tensor([places[prompt] for prompt in wanted], device=ids.device)
            logits, mask, seen = logits[copies], mask[copies], None if seen is None else seen[copies]
            for layer in cache.layers:
                layer.hold(layer.keys[copies], layer.values[copies])
        tokens, rows = self._choose(logits, seen), [_Row(job) for job, _ in jobs]
        if self.rows:
            length = max(mask.shape[1], self.mask.shape[1])
            wider, other = length - mask.shape[1], length - self.mask.shape[1]
            for old, new in zip(self.cache.layers, cache.layers, strict=True):
                old.hold(
                    torch.cat([_pad(old.keys, other), _pad(new.keys, wider)]),
                    torch.cat([_pad(old.values, other), _pad(new.values, wider)]),
                )
            pad = torch.nn.functional.pad
            mask = torch.cat([pad(self.mask, (other, 0)), pad(mask, (wider, 0))])
            seen = None if seen is None else torch.cat([self.seen, seen])
            cache, tokens, rows = self.cache, torch.cat([self.tokens, tokens]), self.rows + rows
        self.rows, self.cache, self.mask, self.tokens, self.seen = rows, cache, mask, tokens, seen
        self._note(len(jobs))

    def step(self) -> None:
        """One more token for every row."""
        # what a row that has ended still computes is nobody's: masked, it needs no further position
        running = self.mask.new_tensor([[not (row.ended or row.cut)] for row in self.rows])
        self.mask = torch.cat([self.mask, running], dim=1)
        positions = self.mask.sum(-1, keepdim=True) - 1
        self.tokens = self._choose(self._logits(self.tokens[:, None], positions, self.mask, self.cache), self.seen)
        self._note(len(self.rows))

    def _note(self, count: int) -> None:
        """Write the new tokens down, for the last `count` rows."""
        for row, token in zip(self.rows[-count:], self.tokens[-count:].tolist(), strict=True):
            if not (row.ended or row.cut):
                row.ids.append(token)
                row.ended = token in self.ends
                row.cut = not row.ended and len(row.ids) == self.max_new_tokens

    def leave(self) -> Iterator[tuple[int, list[int], bool]]:
        """Give what has ended and take it out of the batch, unless it is too little to be worth a copy of the rest."""
        left = [row for row in self.rows if row.ended or row.cut]
        if not left or 8 * len(left) < len(self.rows):
            return
        yield from ((row.job, row.ids, row.cut) for row in left)
        stay = [index for index, row in enumerate(self.rows) if not (row.ended or row.cut)]
        self.rows = [self.rows[index] for index in stay]
        if self.rows:
            kept = torch.tensor(stay, device=self.model.device)
            self.tokens, self.mask = self.tokens[kept], self.mask[kept]
            self.seen = None if self.seen is None else self.seen[kept]
            unused = self.mask.shape[1] - int(self.mask.sum(-1).max())  # the longest may have left
            self.mask = self.mask[:, unused:]
            for layer in self.cache.layers:
                layer.hold(layer.keys[kept, :, unused:], layer.values[kept, :, unused:])
