"""grpo/core/out_of_memory.py: a full device or disk is one line, which names the phase and what takes less there."""

import errno
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers_trainer import trained

import train_grpo
from grpo.core.out_of_memory import is_disk_full, is_out_of_memory, out_of_memory
from grpo.training.run_trainer import RunTrainer

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB, 1.2 GiB is free."


def full(*args, **kwargs):
    raise torch.OutOfMemoryError(FULL)


@pytest.mark.parametrize(
    ("error", "yes"),
    [
        (torch.OutOfMemoryError(FULL), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory: you tried to "
                      "allocate 4294967296 bytes."), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (KeyError("out of memory"), False),
    ],
    ids=str,
)  # fmt: skip
def test_what_says_that_memory_is_out(error, yes):
    assert is_out_of_memory(error) is yes


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_librarys_word_for_a_full_disk_is_known(error):
    assert is_disk_full(error) and not is_disk_full(OSError(errno.EIO, "Input/output error"))


PHASES = {  # what fails below what is ours: the phase
    "lean_grpo.sampling.complete": "generation",
    "trl.trainer.grpo_trainer.GRPOTrainer._calculate_rewards": "the rewards",
    "torch.optim.SGD.step": "the optimizer step",
    "transformers.Trainer._save_optimizer_and_scheduler": "saving the checkpoint",
}


@pytest.mark.parametrize("where", PHASES, ids=PHASES.values())
def test_the_phase_of_training_is_named(tiny_model, tmp_path, monkeypatch, where):
    monkeypatch.setattr(where, full)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trained(RunTrainer, tiny_model, tmp_path, save_strategy="steps", save_steps=1, lengths="sampled")
    assert f"out of memory in {PHASES[where]} (it asked for 2.00 GiB more); use " in out_of_memory(raised.value)


def test_a_full_device_is_one_line_that_says_how_to_resume(tiny_run, monkeypatch, capfd):
    steps = []

    def second(self, *args, **kwargs):
        steps.append(self)
        return full() if len(steps) == 2 else real(self, *args, **kwargs)

    real = RunTrainer._loss_of
    monkeypatch.setattr(RunTrainer, "_loss_of", second)
    assert train_grpo.main(tiny_run(eval_samples="2", gradient_checkpointing="false", save_steps="1")) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    newest = max(Path("run").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert "out of memory in the training step" in line and newest.is_dir()
    assert "gradient_checkpointing true" in line and "--resume_from_checkpoint auto" in line
