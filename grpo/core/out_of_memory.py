"""Recognize a full device or a full disk by the libraries' messages, and suggest settings that need less."""

import errno
import re
from collections.abc import Iterator

from grpo.core.phases import Phase

FULL_DEVICE = r"out of memory|not enough memory: you tried to allocate|ALLOC_FAILED"
FULL_DEVICE += r"|Free memory on device|No available memory for the cache blocks"  # vLLM at its start
FULL_DISK = r"No space left|os error (28|122|27)\b|quota exceeded"  # numbers: safetensors (Rust)
FULL_DISK += r"|StreamWriter failed|unexpected pos \d+ vs"  # PyTorch's archives (C++)


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
    passed: set[int] = set()
    while error is not None and id(error) not in passed:
        passed.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def out_of_memory(error: BaseException, phase: Phase) -> str:
    """Describe an out-of-memory error in this phase, and the fix."""
    amount = re.search(r"ried to allocate ([\d.]+ (?:[KMG]i)?B|\d+ bytes)", str(error))
    more = f" (it asked for {amount[1]} more)" if amount else ""
    return f"out of memory in {phase.name}{more}; use {phase.needs_less} (docs/troubleshooting.md, Out of memory)"
