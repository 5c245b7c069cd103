"""Which engine samples the rollouts: the setting `generation` and TRL's own switches, which must say the same."""

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grpo.core.errors import UserError
from grpo.policy import loading, memory, vllm

if TYPE_CHECKING:
    from trl import GRPOConfig

SWITCH_OF = {"vllm": "use_vllm"}
SWITCHES = (*SWITCH_OF.values(), "cache_implementation", "use_transformers_continuous_batching")
MOST_MEMORY = 0.9  # of what is free: estimates leave out what an allocator keeps unused, and the CUDA context


def settle(settings: dict[str, Any], given: set[str]) -> None:
    """Make `generation` and TRL's switches say the same, in place.

    A switch alone decides where `generation` is auto; `generation` sets its switch.

    Raises:
        UserError: they contradict each other, or ask for TRL's own continuous batching.
    """
    asked, cache = settings["generation"], settings["cache_implementation"]
    implied = {name: switch for name, switch in SWITCH_OF.items() if settings[switch]}
    if settings["use_transformers_continuous_batching"]:
        raise UserError(
            "use_transformers_continuous_batching: it turns float32 weights into 16-bit ones for good and starts anew "
            "for each rollout; drop it"
        )
    if cache is not None:
        implied["hf"] = "cache_implementation"
    if len(implied) > 1:
        one, other = list(implied.values())[:2]
        raise UserError(f"{other}: it has no effect with {one}; drop one of them")
    for name, switch in implied.items():
        if asked not in ("auto", name):
            off = "false" if settings[switch] is True else "None"
            raise UserError(
                f"generation: {asked} contradicts {switch} {settings[switch]}; drop one, or give --{switch} {off}"
            )
        settings["generation"] = name
    if asked in SWITCH_OF:
        if SWITCH_OF[asked] in given and not settings[SWITCH_OF[asked]]:
            raise UserError(f"generation: {asked} contradicts {SWITCH_OF[asked]} false; drop one of them")
        settings[SWITCH_OF[asked]] = True


def fit_to_gpu(settings: dict[str, Any]) -> None:
    """Hold the engine against the other settings of a run on a GPU, and let vLLM fit them, in place.

    Raises:
        UserError: the engine cannot work with them, or vLLM is not there.
    """
    engine: str = settings["generation"]
    if settings["eval_only"] or settings["ask"] or settings["merge_only"]:
        return  # there are no rollouts
    if settings["use_unsloth"] and engine not in ("auto", "hf", "vllm"):
        raise UserError(f"generation: Unsloth's models decode in a way of their own, not {engine}; use auto or vllm")
    if engine == "vllm":
        vllm.check_installed(on_cpu=False)
        fit_vllm(settings)


def fit_vllm(settings: dict[str, Any]) -> None:
    """Let vLLM reserve a cache for this run's longest sequence, not for the longest that the model can take."""
    known = settings["max_prompt_length"] and settings["eval_strategy"] == "no" and not settings["use_unsloth"]
    if known and settings["vllm_max_model_length"] is None:
        settings["vllm_max_model_length"] = settings["max_prompt_length"] + settings["max_completion_length"]


# --- `auto` on a GPU ----------------------------------------------------------------------------------------------


def take_vllm(settings: dict[str, Any], pack_tokens: int | None, typed: set[str]) -> list[str]:
    """Let vLLM sample, beside the trainer, where `generation` is auto, it is installed and fits; one line says so.

    Where it samples and fits only in sleep mode, that is set, unless the command line says otherwise.

    Args:
        settings: of a run on CUDA; changed in place.
        pack_tokens: what a training step computes at once; None: padded micro-batches.
        typed: the names of the settings that the command line itself gives.
    """
    asked, version = settings["generation"], vllm.installed()
    rollouts = not (settings["eval_only"] or settings["ask"] or settings["merge_only"])
    if asked not in ("auto", "vllm") or settings["use_unsloth"] or not rollouts or version is None:
        return []
    share = f"{settings['vllm_gpu_memory_utilization']:.0%} of the GPU's memory"
    if asked == "vllm":
        before = settings["vllm_enable_sleep_mode"]
        if settings["vllm_mode"] == "colocate" and not _is_sharded(settings):
            _why_no_room(settings, pack_tokens, typed)
        note = f"note: vLLM sleeps between rollouts, because training needs its {share} (vllm_enable_sleep_mode)"
        return [note] if settings["vllm_enable_sleep_mode"] != before else []
    if reason := _why_not_vllm(settings, pack_tokens, typed):
        return [f"note: vLLM {version} does not sample, because {reason}; --generation vllm takes it all the same"]
    settings["generation"], settings["use_vllm"] = "vllm", True
    fit_vllm(settings)
    back = " that training gets back in between" if settings["vllm_enable_sleep_mode"] else ""
    return [f"note: vLLM {version} samples, in {share}{back} (generation auto)"]


