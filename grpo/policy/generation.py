"""Completions for many prompts at once: finished ones leave the batch, and waiting prompts take their places.

Greedy completions are those of `model.generate` (tests/test_generation.py), in less time (benchmarks/evaluation.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo.core.processes import say
from grpo.policy.decoding import Job, obstacle, refilled

Completion = tuple[list[int], bool]  # token ids without the end token, and whether it was cut off


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, under GRPOConfig's names; temperature 0 takes the likeliest token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = 0  # None: from the global random state

    @classmethod
    def like(cls, training: Any) -> "Sampling":
        """As the rollouts of a GRPOConfig are drawn."""
        return cls(
            training.temperature,
            training.top_p,
            training.top_k,
            training.min_p,
            training.repetition_penalty,
            training.seed,
        )

    def warpers(self) -> LogitsProcessorList:
        steps = LogitsProcessorList([TemperatureLogitsWarper(float(self.temperature))])
        if self.top_k:
            steps.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            steps.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            steps.append(MinPLogitsWarper(self.min_p))
        return steps


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion: the tokenizer's and all that the model declares (TRL does the same)."""
    declared = model.generation_config.eos_token_id
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return list(dict.fromkeys([tokenizer.eos_token_id, *declared]))


def arithmetic(training: Any, model: Any) -> torch.autocast:
    """The number format of a run's training, as a context.

    Accelerate casts in the forward of the model that it has trained, but not in that of one just loaded: the same
    weights would answer differently before and after.
    """
    number = torch.bfloat16 if training.bf16 else torch.float16
    return torch.autocast(model.device.type, number, enabled=training.bf16 or training.fp16)


@torch.no_grad()
def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling | None = None,
    label: str = "evaluate",
) -> list[Completion]:
    """One completion per prompt, in the order of the prompts; greedy where `sampling` is None.

    Equal prompts get one greedy completion, which is computed once. All processes share the prompts among them, and
    all of them get all the completions. Neither the model's mode nor the global random state changes.

    Args:
        prompts: token ids; they are taken in order of length, so that little is padding.
        max_new_tokens: where a completion is cut off.
        batch_size: rows that are computed at once.
        label: what the progress bar is called.
    """
    state, training = PartialState(), model.training
    wanted = [tuple(prompt) for prompt in prompts]
    jobs = wanted if sampling else list(dict.fromkeys(wanted))
    order = sorted(range(len(jobs)), key=lambda index: -len(jobs[index]))
    share = [(index, jobs[index]) for index in order[state.process_index :: state.num_processes]]
    ends = eos_ids(model, tokenizer)
    complete = refilled if _possible(model) else _stock
    model.eval()
    done = []
    with tqdm(
        total=len(share), desc=label, unit=" answers", disable=len(share) < 2 or not state.is_main_process
    ) as bar:
        for completion in complete(model, tokenizer, share, ends, max_new_tokens, batch_size, sampling):
            done.append(completion)
            bar.update()
    model.train(training)
    completions = [(ids if cut else ids[:-1], cut) for _, ids, cut in sorted(gather_object(done))]
    where = {prompt: index for index, prompt in enumerate(jobs)}
    return completions if sampling else [completions[where[prompt]] for prompt in wanted]


def _possible(model: Any) -> bool:
    why_not = obstacle(model)
    if why_not:
        say(f"note: evaluation runs on model.generate, because {why_not}")
    return not why_not


def _stock(
    model: Any,
    tokenizer: Any,
    jobs: Sequence[Job],
    ends: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling | None,
) -> Iterator[tuple[int, list[int], bool]]:
    """The same by `model.generate`: every batch runs until its last completion ends."""
    drawn = sampling or Sampling(temperature=1.0, top_k=50)  # the defaults of what greedy decoding ignores
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=sampling is not None,
        # model repositories ship sampling defaults (Qwen2.5's repetition_penalty is 1.1): not ours
        num_beams=1,
        repetition_penalty=drawn.repetition_penalty,
        temperature=float(drawn.temperature),
        top_p=drawn.top_p,
        top_k=drawn.top_k,
        min_p=drawn.min_p,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    for start in range(0, len(jobs), batch_size):
        batch = jobs[start : start + batch_size]
        inputs = {"input_ids": [list(prompt) for _, prompt in batch]}
        padded = tokenizer.pad(inputs, padding_side="left", return_tensors="pt").to(model.device)
        with torch.random.fork_rng():
            torch.manual_seed(drawn.seed + PartialState().process_index + start)
            output = model.generate(**padded, generation_config=config)
        for (job, _), row in zip(batch, output[:, padded["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((position for position, token in enumerate(row) if token in ends), None)
            yield job, row if end is None else row[: end + 1], end is None
