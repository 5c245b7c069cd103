"""How long a run takes on a CPU: some of the model's layers decode and train on a few tokens, the rest is counted.

The layers have no weights of the model's, only their sizes, so nothing is loaded. Not included: loading, rewards,
the optimizer's step, checkpoints, the report.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

from grpo.config import hardware, plan
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.policy import memory
from grpo.policy.decoding import sampling_weights
from grpo.policy.generation import Sampling, complete_by_generate, complete_in_full_batch, obstacle

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

# What is measured at most: layers, vocabulary, weights of both; tokens and operations of the training step
LAYERS, VOCABULARY, LARGEST = 4, 8192, 100e6
TOKENS, WORK = 512, 10e9
# The other number format is mentioned for runs longer than so many seconds, where it is so many times as fast
SHORT, FASTER = 180, 1.15


@dataclass(frozen=True)
class Rates:
    """Seconds of the whole model: of a decoding step, for each of its rows besides, and of a token trained on."""

    step: float
    row: float
    training: float

    def decoding(self, completions: float, at_once: int, mean: float, limit: int) -> float:
        """Seconds for so many completions, in a batch that shrinks as they end."""
        longest = plan.expected_longest(mean, min(at_once, int(completions) or 1), limit)
        waiting = max(completions / at_once - 1, 0) * mean
        return (longest + waiting) * self.step + completions * mean * self.row


def describe(
    config: Config,
    model_config: "PretrainedConfig",
    peft_config: "PeftConfig | None",
    tokenizer: "PreTrainedTokenizerBase",
    data: Data,
    solutions: Sequence[int],
    shape: memory.Shape,
    steps: int,
) -> str:
    """About how long so many steps and the evaluations take, in words; empty for a model too large to measure.

    Args:
        solutions: tokens of the gold solutions as completions; where there are none, a range is assumed.
    """
    limit, prompt = config.completion_limit, median(data.lengths)
    mean = min(median(solutions), limit) if solutions else limit / 2
    means = [mean] if solutions else [0.2 * limit, limit]

    def took(bf16: bool) -> list[float]:
        rates = measure(config, model_config, peft_config, tokenizer, shape, round(prompt + mean / 2), bf16=bf16)
        return [seconds(config, data, rates, steps, each, prompt) for each in means] if rates else []

    bf16 = bool(config.training.bf16)
    found = took(bf16)
    if not found:
        return ""
    average = "to ".join(f"{each:.0f} " for each in means)
    average += "token" if means == [1] else "tokens"
    if solutions:
        average += ", as the gold solutions do" + " (cut at the limit)" * (median(solutions) > limit)
    about = f"about {plan.spell(found[0], found[-1])} if completions average {average}"
    if found[-1] > SHORT and hardware.cpu_has_bf16() and config.model.dtype == "float32":
        other = took(not bf16)
        if other[-1] < found[-1] / FASTER:
            about += f"; with --bf16 {'false' if bf16 else 'true'} {plan.spell(other[0], other[-1])}"
    return about


def seconds(config: Config, data: Data, rates: Rates, steps: int, mean: float, prompt: float) -> float:
    """Of training and the evaluations, where completions average `mean` tokens and prompts `prompt`."""
    script, training, geometry = config.script, config.training, config.geometry
    limit, devices = config.completion_limit, geometry.world_size
    rollouts = steps * geometry.per_step / geometry.rollout / geometry.num_iterations
    rows = geometry.rollout // devices
    reading = rows / geometry.num_generations * prompt * rates.training / 3  # a forward without its backward
    completions = geometry.per_step / devices
    prompts = completions / geometry.num_generations if script.packed else completions
    learning = (prompts * prompt + completions * mean) * rates.training
    answers = 2 * len(data.held_out) * (1 + script.eval_num_samples * (script.eval_num_samples > 1))
    between = (steps - 1) // script.eval_every if script.eval_every else 0  # evaluations while it trains
    answers += between * len(data.held_out)
    if script.filter_pass_rate or script.curriculum:
        answers += len(data.train) * script.filter_num_samples
    at_once = training.per_device_eval_batch_size
    return (
        rollouts * (reading + rates.decoding(rows, rows, mean, limit))
        + steps * learning
        + answers / devices * prompt * rates.training / 3
        + (2 + between) * rates.decoding(answers / devices / (2 + between), at_once, mean, limit)
    )


def measure(
    config: Config,
    model_config: "PretrainedConfig",
    peft_config: "PeftConfig | None",
    tokenizer: "PreTrainedTokenizerBase",
    shape: memory.Shape,
    tokens: int,
    bf16: bool,
) -> Rates | None:
    """The rates for sequences of so many tokens, in a second; None for a model whose layers would take longer."""
    small = shorten(model_config)
    measured = memory.shape(small, None, config.training.trust_remote_code)
    weights = multiplied(measured)
    if weights > LARGEST:
        return None
    whole = multiplied(shape) / weights
    with torch.random.fork_rng(devices=[]):  # a run's samples are the same whether or not it was measured
        model = build(config, small, peft_config)
        rows = max(config.geometry.rollout // config.geometry.world_size, 2)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            one, many = (whole * time_decoding(model, tokenizer, count, tokens) for count in (1, rows))
            training = whole * time_training(model, tokens, min(TOKENS, int(WORK / weights / 6)))
    return Rates(one, max(many - one, 0.0) / (rows - 1), training)


def multiplied(shape: memory.Shape) -> int:
    """The weights that each token is multiplied with: an embedding is looked up."""
    return shape.parameters - (shape.heads - 1) * shape.embedding


def shorten(model_config: "PretrainedConfig") -> "PretrainedConfig":
    """The same model with a few layers and a small vocabulary."""
    small = copy.deepcopy(model_config)
    text = small.get_text_config(decoder=True)
    text.num_hidden_layers = min(text.num_hidden_layers, LAYERS)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    text.vocab_size = min(text.vocab_size, VOCABULARY)
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None
    return small


def build(config: Config, small: "PretrainedConfig", peft_config: "PeftConfig | None") -> torch.nn.Module:
    """The model with random weights, in train mode as a run has it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        small,
        dtype=torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32,
        attn_implementation=config.model.attn_implementation,
        trust_remote_code=config.training.trust_remote_code,
    )
    if peft_config is not None:
        from peft import get_peft_model

        peft_config = copy.deepcopy(peft_config)
        peft_config.inference_mode = False  # which a saved one is set to
        model = get_peft_model(model, peft_config)
    if config.training.gradient_checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    return model.train()


@torch.no_grad()
def time_decoding(model: torch.nn.Module, tokenizer: "PreTrainedTokenizerBase", rows: int, tokens: int) -> float:
    """Seconds of a decoding step of so many rows."""
    complete = complete_by_generate if obstacle(model) else complete_in_full_batch
    jobs = [(number, [3] * tokens) for number in range(rows)]
    model.eval()

    def sample(length: int) -> Callable[[], object]:
        return lambda: list(complete(model, tokenizer, jobs, [-1], length, rows, Sampling()))

    with sampling_weights(model):
        found = clock(sample(6)) - clock(sample(2))
    model.train()
    return max(found, 0.0) / 4


def time_training(model: torch.nn.Module, length: int, tokens: int) -> float:
    """Seconds of forward and backward, by token."""
    ids = torch.full((max(tokens // length, 1), length), 3)

    def step() -> None:
        model.zero_grad()
        logits = model(input_ids=ids, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten()).backward()

    return clock(step) / ids.numel()


def clock(work: Callable[[], object]) -> float:
    """Seconds of the faster of two times: the first has to warm up, and other programs may disturb one."""
    found = []
    for _ in range(2):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)
