"""Try settings of sampling once before training, since libraries read them in the first rollout."""

import copy
from typing import Any

from grpo.core.errors import UserError, one_line
from grpo.scoring.guard import random_states_kept
from lean_grpo import sampling, sharding

TOKENS = 4  # to sample, beside those that the arguments demand


def run(trainer: Any) -> None:
    """Sample a few tokens if `generate` or vLLM reads settings that our sampler does not. The random states are kept.

    They are a RunTrainer's, or fields of the model's generation_config.json. With vLLM only let it read its own. With
    weights that FSDP2 or ZeRO-3 will divide, do not try.

    Raises:
        UserError: they do not work.
    """
    given: dict[str, Any] = trainer.args.generation_kwargs or {}
    names = [name for name in ("generation_kwargs", "cache_implementation") if getattr(trainer.args, name)]
    divided = not trainer.use_vllm and sharding.divides_weights(trainer.args)
    fields = [] if trainer.use_vllm or divided else _of_the_model(trainer)
    if not (names or fields) or divided:
        return
    before = " and ".join(names + ["the model's generation_config.json"] * bool(fields))
    after = f"); change or drop {', '.join([*given, *fields]) or 'it'}"
    if trainer.use_vllm:
        with one_line(f"{before}: vLLM refuses them (", after):
            _read_by_vllm(given, trainer.max_completion_length)
        return
    if names:
        with one_line(f"{before}: they have no effect (", after):
            trainer.generation_config.validate(strict=True)  # refuses what `generate` ignores
    with one_line(f"{before}: sampling fails (", after), random_states_kept():
        completions = _sample(trainer)
    if len(completions) != 2:
        raise UserError(f"{before}: {len(completions)} completions of 2 prompts{after[1:]}")


def _of_the_model(trainer: Any) -> list[str]:
    """List the fields of the model's own configuration that only `generate` obeys."""
    config = trainer.generation_config
    found = sampling.left_to_generate(sampling.merged(trainer.model, config))
    return [name for name in found if getattr(config, name, None) is None]


def _read_by_vllm(given: dict[str, Any], limit: int) -> None:
    from vllm import SamplingParams  # type: ignore[import-not-found,unused-ignore]  # here, since it may be missing

    # TRL turns structured_outputs into an object
    SamplingParams(**{"max_tokens": limit, **{key: given[key] for key in given if key != "structured_outputs"}})


def _sample(trainer: Any) -> list[list[int]]:
    """Complete two prompts of different lengths by TRL's sampling, in a few tokens."""
    prompts = [trainer._tokenizer(text)["input_ids"] for text in ("1 + 1 =", "What is 1 + 1?")]
    config, trainer.generation_config = trainer.generation_config, copy.copy(trainer.generation_config)
    demanded = sampling.merged(trainer.model, config)
    least = max(demanded.min_new_tokens or 0, demanded.min_length or 0)
    trainer.generation_config.max_new_tokens = min(trainer.max_completion_length, least + TOKENS)
    try:
        return trainer._generate_single_turn(prompts, None, {}, 2)[0]
    finally:
        trainer.generation_config = config
