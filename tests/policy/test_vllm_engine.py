"""grpo/policy/vllm_engine.py without vLLM: a start that fails, and weights that arrive; see tests/real_vllm."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from grpo.core.errors import EngineFailed, UserError
from grpo.policy import vllm_engine


def test_a_vllm_that_does_not_start_is_one_line(monkeypatch):
    def fails(self):
        raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")

    monkeypatch.setattr(VLLMGeneration, "_init_vllm", fails)
    monkeypatch.setattr(vllm_engine, "keep_weights_reloadable", lambda: None)
    engine = object.__new__(vllm_engine.Engine)
    engine.accelerator = SimpleNamespace(device=torch.device("cuda"))
    engine.mode, engine.gpu_memory_utilization = "colocate", 0.3
    with pytest.raises(UserError, match=r"^generation: .*raise vllm_gpu_memory_utilization"):
        engine._init_vllm()


@pytest.fixture
def adapted():
    """An engine whose vLLM keeps what it is sent, for an adapter on 16-bit weights."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(vocab_size=64, num_hidden_layers=2, tie_word_embeddings=True, **shape)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], modules_to_save=["norm"], init_lora_weights=False)
    engine = object.__new__(vllm_engine.Engine)
    model = Qwen2ForCausalLM(config).bfloat16()
    engine.names = [name for name, _ in model.named_parameters()]
    engine.model = get_peft_model(model, lora)
    engine.mode, engine.enable_sleep_mode, engine.accelerator, engine.sent = "colocate", False, None, {}
    engine._dist = SimpleNamespace(is_fsdp=False, gather_params=contextlib.nullcontext)
    runner = SimpleNamespace(model=SimpleNamespace(load_weights=lambda pairs: engine.sent.update(pairs)))
    worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
    engine.llm = SimpleNamespace(llm_engine=SimpleNamespace(model_executor=worker), reset_prefix_cache=lambda: None)
    engine.runner = runner
    return engine


def unchanged(model, before):
    return not any(getattr(module, "merged", False) for module in model.modules()) and all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )


def test_an_adapter_arrives_merged_and_its_base_stays_bitwise(adapted):
    theirs = {name: value.clone() for name, value in VLLMGeneration._iter_named_params(copy.deepcopy(adapted))}
    before = copy.deepcopy(adapted.model.state_dict())
    for _ in range(3):
        adapted.sync_weights()
        assert unchanged(adapted.model, before)
    assert list(adapted.sent) == list(theirs) == adapted.names
    assert all(torch.equal(value, theirs[name]) for name, value in adapted.sent.items())


def test_a_base_stays_bitwise_where_vllm_fails_half_way(adapted):
    def fails(pairs):
        if "q_proj" in pairs[0][0]:
            raise RuntimeError("no such operator")

    before = copy.deepcopy(adapted.model.state_dict())
    adapted.runner.model.load_weights = fails
    with pytest.raises(EngineFailed, match="no such operator"):
        adapted.sync_weights()
    assert unchanged(adapted.model, before)


def test_trl_has_its_own_engine_back_after_a_trainer_is_made():
    with vllm_engine.used_by_trl():
        assert grpo_trainer.VLLMGeneration is vllm_engine.Engine
    assert grpo_trainer.VLLMGeneration is VLLMGeneration
