"""grpo/policy/memory.py: sizes without weights are those of real models, steps and checkpoints."""

import pytest
from helpers_runs import DEMO
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

import train_grpo
from grpo.config.configure import configure
from grpo.policy import memory

QWEN_15B = Qwen2Config(
    vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
    num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=32768,
)  # fmt: skip
LORA = LoraConfig(r=16, target_modules=train_grpo.HYPERPARAMETERS["lora_target_modules"])


def settings(*flags):
    config = configure(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", *flags])
    return config.training, config.model


def on_a_gpu(dtype="bfloat16", checkpointing=False):
    training, model = settings("--gradient_checkpointing", str(checkpointing).lower())
    training.use_cpu, training.bf16 = False, True
    model.dtype, model.attn_implementation = dtype, "flash_attention_2"
    return training, model


def test_the_shape_is_the_models_own():
    shape = memory.shape(AutoConfig.from_pretrained(DEMO / "model"))
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    assert shape.parameters == shape.trained == sum(weight.numel() for weight in model.parameters())
    assert (shape.layers, shape.hidden, shape.vocabulary) == (4, 192, 512)


def test_qwens_published_number_of_parameters():
    assert memory.shape(QWEN_15B).parameters == 1_543_714_304  # 1.54B
    adapted = memory.shape(QWEN_15B, LORA)
    assert adapted.parameters == 1_543_714_304 and adapted.trained == 18_464_768


@pytest.mark.parametrize(
    ("tokens", "dtype", "checkpointing", "adapter", "counted"),
    [
        (8192, "bfloat16", True, None, 2.55),
        (16384, "bfloat16", True, None, 4.22),
        (8192, "bfloat16", False, None, 25.59),
        (8192, "float32", True, None, 4.57),
        (2048, "float32", False, None, 10.76),
        (2048, "bfloat16", False, LORA, 7.57),
    ],
)
def test_a_training_step_is_what_tensors_were_counted(tokens, dtype, checkpointing, adapter, counted):
    """GB of live tensors of Qwen2.5-1.5B's shape (benchmarks/RESULTS.md), to a fifth."""
    estimated = memory.training_step(memory.shape(QWEN_15B, adapter), *on_a_gpu(dtype, checkpointing), tokens)
    assert estimated / 1e9 == pytest.approx(counted, rel=0.21)


def test_a_run_writes_what_was_estimated(learned):
    checkpoint, final = memory.disk(memory.shape(AutoConfig.from_pretrained(DEMO / "model")), *settings())
    written = sum(path.stat().st_size for path in (learned.path / "checkpoint-1").iterdir())
    assert written == pytest.approx(checkpoint, rel=0.05)
    assert (learned.path / "model.safetensors").stat().st_size == pytest.approx(final, rel=0.05)