def check_agreement(training: "GRPOConfig") -> None:
    """Hold what each process has decided about vLLM against the others: without this they would wait for ever.

    Raises:
        UserError: on all processes alike, where they differ.
    """
    if training.world_size == 1:
        return
    from accelerate.utils import gather_object

    seen = gather_object([(bool(training.use_vllm), bool(training.vllm_enable_sleep_mode))])
    words = [f"takes vLLM{' in sleep mode' if sleeps else ''}" if use else "takes no vLLM" for use, sleeps in seen]
    for process, what in enumerate(words):
        if what != words[0]:
            raise UserError(
                f"generation: process 0 {words[0]} and process {process} {what}, as their GPUs or libraries differ; "
                "use --generation lean, or --generation vllm --vllm_enable_sleep_mode true where all have vLLM"
            )


def _why_not_vllm(settings: dict[str, Any], pack_tokens: int | None, typed: set[str]) -> str | None:
    """Why `auto` leaves vLLM out; None: it takes it, if only in sleep mode, which is set then."""
    try:
        vllm.check_installed(on_cpu=False)
    except UserError as error:
        return str(error).removeprefix("generation: ").partition(f" {vllm.INSTALL}")[0].rstrip(".;")
    for key in ("load_in_4bit", "load_in_8bit", "fsdp", "deepspeed", "generation_kwargs"):
        if settings[key]:
            return f"{key} is set"
    if _is_sharded(settings):
        return "the model is sharded"
    return _why_no_room(settings, pack_tokens, typed)


def _is_sharded(settings: dict[str, Any]) -> bool:
    launched = any(os.environ.get(f"ACCELERATE_USE_{name}", "false") == "true" for name in ("FSDP", "DEEPSPEED"))
    return bool(launched or settings["fsdp"] or settings["deepspeed"])


def _why_no_room(settings: dict[str, Any], pack_tokens: int | None, typed: set[str]) -> str | None:
    """Why vLLM does not fit beside training; None: it does, if only in sleep mode, which is set then."""
    import torch

    free, total = torch.cuda.mem_get_info(int(os.environ.get("LOCAL_RANK", 0)))
    shape = _shape(settings)
    if shape is None or not shape.layers:
        return "the model's size is not known"
    devices = int(os.environ.get("WORLD_SIZE", 1))
    # All processes have to decide alike, and what is free differs between their GPUs
    room, there = (free, "are free") if devices == 1 else (total, "are on each GPU")
    steps = settings["steps_per_generation"] or settings["gradient_accumulation_steps"]
    rows = (settings["generation_batch_size"] or 0) // devices or settings["per_device_train_batch_size"] * steps
    prompt, share = settings["max_prompt_length"] or 512, settings["vllm_gpu_memory_utilization"] * total
    if share < (needed := memory.vllm_share(shape, rows, prompt + settings["max_completion_length"])):
        return f"its share, {share / 1e9:.0f} GB, is less than the {needed / 1e9:.0f} GB that this rollout takes"
    asked = settings["vllm_enable_sleep_mode"]
    for sleeps in (asked,) if "vllm_enable_sleep_mode" in typed else (asked, True):
        run = SimpleNamespace(**settings | {"use_vllm": True, "vllm_enable_sleep_mode": sleeps})
        parts = memory.memory(shape, run, run, rows, prompt, pack_tokens, devices, device_memory=total)
        if sum(parts.values()) <= MOST_MEMORY * room:
            settings["vllm_enable_sleep_mode"] = sleeps
            return None
    return f"it takes {sum(parts.values()) / 1e9:.0f} GB with this model's training, and {room / 1e9:.0f} GB {there}"


def _shape(settings: dict[str, Any]) -> memory.Shape | None:
    """The model's sizes, before it is loaded; UserError where there is none."""
    from trl import get_peft_config

    name, revision = settings["model_name_or_path"], settings["model_revision"]
    source = {"revision": revision, "trust_remote_code": settings["trust_remote_code"]}
    adapter = loading.read_adapter(name, revision)
    if adapter:
        name, source["revision"] = str(adapter.base_model_name_or_path), adapter.revision
    config = loading.read_model_config(name, settings["attn_implementation"], **source)
    try:
        return memory.shape(config, adapter or get_peft_config(SimpleNamespace(**settings)))  # type: ignore[arg-type]
    except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError, RuntimeError):
        return None  # preflight says what is wrong with it
