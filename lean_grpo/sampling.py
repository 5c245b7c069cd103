"""Sample completions in a batch that drops finished rows; each distinct prompt is computed once.

`model.generate` computes every row until the longest completion ends. Here greedy completions are the same and samples
have the same distribution (tests/lean_grpo/test_rollouts.py), for less work (benchmarks/speed.py). On a GPU steps are
replayed as CUDA graphs (decoding.py).
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

import torch
from peft import PeftModel, PeftModelForCausalLM
from peft.tuners.lora import LoraLayer
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedTokenizerBase
from transformers.generation import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lean_grpo import models, overrides, wrappers
from lean_grpo.decoding import Decoder

READ_EVERY = 16  # steps on a GPU after which tokens are read: the host waits for it then
NEEDED = {"position_ids", "logits_to_keep"}  # required arguments of a model's forward, besides the cache
# What `generate` calls; benchmarks/exactness.py compares the models of transformers itself, some of which override it
GENERATION = overrides.Methods(GenerationMixin, "generate", "_sample", libraries=("transformers.",))
ADAPTED = overrides.Methods(PeftModelForCausalLM, "generate", libraries=("peft.",))
# Fields of a generation configuration that this sampler obeys, and those that change no token of a causal model's
# completions where max_new_tokens is set. Any other one that is set, known or not, is left to `generate`
OBEYED = {"max_new_tokens", "eos_token_id", "do_sample", "temperature", "top_k", "top_p", "min_p"}
WITHOUT_EFFECT = {
    "max_length", "pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version", "use_cache",
    "disable_compile", "compile_config", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
}  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, named as in GRPOConfig."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0  # supported by model.generate only

    @classmethod
    def of(cls, settings: Any) -> "Sampling":
        """Read the settings of a GRPOConfig, a GRPOTrainer or a generation configuration."""
        values = {name: getattr(settings, name) for name in cls.__dataclass_fields__}
        return cls(**values | {"temperature": float(settings.temperature)})  # generate refuses an int

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Draw a token for each row of logits (rows, vocabulary), from the global random state."""
        warpers = LogitsProcessorList()
        if self.temperature != 1:
            warpers.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            warpers.append(MinPLogitsWarper(self.min_p))
        scores: Any = warpers(None, logits)  # type: ignore[arg-type]  # they read no ids
        chances = scores.softmax(-1)
        return (chances / torch.empty_like(chances).exponential_()).argmax(-1)  # torch.multinomial, without its checks


def configuration(
    tokenizer: PreTrainedTokenizerBase, ends: Sequence[int], max_new_tokens: int, sampling: Sampling | None = None
) -> GenerationConfig:
    """Make the generation configuration of this sampling; None: greedy."""
    drawn = sampling or Sampling(top_k=50)  # defaults, which greedy decoding ignores
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=sampling is not None,
        num_beams=1,
        num_return_sequences=1,
        return_dict_in_generate=False,
        **asdict(drawn),  # all five, to override a model's own (Qwen2.5's repetition_penalty is 1.1)
        eos_token_id=list(ends),
        pad_token_id=tokenizer.pad_token_id,
    )


def merged(model: Any, config: GenerationConfig) -> GenerationConfig:
    """Return what `generate` makes of this configuration: the model's own fills in what it leaves open."""
    found = wrappers.base_of(model)._prepare_generation_config(config)[0]
    ends = found.eos_token_id  # a number, or several, in an array too
    found.eos_token_id = [] if ends is None else torch.as_tensor(ends).flatten().tolist()
    return found


