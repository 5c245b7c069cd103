"""grpo/core/out_of_memory.py: a full device or disk is one line, which names the phase and what takes less there."""

import contextlib
import errno
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers_runs import run_in
from helpers_trainer import trained

import train_grpo
from grpo.core import phases
from grpo.core.out_of_memory import is_disk_full, is_out_of_memory, out_of_memory
from grpo.core.processes import GivenUp
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


FAILS = {  # what fails below what is ours: the run's phase
    "lean_grpo.sampling.complete": phases.SAMPLING,
    "grpo.scoring.scorer.Scorer.reward": phases.REWARDS,
    "lean_grpo.LeanGRPOTrainer.compute_loss": phases.TRAINING_STEP,
    "torch.optim.SGD.step": phases.OPTIMIZER_STEP,
    "transformers.Trainer._save_optimizer_and_scheduler": phases.SAVING,
}


@pytest.mark.parametrize("where", FAILS, ids=[phase.name for phase in FAILS.values()])
def test_the_phase_of_training_is_named(tiny_model, tmp_path, monkeypatch, where):
    run = run_in(tmp_path)
    monkeypatch.setattr(where, full)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trained(RunTrainer, tiny_model, tmp_path, run=run, save_strategy="steps", save_steps=1, lengths="sampled")
    assert run.phase is FAILS[where]
    line = out_of_memory(raised.value, run.phase)
    assert line.startswith(f"out of memory in {run.phase.name} (it asked for 2.00 GiB more); use ")


def test_a_phase_ends_with_its_work_and_with_a_signal_but_not_with_a_failure(tmp_path):
    run = run_in(tmp_path)
    for error, then in ((None, phases.LOADING), (GivenUp(), phases.LOADING), (ValueError(), phases.SAMPLING)):
        with contextlib.suppress(ValueError, GivenUp), run.during(phases.TRAINING_STEP):
            with run.during(phases.SAMPLING):
                assert run.phase is phases.SAMPLING
                if error:
                    raise error
            assert run.phase is phases.TRAINING_STEP
        assert run.phase is then


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
