"""Estimate the memory and disk of a run from the model's shape, without loading weights.

The estimates are within an eighth of what torch allocated on a GPU in five runs (benchmarks/RESULTS.md, On a GPU). The
CUDA context and unused memory of the allocator, up to a fifth more, are not included.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.pytorch_utils import Conv1D
from trl import GRPOConfig, ModelConfig

from grpo.policy.loading import loaded_whole
from lean_grpo import decoding
from lean_grpo.sampling import adapted_weights

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
# Bytes of optimizer state for a trained weight; other optimizers keep two moments in the weight's own format
STATE_BYTES = {"8bit": 2.03, "4bit": 1.0, "adafactor": 0.1, "sgd": 0.0}


SHARE = 0.9  # of a device's memory: CUDA's context and the allocator's unused memory have the rest


def room(free: float, total: float) -> float:
    """Return the bytes of a device that a run may take by the estimate, so that it fits."""
    return min(free, SHARE * total)


@dataclass(frozen=True)
class Shape:
    """A model's sizes; `trained` counts the weights that get a gradient."""

    parameters: int
    trained: int
    adapter: bool  # True: only an adapter is trained
    adapted: int  # base weights of layers with LoRA
    inputs: int  # widths of these layers' inputs, summed
    layers: int
    hidden: int
    intermediate: int
    key_value: int  # width of a layer's keys; they may have fewer heads than queries
    vocabulary: int
    positions: int | None  # the longest supported sequence
    linear: tuple[str, ...]  # names of linear layers
    unmatched: dict[str, list[str]]  # by setting: modules that a new adapter names and the model lacks