def reason_against(model: Any, config: GenerationConfig | None = None) -> str | None:
    """Return why this sampler cannot be used, to complete `because …`, or None. The model may be wrapped.

    Args:
        config: as `generate` would be given it; None: one that the model's own fills in, but for max_new_tokens.
    """
    model, base = wrappers.unwrapped(model), wrappers.base_of(model)
    if "unsloth" in sys.modules:
        return "Unsloth's models decode in a way of their own"
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return "the adapter adds tokens to the prompt"
    if not models.has_plain_cache(base):  # rows cannot be dropped from the batch
        return "the model has states, chunked attention or another cache of its own"
    if not (models.parameters_of(base) >= NEEDED and models.cache_argument(base)):
        return f"the model's forward takes no cache, or lacks one of {', '.join(sorted(NEEDED))}"
    if getattr(base.config, "recurrent_kv_cache_mode", None) == "last_loop":  # Dory; its keys include unused slots
        return "a layer reads cached keys without the cache's update"
    if override := GENERATION.override(base) or (None if model is base else ADAPTED.override(model)):
        return override
    config = config or GenerationConfig(max_new_tokens=1)
    if not wrappers.passes_on(model, "generate", config):
        return "the adapter's `generate` does more than call the base model's"
    if model.generation_config is not base.generation_config:
        return "the adapter has a generation configuration of its own"
    return _reason_of_fields(merged(model, config))


def left_to_generate(config: GenerationConfig) -> list[str]:
    """List the fields of a merged configuration that are set and that only `generate` obeys."""
    plain = GenerationConfig()
    plain.update(**plain._get_default_generation_params(), defaults_only=True)
    return [
        name
        for name, value in vars(config).items()
        if not name.startswith("_")
        and name not in OBEYED | WITHOUT_EFFECT
        # defaults are single values, and an array's comparison is none
        and not (isinstance(value, bool | int | float | str | None) and value == getattr(plain, name, None))
    ]


def _reason_of_fields(config: GenerationConfig) -> str | None:
    if config.max_new_tokens is None:
        return "neither max_completion_length nor max_new_tokens is set"
    return next((f"{name} is set" for name in left_to_generate(config)), None)


