"""grpo/policy/memory.py: sizes without weights are those of real models, steps and checkpoints."""

import counted
import pytest
import speed
import torch
import transformers
from helpers_runs import DEMO
from packaging.version import Version
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config
from transformers.integrations import deepspeed

import train_grpo
from grpo.config.configure import configure
from grpo.policy import memory
from lean_grpo import sharding

QWEN_15B = Qwen2Config(
    vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
    num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=32768,
)  # fmt: skip
COUNTABLE = pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="torch 2.11 fails at fake bf16 gradients")
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
    ("size", "adapter", "checkpointing", "optim"),
    [
        pytest.param("0.5B", "false", "false", "adamw_8bit", marks=COUNTABLE),
        pytest.param("1.5B", "true", "false", "adamw_torch", marks=pytest.mark.slow),
        pytest.param("3B", "true", "true", "adamw_torch_fused", marks=pytest.mark.slow),
        pytest.param("7B", "false", "false", "adamw_torch", marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_what_is_counted(size, adapter, checkpointing, optim, monkeypatch):
    """The peak of an optimizer step's live tensors, to a tenth; `counted.py preflight` has models in full depth."""
    model_config = speed.random_config(size)
    model_config.num_hidden_layers = 2
    monkeypatch.setattr(counted, "random_config", lambda size: model_config)
    config = counted.settings("--use_peft", adapter, "--gradient_checkpointing", checkpointing, optim=optim)
    peak = max(counted.count("ours", model_config, counted.FULL, config)[:2])
    assert counted.estimate(size, config, rollout_per_device=0, prompt_length=129) == pytest.approx(peak, rel=0.1)
    adapted = memory.shape(model_config, LORA if adapter == "true" else None)
    assert sum(memory.least(adapted, config.training, config.model).values()) < 1e9 * peak


def test_torchao_keeps_all_moments_in_8_bits():
    """bitsandbytes' embeddings have 32."""
    shape, (training, model), found = memory.shape(QWEN_15B), on_a_gpu(), []
    for training.optim in ("adamw_torch_8bit", "adamw_8bit"):
        found.append(memory.least(shape, training, model)["optimizer"])
    assert found[0] == 2.03 * shape.parameters
    assert found[1] == found[0] + 6 * QWEN_15B.vocab_size * QWEN_15B.hidden_size


@pytest.mark.parametrize("adapter", [None, LORA])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_least_does_not_depend_on_completions(adapter, beta):
    """At the peak it is all there, but for the gradients, which a rollout and an evaluation do without."""
    training, model = settings("--beta", str(beta))
    shape, parts = memory.shape(QWEN_15B, adapter), []
    for length in (1, 100_000):
        training.max_completion_length = length
        parts.append(memory.memory(shape, training, model, rollout_per_device=64, prompt_length=1, answers=64))
    least = memory.least(shape, training, model)
    for peak in parts:
        assert {name: size for name, size in least.items() if name in peak}.items() <= peak.items()
        assert least.keys() - peak.keys() <= {"gradients"} and sum(least.values()) < sum(peak.values())
    assert sum(parts[0].values()) < sum(parts[1].values())
    assert bool(least["reference model"]) == (beta > 0 and adapter is None)


def test_the_estimate_of_a_rollout_is_what_is_counted():
    """64 rows that all reach the limit, to a tenth."""
    model_config = speed.random_config("1.5B")
    model_config.num_hidden_layers = 6
    training, model = on_a_gpu(checkpointing=True)
    estimated = 64 * memory.row_bytes(memory.shape(model_config), training, model, 256 + 786)
    before = Version(transformers.__version__) < Version("5.23")  # which holds more at once
    assert estimated / 1e9 == pytest.approx(counted.rollout_peak(model_config), rel=0.3 if before else 0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rollout_has_room_for_16_bit_weights(dtype):
    """They are lent to it where autocast would cast float32 ones at each step."""
    training, model = on_a_gpu(checkpointing=True)
    model.dtype, training.max_completion_length = dtype, 10_000
    parts = memory.memory(memory.shape(QWEN_15B), training, model, 640, 256, pack_tokens=8192)
    lent = {"weights in 16 bits": 2.0 * 1_543_714_304} if dtype == "float32" else {}
    assert "generation" in parts and {name: size for name, size in parts.items() if "16" in name} == lent


def test_adamws_roots_and_vllms_copies_of_frozen_weights_count():
    config = counted.settings("--use_peft", "true", use_vllm=True, vllm_gpu_memory_utilization=0.9)
    rollouts = {"rollout_per_device": 64, "prompt_length": 256, "device_memory": 10**12}
    parts = memory.memory(memory.shape(QWEN_15B, LORA), config.training, config.model, **rollouts)
    assert parts["copies of frozen weights"] == pytest.approx(2.62e9, rel=1e-3)  # of 3.09
    step = {"rollout_per_device": 0, "prompt_length": 1, "pack_tokens": 1}
    parts = memory.memory(memory.shape(QWEN_15B), *on_a_gpu(checkpointing=True), **step)
    assert parts["optimizer step"] == parts["gradients"] == 2 * 1_543_714_304


@pytest.mark.parametrize(
    ("launcher", "divided"),
    [
        ({}, False),
        ({"ACCELERATE_USE_FSDP": "true"}, True),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, True),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}, False),
    ],
    ids=["torchrun", "FSDP2", "ZeRO-3", "ZeRO-2"],
)
def test_which_launchers_divide_weights(launcher, divided, monkeypatch):
    """Preflight divides its estimate by the number of processes where they do."""
    if "ACCELERATE_USE_DEEPSPEED" in launcher:
        pytest.importorskip("deepspeed")
        monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", None)  # ZeRO-3 sets it for the process
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert sharding.divides_weights(settings()[0]) == divided
    assert sharding.divides_weights(settings("--fsdp", "full_shard")[0])


def test_a_tenth_of_a_device_and_what_others_use_stay_free():
    assert memory.room(free=80e9, total=80e9) == 72e9 and memory.room(free=60e9, total=80e9) == 60e9


def test_sharding_divides_weights_gradients_and_optimizer():
    step = {"rollout_per_device": 0, "prompt_length": 256, "pack_tokens": 8192}
    whole, quarter = (memory.memory(memory.shape(QWEN_15B), *on_a_gpu("float32"), **step, shards=n) for n in (1, 4))
    assert all(whole[part] == 4 * quarter[part] for part in ("weights", "optimizer"))


def test_a_run_writes_what_was_estimated(learned):
    checkpoint, final = memory.disk(memory.shape(AutoConfig.from_pretrained(DEMO / "model")), *settings())
    written = sum(path.stat().st_size for path in (learned.path / "checkpoint-1").iterdir())
    assert written == pytest.approx(checkpoint, rel=0.05)
    assert (learned.path / "model.safetensors").stat().st_size == pytest.approx(final, rel=0.05)
