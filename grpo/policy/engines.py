"""Which engine samples the rollouts: the setting `generation` and TRL's own switches, which must say the same."""

from typing import Any

from grpo.core.errors import UserError
from grpo.policy.vllm import check_installed

SWITCH_OF = {"vllm": "use_vllm"}
SWITCHES = (*SWITCH_OF.values(), "cache_implementation", "use_transformers_continuous_batching")


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
            "for each rollout; drop it, and use --generation continuous"
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
    known = engine == "vllm" and settings["max_prompt_length"] and settings["eval_strategy"] == "no"
    if known and settings["vllm_max_model_length"] is None and not settings["use_unsloth"]:
        # vLLM would reserve a cache for the longest sequence that the model can take
        settings["vllm_max_model_length"] = settings["max_prompt_length"] + settings["max_completion_length"]
    return notes
