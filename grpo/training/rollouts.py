"""How the completions of a rollout are sampled: TRL's own ways, or in a batch that rows leave when they end.

`lean` does so with tensors that shrink, `continuous` with tensors that stay, as CUDA graphs need them.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import GenerationConfig
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.policy import engines, sharding
from grpo.policy.continuous import Decoder, complete_continuously, unfit
from grpo.policy.decoding import Copies, all_memory, on_sdpa, sampling_mode, sampling_weights
from grpo.policy.generation import Done, Job, Sampling, complete_in_full_batch, obstacle
from grpo.policy.memory import KEPT

# The generation settings that `lean` and `continuous` follow; any other is left to `generate`
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

    name = "lean"
    copies: Copies | None = None

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
            profiling_context(trainer, f"{self.name}.generate"),
            sharding.whole(trainer) as model,
            trainer.accelerator.autocast(),
            sampling_mode(model, self.copies),
        ):
            completions = {job: ids for job, ids, _ in self.complete(model, trainer._tokenizer, jobs)}
        return [completions[job] for job, _ in jobs]

    def complete(self, model: Any, tokenizer: Any, jobs: Sequence[Job]) -> Iterator[Done]:
        return complete_in_full_batch(model, tokenizer, jobs, self.ends, self.max_new_tokens, len(jobs), self.sampling)

    def close(self) -> None:
        """Give back what is kept between rollouts."""


class Continuous(Lean):
    """The same by continuous batching on a cache of fixed size, on a GPU with CUDA graphs (policy/continuous.py).

    The cache, the graphs and the copies of weights that graphs read stay from one rollout to the next, unless they
    take more than KEPT of the device's memory: then training gets it back, and each rollout captures anew.
    """

    name = "continuous"

    def __init__(self, trainer: GRPOTrainer) -> None:
        super().__init__(trainer)
        self.copies: Copies = {}
        self.decoder: Decoder | None = None
        self.quiet = False  # while it is tried

    def complete(self, model: Any, tokenizer: Any, jobs: Sequence[Job]) -> Iterator[Done]:
        starts = self.decoder is None
        self.decoder = decoder = self.decoder or Decoder(model, tokenizer, self.sampling)
        yield from complete_continuously(
            model, tokenizer, jobs, self.ends, self.max_new_tokens, len(jobs), self.sampling, decoder
        )
        copied = sum(weight.numel() * weight.element_size() for weight in self.copies.values())
        keeps = decoder.bytes + copied <= KEPT * all_memory(decoder.device)
        if starts and not self.quiet:
            say(
                f"Rollouts: continuous batching, {decoder.rows} rows of {decoder.length:,} tokens in "
                f"{(decoder.bytes + copied) / 2**30:.2f} GiB, {'kept' if keeps else 'given back'} while training"
            )
        if not keeps:
            decoder.close()
            self.copies.clear()

    def close(self) -> None:
        self.decoder = None
        self.copies.clear()


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

    `auto` is the fastest: `lean` on a CPU, where a step costs what its rows cost (benchmarks/bench_generation.py), and
    `continuous` on a GPU, where it costs its kernel launches. A fallback prints one line.

    Args:
        trainer: a GRPOTrainer at the end of its constructor.
        generation: auto, lean, hf, continuous or vllm.

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
    if chosen == "auto":
        chosen = "lean" if args.device.type == "cpu" else "continuous"
    if chosen == "hf":
        return None
    why_not = _why_not_lean(trainer)
    if why_not is None and chosen == "continuous":
        why_not = _why_not_continuous(trainer)
    if why_not:
        say(f"note: rollouts are sampled by model.generate, not {chosen}, because {why_not}")
        return None
    return Lean(trainer) if chosen == "lean" else Continuous(trainer)


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


def _why_not_continuous(trainer: GRPOTrainer) -> str | None:
    if trainer._dist.is_fsdp or trainer._dist.is_zero3:  # from the first step on
        return "the weights are sharded"
    return unfit(trainer.accelerator.unwrap_model(trainer.model))
