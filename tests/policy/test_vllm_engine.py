"""grpo/policy/vllm_engine.py without vLLM: what TRL's start leaves behind, and how failures read; see tests/vllm."""

import os
from types import SimpleNamespace

import pytest
import torch
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


def test_trl_has_its_own_engine_back_after_a_trainer_is_made():
    with vllm_engine.used_by_trl():
        assert grpo_trainer.VLLMGeneration is vllm_engine.Engine
    assert grpo_trainer.VLLMGeneration is VLLMGeneration
