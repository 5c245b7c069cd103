"""grpo/core/out_of_memory.py, runs/advice.py: a full device is one line that names the phase and what helps."""

from pathlib import Path

import pytest
import torch
from helpers_runs import DEMO, TINY, flags
from helpers_trainer import trained

import train_grpo
from grpo.config.resolve import resolve
from grpo.core import out_of_memory
from grpo.core.errors import UserError
from grpo.core.out_of_memory import OutOfMemory, is_one, phase
from grpo.evaluation import evaluate
from grpo.policy import loading
from grpo.runs.advice import advice
from grpo.training import attention
from grpo.training.base_trainer import BaseGRPOTrainer
from grpo.training.trainer import LeanGRPOTrainer

FULL = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB of which 1.2 GiB is free."
)


def full(*args, **kwargs):
    raise FULL


@pytest.mark.parametrize(
    ("error", "yes"),
    [
        (FULL, True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory: you tried to "
                      "allocate 4294967296 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (ValueError("Free memory on device cuda:0 (9.1/79.2 GiB) on startup is less than desired"), True),
        (ValueError("Free memory on device (3.1/23.6 GiB) on startup is less than desired GPU memory"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (KeyError("out of memory"), False),
    ],
    ids=str,
)  # fmt: skip
def test_what_says_that_memory_is_out(error, yes):
    assert is_one(error) is yes


def test_the_innermost_phase_counts_and_other_errors_pass():
    with pytest.raises(OutOfMemory) as raised, phase(out_of_memory.OPTIMIZER), phase(out_of_memory.GENERATION):
        full()
    assert raised.value.phase == "generation" and raised.value.__cause__ is FULL
    for other in (ValueError("no"), UserError("no"), KeyboardInterrupt()):
        with pytest.raises(type(other)) as raised, phase(out_of_memory.OPTIMIZER):
            raise other
        assert raised.value is other


def test_the_size_is_named_whoever_says_it():
    for text, size in (
        ("Tried to allocate 2.00 GiB. GPU", "2.00 GiB"),
        ("you tried to allocate 17 bytes.", "17 bytes"),
    ):
        assert f"(it asked for {size} more)" in str(OutOfMemory("generation", text, None))
    assert str(OutOfMemory("generation", "CUDA error: out of memory", None)) == "out of memory in generation"


# --- The phases of a run


PHASES = {  # what fails below what is ours: the phase that is to be named
    "trl.trainer.grpo_trainer.GRPOTrainer._generate_single_turn": "generation",
    "trl.trainer.grpo_trainer.GRPOTrainer._calculate_rewards": "the rewards",
    "trl.trainer.grpo_trainer.nanstd": "scoring the rollout",
    "trl.trainer.grpo_trainer.GRPOTrainer._compute_loss": "the training step",
    "torch.optim.SGD.step": "the optimizer step",
    "trl.trainer.grpo_trainer.GRPOTrainer._save_checkpoint": "saving the checkpoint",
}


@pytest.mark.parametrize("where", PHASES, ids=PHASES.values())
def test_the_phase_of_training_is_named(tiny_model, tmp_path, monkeypatch, where):
    monkeypatch.setattr(where, full)
    with pytest.raises(OutOfMemory) as raised:
        trained(LeanGRPOTrainer, tiny_model, tmp_path, save_strategy="steps", save_steps=1, lengths="sampled")
    assert (raised.value.phase, raised.value.pack_tokens) == (PHASES[where], 2048)
    if PHASES[where] == "the training step":
        with pytest.raises(OutOfMemory) as raised:
            trained(BaseGRPOTrainer, tiny_model, tmp_path, lengths="sampled")
        assert (raised.value.phase, raised.value.pack_tokens) == (PHASES[where], None)


def test_the_reference_model_is_scoring(tiny_model, tmp_path, monkeypatch):
    _, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, beta=0.1, per_device_eval_batch_size=4)
    score = attention.score

    def full_with_a_rollout(model, backend, rows, *others):
        return full() if len(rows) == 16 else score(model, backend, rows, *others)

    monkeypatch.setattr(attention, "score", full_with_a_rollout)
    with pytest.raises(OutOfMemory) as raised:
        trained(LeanGRPOTrainer, tiny_model, tmp_path, beta=0.1)
    assert raised.value.phase == "scoring the rollout"
    trainer._generate_single_turn = full
    with pytest.raises(OutOfMemory) as raised:
        trainer.evaluate(trainer.train_dataset.select(range(4)))
    assert raised.value.phase == "the evaluation"


def test_a_full_device_is_one_line_and_status_2(tiny_run, monkeypatch, capfd):
    monkeypatch.setattr(evaluate, "generate", full)
    assert train_grpo.main(tiny_run(eval_samples="2")) == 2
    err = capfd.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "out of memory in the evaluation" in line and "per_device_eval_batch_size 32 and start again" in line
    assert "Traceback" not in err


def test_in_training_the_line_says_how_to_resume(tiny_run, monkeypatch, capfd):
    steps = []

    def second(self, *args, **kwargs):
        steps.append(self)
        return full() if len(steps) == 2 else real(self, *args, **kwargs)

    real = LeanGRPOTrainer._loss_of
    monkeypatch.setattr(LeanGRPOTrainer, "_loss_of", second)
    assert train_grpo.main(tiny_run(eval_samples="2", gradient_checkpointing="false", save_steps="1")) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    newest = max(Path("run").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert "out of memory in the training step" in line and f"--model_name_or_path {newest}" in line
    assert "use pack_tokens 1024 or gradient_checkpointing true and --resume_from_checkpoint auto" in line


# --- The advice


def config(argv=(), gpu=False, **overrides):
    argv = flags(**{**TINY, "model_name_or_path": str(DEMO / "model"), "dataset_name": "x.jsonl", **overrides})
    made = resolve(train_grpo.HYPERPARAMETERS, argv)
    made.training.use_cpu = not gpu
    return made


def said(phase_name, made, pack_tokens=None):
    return advice(OutOfMemory(phase_name, "", pack_tokens), made)


BATCH = {"per_device_train_batch_size": "16", "gradient_accumulation_steps": "4", "num_generations": "16"}


def test_each_phase_is_answered_with_what_it_takes():
    made = config(**BATCH, max_completion_length="100", max_prompt_length="200", gradient_checkpointing="false")
    assert said(out_of_memory.GENERATION, made) == (
        "use fewer completions at once (steps_per_generation) or max_completion_length 50 in a new run"
    )
    assert said(out_of_memory.TRAINING, made, pack_tokens=2048) == (
        "use pack_tokens 1024 or gradient_checkpointing true and start again, or use max_completion_length 50 or "
        "use_peft true in a new run"
    )
    assert said(out_of_memory.TRAINING, made, pack_tokens=400).startswith("use pack_tokens 300 or")
    assert said(out_of_memory.SCORING, made) == "use a smaller per_device_train_batch_size in a new run"
    assert said(out_of_memory.OPTIMIZER, made) == "use use_peft true in a new run"
    gpu = config(gpu=True, **BATCH)
    assert "optim adamw_bnb_8bit or dtype bfloat16" in said(out_of_memory.OPTIMIZER, gpu)
    assert "dtype bfloat16 or load_in_4bit true with use_peft true" in said(out_of_memory.START, gpu)


def test_nothing_is_proposed_that_is_so_already():
    made = config(
        **BATCH, gradient_checkpointing="true", use_peft="true", max_completion_length="100", max_prompt_length="200"
    )
    assert said(out_of_memory.TRAINING, made, pack_tokens=300) == "use max_completion_length 50 in a new run"
    made.training.use_cpu, made.model.dtype, made.model.load_in_4bit = False, "bfloat16", True
    made.training.optim = type(made.training.optim)("paged_adamw_8bit")
    for phase_name in (out_of_memory.START, out_of_memory.OPTIMIZER, out_of_memory.CHECKPOINT):
        assert said(phase_name, made) == "use a smaller model or a larger device"


def test_where_vllm_shares_the_device_its_share_is_smaller():
    made = config(gpu=True, **BATCH)
    made.training.use_vllm, made.training.vllm_mode, made.training.vllm_gpu_memory_utilization = True, "colocate", 0.3
    for phase_name in (out_of_memory.START, out_of_memory.GENERATION):
        assert "vllm_gpu_memory_utilization 0.21" in said(phase_name, made)
        assert "steps_per_generation" not in said(phase_name, made)  # vLLM's memory does not follow the rollout
    assert "vllm_enable_sleep_mode true or vllm_gpu" in said(out_of_memory.OPTIMIZER, made)


def test_loading_without_memory_is_no_broken_model(tiny_model, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(OutOfMemory, match="out of memory in loading"):
        loading.load(config(model_name_or_path=tiny_model))


def test_packing_without_memory_is_no_misfit(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "score", full)
    with pytest.raises(OutOfMemory, match="out of memory in the training step"):
        trained(LeanGRPOTrainer, tiny_model, tmp_path)
