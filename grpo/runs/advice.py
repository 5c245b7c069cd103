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
    OutOfMemory,
)
from grpo.core.settings import Config
from grpo.runs import checkpoints


def advice(error: OutOfMemory, config: Config) -> str:
    """What to change, and how to continue; nothing that is so already, and no invalid batch geometry."""
    rows = [row for row in remedies(error, config) if error.phase in row[0] and row[1]]
    newest, _ = checkpoints.newest(config.output)
    ways = []
    if same_run := " or ".join(text for _, _, text, new_run in rows if not new_run):
        ways.append(f"use {same_run} and " + ("--resume_from_checkpoint auto" if newest else "start again"))
    if new_run := " or ".join(text for _, _, text, new_run in rows if new_run):
        ways.append(f"use {new_run} in a new run" + (f" (--model_name_or_path {newest})" if newest else ""))
    return ", or ".join(ways) or "use a smaller model or a larger device"


def remedies(error: OutOfMemory, config: Config) -> list[tuple[tuple[str, ...], bool, str, bool]]:
    """The table, the least costly first: phases, whether it applies, the setting, whether it needs a new run."""
    training, model, geometry = config.training, config.model, config.geometry
    lora = model.use_peft or (Path(model.model_name_or_path or "") / "adapter_config.json").exists()
    gpu, optim = not training.use_cpu, getattr(training.optim, "value", training.optim)
    shared = bool(training.use_vllm) and training.vllm_mode == "colocate"
    share = 0.7 * training.vllm_gpu_memory_utilization
    evaluated, longest = training.per_device_eval_batch_size // 2, training.max_completion_length or 0
    # a pack holds a whole prompt and completion, however small it is
    packs = max((error.pack_tokens or 0) // 2, (config.script.max_prompt_length or 0) + longest)
    micro, steps = geometry.per_device_train_batch_size // 2, geometry.steps_per_generation // 2
    accumulation = geometry.gradient_accumulation_steps
    fewer = (
        steps > 0 and geometry.steps_per_generation % 2 == 0 and geometry.rollout // 2 % geometry.num_generations == 0
    )
    fewer = fewer and (steps % accumulation == 0 or accumulation % steps == 0)
    given = config.rollout_given == "generation_batch_size"
    rollout = f"generation_batch_size {geometry.rollout // 2}" if given else f"steps_per_generation {steps}"
    batch = f"per_device_train_batch_size {micro} with gradient_accumulation_steps {2 * accumulation}"
    if config.rollout_given == "steps_per_generation":  # which counts micro-batches
        batch += f" and steps_per_generation {2 * geometry.steps_per_generation}"
    halves = geometry.per_device_train_batch_size % 2 == 0
    return [
        ((EVALUATION,), evaluated > 0, f"per_device_eval_batch_size {evaluated}", False),
        ((TRAINING, SCORING), packs < (error.pack_tokens or 0), f"pack_tokens {packs}", False),
        ((TRAINING,), not training.gradient_checkpointing, "gradient_checkpointing true", False),
        (
            (REWARDS, SCORING, TRAINING, OPTIMIZER, CHECKPOINT),
            shared and not training.vllm_enable_sleep_mode,
            "vllm_enable_sleep_mode true",
            False,
        ),
        (
            (START, GENERATION, REWARDS, SCORING, TRAINING, OPTIMIZER, CHECKPOINT),
            shared,
            f"vllm_gpu_memory_utilization {share:.2g}",
            False,
        ),
        ((TRAINING, SCORING), error.pack_tokens is None and halves, batch, True),
        ((GENERATION, REWARDS), fewer and not shared, rollout, True),
        ((GENERATION, EVALUATION, TRAINING), longest > 1, f"max_completion_length {longest // 2}", True),
        ((OPTIMIZER, TRAINING, CHECKPOINT), not lora, "use_peft true", True),
        ((OPTIMIZER,), gpu and "8bit" not in optim, "optim adamw_bnb_8bit", True),
        ((OPTIMIZER,), gpu and "8bit" in optim and "paged" not in optim, "optim paged_adamw_8bit", True),
        ((START, OPTIMIZER), gpu and str(model.dtype) not in ("bfloat16", "float16"), "dtype bfloat16", True),
        (
            (START,),
            gpu and not model.load_in_4bit,
            "load_in_4bit true" + ("" if lora else " with use_peft true"),
            True,
        ),
    ]
