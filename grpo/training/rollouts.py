"""Sampling the completions of a rollout: TRL's own ways, or a batch that rows leave when they end."""

import contextlib
from collections.abc import Iterator, Sequence

from transformers import GenerationConfig
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.policy import engines, sharding
from grpo.policy.decoding import on_sdpa, sampling_mode, sampling_weights
from grpo.policy.generation import Sampling, complete_in_full_batch, obstacle

# The generation settings that `lean` follows; any other is left to `generate`
FOLLOWED = {
    "max_new_tokens", "max_length", "do_sample", "temperature", "top_p", "top_k", "min_p",
    "pad_token_id", "bos_token_id", "eos_token_id", "disable_compile", "use_cache", "transformers_version",
    "_from_model_config",
}  # fmt: skip


class Lean:
    """Sample in a batch whose rows leave it when they end; equal prompts are computed once up to their end.

    It draws from the same distribution as TRL's `generate`, from torch's global random state (TRL seeds it by process,
    and checkpoints hold it), with the model in evaluation mode: as with vLLM, dropout takes no part in sampling.
    """

    def __init__(self, trainer: GRPOTrainer) -> None:
        config = _asked(trainer)
        self.ends, self.max_new_tokens = trainer.eos_token_ids, config.max_new_tokens
        self.sampling = Sampling.like(config)

    def __call__(self, trainer: GRPOTrainer, prompt_ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """Completions in the order of the prompts, each with the end token that it ended with, if it did."""
        # all rows at once, so that one prefill serves all samples of a prompt
        jobs = list(enumerate(prompt_ids))
        # the loss computes under this autocast, too; an adapter's base model does not need it
        with (
            profiling_context(trainer, "lean.generate"),
            sharding.whole(trainer) as model,
            trainer.accelerator.autocast(),
            sampling_mode(model),
        ):
            done = complete_in_full_batch(
                model, trainer._tokenizer, jobs, self.ends, self.max_new_tokens, len(jobs), self.sampling
            )
            completions = {job: ids for job, ids, _ in done}
        return [completions[job] for job, _ in jobs]


@contextlib.contextmanager
def as_the_loss(trainer: GRPOTrainer) -> Iterator[None]:
    """Let TRL's own `generate` compute like the loss, on sdpa and with a merged adapter."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    with trainer.accelerator.autocast(), on_sdpa(model), sampling_weights(model):
        yield


def _asked(trainer: GRPOTrainer) -> GenerationConfig:
    """TRL's generation settings, completed by the model's own."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model._prepare_generation_config(trainer.generation_config)[0]


def choose(trainer: GRPOTrainer, generation: str = "auto") -> Lean | None:
    """The engine of this trainer's rollouts, called as `engine(trainer, prompt_ids)`; None: TRL's own path.

    `auto` is `lean` (benchmarks/bench_generation.py compares them). A fallback prints one line.

    Args:
        trainer: a GRPOTrainer at the end of its constructor.
        generation: auto, lean, hf or vllm.

    Raises:
        UserError: TRL's settings contradict it, or it is vLLM and the GRPOConfig has no use_vllm.
    """
    args = trainer.args
    settings = {key: getattr(args, key) for key in engines.SWITCHES} | {"generation": generation}
    engines.settle(settings, given=set())
    chosen = settings["generation"]
    if chosen == "vllm":
        if not trainer.use_vllm:
            raise UserError("generation: vllm needs use_vllm=True in the GRPOConfig")
        return None
    if chosen == "hf":
        return None
    if why_not := _why_not_lean(trainer):
        say(f"note: rollouts are sampled by model.generate, not lean, because {why_not}")
        return None
    return Lean(trainer)


def _why_not_lean(trainer: GRPOTrainer) -> str | None:
    asked = _asked(trainer)
    usual = asked._get_default_generation_params()
    others = [
        key
        for key, value in asked.to_diff_dict().items()
        if key not in FOLLOWED and value not in (None, False, usual.get(key))
    ]
    if others or not asked.do_sample:
        return f"the settings ask for {', '.join(others) or 'do_sample=False'}"
    return obstacle(trainer.accelerator.unwrap_model(trainer.model))
