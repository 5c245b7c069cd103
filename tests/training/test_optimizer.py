"""The inline optimizer really moves bfloat16 weights at the inline learning rate."""

import importlib
import sys

import pytest
import torch
from helpers_runs import ROOT
from helpers_trainer import trained

sys.path.insert(0, str(ROOT / "benchmarks"))
from bf16_updates import displacement

from grpo.training.trainer import LeanGRPOTrainer
from train_grpo import HYPERPARAMETERS


@pytest.mark.parametrize("sparse", [False, True])
def test_bf16_weights_move_as_far_as_float32_weights(sparse):
    reference = displacement("adamw_torch", torch.float32, sparse)
    moved = displacement(HYPERPARAMETERS["optim"], torch.bfloat16, sparse)
    assert moved.abs().mean().item() == pytest.approx(reference.abs().mean().item(), rel=0.10)
    assert torch.nn.functional.cosine_similarity(moved, reference, dim=0) > 0.99


def test_a_cpu_trains_where_triton_is_installed(tiny_model, tmp_path, monkeypatch):
    """As it is with torch from PyPI; optimi would take its kernel for GPUs, which has none to run on."""
    module = importlib.import_module("optimi.stableadamw")  # optimi's own name of that is the function
    monkeypatch.setattr(module, "_default_to_triton", lambda params: True)
    _, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, optim="stable_adamw")
    assert trainer.state.global_step == 1


def test_plain_adamw_would_lose_most_of_the_updates():
    reference = displacement("adamw_torch", torch.float32)
    assert displacement("adamw_torch", torch.bfloat16).abs().mean() < 0.10 * reference.abs().mean()
