"""grpo/policy/vllm_engine.py without vLLM: what TRL's start leaves behind, and how failures read; see tests/vllm."""

import contextlib
import copy
import os
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from grpo.core import processes
from grpo.core.errors import EngineFailed, UserError, readable
from grpo.policy import vllm_engine


def start(monkeypatch, init, **attributes):
    """An engine whose start is this function."""
    monkeypatch.setattr(VLLMGeneration, "_init_vllm", init)
    monkeypatch.setattr(vllm_engine, "keep_weights_reloadable", lambda: None)
    monkeypatch.setattr(processes, "BEFORE_THE_END", [])
    engine = object.__new__(vllm_engine.Engine)
    device = attributes.pop("device", "cuda")
    engine.accelerator = SimpleNamespace(device=torch.device(device))
    engine.mode, engine.gpu_memory_utilization = "colocate", 0.3
    shutdown = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))
    engine.llm = SimpleNamespace(llm_engine=shutdown)
    engine._init_vllm()
    return engine


def test_no_launcher_seems_to_have_started_the_process(monkeypatch):
    """Otherwise Ctrl-C would end with torchrun's status, and commands to copy would begin with torchrun."""

    def as_trl(self):
        assert "LOCAL_RANK" not in os.environ
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_PORT="29511")

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    before = dict(os.environ)
    start(monkeypatch, as_trl)
    assert dict(os.environ) == before and processes.launch() == "python" and processes.is_first_process()
    assert len(processes.BEFORE_THE_END) == 1


@pytest.mark.parametrize(
    ("device", "raised", "line"),
    [
        (
            "cuda",
            ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
            r"too little memory \(No available.*\); raise vllm_gpu_memory_utilization \(now 0.3\), or lower max_comp",
        ),
        (
            "cpu",
            ValueError("To serve one request, 2.1 GiB KV cache is needed, which is larger than the available"),
            r"too little memory \(To serve.*\); export a larger VLLM_CPU_KVCACHE_SPACE \(GiB, now 1\), or lower",
        ),
        (
            "cpu",
            ValueError("Available memory on node 0 (9/20 GiB) on kv cache allocation is less than requested"),
            r"too little memory \(Available.*\); use a smaller VLLM_CPU_KVCACHE_SPACE",
        ),
        (
            "cuda",
            RuntimeError("no kernel\nimage"),
            r"vLLM does not start \(no kernel\); repair it, or use",
        ),
    ],
)
def test_a_vllm_that_does_not_start_is_one_line(device, raised, line, monkeypatch):
    def fails(self):
        raise raised

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    with pytest.raises(UserError, match=f"^generation: .*{line}"):
        start(monkeypatch, fails, device=device)


def test_a_full_device_at_the_start_stays_one(monkeypatch):
    def fails(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(torch.OutOfMemoryError):
        start(monkeypatch, fails)


def test_a_vllm_that_dies_names_what_is_left_of_the_run(monkeypatch):
    engine = start(monkeypatch, lambda self: None)

    def dies(self, *args, **kwargs):
        raise ConnectionError("HTTPConnectionPool(host='sampler', port=8000): Max retries exceeded")

    monkeypatch.setattr(VLLMGeneration, "generate", dies)
    monkeypatch.setattr(VLLMGeneration, "sync_weights", dies)
    facts = {
        "left": "the newest complete checkpoint is run/checkpoint-2",
        "way_on": "To resume: python train_grpo.py",
    }
    for fails in (engine.generate, engine.sync_weights):
        with pytest.raises(UserError) as caught, readable("the run", **facts):
            fails()
        assert str(caught.value) == (
            "generation: vLLM failed (HTTPConnectionPool(host='sampler', port=8000): Max retries exceeded); the "
            "newest complete checkpoint is run/checkpoint-2; repair it, or use --generation auto --use_vllm false. To "
            "resume: python train_grpo.py"
        )
        with pytest.raises(EngineFailed, match="Max retries"):  # where LeanGRPOTrainer is used by itself
            fails()


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
