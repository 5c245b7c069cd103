"""Let a policy answer questions, on all processes: for evaluations and `python -m grpo ask`.

It samples like rollouts (lean_grpo/sampling.py), or with `model.generate` for models that these do not support.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerBase
from trl import GRPOConfig

from grpo.core.processes import GivenUp, largest, say
from lean_grpo.sampling import Sampling, complete, reason_against, sampling_mode
from lean_grpo.wrappers import unwrapped

Completion = tuple[list[int], bool]  # token ids including the end token, and whether the completion was cut off


def end_tokens(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return all tokens that end a completion, from the tokenizer and from the model's configuration, as in TRL."""
    declared: Any = generation.eos_token_id
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return list(dict.fromkeys([tokenizer.eos_token_id, *declared]))


def training_autocast(training: GRPOConfig, model: Any) -> torch.autocast:
    """Compute in the run's number format, also with a model that accelerate has not wrapped."""
    number = torch.bfloat16 if training.bf16 else torch.float16
    return torch.autocast(model.device.type, number, enabled=training.bf16 or training.fp16)


def answer(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    check: Callable[[], Any] = lambda: None,
) -> list[Completion]:
    """Complete each prompt once, in order; greedily if `sampling` is None.

    The processes share the prompts, and each returns all completions. The global random state is kept.

    Args:
        prompts: token ids. They are sorted by length internally, so that there is little padding.
        max_new_tokens: the limit at which a completion is cut off.
        batch_size: rows computed at once.
        seed: seed of the samples.
        check: called after each token; if it raises GivenUp in one process, all raise it.
    """
    model = unwrapped(model)
    state, ends = PartialState(), end_tokens(model.generation_config, tokenizer)
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    share = order[state.process_index :: state.num_processes]
    if why := reason_against(model, sampling):
        say(f"note: model.generate answers the questions, because {why}")
    hidden = len(share) < 2 or not state.is_main_process
    bar = tqdm(total=len(share), desc="evaluate", unit=" answers", leave=False, disable=hidden or None)  # None: no tty
    devices = [model.device] if model.device.type == "cuda" else []
    done: list[tuple[int, list[int]]] = []
    given_up = False

    def each_token(rows: int) -> None:
        bar.update(rows)
        check()

    try:
        with bar, sampling_mode(model), torch.random.fork_rng(devices, enabled=sampling is not None):
            if sampling:
                torch.manual_seed(seed + state.process_index)
            for start in range(0, len(share), batch_size):
                batch = share[start : start + batch_size]
                inputs = model, tokenizer, [prompts[index] for index in batch], ends, max_new_tokens, sampling
                done += zip(batch, (complete_by_generate if why else complete)(*inputs, each_token), strict=True)
    except GivenUp:
        given_up = True
    if largest(given_up):
        raise GivenUp
    completions = [ids for _, ids in sorted(gather_object(done))]
    return [(ids, ids[-1] not in ends) for ids in completions]


def complete_by_generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    each_token: Callable[[int], Any] = lambda rows: None,
) -> list[list[int]]:
    """Like `lean_grpo.sampling.complete`, for models that it does not support (`reason_against`)."""
    drawn = sampling or Sampling(top_k=50)  # defaults, which greedy decoding ignores
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=sampling is not None,
        num_beams=1,
        **asdict(drawn),  # all five, to override a model's own (Qwen2.5's repetition_penalty is 1.1)
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    padded = tokenizer.pad({"input_ids": list(map(list, prompts))}, padding_side="left", return_tensors="pt")

    def going_on(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        each_token(0)
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # none stops here

    output = model.generate(**padded.to(model.device), generation_config=config, stopping_criteria=[going_on])
    each_token(len(prompts))
    rows = output[:, padded["input_ids"].shape[1] :].tolist()
    lengths = [next((index + 1 for index, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]
