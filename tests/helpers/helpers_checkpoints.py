"""Checkpoints made in a moment, complete or not, for tests that never train."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from grpo.runs import checkpoints


def make_checkpoint(run, step, world_size=1, sealed=True, **state):
    """A checkpoint as a Trainer writes it."""
    directory = Path(run) / f"checkpoint-{step}"
    directory.mkdir(parents=True)
    save_file(
        {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)},
        directory / "model.safetensors",
    )
    torch.save({"state": torch.zeros(100)}, directory / "optimizer.pt")
    torch.save({"last_epoch": step}, directory / "scheduler.pt")
    for rank in range(world_size):
        name = "rng_state.pth" if world_size == 1 else f"rng_state_{rank}.pth"
        torch.save({"cpu": torch.get_rng_state()}, directory / name)
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, **state}))
    if sealed:
        checkpoints.seal(directory, world_size, note="hello")
    return directory
