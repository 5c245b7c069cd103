"""TRL's vLLM engine, as this program starts it: it runs on a CPU as well, and what fails in it is one line.

Without this the second copy of the weights fails on a CPU: vLLM 0.31 repacks the weights of linear layers there and
drops the originals (vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), which `load_weights` needs.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from grpo.core import out_of_memory, processes
from grpo.core.errors import EngineFailed, UserError, reason_of
from grpo.core.processes import say
from grpo.policy import decoding
from grpo.policy.vllm import CPU_CACHE, OTHERWISE

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Of its share nothing, or not enough for one sequence, is left for the cache (vllm/v1/core/kv_cache_utils.py)
TOO_SMALL = re.compile(r"No available memory for the cache blocks|cache is needed, which is larger than")
TOO_LARGE = "Available memory on node"  # the cache, on a CPU (vllm/v1/worker/cpu_worker.py)
ON_CPU = "note: vLLM computes with plain matrix products on a CPU, where its packed weights could not be renewed"


class Engine(VLLMGeneration):
    """Starts vLLM, samples with it and copies the policy's weights to it; its arguments are TRL's."""

    def _init_vllm(self) -> None:
        """As TRL's.

        Raises:
            UserError: it does not start.
        """
        cpu = self.accelerator.device.type == "cpu"
        try:
            with _environment_restored():
                if cpu:
                    keep_weights_reloadable()
                super()._init_vllm()
                if self.mode == "colocate":  # it has groups in torch's process group
                    processes.BEFORE_THE_END.append(self.llm.llm_engine.engine_core.shutdown)
        except Exception as error:
            reason = " ".join(str(error).split())
            if TOO_SMALL.search(reason) or TOO_LARGE in reason:
                remedy = f"use a smaller {CPU_CACHE}" if TOO_LARGE in reason else self._more(cpu)
                raise UserError(f"generation: vLLM has too little memory ({reason}); {remedy}") from error
            if out_of_memory.is_one(error):
                raise
            raise UserError(f"generation: vLLM does not start ({reason_of(error)}); repair it, {OTHERWISE}") from error

    def _more(self, cpu: bool) -> str:
        if cpu:
            return f"export a larger {CPU_CACHE} (GiB, now {os.environ[CPU_CACHE]}), or lower max_completion_length"
        share = f"vllm_gpu_memory_utilization (now {self.gpu_memory_utilization:g})"
        return f"raise {share}, or lower max_completion_length"

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's; EngineFailed where vLLM or its server does."""
        with _named():
            return super().generate(*args, **kwargs)

    def sync_weights(self) -> None:
        """As TRL's; EngineFailed where vLLM or its server does."""
        with _named():
            super().sync_weights()

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As TRL's, names included, but a LoRA adapter is merged into copies, one layer at a time.

        TRL merges it into the base and subtracts it again, which rounds: 16-bit weights drift with every call.
        """
        model: Any = self.model
        layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
        if not layers or self._dist.is_fsdp or decoding.why_not_merged(model, layers):
            yield from super()._iter_named_params()
            return
        adapted = {weight: layer for layer in layers for weight in layer.get_base_layer().parameters(recurse=False)}
        for path, weight in model.named_parameters():
            if model.prefix in path or "original_module" in path:  # the adapter's, or what it replaces
                continue
            name = path.removeprefix("base_model.model.").replace(".base_layer", "")
            name = self._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."])
            layer = adapted.get(weight)
            yield name, decoding.merged_weights(layer)[path.rpartition(".")[2]] if layer else weight.data


@contextlib.contextmanager
def used_by_trl() -> Iterator[None]:
    """A GRPOTrainer that is constructed in here has this engine instead of TRL's."""
    stock = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = Engine  # type: ignore[misc]
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = stock  # type: ignore[misc]


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise EngineFailed(reason_of(error)) from error


@contextlib.contextmanager
def _environment_restored() -> Iterator[None]:
    """Without the variables of a launcher that TRL and vLLM set for the start: nothing launched this process."""
    before = {name: os.environ.get(name) for name in LAUNCHER}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def keep_weights_reloadable() -> None:
    """Let vLLM compute on a CPU without repacking weights, and set aside a small cache, unless the user did."""
    os.environ.setdefault(CPU_CACHE, "1")
    from vllm.model_executor.layers import utils

    repack = utils.dispatch_cpu_unquantized_gemm
    if getattr(repack, "keeps_weights", False):
        return

    def keep(layer: Any, remove_weight: bool = False) -> None:
        if layer.weight.is_meta or layer.weight.ndim != 2:  # no weight of a linear layer
            return repack(layer, remove_weight)
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)

    keep.keeps_weights = True  # type: ignore[attr-defined]
    utils.dispatch_cpu_unquantized_gemm = keep
    say(ON_CPU)
