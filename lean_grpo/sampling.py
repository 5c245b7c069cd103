"""Sample completions in one batch that shrinks: equal prompts are read once, rows that end leave.

`model.generate` computes every row until the longest completion ends. Here greedy completions are the same and samples
have the same distribution (tests/lean_grpo/test_rollouts.py), for a part of the work (benchmarks/speed.py).
vLLM, which is faster on a GPU, is TRL's own switch `use_vllm`.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import LogitsProcessorList, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

NEEDED = {"position_ids", "logits_to_keep"}  # arguments of a model's forward, beside the cache


@dataclass(frozen=True)
class Sampling:
    """The settings by which tokens are drawn, under GRPOConfig's names."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0  # only model.generate follows it

    @classmethod
    def of(cls, settings: Any) -> "Sampling":
        """The settings of a GRPOConfig or a GRPOTrainer."""
        values = {name: getattr(settings, name) for name in cls.__dataclass_fields__}
        return cls(**values | {"temperature": float(settings.temperature)})  # generate refuses an int

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """A token for each row of (rows, vocabulary), from the global random state."""
        warpers = LogitsProcessorList([TemperatureLogitsWarper(self.temperature)])
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            warpers.append(MinPLogitsWarper(self.min_p))
        scores: Any = warpers(None, logits)  # type: ignore[arg-type]  # they read no ids
        chances = scores.softmax(-1)
        return (chances / torch.empty_like(chances).exponential_()).argmax(-1)  # torch.multinomial, without its checks


def reason_against(model: Any, sampling: Sampling | None = None) -> str | None:
    """The reason why `model.generate` has to sample instead, as the end of `because …`; None where it need not."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    if "unsloth" in sys.modules:
        return "Unsloth's models decode in a way of their own"
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return "the adapter adds tokens to the prompt"
    if not has_plain_cache(model):  # rows cannot leave others
        return "the model has sliding windows or states"
    if not (parameters_of(base) >= NEEDED and cache_argument(base)):
        return f"the model's forward takes no cache, or lacks one of {', '.join(sorted(NEEDED))}"
    if sampling and sampling.repetition_penalty != 1:
        return "repetition_penalty is set"
    return None


def parameters_of(model: Any) -> Set[str]:
    """The names of the arguments of the model's forward."""
    return signature(type(model).forward).parameters.keys()


def cache_argument(model: Any) -> str:
    """The name under which the model's forward takes a cache, which transformers 5.24 changed; empty for none."""
    return next((name for name in ("cache", "past_key_values") if name in parameters_of(model)), "")


def has_plain_cache(model: Any) -> bool:
    """True if the model keeps keys and values of each position, and nothing else."""
    layers = DynamicCache(config=model.config).layers
    return not model._is_stateful and all(type(layer) is DynamicLayer for layer in layers)


@contextlib.contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Evaluation mode, without gradients: dropout takes no part in sampling, as with vLLM."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def complete(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    ended: Callable[[int], Any] = lambda rows: None,
) -> list[list[int]]:
    """A completion of each prompt, with the end token that it ended with, if it did; to be called in `sampling_mode`.

    Args:
        prompts: token ids, all of them in one batch.
        ends: tokens that end a completion.
        sampling: None takes the likeliest token.
        ended: called with the number of rows that leave the batch.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model  # its layers hold the adapter
    choose = sampling.draw if sampling else lambda logits: logits.argmax(-1)
    cache: Any = DynamicCache(config=base.config)
    cache_name = cache_argument(base)

    def logits_after(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = base(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
            **{cache_name: cache},
        )  # fmt: skip
        return output.logits[:, -1].float()

    indices = {prompt: index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    padded = tokenizer.pad({"input_ids": list(map(list, indices))}, padding_side="left", return_tensors="pt")
    mask: Any = padded["attention_mask"].to(base.device)
    logits = logits_after(padded["input_ids"].to(base.device), (mask.cumsum(-1) - 1).clamp(min=0))
    if len(indices) < len(prompts):
        copies = torch.tensor([indices[tuple(prompt)] for prompt in prompts], device=base.device)
        cache.batch_select_indices(copies)
        logits, mask = logits[copies], mask[copies]
    done: list[list[int]] = [[] for _ in prompts]
    rows, running = list(range(len(prompts))), set(range(len(prompts)))
    while True:
        tokens = choose(logits)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if row in running:
                done[row].append(token)
                if token in ends or len(done[row]) == max_new_tokens:
                    running.remove(row)
        if 8 * (len(rows) - len(running)) >= len(rows):  # fewer are not worth a copy of the cache
            stay = [index for index, row in enumerate(rows) if row in running]
            ended(len(rows) - len(stay))
            if not stay:
                return done
            kept = torch.tensor(stay, device=base.device)
            cache.batch_select_indices(kept)
            mask, tokens, rows = mask[kept], tokens[kept], [rows[index] for index in stay]
        # an ended row that has not left is masked: it needs no position beyond the model's last one
        mask = torch.cat([mask, mask.new_tensor([[row in running] for row in rows])], 1)
        logits = logits_after(tokens[:, None], mask.sum(-1, keepdim=True) - 1)


def adapted_weights(model: Any) -> list[torch.Tensor]:
    """The base weights of LoRA layers."""
    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, LoraLayer)]
    return [weight for layer in layers for weight in layer.parameters(recurse=False) if weight.is_floating_point()]


def keeping_frozen_weights(sync_weights: Callable[[], None], model: Any) -> Callable[[], None]:
    """TRL's `sync_weights` for vLLM, after which the base weights of LoRA layers are what they were.

    TRL merges an adapter into them and subtracts it again, which rounds: 16-bit weights would drift.
    """
    weights = adapted_weights(model)

    def sync() -> None:
        exact = [weight.detach().clone() for weight in weights]
        sync_weights()
        for weight, value in zip(weights, exact, strict=True):
            weight.data.copy_(value)

    return sync
