"""The inline optimizer really moves bfloat16 weights at the inline learning rate."""

import importlib
import json
import sys
from pathlib import Path

import optimi
import pytest
import torch
from helpers_runs import ROOT
from helpers_trainer import trained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(ROOT / "benchmarks"))
from bf16_updates import displacements, share

import train_grpo
from grpo.training import optimizer
from grpo.training.trainer import LeanGRPOTrainer
from train_grpo import HYPERPARAMETERS


@pytest.mark.parametrize("sparse", [False, True])
def test_bf16_weights_move_with_float32_ones_from_the_start(sparse):
    """On average: each is rounded up or down by chance."""
    steps = (2, 20, 200)
    reference = displacements("adamw_torch", torch.float32, sparse, steps=steps)
    moved = displacements(HYPERPARAMETERS["optim"], torch.bfloat16, sparse, steps=steps)
    assert [share(moved[step], reference[step]) for step in steps] == pytest.approx([1.0, 1.0, 1.0], abs=0.12)


def test_without_dither_they_would_begin_late():
    reference = displacements("adamw_torch", torch.float32, steps=(20,))
    moved = displacements(HYPERPARAMETERS["optim"], torch.bfloat16, dithered=False, steps=(20,))
    assert share(moved[20], reference[20]) < 0.3


def test_plain_adamw_would_lose_most_of_the_updates():
    reference = displacements("adamw_torch", torch.float32, steps=(200,))
    assert share(displacements("adamw_torch", torch.bfloat16, steps=(200,))[200], reference[200]) < 0.10


def compensation(weights, seed=3):
    """What the optimizer has left to add after a step by gradients of 0."""
    parameter = torch.nn.Parameter(weights.clone())
    made = optimi.StableAdamW([parameter], lr=1e-6)
    optimizer.use_no_triton(made)
    optimizer.dither(made, seed)
    parameter.grad = torch.zeros_like(parameter)
    made.step()
    return parameter.detach(), made.state[parameter]["kahan_comp"]


def test_dither_is_uniform_within_half_a_unit():
    weights = torch.tensor([1.5, -1.5, 0.011, 3e-5]).repeat_interleave(20_000).to(torch.bfloat16)
    _, rest = compensation(weights)
    unit = torch.tensor([2.0**-7, 2.0**-7, 2.0**-14, 2.0**-23]).repeat_interleave(20_000)  # 7 bits after the first
    share = (rest.float() / unit).view(4, -1)
    assert share.abs().max() <= 0.5 and share.mean(1).abs().max() < 0.01
    assert share.std(1).tolist() == pytest.approx([12**-0.5] * 4, rel=0.02)
    quarters = torch.stack([torch.histc(row, 4, -0.5, 0.5) for row in share])
    assert quarters.sub(5_000).abs().max() < 300


def test_dither_moves_no_weight_by_itself():
    """Nor a power of two, below which the next number is nearer, or one that a tie would round to its neighbour."""
    weights = torch.tensor([1.0, -1.0, 0.125, 1.0078125, -1.0078125, 0.0]).repeat_interleave(20_000)
    weights = torch.cat([weights, 0.15 * torch.randn(100_000)]).to(torch.bfloat16)
    after, rest = compensation(weights)
    assert torch.equal(after, weights) and (rest[:100_000] != 0).float().mean() > 0.99


def test_dither_is_the_seeds_and_that_of_any_layout():
    """All processes that hold the same weights draw the same; a transposed tensor gets as much as any."""
    weights = torch.linspace(-1, 1, 6000, dtype=torch.bfloat16).view(60, 100)
    _, rest = compensation(weights)
    assert torch.equal(rest, compensation(weights)[1]) and not torch.equal(rest, compensation(weights, seed=4)[1])
    _, transposed = compensation(weights.T)
    assert (transposed != 0).float().mean() > 0.95


def test_other_weights_and_other_optimizers_are_left_alone():
    assert compensation(torch.ones(4))[1] is None
    plain = torch.optim.AdamW([torch.nn.Parameter(torch.ones(4))])
    optimizer.dither(plain, 3)
    assert plain.state_dict()["state"] == {}


def test_sharded_weights_are_dithered(tmp_path):
    """DTensors, as FSDP 2 makes them."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        layer = torch.nn.Linear(64, 64, bias=False).to(torch.bfloat16)
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
        made = optimi.StableAdamW(layer.parameters(), lr=1e-6)
        optimizer.use_no_triton(made)
        optimizer.dither(made, 3)
        layer(torch.ones(1, 64, dtype=torch.bfloat16)).sum().mul(0).backward()
        made.step()
        rest = made.state[layer.weight]["kahan_comp"].to_local()
        assert (rest != 0).float().mean() > 0.95
    finally:
        torch.distributed.destroy_process_group()


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


def test_a_cpu_trains_where_triton_is_installed(tiny_model, tmp_path, monkeypatch):
    """As it is with torch from PyPI; optimi would take its kernel for GPUs, which has none to run on."""
    module = importlib.import_module("optimi.stableadamw")  # optimi's own name of that is the function
    monkeypatch.setattr(module, "_default_to_triton", lambda params: True)
    _, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, optim="stable_adamw")
    assert trainer.state.global_step == 1
