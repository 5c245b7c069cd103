"""How much memory and disk a run will take, from the model's shape alone: no weights are loaded."""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from grpo.policy import sharding

# Which of weights, gradients and optimizer the devices share
SHARED = {
    "none": (False, False, False),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
    "fsdp2": (True, True, True),
}
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
    query: int  # width of a layer's queries: heads × head size
    key_value: int  # of its keys, which may have fewer heads
    vocabulary: int
    heads: int  # 1 where the head is the embedding (tied), else 2
    positions: int | None  # the longest sequence it was made for

    @property
    def embedding(self) -> int:
        """Weights of the embedding, and of the head."""
        return self.vocabulary * self.hidden


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
        query=heads * size("head_dim", hidden // heads),
        key_value=size("num_key_value_heads", heads) * size("head_dim", hidden // heads),
        vocabulary=size("vocab_size", 0),
        heads=1 if getattr(text, "tie_word_embeddings", True) else 2,
        positions=size("max_position_embeddings", 0) or None,
    )


def _bytes(shape: Shape, model: Any, optim: str, mixed: str = "none") -> tuple[float, float, float]:
    """Bytes of all weights, of the trained ones, and of their optimizer state.

    `mixed` divides the weights of a run with bf16: FSDP2 makes them float32, DeepSpeed keeps float32 ones beside.
    """
    held = 0.55 if model.load_in_4bit else 1.05 if model.load_in_8bit else BYTES.get(str(model.dtype), 4)
    trained = 4 if shape.adapter else BYTES.get(str(model.dtype), 4)  # an adapter is float32
    if mixed == "fsdp2":
        held, trained = held if shape.adapter else 4, 4
    moments = 4 if mixed.startswith("zero") else trained
    per_weight = next((rule(moments) for name, rule in STATE_BYTES if name in optim), 2.0 * moments)
    if mixed.startswith("zero"):
        held, trained, per_weight = min(held, 2), 2, per_weight + 4
    adapter = shape.trained * trained if shape.adapter else 0
    return shape.parameters * held + adapter, shape.trained * trained, shape.trained * per_weight


def memory(
    shape: Shape,
    training: Any,
    model: Any,
    rollout_per_device: int,
    prompt_length: int,
    pack_tokens: int | None = None,
    devices: int = 1,
    sharding: str = "none",
    device_memory: float = 0.0,
) -> dict[str, float]:
    """Bytes of live tensors on a device at the peak of a run, by what takes them at that moment.

    Training, the optimizer's step and generation take turns, and generation finds no gradients; the largest counts.
    Within 3 % of the tensors that are alive in a training step of Qwen2.5-1.5B's shape (benchmarks/memory.py); not yet
    held against a GPU. For the demo's model on a CPU 0.88 to 1.2 times what is counted. Not in it: the CUDA context,
    what an allocator keeps unused, eager attention's scores.

    Args:
        training, model: the GRPOConfig and ModelConfig.
        rollout_per_device: completions that one device generates at once.
        prompt_length: of the longest prompts, in tokens.
        pack_tokens: what a training step computes at once, at most; None: a padded micro-batch.
        devices, sharding: how many devices share what: none (DDP), fsdp2 or zero3 (weights, gradients and optimizer),
            zero2 (gradients and optimizer).
        device_memory: bytes of the device, of which vLLM beside the trainer reserves its share.
    """
    half = training.bf16 or training.fp16
    weights, trained, state = _bytes(shape, model, training.optim.value, sharding if half and devices > 1 else "none")
    length = prompt_length + training.max_completion_length
    tokens = training.per_device_train_batch_size * length
    if pack_tokens:
        tokens = min(tokens, max(pack_tokens, length))
    step = training_step(shape, training, model, tokens, packed=bool(pack_tokens))
    of_weights, of_gradients, of_state = SHARED[sharding]
    reference = weights if training.beta and not shape.adapter else 0.0
    gathered = whole = 0.0
    if of_weights and devices > 1:  # a layer and the next, and the whole head, are put together to be used
        number = 2 if half else BYTES.get(str(model.dtype), 4)
        layer = (shape.parameters - shape.heads * shape.embedding) / max(shape.layers, 1)
        gathered = (shape.embedding + 2 * layer) * number
        whole = shape.parameters * number  # to sample and to evaluate with: sharding.whole
    beside = {"reference model": reference / (devices if of_weights else 1)}
    if training.use_vllm and training.vllm_mode == "colocate":
        beside["vLLM"] = training.vllm_gpu_memory_utilization * device_memory
    resident = {"weights": weights / (devices if of_weights else 1), **beside}
    resident["optimizer"] = state / (devices if of_state else 1)
    buckets = trained if devices > 1 and sharding == "none" else 0.0  # DDP reduces gradients in a copy
    gradients = trained / (devices if of_gradients else 1) + buckets
    sampling = _generation(shape, training, model, rollout_per_device, prompt_length)
    update = _optimizer_step(shape, training, trained) / (devices if of_state else 1)
    start = weights if of_weights and devices > 1 else 0.0
    moments = (
        {**beside, "weights, before they are divided": start},
        {**resident, "gradients": gradients, "training step": step + gathered},
        {**resident, "gradients": gradients, "optimizer step": update},
        {**resident, "weights gathered": whole, "generation": sampling},
    )
    return max(moments, key=lambda parts: sum(parts.values()))


def training_step(shape: Shape, training: Any, model: Any, tokens: int, packed: bool = True) -> float:
    """Bytes of forward and backward over `tokens` at once, beside weights, gradients and optimizer.

    `a` bytes hold a number of a layer, `w` one between layers. A position of a layer keeps, for the backward, the
    inputs of both norms and what they give (2 × 8 bytes a unit of the hidden size; 15 or 12 in float32 with or without
    autocast), queries, attention's output, keys and values (a each), and four vectors of the MLP. An adapter's layers
    keep for each projection a 16-bit copy of its input and the dropout's mask instead of a norm's outputs.

    The peak is the largest of four moments: the end of the forward (with the 16-bit copies of float32 weights that
    autocast keeps), the head's backward (TRL's tiles, and the head's gradient in float32 and in its own format), a
    layer's backward, and the embedding's (three gradients of a weight that is tied to the head).
    """
    hidden, mlp = shape.hidden, shape.intermediate
    w = BYTES.get(str(model.dtype), 4)
    a = 2 if training.bf16 or training.fp16 else w
    casts = a < w and not shape.adapter
    norms = 2 * hidden * (8 if w == 2 else 13 if casts else 12)
    if casts:
        norms += 4 * hidden  # of one norm's output three copies, of the other's two
    layer = norms + 2 * a * (shape.query + shape.key_value) + 4 * a * mlp
    extra = 2 * a * mlp + 2 * hidden  # gradients on their way through the MLP
    if shape.adapter:
        mask = 4 if training.use_cpu else 1
        inputs = (4 * hidden + 2 * hidden + mlp) * (2 + (mask if model.lora_dropout else 0))
        layer = 8 * hidden + 2 * a * (shape.query + shape.key_value) + 3 * a * mlp + inputs
        extra = 12 * mlp
    layer, extra = tokens * layer, tokens * extra
    copies = 2.0 * (shape.parameters - shape.heads * shape.embedding) if casts else 0.0
    checkpointing = training.gradient_checkpointing
    kept = shape.layers * (tokens * hidden * w if checkpointing else layer)
    if not training.use_cpu and packed and model.attn_implementation == "sdpa":  # the block mask, and as numbers
        kept += tokens**2 * (3 + a * (1 if checkpointing else shape.layers))
    ends = tokens * hidden * (10 if w == 2 else 20)  # the embedding, the last norm
    wide = min(shape.vocabulary, 32768)  # a tile of TRL's head; its buffer is 32,768 wide, also for fewer words
    # A CPU gives memory to what is written only, and torch folds that in five float32 copies; Triton in place
    tiles = min(tokens, 4096) * (wide * (a + 20) if training.use_cpu else 32768 * a)
    if a < w:
        tiles += wide * hidden * a
    held = 0.0 if shape.adapter else shape.embedding * (4.0 if w == 4 else 4.0 + w)
    pending = 0.0 if shape.adapter else shape.embedding * float(w)
    moments = (
        kept + ends + tiles + copies,
        kept + ends + tiles + held + 4 * tokens * hidden + (0.0 if checkpointing else copies),
        kept + pending + extra + (layer if checkpointing else copies),
        pending * (3 if shape.heads == 1 else 2),
    )
    return max(moments)


def _optimizer_step(shape: Shape, training: Any, trained: float) -> float:
    """Temporaries of the update: none where a kernel does all of it, else of a weight or of all weights."""
    optim, largest = training.optim.value, min(trained, shape.embedding * trained / max(shape.trained, 1))
    if "8bit" in optim or "4bit" in optim or "fused" in optim:
        return 0.0
    if "stable_adamw" in optim:
        return 3 * largest if training.use_cpu else 0.0  # Triton's kernel on a GPU
    return 2 * largest if training.use_cpu else trained  # torch's foreach takes the square roots of all at once


def _generation(shape: Shape, training: Any, model: Any, rows: int, prompt_length: int) -> float:
    """The cache of a rollout and the logits of its last position, or the layer that reads all prompts at once."""
    if training.use_vllm:
        return 0.0
    a = 2 if training.bf16 or training.fp16 else BYTES.get(str(model.dtype), 4)
    position = shape.layers * 2 * shape.key_value * a
    cache = rows * (prompt_length + training.max_completion_length) * position
    cache += cache / (2 * max(shape.layers, 1))  # a layer's keys are copied to be made longer
    reading = rows * prompt_length * (position + a * (3 * shape.intermediate + 4 * shape.hidden))
    return max(cache + rows * shape.vocabulary * (a + 12), reading)


def disk(shape: Shape, training: Any, model: Any) -> tuple[float, float]:
    """Bytes of one checkpoint (trained weights and optimizer state) and of the final model."""
    _, trained, state = _bytes(shape, model, training.optim.value)
    final = trained if shape.adapter else shape.parameters * BYTES.get(str(model.dtype), 4)
    return final + (0.0 if training.save_only_model else state), final
