"""How the completions of a rollout are sampled: TRL's own ways, or `lean`, a batch that shrinks as completions end."""

from collections.abc import Sequence

import torch
from transformers import CompileConfig, GenerationConfig
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.policy import engines, sharding
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
        with profiling_context(trainer, "lean.generate"), sharding.whole(trainer) as model, torch.no_grad():
            training = model.training
            model.eval()
            done = complete_in_full_batch(
                model, trainer._tokenizer, jobs, self.ends, self.max_new_tokens, len(jobs), self.sampling
            )
            completions = {job: ids for job, ids, _ in done}
            model.train(training)
        return [completions[job] for job, _ in jobs]


def _asked(trainer: GRPOTrainer) -> GenerationConfig:
    """TRL's generation settings, completed by the model's own."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model._prepare_generation_config(trainer.generation_config)[0]


def choose(trainer: GRPOTrainer, generation: str = "auto") -> Lean | None:
    """The engine of this trainer's rollouts, called as `engine(trainer, prompt_ids)`; None: TRL's own path.

    `auto` is the fastest (benchmarks/bench_generation.py): `lean` on a CPU, where a step costs what its rows cost.
    On a GPU, where nothing has been measured yet, it is `hf`. A fallback prints one line.

    Args:
        trainer: a GRPOTrainer at the end of its constructor.
        generation: auto, lean, hf, compiled, continuous or vllm.

    Raises:
        UserError: TRL's settings contradict it, or it needs a switch of GRPOConfig (vLLM, continuous batching).
    """
    args = trainer.args
    settings = {key: getattr(args, key) for key in engines.SWITCHES} | {"generation": generation}
    engines.settle(settings, given=set())
    chosen = settings["generation"]
    if chosen in ("vllm", "continuous"):
        if not (trainer.use_vllm if chosen == "vllm" else trainer.use_transformers_continuous_batching):
            raise UserError(f"generation: {chosen} needs {engines.SWITCH_OF[chosen]}=True in the GRPOConfig")
        if chosen == "continuous" and trainer._dist.is_fsdp:
            raise UserError("generation: continuous would convert weights that FSDP has sharded; use lean or hf")
        return None
    if chosen == "auto":
        chosen = "lean" if args.device.type == "cpu" else "hf"
    if chosen == "hf":
        return None
    why_not = _why_not_compiled(trainer) if chosen == "compiled" else _why_not_lean(trainer)
    if why_not:
        say(f"note: rollouts are sampled by model.generate, not {chosen}, because {why_not}")
    elif chosen == "compiled":
        compile_decoding(trainer)
    return Lean(trainer) if chosen == "lean" and not why_not else None


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


def _why_not_compiled(trainer: GRPOTrainer) -> str | None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"a static cache does not go with attention {attention}"
    return "the weights are sharded" if trainer._dist.is_fsdp or trainer._dist.is_zero3 else None


def compile_decoding(trainer: GRPOTrainer) -> None:
    """Let `generate` decode with compiled code on a cache of fixed size, which TRL turns off (`disable_compile`)."""
    config = trainer.generation_config
    config.cache_implementation, config.disable_compile = "static", False
    if trainer.args.device.type == "cpu":  # by default, generate compiles on accelerators only
        config.compile_config = CompileConfig()
        config.compile_config._compile_all_devices = True
