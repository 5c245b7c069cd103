"""How much memory and disk a run will take, from the model's shape alone: no weights are loaded."""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from . import sharding

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
# Bytes of optimizer state for a trained weight that itself has `b` bytes; what is not named keeps two moments.
STATE_BYTES = (
    ("8bit", lambda b: 2.0),
    ("4bit", lambda b: 1.0),
    ("stable_adamw", lambda b: 8.0 if b == 4 else 6.0),
    ("adafactor", lambda b: 0.1),
    ("sgd", lambda b: 0.0),
    ("lion", lambda b: b),
)


@dataclass(frozen=True)
class Shape:
    """A model's sizes; `trained` counts the weights that get a gradient."""

    parameters: int
    trained: int
    adapter: bool  # only that is trained
    layers: int
    hidden: int
    intermediate: int
    key_value: int  # width of a layer's keys: heads × head size
    vocabulary: int
    positions: int | None  # the longest sequence it was made for


def shape(model_config: Any, peft_config: Any = None, trust_remote_code: bool = False) -> Shape:
    """The model's shape, built without memory on torch's meta device; with an adapter only that is trained.

    Raises:
        ValueError: this is no causal language model, or the adapter finds none of its target modules in it.
        RuntimeError: some models of other people's code cannot be built without weights.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), sharding.loaded_whole():
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
        key_value=size("num_key_value_heads", heads) * size("head_dim", hidden // heads),
        vocabulary=size("vocab_size", 0),
        positions=size("max_position_embeddings", 0) or None,
    )


def _bytes(shape: Shape, model: Any, optim: str) -> tuple[float, float, float]:
    """Bytes of all weights, of the trained ones, and of their optimizer state."""
    held = 0.55 if model.load_in_4bit else 1.05 if model.load_in_8bit else BYTES.get(str(model.dtype), 4)
    trained = 4 if shape.adapter else BYTES.get(str(model.dtype), 4)  # an adapter is float32
    per_weight = next((rule(trained) for name, rule in STATE_BYTES if name in optim), 2.0 * trained)
    adapter = shape.trained * trained if shape.adapter else 0
    return shape.parameters * held + adapter, shape.trained * trained, shape.trained * per_weight


def memory(
    shape: Shape,
    training: Any,
    model: Any,
    rollout_per_device: int,
    prompt_length: int,
    pack_tokens: int | None = None,
) -> dict[str, float]:
    """Bytes on a device at the peak of a run, by what takes them: at least about so much.

    Not yet held against a GPU. On a CPU, whose allocator keeps what it has freed, SmolLM2 took twice as much.

    Args:
        training, model: the GRPOConfig and ModelConfig.
        rollout_per_device: completions that one device generates at once.
        prompt_length: of the longest prompts, in tokens.
        pack_tokens: what a training step computes at once, at most; None: a padded micro-batch.
    """
    weights, trained, state = _bytes(shape, model, training.optim.value)
    number = BYTES.get(str(model.dtype), 4)
    if training.bf16 or training.fp16:
        number = 2
    length = prompt_length + training.max_completion_length
    tokens = training.per_device_train_batch_size * length
    if pack_tokens:
        tokens = min(tokens, max(pack_tokens, length))
    layer = tokens * (10 * shape.hidden + 4 * shape.intermediate) * number
    checkpointing = training.gradient_checkpointing
    activations = shape.layers * tokens * shape.hidden * number + layer if checkpointing else shape.layers * layer
    cache = rollout_per_device * length * shape.layers * 2 * shape.key_value * number
    cache += rollout_per_device * shape.vocabulary * 4 * 2  # the last position's logits and their shares
    return {
        "weights": weights,
        "reference model": weights if training.beta and not shape.adapter else 0.0,
        "gradients": trained,
        "optimizer": state,
        "activations or generation": max(activations, cache),  # the two phases take turns
    }


def disk(shape: Shape, training: Any, model: Any) -> tuple[float, float]:
    """Bytes of one checkpoint (trained weights and optimizer state) and of the final model."""
    _, trained, state = _bytes(shape, model, training.optim.value)
    final = trained if shape.adapter else shape.parameters * BYTES.get(str(model.dtype), 4)
    return final + (0.0 if training.save_only_model else state), final
