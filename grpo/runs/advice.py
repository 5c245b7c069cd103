"""A device is full: for each phase of a run, the settings that take less."""

from pathlib import Path

from grpo.core.out_of_memory import (
    CHECKPOINT,
    EVALUATION,
    GENERATION,
    OPTIMIZER,
    REWARDS,
    SCORING,
    START,
    TRAINING,
)
from grpo.core.settings import Config
from grpo.runs import checkpoints


def advice(phase: str, pack_tokens: int | None, config: Config) -> str:
    """What to change, and how to continue; nothing that is so already.

    Args:
        phase: what the run was doing, one of the names in out_of_memory.py.
        pack_tokens: tokens that a training step computes at once, where it computes packs.
    """
    newest, _ = checkpoints.newest(config.output)

    def of(rows: list[tuple[tuple[str, ...], bool, str]]) -> str:
        return " or ".join(text for phases, applies, text in rows if phase in phases and applies)

    ways = []
    if at_once := of(at_a_resume(pack_tokens, config)):
        ways.append(f"use {at_once} and " + ("--resume_from_checkpoint auto" if newest else "start again"))
    if new := of(in_a_new_run(pack_tokens, config)):
        ways.append(f"use {new} in a new run" + (f" (--model_name_or_path {newest})" if newest else ""))
    return ", or ".join(ways) or "use a smaller model or a larger device"


def at_a_resume(pack_tokens: int | None, config: Config) -> list[tuple[tuple[str, ...], bool, str]]:
    """What may be changed when a run is resumed, the least costly first: phases, whether it applies, the setting."""
    training, packed = config.training, pack_tokens or 0
    # a pack holds a whole prompt and completion, however small it is
    tokens = max(packed // 2, (config.script.max_prompt_length or 0) + config.completion_limit)
    shared = bool(training.use_vllm) and training.vllm_mode == "colocate"
    beside_vllm = (REWARDS, SCORING, TRAINING, OPTIMIZER, CHECKPOINT)
    utilization = f"vllm_gpu_memory_utilization {0.7 * training.vllm_gpu_memory_utilization:.2g}"
    return [
        ((EVALUATION,), True, f"per_device_eval_batch_size {max(1, training.per_device_eval_batch_size // 2)}"),
        ((TRAINING, SCORING), tokens < packed, f"pack_tokens {tokens}"),
        ((TRAINING,), not training.gradient_checkpointing, "gradient_checkpointing true"),
        (beside_vllm, shared and not training.vllm_enable_sleep_mode, "vllm_enable_sleep_mode true"),
        ((START, GENERATION, *beside_vllm), shared, utilization),
    ]


def in_a_new_run(pack_tokens: int | None, config: Config) -> list[tuple[tuple[str, ...], bool, str]]:
    """The same for changes that a checkpoint does not survive."""
    training, model = config.training, config.model
    lora = model.use_peft or (Path(config.model_name) / "adapter_config.json").exists()
    gpu, optim = not training.use_cpu, getattr(training.optim, "value", training.optim)
    shorter, limit = f"max_completion_length {config.completion_limit // 2}", config.completion_limit > 1
    four_bit = "load_in_4bit true" + ("" if lora else " with use_peft true and learning_rate 5e-5")
    return [
        ((SCORING, TRAINING), pack_tokens is None, "a smaller per_device_train_batch_size"),
        ((GENERATION, REWARDS), not training.use_vllm, "fewer completions at once (steps_per_generation)"),
        ((GENERATION, EVALUATION, TRAINING), limit, shorter),
        ((OPTIMIZER, TRAINING, CHECKPOINT), not lora, "use_peft true with learning_rate 5e-5"),
        ((OPTIMIZER,), gpu and "8bit" not in optim, "optim adamw_bnb_8bit"),
        ((OPTIMIZER,), gpu and "8bit" in optim and "paged" not in optim, "optim paged_adamw_8bit"),
        ((START, OPTIMIZER), gpu and str(model.dtype) not in ("bfloat16", "float16"), "dtype bfloat16"),
        ((START,), gpu and not model.load_in_4bit, four_bit),
    ]