@contextlib.contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Switch to evaluation mode without gradients, so that dropout is off, as with vLLM."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def complete(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    each_token: Callable[[int], Any] = lambda rows: None,
    asked: bool = False,
) -> list[list[int]]:
    """Complete each prompt. A completion includes its end token, if any. Call this inside `sampling_mode`.

    Args:
        prompts: token ids; all prompts form one batch.
        ends: tokens that end a completion.
        sampling: None: greedy.
        each_token: called after each token with the number of rows that leave the batch.
        asked: True if `reason_against` has no reason against this model, as the caller knows.

    Raises:
        ValueError: `reason_against` has a reason against this model.
    """
    if not asked and (why := reason_against(model, configuration(tokenizer, ends, max_new_tokens, sampling))):
        raise ValueError(f"{type(model).__name__} has to be sampled by `generate`, because {why}")
    base = wrappers.base_of(model)
    choose = sampling.draw if sampling else lambda logits: logits.argmax(-1)
    indices = {prompt: index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    copies = [indices[tuple(prompt)] for prompt in prompts]
    decoder = Decoder(base, str(models.cache_argument(base)), ends, max_new_tokens, choose)
    with lent_weights(base):
        decoder.read(list(indices), copies, tokenizer.pad_token_id)
        return _all_tokens(decoder, len(prompts), set(ends), max_new_tokens, each_token)


def _all_tokens(
    decoder: Decoder, count: int, ends: Set[int], limit: int, each_token: Callable[[int], Any]
) -> list[list[int]]:
    """Decode until all rows have ended; return their tokens."""
    done: list[list[int]] = [[] for _ in range(count)]
    rows, running = list(range(count)), set(range(count))
    on_gpu, seen = models.on_gpu(decoder.base), 0
    for drawn in range(1, limit + 1):
        leaving = 0
        if not on_gpu or drawn % READ_EVERY == 0 or drawn == limit or decoder.full:
            for row, tokens in zip(rows, decoder.tokens[:, seen:drawn].tolist(), strict=True):
                if row in running:
                    kept = next((place for place, token in enumerate(tokens, 1) if token in ends), len(tokens))
                    done[row] += tokens[:kept]
                    if done[row][-1] in ends or drawn == limit:
                        running.remove(row)
            seen = drawn
            over = len(rows) - len(running)
            # on a CPU an eighth is worth a copy of the cache; on a GPU they leave where it is copied anyway
            if not running or (decoder.full if on_gpu else 8 * over >= len(rows)):
                leaving = over
        stay = [index for index, row in enumerate(rows) if row in running]
        if on_gpu and leaving and len(stay) == 1:  # layers would be compiled anew for a single row
            stay.append((stay[0] + 1) % len(rows))
            leaving -= 1
        each_token(leaving)
        if not running:
            break
        if leaving:
            decoder.keep(torch.tensor(stay, device=decoder.device))
            rows = [rows[index] for index in stay]
        decoder.step()
    return done


@contextlib.contextmanager
def lent_weights(base: Any) -> Iterator[None]:
    """Lend linear layers their weights in autocast's number format, cast once instead of at each step.

    Autocast keeps such copies only of trained weights, and not inside compiled layers. The parameters themselves stay
    as they are: the layers get others for this context. Sharded and quantized weights are not lent.
    """
    lent: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
    if torch.is_autocast_enabled(device := base.device.type):
        linear = [module for module in base.modules() if isinstance(module, torch.nn.Linear)]
        lent = [(layer, name, own) for layer in linear for name, own in layer.named_parameters(recurse=False)]
        lent = [(layer, name, own) for layer, name, own in lent if may_be_lent(own)]
    try:
        for module, name, weight in lent:
            copy = weight.detach().to(torch.get_autocast_dtype(device))
            module._parameters[name] = torch.nn.Parameter(copy, requires_grad=False)
        yield
    finally:
        for module, name, weight in lent:
            module._parameters[name] = weight


def may_be_lent(weight: Any) -> bool:
    """True for float32 weights that are neither sharded (DTensor, ZeRO-3) nor quantized."""
    return type(weight) is torch.nn.Parameter and weight.dtype == torch.float32 and not hasattr(weight, "ds_id")


def adapted_weights(model: Any) -> list[torch.Tensor]:
    """List the base weights of LoRA layers."""
    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, LoraLayer)]
    return [weight for layer in layers for weight in layer.parameters(recurse=False) if weight.is_floating_point()]


def keeping_frozen_weights(sync_weights: Callable[[], None], model: Any) -> Callable[[], None]:
    """Wrap TRL's `sync_weights` for vLLM to restore LoRA's base weights exactly.

    TRL merges the adapter into them and subtracts it again. Rounding would make 16-bit weights drift.
    """
    weights = adapted_weights(model)

    def sync() -> None:
        exact = [weight.detach().clone() for weight in weights]
        sync_weights()
        for weight, value in zip(weights, exact, strict=True):
            weight.data.copy_(value)

    return sync


@contextlib.contextmanager
def checked_batches(model: Any) -> Iterator[None]:
    """Make transformers' `generate_batch`, TRL's continuous batching, lose neither weights nor completions.

    TRL casts the weights in place for it, and would train the rounded ones; after this context they are as before.
    `generate_batch` logs failed and missing completions and returns the rest, which TRL would train on.
    """
    weights = [(weight, weight.data) for weight in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    generate_batch = model.generate_batch

    def checked(prompts: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> Any:
        outputs = generate_batch(prompts, *args, **kwargs)
        done = [output for output in outputs.values() if output.error is None]
        if len(done) < len(prompts):
            errors = [output.error for output in outputs.values() if output.error is not None]
            reason = f": {errors[0]}" if errors else ", as its log says"
            raise RuntimeError(f"continuous batching lost {len(prompts) - len(done)} of {len(prompts)} rows{reason}")
        return outputs

    model.generate_batch = checked
    try:
        yield
    finally:
        del model.generate_batch
        for weight, data in weights:
            weight.data = data
        for module, before in buffers:
            module._buffers.update(before)
