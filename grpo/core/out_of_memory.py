"""A device that is full: how an exception says so, and what the run was doing, from its traceback."""

import re
import traceback

SAYS_SO = re.compile(
    r"out of memory|not enough memory: you tried to allocate|ALLOC_FAILED"
    r"|Free memory on device|No available memory for the cache blocks"  # vLLM's, where it starts
)
START, EVALUATION, GENERATION = "loading", "the evaluation", "generation"
REWARDS, SCORING, TRAINING = "the rewards", "scoring the rollout", "the training step"
OPTIMIZER, CHECKPOINT = "the optimizer step", "saving the checkpoint"
PHASES = {  # functions of the project, TRL and transformers
    "measure": EVALUATION,
    "_generate_single_turn": GENERATION,
    "_calculate_rewards": REWARDS,
    "_generate_and_score_completions": SCORING,
    "training_step": TRAINING,
    "misfit": TRAINING,  # the trial at the start
    "_save_checkpoint": CHECKPOINT,
    "_inner_training_loop": OPTIMIZER,  # all else in it is above
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device has no memory left."""
    # torch.OutOfMemoryError is a RuntimeError, the CPU allocator raises one, and so do cuBLAS and NCCL
    return isinstance(error, RuntimeError | ValueError) and SAYS_SO.search(str(error)) is not None


def phase_of(error: BaseException) -> str:
    """What was being done, by the innermost known function of the traceback."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return next((PHASES[name] for name in reversed(names) if name in PHASES), START)


def in_words(error: BaseException) -> str:
    """In one line, without a remedy."""
    found = re.search(r"ried to allocate ([\d.]+ (?:[KMG]i)?B|\d+ bytes)", str(error))
    return f"out of memory in {phase_of(error)}" + (f" (it asked for {found[1]} more)" if found else "")