def shape(model_config: PretrainedConfig, peft_config: Any = None, trust_remote_code: bool = False) -> Shape:
    """Build the model and its adapter on torch's meta device, without memory, and return the shape.

    Raises:
        ValueError: this is not a causal LM, or it has none of the adapter's target modules.
        RuntimeError: some models with custom code cannot be built without weights.
    """
    with torch.device("meta"), loaded_whole():
        model = AutoModelForCausalLM.from_config(
            model_config, trust_remote_code=trust_remote_code, attn_implementation="eager"
        )
        parameters = sum(weight.numel() for weight in model.parameters())
        names = [name for name, _ in model.named_modules()]
        layers = (name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D))
        linear = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        of_weights = [name for name, _ in model.named_parameters()]
        named = {"target_modules": names, "modules_to_save": names, "target_parameters": of_weights}
        is_new = peft_config is not None and peft_config.base_model_name_or_path is None
        unmatched = {f"lora_{key}": _unmatched(getattr(peft_config, key, None), named[key]) for key in named if is_new}
        if peft_config is not None and not any(unmatched.values()):
            peft_config = copy.deepcopy(peft_config)
            peft_config.inference_mode = False  # True in saved ones
            model = get_peft_model(model, peft_config)
    text = model_config.get_text_config(decoder=True)

    def size(name: str, default: int) -> int:
        value = getattr(text, name, None) or default
        return max(value) if isinstance(value, list | tuple) else value  # one value per layer

    hidden, heads = size("hidden_size", 0), size("num_attention_heads", 1)
    return Shape(
        parameters=parameters,
        trained=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        adapter=peft_config is not None,
        adapted=sum(weight.numel() for weight in adapted_weights(model)),
        inputs=sum(module.in_features or 0 for module in model.modules() if isinstance(module, LoraLayer)),
        layers=size("num_hidden_layers", 0),
        hidden=hidden,
        intermediate=size("intermediate_size", 4 * hidden),
        key_value=size("num_key_value_heads", heads) * size("head_dim", hidden // heads),
        vocabulary=size("vocab_size", 0),
        positions=size("max_position_embeddings", 0) or None,
        linear=tuple(linear),
        unmatched={key: missing for key, missing in unmatched.items() if missing},
    )


def _unmatched(wanted: Any, names: Sequence[str]) -> list[str]:
    """List the targets that match the end of no name; PEFT ignores them."""
    wanted = sorted(wanted) if isinstance(wanted, set | list) else []
    return [target for target in wanted if not any(f".{name}".endswith(f".{target}") for name in names)]


def weight_bytes(
    shape: Shape, training: GRPOConfig, model: ModelConfig, shards: int = 1
) -> tuple[float, float, float]:
    """Return the bytes per device of weights, gradients and optimizer state."""
    dtype = BYTES.get(str(model.dtype), 4)
    frozen = 0.55 if model.load_in_4bit else 1.05 if model.load_in_8bit else dtype
    trained = 4 if shape.adapter or shards > 1 else dtype  # an adapter is float32, and so are FSDP2's weights
    weights = shape.trained * trained + (shape.parameters * frozen if shape.adapter else 0.0)
    optim = optimizer(training)
    state = shape.trained * next((size for name, size in STATE_BYTES.items() if name in optim), 2.0 * trained)
    if "8bit" in optim and "torch" not in optim and not shape.adapter:
        state += 6.0 * shape.vocabulary * shape.hidden  # the Trainer gives bitsandbytes' embeddings 32 bits
    return weights / shards, shape.trained * trained / shards, state / shards


def optimizer(training: GRPOConfig) -> str:
    """Return the optimizer's name."""
    return str(getattr(training.optim, "value", training.optim))


def least(shape: Shape, training: GRPOConfig, model: ModelConfig, shards: int = 1) -> dict[str, float]:
    """Return the bytes per device, by purpose, that an optimizer step takes whatever the completions are."""
    weights, gradients, state = weight_bytes(shape, training, model, shards)
    reference = weights if training.beta and not shape.adapter else 0.0
    return {"weights": weights, "reference model": reference, "optimizer": state, "gradients": gradients}


def memory(
    shape: Shape,
    training: GRPOConfig,
    model: ModelConfig,
    rollout_per_device: int,
    prompt_length: int,
    pack_tokens: int | None = None,
    device_memory: float = 0.0,
    answers: int = 0,
    shards: int = 1,
) -> dict[str, float]:
    """Estimate the bytes per device, by purpose, at the peak of a run whose completions are as long as allowed.

    The peak is in a training step, an optimizer step, a rollout or an evaluation. Shorter completions take less.

    Args:
        rollout_per_device: completions that one device generates at once.
        prompt_length: tokens of the longest prompt.
        pack_tokens: most tokens that a training step computes at once; None: a padded micro-batch.
        device_memory: bytes of the device; vLLM reserves its share of them.
        answers: held-out questions that one device answers at once.
        shards: devices that share weights, gradients and optimizer with FSDP2 or ZeRO-3; 1: each device has all.
    """
    always = least(shape, training, model, shards)
    gradients = always.pop("gradients")
    length = prompt_length + (training.max_completion_length or 0)
    tokens = training.per_device_train_batch_size * length
    tokens = min(tokens, max(pack_tokens, length)) if pack_tokens else tokens
    row = row_bytes(shape, training, model, length)
    vllm = {"vLLM": training.vllm_gpu_memory_utilization * device_memory} if training.use_vllm else {}
    between_rollouts = {} if training.vllm_enable_sleep_mode else vllm
    # on a GPU, torch.optim.AdamW takes the root of all second moments at once unless it is fused
    roots = gradients if optimizer(training) == "adamw_torch" and not training.use_cpu else 0.0
    quantized = model.load_in_4bit or model.load_in_8bit
    copies = 0.0 if quantized else float(shape.adapted * BYTES.get(str(model.dtype), 4))
    computed, sampler = training_step(shape, training, model, tokens), dict[str, float]()
    number = forward_bytes(training, model)
    if number < BYTES.get(str(model.dtype), 4) and not quantized:  # lent to a rollout (lean_grpo/sampling.py)
        sampler = {"weights in 16 bits": float(number * shape.parameters)}
    if shards > 1:  # gathered to train: embeddings, two layers, the gradients of one; to sample: all weights
        embedding = shape.vocabulary * shape.hidden
        layer = (shape.parameters - embedding) / shape.layers
        computed += number * (embedding + 2 * layer) + (0 if shape.adapter else (number + 4) * layer)
        sampler = {"gathered weights": float(number * shape.parameters)}
    moments: tuple[dict[str, float], ...] = (
        {**between_rollouts, "gradients": gradients, "training step": computed},
        {**between_rollouts, "gradients": gradients, "optimizer step": roots},
        {**vllm, "copies of frozen weights": copies} if vllm else {**sampler, "generation": rollout_per_device * row},
        {**between_rollouts, **sampler, "evaluation": answers * row},
    )
    return always | max(moments, key=lambda parts: sum(parts.values()))


def row_bytes(shape: Shape, training: GRPOConfig, model: ModelConfig, length: int) -> float:
    """Return the bytes of a row of this length while it is sampled: keys and values, and logits while it is drawn."""
    number, positions = forward_bytes(training, model), decoding.rounded_up(length, decoding.ALIGNED)
    return float(positions * shape.layers * 2 * shape.key_value * number + shape.vocabulary * (number + 16))


def forward_bytes(training: GRPOConfig, model: ModelConfig) -> int:
    """Return the bytes of a number in the forward pass."""
    return 2 if training.bf16 or training.fp16 else BYTES.get(str(model.dtype), 4)


def training_step(shape: Shape, training: GRPOConfig, model: ModelConfig, tokens: int) -> float:
    """Estimate the bytes of forward and backward over `tokens` at once, without weights, gradients and optimizer.

    For the backward a layer keeps of each token:
    - if all weights are trained: inputs and outputs of both norms, queries, keys, values, attention's output, and four
      vectors of the MLP;
    - with LoRA: fewer of these, and a copy and a dropout mask of each adapted layer's input;
    - with checkpointing: the layer's input. One layer at a time is computed again.

    The backward adds the larger of two: the head (tiles of logits; if trained, its gradient and autocast's copies of
    float32 weights), or one layer.
    """
    dtype, number = BYTES.get(str(model.dtype), 4), forward_bytes(training, model)
    layer: float = (4 if shape.adapter else 8) * dtype * shape.hidden + (number + 1) * shape.inputs / shape.layers
    layer += number * (2 * shape.hidden + 2 * shape.key_value + (3 if shape.adapter else 4) * shape.intermediate)
    embedding = shape.vocabulary * shape.hidden
    head: float = min(tokens, 4096) * min(shape.vocabulary, 32768) * (number + (20 if training.use_cpu else 0))
    if not shape.adapter:
        head += embedding * (4.0 if dtype == 4 else 4.0 + dtype)
        head += number * (shape.parameters - embedding) if number < dtype else 0
    per_layer = dtype * shape.hidden if training.gradient_checkpointing else layer
    activations = tokens * (5 * dtype * shape.hidden + shape.layers * per_layer)
    now: float = (10 if shape.adapter else 2 * number) * shape.intermediate  # LoRA's dropout is in float32
    now += layer if training.gradient_checkpointing else 0
    return float(activations + max(head, tokens * now))


def disk(shape: Shape, training: GRPOConfig, model: ModelConfig) -> tuple[float, float]:
    """Return the bytes of one checkpoint (trained weights and optimizer state) and of the final model."""
    _, trained, state = weight_bytes(shape, training, model)
    final = trained if shape.adapter else float(shape.parameters * BYTES.get(str(model.dtype), 4))
    return final + (0.0 if training.save_only_model else state), final
