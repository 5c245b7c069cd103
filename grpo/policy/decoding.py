"""A model while it samples: attention on sdpa, adapters merged, weights in the arithmetic of the loss; then as before.

Nothing of a model is computed back: what samples are copies, and the modules get their own tensors again.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import psutil
import torch
from peft import PeftModel
from peft.tuners import lora
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module, Parameter
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache

from grpo.core.processes import say

if TYPE_CHECKING:
    from grpo.policy.generation import Sampling


def base_of(model: Any) -> Any:
    """The model itself: a PEFT model's layers hold the adapter, and its own forward hides what the model's takes."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextlib.contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients, `on_sdpa`, with `sampling_weights`; all restored, also where it fails."""
    training = model.training
    plain = "unsloth" not in sys.modules  # whose models have attention and adapters of their own
    with contextlib.ExitStack() as stack:
        if plain:
            stack.enter_context(on_sdpa(model))
            stack.enter_context(sampling_weights(model))
        stack.enter_context(torch.no_grad())
        model.eval()
        try:
            yield
        finally:
            model.train(training)


@contextlib.contextmanager
def on_sdpa(model: Any) -> Iterator[None]:
    """Attention by sdpa, which needs no work on the cache between tokens, whatever the model trains with.

    FlashAttention-2 unpads the whole cache in every layer for every token, FlexAttention compiles a block mask.
    `eager` stays: whoever sets it needs what sdpa lacks (Gemma 2 caps its scores).
    """
    base = base_of(model)
    configs = {id(module.config): module.config for module in base.modules() if hasattr(module, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    if base.config._attn_implementation in ("sdpa", "eager", None) or not base._supports_sdpa:
        yield
        return
    try:
        base.set_attn_implementation("sdpa")
        yield
    finally:
        for config, implementation in before:  # the model's own first, which would also set its parts'
            config._attn_implementation = implementation


@contextlib.contextmanager
def sampling_weights(model: Any) -> Iterator[None]:
    """LoRA merged, and under autocast 16-bit copies of float32 weights, which it would cast anew for each token.

    The sum of a weight and its adapter is rounded to the format in which the forward multiplies. Weights that are
    quantized or sharded are left as they are, with a line where that leaves an adapter unmerged; so are those for
    whose copies half of the free memory is too little.
    """
    layers = [module for module in model.modules() if isinstance(module, lora.LoraLayer)]
    merging: list[Any] = [layer for layer in layers if not (layer.disable_adapters or layer.merged)]
    why_not = why_not_merged(model, merging)
    if why_not:
        _note(f"note: the adapter is not merged to sample, because {why_not}")
        merging = []
    modules = dict.fromkeys(_cast_anew(model, layers)) | {layer.get_base_layer(): layer for layer in merging}
    if sum(_bytes_of_copy(module) for module in modules) > free_memory(model.device) / 2:
        if merging:
            _note("note: the adapter is not merged to sample, because copies of its weights take too much memory")
        merging, modules = [], {}
    before = [(module, dict(module._parameters)) for module in modules]
    try:
        with torch.no_grad():
            for module, layer in modules.items():
                _use_copy(module, layer)
        yield
    finally:
        for module, parameters in before:
            module._parameters.update(parameters)
        for layer in merging:
            layer.merged_adapters.clear()  # `unmerge` would subtract, from a copy that nobody needs


def _use_copy(module: Module, layer: Any) -> None:
    """Let a module compute with a copy of its weights, with the adapter's share where `layer` has one."""
    held = {name: weight for name, weight in module._parameters.items() if weight is not None}
    for name, weight in held.items():
        module._parameters[name] = Parameter(weight.detach().clone(), requires_grad=False)
    if layer is not None:
        layer.merge()
    for name in held:
        found = module._parameters[name]
        assert found is not None
        new = in_autocast(found) if type(module) is torch.nn.Linear else found
        module._parameters[name] = Parameter(new.detach(), requires_grad=False)


def merged_weights(layer: Any) -> dict[str, torch.Tensor]:
    """Copies of a LoRA layer's own weight and bias with the adapter's share; the layer stays as it is."""
    module = layer.get_base_layer()
    before = dict(module._parameters)
    try:
        with torch.no_grad():
            _use_copy(module, layer)
        return {name: weight.data for name, weight in module._parameters.items() if weight is not None}
    finally:
        module._parameters.update(before)
        layer.merged_adapters.clear()


def why_not_merged(model: Any, layers: Sequence[Any]) -> str | None:
    """Why these LoRA layers of a model are not merged into copies of its weights; None: they can be."""
    if layers and is_sharded(model):
        return "its weights are sharded"
    weights = [layer.get_base_layer().weight for layer in layers if type(layer) in (lora.Linear, lora.Embedding)]
    exact = [type(weight) is Parameter and weight.element_size() > 1 for weight in weights]  # 1: float8
    if len(weights) < len(layers) or not all(exact):
        return "its base is quantized, or it changes more than linear layers and embeddings"
    return None


def _cast_anew(model: Any, layers: Sequence[Any]) -> list[Module]:
    """The modules whose float32 weights autocast turns into 16-bit ones in each forward."""
    own = {child for layer in layers for child in layer.modules()} - {layer.get_base_layer() for layer in layers}
    found = [] if is_sharded(model) else [module for module in model.modules() if module not in own]
    device = model.device.type
    return [
        module
        for module in found
        if torch.is_autocast_enabled(device)
        and type(module) is torch.nn.Linear
        and module.weight.dtype == torch.float32
    ]


def in_autocast(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 tensor in the format that autocast, where it is on, would convert it to for a product."""
    device = tensor.device.type
    cast = tensor.dtype == torch.float32 and torch.is_autocast_enabled(device)
    return tensor.to(torch.get_autocast_dtype(device)) if cast else tensor


def is_sharded(model: Any) -> bool:
    """Whether FSDP2 or ZeRO-3 has divided its weights over devices."""
    return any(isinstance(module, FSDPModule) for module in model.modules()) or any(
        hasattr(weight, "ds_id") for weight in model.parameters()
    )


def _bytes_of_copy(module: Module) -> int:
    held = list(module.parameters(recurse=False))
    formats = [in_autocast(weight[:0]) if type(module) is torch.nn.Linear else weight for weight in held]
    return sum(weight.numel() * kept.element_size() for weight, kept in zip(held, formats, strict=True))


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate on a device."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused)


@functools.cache
def _note(text: str) -> None:
    """Once: a run samples many times."""
    say(text)


class NextToken:
    """The next token of a model: its logits, whatever the forward accepts, and which one is drawn."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, sampling: "Sampling | None") -> None:
        self.base, self.tokenizer = base_of(model), tokenizer
        self.warpers = sampling.warpers() if sampling else None
        self.accepts = set(signature(type(self.base).forward).parameters)  # an instance may be wrapped

    def logits(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> Any:
        """Of the next token of every row, (rows, vocabulary)."""
        optional = {"position_ids": positions, "logits_to_keep": 1}
        arguments = {key: value for key, value in optional.items() if key in self.accepts}
        output = self.base(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **arguments)
        return output.logits[:, -1].float()

    def read(self, prompts: Sequence[Sequence[int]], cache: DynamicCache) -> tuple[Any, torch.Tensor]:
        """Fill an empty cache with prompts, padded on the left: the logits after them, and their mask."""
        padded = {"input_ids": [list(prompt) for prompt in prompts]}
        inputs = self.tokenizer.pad(padded, padding_side="left", return_tensors="pt").to(self.base.device)
        mask: Any = inputs["attention_mask"]
        return self.logits(inputs["input_ids"], (mask.cumsum(-1) - 1).clamp(min=0), mask, cache), mask

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """A token for each row, (rows,): the likeliest, or a draw from the global random state."""
        if self.warpers is None:
            return logits.argmax(-1)
        scores: Any = self.warpers(None, logits)  # type: ignore[arg-type]  # they read no ids
        chances = scores.softmax(-1)
        return (chances / torch.empty_like(chances).exponential_()).argmax(-1)  # torch.multinomial, without its checks
