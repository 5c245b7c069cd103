"""Facts that a plan stands on: what GPUs can do, the shapes of well-known models, the lengths of GSM8K's texts."""

from dataclasses import dataclass
from typing import Any

from grpo.core.errors import UserError

MEASURED, SHEET = "measured earlier, PyTorch 2.11", "the vendor's data sheet"


@dataclass(frozen=True)
class Gpu:
    """A device: bytes of memory, bytes read plus written a second, operations of a 16-bit matrix product a second."""

    name: str
    memory: float
    bandwidth: float
    rate: float
    bandwidth_source: str = SHEET
    rate_source: str = SHEET
    memory_source: str = SHEET


GPUS = {
    "H100": Gpu("H100 80GB SXM", 80e9, 3.0e12, 798e12, MEASURED, MEASURED),
    "H200": Gpu("H200", 141e9, 4.3e12, 769e12, MEASURED, MEASURED),  # 769 to 798 TFLOP/s
    "A100": Gpu("A100 80GB SXM", 80e9, 2.04e12, 312e12),
    "A100-40": Gpu("A100 40GB SXM", 40e9, 1.555e12, 312e12),
    "L4": Gpu("L4", 24e9, 0.30e12, 121e12),
    "RTX4090": Gpu("GeForce RTX 4090", 24e9, 1.01e12, 165e12),
    "RTX3090": Gpu("GeForce RTX 3090", 24e9, 0.936e12, 71e12),
}

# As their config.json say: layers, hidden, intermediate, heads, key-value heads, vocabulary, tied
_QWEN = {
    "0.5B": (24, 896, 4864, 14, 2, 151936, True),
    "1.5B": (28, 1536, 8960, 12, 2, 151936, True),
    "3B": (36, 2048, 11008, 16, 2, 151936, True),
    "7B": (28, 3584, 18944, 28, 4, 152064, False),
}
_LLAMA = {
    "SmolLM2-135M": (30, 576, 1536, 9, 3, 49152, True),
    "SmolLM2-360M": (32, 960, 2560, 15, 5, 49152, True),
    "SmolLM2-1.7B": (24, 2048, 8192, 32, 32, 49152, True),
    "Llama-3.2-1B": (16, 2048, 8192, 32, 8, 128256, True),
    "Llama-3.2-3B": (28, 3072, 8192, 24, 8, 128256, True),
}
MODELS = [*_QWEN, *_LLAMA]

# GSM8K's training split in the default prompt, by the tokenizer and chat template of SmolLM2-135M-Instruct, which
# splits numbers into digits as Qwen2.5's does
TEST_ROWS = 1319  # of the test split
ROWS, DROPPED = 7473, 1  # rows, and those whose prompts are above 256 tokens (none is above 512)
PROMPT = 105.0  # mean tokens of a prompt


def gpu(name: str) -> Gpu:
    wanted = name.upper().replace("_", "").replace(" ", "").removesuffix("-80")
    if wanted not in GPUS:
        raise UserError(f"gpu: {name!r} is not in the table; give one of {', '.join(GPUS)}")
    return GPUS[wanted]


def named(name: str) -> str | None:
    """The table's name for a size or a Hub id, None where it has none.

    >>> named("Qwen/Qwen2.5-1.5B-Instruct"), named("SmolLM2-135M"), named("gpt2")
    ('1.5B', 'SmolLM2-135M', None)
    """
    short = name.rpartition("/")[2].removesuffix("-Instruct").removeprefix("Qwen2.5-")
    return next((known for known in MODELS if known.lower() == short.lower()), None)


def model_config(name: str) -> Any:
    """The transformers configuration of a name in MODELS; no weights and no network."""
    from transformers import LlamaConfig, Qwen2Config

    layers, hidden, intermediate, heads, key_value, vocabulary, tied = (_QWEN | _LLAMA)[name]
    kind = Qwen2Config if name in _QWEN else LlamaConfig
    return kind(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=key_value,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )
