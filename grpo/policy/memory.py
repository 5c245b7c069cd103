"""Estimates of the memory and disk that a run takes, from the model's shape alone: no weights are loaded.

Within about a fifth of the tensors that are alive in a training step (benchmarks/RESULTS.md); not yet compared with a
GPU. Not included: the CUDA context, what an allocator keeps unused, eager attention's scores.
"""

import copy
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from grpo.policy import sharding as sharded
from grpo.policy.vllm import CPU_CACHE

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from trl import GRPOConfig, ModelConfig

    # engines.py estimates before there is a GRPOConfig
    Training: TypeAlias = GRPOConfig | SimpleNamespace
    Model: TypeAlias = ModelConfig | SimpleNamespace


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
# Bytes of optimizer state for a trained weight that itself has `b` bytes; others keep two moments of as many
STATE_BYTES = (
    ("8bit", lambda b: 2.0),
    ("4bit", lambda b: 1.0),
    ("stable_adamw", lambda b: 8.0 if b == 4 else 6.0),
    ("adafactor", lambda b: 0.1),
    ("sgd", lambda b: 0.0),
    ("lion", lambda b: b),
)
# Bytes of activations, CUDA graphs and the sampler in vLLM: an assumption, not measured
VLLM_ROOM = 2e9


@dataclass(frozen=True)
class Shape:
    """A model's sizes; `trained` counts the weights that get a gradient."""

    parameters: int
    trained: int
    adapter: bool  # only that is trained
    layers: int
    hidden: int
    intermediate: int
    query: int  # width of a layer's queries: heads × head size
    key_value: int  # of its keys, which may have fewer heads
    vocabulary: int
    heads: int  # 1 where the head is the embedding (tied), else 2
    positions: int | None  # the longest sequence it was made for

    @property
    def embedding(self) -> int:
        """Weights of the embedding, and of the head."""
        return self.vocabulary * self.hidden


def shape(model_config: "PretrainedConfig", peft_config: Any = None, trust_remote_code: bool = False) -> Shape:
    """The model's shape, built without memory on torch's meta device; with an adapter only that is trained.

    Raises:
        ValueError: this is not a causal LM, or the adapter finds none of its target modules in it.
        RuntimeError: some models with custom code cannot be built without weights.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), sharded.loaded_whole():
        model = AutoModelForCausalLM.from_config(model_config, trust_remote_code=trust_remote_code)
        parameters = sum(weight.numel() for weight in model.parameters())
        if peft_config is not None:
            from peft import get_peft_model

            peft_config = copy.deepcopy(peft_config)
            peft_config.inference_mode = False  # which a saved one is set to
            model = get_peft_model(model, peft_config)
    text = model_config.get_text_config(decoder=True)

    def size(name: str, default: int) -> int:
        try:
            value = getattr(text, name, None) or default
        except AttributeError:  # layers that differ, and refuse to say in one number
            return default
        return max(value) if isinstance(value, list | tuple) else value

    hidden, heads = size("hidden_size", 0), size("num_attention_heads", 1)
    return Shape(
        parameters=parameters,
        trained=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        adapter=peft_config is not None,
        layers=size("num_hidden_layers", 0),
        hidden=hidden,
        intermediate=size("intermediate_size", 4 * hidden),
        query=heads * size("head_dim", hidden // heads),
        key_value=size("num_key_value_heads", heads) * size("head_dim", hidden // heads),
        vocabulary=size("vocab_size", 0),
        heads=1 if getattr(text, "tie_word_embeddings", True) else 2,
        positions=size("max_position_embeddings", 0) or None,
    )


def _number(training: "Training", model: "Model") -> int:
    """Bytes of a number in the forward pass."""
    return 2 if training.bf16 or training.fp16 else BYTES.get(str(model.dtype), 4)


def _optimizer(training: "Training") -> str:
    return str(getattr(training.optim, "value", training.optim))


def weight_bytes(shape: Shape, training: "Training", model: "Model") -> tuple[float, float, float]:
    """Bytes of all weights, of the gradients, and of the optimizer's state."""
    optim = _optimizer(training)
    held = 0.55 if model.load_in_4bit else 1.05 if model.load_in_8bit else BYTES.get(str(model.dtype), 4)
    trained = 4 if shape.adapter else BYTES.get(str(model.dtype), 4)  # an adapter is float32
    state = next((rule(trained) for name, rule in STATE_BYTES if name in optim), 2.0 * trained)
    adapter = shape.trained * trained if shape.adapter else 0
    return shape.parameters * held + adapter, float(shape.trained * trained), shape.trained * state


