"""A device that is full: settings that take less, with their values.

What is proposed is not so already, keeps whole groups and the completions of an optimizer step, and passes the check
of the batch geometry.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from grpo.core.settings import Geometry
from grpo.runs import checkpoints


def smaller_rollout(geometry: Geometry) -> Geometry | None:
    """As many completions an optimizer step, at most half as many sampled at once on a device; None if it cannot be.

    >>> smaller_rollout(Geometry(1, 16, 4, 4, 16, 1)).steps_per_generation
    2
    """
    return _best(geometry, lambda new: new.rollout <= geometry.rollout / 2)


def smaller_batch(geometry: Geometry) -> Geometry | None:
    """The same rollouts and completions an optimizer step, in micro-batches half as large; None if it cannot be.

    >>> dataclasses.astuple(smaller_batch(Geometry(1, 16, 4, 4, 16, 1)))[1:4]
    (8, 8, 8)
    """
    half = geometry.per_device_train_batch_size / 2
    return _best(geometry, lambda new: new.per_device_train_batch_size <= half and new.rollout == geometry.rollout)


def _best(geometry: Geometry, fits: Callable[[Geometry], bool]) -> Geometry | None:
    """Of those that fit: the largest rollout, then the largest micro-batch."""
    per_device = geometry.per_step // geometry.world_size
    found = []
    for batch in range(geometry.per_device_train_batch_size, 0, -1):
        for steps in range(1, geometry.rollout // (geometry.world_size * batch) + 1):
            accumulation = per_device // batch
            new = dataclasses.replace(
                geometry,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulation,
                steps_per_generation=steps,
            )
            whole = per_device % batch == 0 and new.rollout % new.num_generations == 0
            if whole and (steps % accumulation == 0 or accumulation % steps == 0) and fits(new):
                found.append(new)
    return max(found, key=lambda new: (new.rollout, new.per_device_train_batch_size), default=None)


def changes(old: Geometry, new: Geometry, given: str | None = None) -> str:
    """The settings that lead from one geometry to the other; `given` as in Config."""
    keys = ["per_device_train_batch_size", "gradient_accumulation_steps"]
    if given is not None or new.steps_per_generation != new.gradient_accumulation_steps:  # which it otherwise follows
        keys.append(given or "steps_per_generation")
    values = {key: (_value(old, key), _value(new, key)) for key in keys}
    follows = given is None and old.steps_per_generation == old.gradient_accumulation_steps
    changed = [f"{key} {a} → {b}" for key, (a, b) in values.items() if a != b]
    if follows and values.get("steps_per_generation", (0, 1))[0] == new.steps_per_generation:
        changed.append(f"steps_per_generation {new.steps_per_generation}")  # as it is now, and would no longer be
    return " with ".join(changed)


def _value(geometry: Geometry, key: str) -> int:
    return geometry.rollout if key == "generation_batch_size" else getattr(geometry, key)


def advice(error: OutOfMemory, config: Any) -> str:
    """What to change, and how to go on."""
    proposed = list(dict.fromkeys(_proposals(error, config)))
    at_once = " or ".join(text for text, resumes in proposed if resumes)
    anew = " or ".join(text for text, resumes in proposed if not resumes)
    newest, _ = checkpoints.newest(Path(config.training.output_dir))
    again = "start again" if newest is None else "go on with --resume_from_checkpoint auto"
    weights = f" (--model_name_or_path {newest} takes the weights along)" if newest else ""
    ways = [f"give {at_once} and {again}"] if at_once else []
    ways += [f"give {anew} in a new run{weights}"] if anew else []
    return ", or ".join(ways) or "take a smaller model, or a larger device"


def _proposals(error: OutOfMemory, config: Any) -> Iterator[tuple[str, bool]]:
    """Settings that take less, and whether a run can be resumed with them; the least costly first."""
    training, geometry, phase = config.training, config.geometry, error.phase
    if phase == EVALUATION and (size := training.per_device_eval_batch_size) > 1:
        yield f"per_device_eval_batch_size {size} → {size // 2}", True
    if phase in (TRAINING, SCORING):
        yield from _smaller_step(error, config)
    if training.use_vllm and training.vllm_mode == "colocate" and phase != EVALUATION:
        if phase not in (START, GENERATION) and not training.vllm_enable_sleep_mode:
            yield "vllm_enable_sleep_mode true", True
        share = training.vllm_gpu_memory_utilization
        yield f"vllm_gpu_memory_utilization {share:g} → {0.7 * share:.2g}", True
    elif phase in (GENERATION, REWARDS) and (new := smaller_rollout(geometry)):
        yield f"{changes(geometry, new, config.rollout_given)}{_kept(geometry)}", False
    if phase in (GENERATION, EVALUATION, TRAINING) and (length := training.max_completion_length) > 1:
        yield f"max_completion_length {length} → {length // 2}", False
    yield from _smaller_model(phase, config)


def _smaller_step(error: OutOfMemory, config: Any) -> Iterator[tuple[str, bool]]:
    training, packs = config.training, error.pack_tokens
    least = (config.script.max_prompt_length or 0) + training.max_completion_length  # a completion is never divided
    if packs is not None and packs > least:
        yield f"pack_tokens {packs} → {max(packs // 2, least)}", True
    if error.phase == TRAINING and not training.gradient_checkpointing:
        yield "gradient_checkpointing true", True
    if packs is None and (new := smaller_batch(config.geometry)):
        yield f"{changes(config.geometry, new, config.rollout_given)}{_kept(config.geometry)}", False


def _smaller_model(phase: str, config: Any) -> Iterator[tuple[str, bool]]:
    """What the weights and the optimizer take."""
    training, model = config.training, config.model
    adapter = model.use_peft or (Path(model.model_name_or_path) / "adapter_config.json").exists()
    on_gpu, optim = not training.use_cpu, training.optim.value
    if phase in (OPTIMIZER, TRAINING, CHECKPOINT) and not adapter:
        yield "use_peft true", False
    if phase == OPTIMIZER and on_gpu and "8bit" not in optim:
        yield f"optim {optim} → adamw_bnb_8bit", False
    if phase == OPTIMIZER and on_gpu and "8bit" in optim and "paged" not in optim:
        yield f"optim {optim} → paged_adamw_8bit", False
    if phase in (START, OPTIMIZER) and on_gpu and str(model.dtype) not in ("bfloat16", "float16"):
        yield f"dtype {model.dtype} → bfloat16", False
    if phase == START and on_gpu and not model.load_in_4bit:
        yield "load_in_4bit true" + ("" if adapter else " with use_peft true"), False


def _kept(geometry: Geometry) -> str:
    return f" (still whole groups, and {geometry.per_step} completions an optimizer step)"
