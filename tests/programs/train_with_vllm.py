"""train_grpo.py with vLLM's build for CPUs, whose weights can be renewed."""

import sys

import torch
from vllm.model_executor.layers import utils

import train_grpo


def keep_weights(layer, remove_weight=False):
    """Compute with plain products: vLLM packs a CPU's weights and drops the originals, which could not be renewed."""
    layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)


if __name__ == "__main__":
    utils.dispatch_cpu_unquantized_gemm = keep_weights
    sys.exit(train_grpo.main(sys.argv[1:]))