def memory(
    shape: Shape,
    training: "Training",
    model: "Model",
    rollout_per_device: int,
    prompt_length: int,
    pack_tokens: int | None = None,
    devices: int = 1,
    device_memory: float = 0.0,
    dense: bool = False,
) -> dict[str, float]:
    """Bytes of live tensors on a device at the peak of a run, by what takes them at that moment.

    Training, the optimizer's step and generation take turns; the largest counts.

    Args:
        rollout_per_device: completions that one device generates at once.
        prompt_length: of the longest prompts, in tokens.
        pack_tokens: what a training step computes at once, at most; None: a padded micro-batch.
        device_memory: bytes of the device, of which vLLM beside the trainer reserves its share.
        dense: whether packs are computed under a block mask (attention.Backend).
    """
    weights, gradients, state = weight_bytes(shape, training, model)
    length = prompt_length + (training.max_completion_length or 0)
    tokens = training.per_device_train_batch_size * length
    tokens = min(tokens, max(pack_tokens, length)) if pack_tokens else tokens
    beside = {"reference model": weights if training.beta and not shape.adapter else 0.0}
    sleeping = 0.0  # vLLM's share, where training has it back
    if training.use_vllm and training.vllm_mode == "colocate":
        share = training.vllm_gpu_memory_utilization * device_memory
        if training.use_cpu:
            share = float(os.environ.get(CPU_CACHE, 1)) * 2**30
        sleeping = share if training.vllm_enable_sleep_mode else 0.0
        beside["vLLM"] = share - sleeping
    resident = {"weights": weights, **beside, "optimizer": state}
    buckets = gradients if devices > 1 else 0.0  # DDP reduces gradients in a copy
    trained = {**resident, "gradients": gradients + buckets}
    copied = 0.0 if training.use_vllm else _copies(shape, training, model)
    step = training_step(shape, training, model, tokens, bool(pack_tokens), dense)
    in_place = any(name in _optimizer(training) for name in ("8bit", "4bit", "fused", "stable_adamw"))
    update = 0.0 if in_place else gradients  # torch's foreach takes all square roots at once
    sampling = _generation(shape, training, model, rollout_per_device, prompt_length)
    moments: list[dict[str, float]] = [
        {**trained, "training step": step},
        {**trained, "optimizer step": update},
        {**resident, "generation": sampling + copied + sleeping},
    ]
    return max(moments, key=lambda parts: sum(parts.values()))


def training_step(
    shape: Shape, training: "Training", model: "Model", tokens: int, packed: bool = True, dense: bool = False
) -> float:
    """Bytes of forward and backward over `tokens` at once, beside weights, gradients and optimizer.

    A position of a layer keeps for the backward: the inputs and outputs of both norms, queries, keys, values,
    attention's output, and four vectors of the MLP; with an adapter a quarter more, for its inputs and dropout masks.
    The peak is the head's backward, with checkpointing that of a layer, which is recomputed, or that of the embedding,
    which with a tied head has three gradients.
    """
    w, a = BYTES.get(str(model.dtype), 4), _number(training, model)
    autocast = a < w and not shape.adapter  # keeps 16-bit copies of float32 weights
    layer: float = 2 * shape.hidden * (8 if w == 2 else 15 if autocast else 12)
    layer += 2 * a * (shape.query + shape.key_value) + 4 * a * shape.intermediate
    layer = tokens * layer * (1.25 if shape.adapter else 1.0)
    checkpointing = training.gradient_checkpointing
    kept: float = shape.layers * (tokens * shape.hidden * w if checkpointing else layer)
    kept += tokens * shape.hidden * (10 if w == 2 else 20)  # the embedding and the last norm
    if packed and model.attn_implementation == "sdpa":
        kept += 3 * tokens**2  # the block mask, and what it is made of
    if packed and dense and not training.use_cpu:  # the mask as numbers
        kept += tokens**2 * a * (1 if checkpointing else shape.layers)
    # TRL's tiles of the head: a CPU folds them in five float32 copies, Triton in place
    head: float = min(tokens, 4096) * min(shape.vocabulary, 32768) * (a + 20 if training.use_cpu else a)
    head += 0.0 if shape.adapter else shape.embedding * (4.0 if w == 4 else 4.0 + w)
    head += 2.0 * (shape.parameters - shape.heads * shape.embedding) if autocast else 0.0
    in_layer = layer + tokens * shape.intermediate * (12 if shape.adapter else 2 * a)
    in_layer += 0.0 if shape.adapter else shape.embedding * w  # the head's gradient waits for the embedding's
    in_embedding = 0.0 if shape.adapter else shape.embedding * w * (3.0 if shape.heads == 1 else 2.0)
    return max(kept + head, kept + in_layer if checkpointing else 0.0, in_embedding)


def vllm_share(shape: Shape, rows: int, length: int) -> float:
    """Bytes that vLLM needs to sample so many sequences: 16-bit weights, a cache, and what it runs in.

    With less than a quarter of the cache it would sample a rollout in more than four turns.
    """
    cache = rows * length * shape.layers * 2 * shape.key_value * 2.0
    return 2.0 * shape.parameters + cache / 4 + VLLM_ROOM


def _generation(shape: Shape, training: "Training", model: "Model", rows: int, prompt_length: int) -> float:
    """The cache of a rollout and the logits of its last position, or the layer that reads all prompts at once."""
    if training.use_vllm:
        return 0.0
    a = _number(training, model)
    cache = _cache(shape, training, model, rows, prompt_length)
    layer = 3 * shape.intermediate + 4 * shape.hidden
    reading = rows * prompt_length * a * (shape.layers * 2 * shape.key_value + layer)
    return max(cache + rows * shape.vocabulary * (a + 12.0), reading)


def _cache(shape: Shape, training: "Training", model: "Model", rows: int, prompt_length: int) -> float:
    """Bytes of the keys and values of a rollout's longest sequences."""
    length = prompt_length + (training.max_completion_length or 0)
    return float(rows * length * shape.layers * 2 * shape.key_value * _number(training, model))


def _copies(shape: Shape, training: "Training", model: "Model") -> float:
    """Bytes of the weights' copies that sample: with an adapter merged, or of float32 weights in 16 bits."""
    if model.load_in_4bit or model.load_in_8bit:
        return 0.0
    a = _number(training, model)
    layers = shape.parameters - shape.heads * shape.embedding
    return float(a * (shape.parameters if a < BYTES.get(str(model.dtype), 4) else layers if shape.adapter else 0))


def disk(shape: Shape, training: "Training", model: "Model") -> tuple[float, float]:
    """Bytes of one checkpoint (trained weights and optimizer state) and of the final model."""
    _, trained, state = weight_bytes(shape, training, model)
    final = trained if shape.adapter else float(shape.parameters * BYTES.get(str(model.dtype), 4))
    return final + (0.0 if training.save_only_model else state), final
