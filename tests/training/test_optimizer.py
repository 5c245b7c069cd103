"""The inline optimizer really moves bfloat16 weights at the inline learning rate."""

import json
import sys
from pathlib import Path

import optimi
import pytest
import torch
from helpers_runs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from bf16_updates import displacements, share

import train_grpo
from grpo.training import optimizer
from train_grpo import HYPERPARAMETERS


@pytest.mark.parametrize("sparse", [False, True])
def test_bf16_weights_move_with_float32_ones_from_the_start(sparse):
    """On average: each is rounded up or down by chance."""
    steps = (2, 20, 200)
    reference = displacements("adamw_torch", torch.float32, sparse, steps=steps)
    moved = displacements(HYPERPARAMETERS["optim"], torch.bfloat16, sparse, steps=steps)
    assert [share(moved[step], reference[step]) for step in steps] == pytest.approx([1.0, 1.0, 1.0], abs=0.12)


def compensation(weights, seed=3):
    """What the optimizer has left to add after a step by gradients of 0."""
    parameter = torch.nn.Parameter(weights.clone())
    made = optimi.StableAdamW([parameter], lr=1e-6)
    optimizer.use_no_triton(made)
    optimizer.dither(made, seed)
    parameter.grad = torch.zeros_like(parameter)
    made.step()
    return parameter.detach(), made.state[parameter]["kahan_comp"]


def test_dither_moves_no_weight_by_itself():
    """Nor a power of two, below which the next number is nearer, or one that a tie would round to its neighbour."""
    weights = torch.tensor([1.0, -1.0, 0.125, 1.0078125, -1.0078125, 0.0]).repeat_interleave(20_000)
    weights = torch.cat([weights, 0.15 * torch.randn(100_000)]).to(torch.bfloat16)
    after, rest = compensation(weights)
    assert torch.equal(after, weights) and (rest[:100_000] != 0).float().mean() > 0.99


def test_a_run_dithers_its_bf16_weights(tiny_run):
    """Which leaves weights without gradients where they are: the alarm says so."""
    flags = tiny_run(dtype="bfloat16", bf16="true", max_steps="6", save_strategy="steps", save_steps="6")
    assert train_grpo.main(flags) == 0
    states = torch.load("run/checkpoint-6/optimizer.pt", weights_only=True)["state"].values()
    matrices = [state["kahan_comp"] for state in states if state["kahan_comp"].ndim == 2]
    assert matrices and all((rest != 0).float().mean() > 0.9 for rest in matrices)
    assert not any(state["exp_avg"].any() for state in states)
    assert "weights_unchanged" in {
        json.loads(line)["name"] for line in Path("run/alarms.jsonl").read_text().splitlines()
    }
