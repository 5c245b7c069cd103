"""Models of published sizes, without weights."""

from transformers import Qwen2Config

QWEN_15B = Qwen2Config(
    vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
    num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=32768,
)  # fmt: skip
