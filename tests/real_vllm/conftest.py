"""Settings that only vLLM's build for CPUs needs."""

import os

import pytest


@pytest.fixture(autouse=True)
def engines(monkeypatch):
    """The engines that TRL starts in a test; each is ended with it, before its process groups are."""
    from train_with_vllm import keep_weights
    from trl.generation.vllm_generation import VLLMGeneration
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
    from vllm.model_executor.layers import utils

    from grpo.core import errors

    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", keep_weights)
    started, start, end = [], VLLMGeneration._init_vllm, errors.end_process_group
    before = dict(os.environ)

    def init(self):
        start(self)
        started.append(self)

    def end_all():
        for engine in started:
            engine.llm.llm_engine.engine_core.shutdown()
        started.clear()

    monkeypatch.setattr(VLLMGeneration, "_init_vllm", init)
    monkeypatch.setattr(errors, "end_process_group", lambda: (end_all(), end()))
    yield started
    end_all()
    cleanup_dist_env_and_memory()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None) if name not in before else os.environ.update({name: before[name]})
