"""Which engine samples the rollouts: the setting `generation` and TRL's own switches, which must say the same."""

from typing import Any

from grpo.core.errors import UserError
from grpo.policy.vllm import check_installed

SWITCH_OF = {"vllm": "use_vllm", "continuous": "use_transformers_continuous_batching"}
SWITCHES = (*SWITCH_OF.values(), "cache_implementation")


def settle(settings: dict[str, Any], given: set[str]) -> None:
    """Make `generation` and TRL's switches say the same, in place.

    A switch alone decides where `generation` is auto; `generation` sets its switch.

    Raises:
        UserError: they contradict each other.
    """
    asked, cache = settings["generation"], settings["cache_implementation"]
    implied = {name: switch for name, switch in SWITCH_OF.items() if settings[switch]}
    if cache is not None and (asked, cache) != ("compiled", "static"):
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


def fit_to_gpu(settings: dict[str, Any], given: set[str]) -> list[str]:
    """Hold the engine against the other settings of a run on a GPU, adjust these in place, and say what was adjusted.

    Raises:
        UserError: the engine cannot work with them, or vLLM is not there.
    """
    engine: str = settings["generation"]
    notes: list[str] = []
    if settings["eval_only"] or settings["ask"] or settings["merge_only"]:
        return notes  # there are no rollouts
    if settings["use_unsloth"] and engine not in ("auto", "hf", "vllm"):
        raise UserError(f"generation: Unsloth's models decode in a way of their own, not {engine}; give auto or vllm")
    if engine == "vllm":
        check_installed()
    sixteen = "bf16" if settings["bf16"] else "fp16" if settings["fp16"] else None
    float32_weights = settings["dtype"] not in ("bfloat16", "float16") or settings["use_peft"]  # adapters are float32
    if engine == "continuous" and sixteen and float32_weights:
        raise UserError(
            f"generation: continuous (use_transformers_continuous_batching) with {sixteen} turns float32 weights (an "
            "adapter's too) into 16-bit ones for good; use another engine, or train all of a model in --dtype bfloat16"
        )
    if engine == "compiled" and settings["attn_implementation"] not in ("sdpa", "eager"):
        if "attn_implementation" in given:
            attention = settings["attn_implementation"]
            raise UserError(f"generation: compiled does not go with attention {attention}; give sdpa")
        settings["attn_implementation"] = "sdpa"
        notes.append("note: generation compiled needs a static cache, so attention runs on sdpa")
    known = engine == "vllm" and settings["max_prompt_length"] and settings["eval_strategy"] == "no"
    if known and settings["vllm_max_model_length"] is None and not settings["use_unsloth"]:
        # vLLM would reserve a cache for the longest sequence that the model can take
        settings["vllm_max_model_length"] = settings["max_prompt_length"] + settings["max_completion_length"]
    return notes
