"""grpo/policy/memory.py: sizes without weights, held against real ones."""

import pytest
from helpers_models import QWEN_15B
from helpers_runs import DEMO
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM

import train_grpo
from grpo.config.configure import configure
from grpo.policy import memory


def settings(*flags):
    config = configure(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", *flags])
    return config.training, config.model


def test_the_shape_is_the_models_own():
    shape = memory.shape(AutoConfig.from_pretrained(DEMO / "model"))
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    assert shape.parameters == shape.trained == sum(weight.numel() for weight in model.parameters())
    assert (shape.layers, shape.hidden, shape.vocabulary) == (4, 192, 512)


def test_qwens_published_number_of_parameters():
    assert memory.shape(QWEN_15B).parameters == 1_543_714_304  # 1.54B
    targets = train_grpo.HYPERPARAMETERS["lora_target_modules"]
    adapted = memory.shape(QWEN_15B, LoraConfig(r=16, target_modules=targets))
    assert adapted.parameters == 1_543_714_304 and adapted.trained == 18_464_768


def test_an_adapter_that_fits_nothing_is_an_error():
    with pytest.raises(ValueError, match="no_such"):
        memory.shape(QWEN_15B, LoraConfig(target_modules=["no_such"]))


def test_weights_optimizer_and_checkpoint_of_the_default_run():
    training, model = settings()
    training.bf16, model.dtype = True, "bfloat16"
    shape = memory.shape(QWEN_15B)
    training.use_cpu = False
    parts = memory.memory(shape, training, model, rollout_per_device=64, prompt_length=256, pack_tokens=8192)
    assert parts["weights"] == parts["gradients"] == 2 * shape.parameters and parts["reference model"] == 0
    assert parts["optimizer"] == 4 * shape.parameters  # two moments in bfloat16
    checkpoint, final = memory.disk(shape, training, model)
    assert checkpoint == pytest.approx(9.3e9, rel=0.01) and final == pytest.approx(3.1e9, rel=0.01)
    training.beta = 0.04
    assert memory.memory(shape, training, model, 64, 256)["reference model"] == 2 * shape.parameters


def on_a_gpu(*flags):
    training, model = settings(*flags)
    training.use_cpu, training.bf16, model.dtype, model.attn_implementation = (
        False,
        True,
        "bfloat16",
        "flash_attention_2",
    )
    return training, model


def test_a_training_step_is_its_layers_ends_and_head():
    training, model = on_a_gpu("--gradient_checkpointing", "false")
    layers = 28 * 8192 * (16 * 1536 + 4 * (1536 + 256) + 8 * 8960)
    ends, tiles = 8192 * 1536 * 10, 4096 * 32768 * 2
    head = 151936 * 1536 * (4 + 2)  # its gradients
    assert memory.training_step(memory.shape(QWEN_15B), training, model, 8192) == layers + ends + tiles + head


@pytest.mark.parametrize(
    ("tokens", "dtype", "checkpointing", "adapter", "counted"),
    [
        (8192, "bfloat16", True, False, 2.55),
        (16384, "bfloat16", True, False, 4.22),
        (2048, "bfloat16", False, False, 7.51),
        (8192, "bfloat16", False, False, 25.59),
        (8192, "float32", True, False, 4.57),
        (2048, "float32", False, False, 10.76),
        (8192, "bfloat16", True, True, 2.62),
        (2048, "bfloat16", False, True, 7.57),
    ],
)
def test_a_training_step_is_what_tensors_were_counted(tokens, dtype, checkpointing, adapter, counted):
    """GB of live tensors of Qwen2.5-1.5B's shape (benchmarks/RESULTS.md), to a fifth."""
    training, model = on_a_gpu("--gradient_checkpointing", str(checkpointing).lower())
    model.dtype = dtype
    lora = LoraConfig(r=16, target_modules=train_grpo.HYPERPARAMETERS["lora_target_modules"]) if adapter else None
    found = memory.training_step(memory.shape(QWEN_15B, lora), training, model, tokens)
    assert found / 1e9 == pytest.approx(counted, rel=0.21)


def test_packs_bound_what_a_step_computes_at_once():
    training, model = on_a_gpu("--gradient_checkpointing", "false", "--max_completion_length", "1000")
    shape = memory.shape(QWEN_15B)

    def step(tokens):
        return memory.memory(shape, training, model, 1, 250, pack_tokens=tokens)["training step"]

    for given, computed in ((5000, 5000), (100, 1250), (10**6, training.per_device_train_batch_size * 1250)):
        assert step(given) == memory.training_step(shape, training, model, computed)


def test_a_run_writes_what_was_estimated(learned):
    checkpoint, final = memory.disk(memory.shape(AutoConfig.from_pretrained(DEMO / "model")), *settings())
    written = sum(path.stat().st_size for path in (learned.path / "checkpoint-1").iterdir())
    assert written == pytest.approx(checkpoint, rel=0.05)
    assert (learned.path / "model.safetensors").stat().st_size == pytest.approx(final, rel=0.05)
