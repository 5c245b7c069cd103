"""Recognize a full device or a full disk by the libraries' messages, and suggest settings that need less."""

import errno
import re
import traceback
from collections.abc import Iterator

FULL_DEVICE = r"out of memory|not enough memory: you tried to allocate|ALLOC_FAILED"
FULL_DEVICE += r"|Free memory on device|No available memory for the cache blocks"  # vLLM at its start
FULL_DISK = r"No space left|os error (28|122|27)\b|quota exceeded"  # numbers: safetensors (Rust)
FULL_DISK += r"|StreamWriter failed|unexpected pos \d+ vs"  # PyTorch's archives (C++)

STEP = ("the training step", "a smaller pack_tokens, gradient_checkpointing true, or use_peft true")
# Function in a traceback → the phase of the run, and the settings that need less memory there
PHASES = {
    "measure": ("the evaluation", "a smaller per_device_eval_batch_size"),
    "_generate_single_turn": (
        "generation",
        "fewer completions at once (steps_per_generation), or a smaller max_completion_length",
    ),
    "_calculate_rewards": ("the rewards", "a smaller model in your reward"),
    "training_step": STEP,
    "misfit": STEP,  # the trial of a step, before training
    "_save_checkpoint": ("saving the checkpoint", "use_peft true"),
    "_inner_training_loop": ("the optimizer step", "use_peft true, or optim adamw_bnb_8bit"),
}
LOADING = ("loading", "a smaller model, load_in_4bit with use_peft, or a smaller vllm_gpu_memory_utilization")


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception is an out-of-memory error of a device."""
    # torch.OutOfMemoryError is a RuntimeError, the CPU allocator raises one, and so do cuBLAS and NCCL
    return isinstance(error, RuntimeError | ValueError) and re.search(FULL_DEVICE, str(error)) is not None


def is_disk_full(error: BaseException) -> bool:
    """True if an exception reports a full disk."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return full or re.search(FULL_DISK, str(error)) is not None


def origins(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its causes, since libraries wrap the informative one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def out_of_memory(error: BaseException) -> str:
    """Describe the phase that ran out of memory (the innermost function of PHASES in the traceback) and the fix."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    phase, remedy = next((PHASES[name] for name in reversed(names) if name in PHASES), LOADING)
    amount = re.search(r"ried to allocate ([\d.]+ (?:[KMG]i)?B|\d+ bytes)", str(error))
    more = f" (it asked for {amount[1]} more)" if amount else ""
    return f"out of memory in {phase}{more}; use {remedy} (docs/troubleshooting.md, Out of memory)"
