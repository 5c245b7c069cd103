"""A policy answers questions, on all processes: for evaluations and `python -m grpo ask`.

It samples like rollouts (lean_grpo/sampling.py), or with `model.generate` for models that these do not support.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation import StopStringCriteria
from trl import GRPOConfig

from grpo.core.errors import one_line
from grpo.core.processes import GivenUp, largest, say
from grpo.scoring.sample import Sample
from grpo.task.prompts import tokenized
from lean_grpo.sampling import Sampling, complete, configuration, merged, reason_against, sampling_mode
from lean_grpo.wrappers import unwrapped

REFUSALS = ValueError, TypeError, ImportError  # of a generation configuration


@dataclass(frozen=True)
class Policy:
    """A model that answers questions in the way of its training. The processes share the questions.

    Attributes:
        limit: the most tokens of a completion.
        batch_size: questions that a process answers at once.
        number: the number format of autocast; None: no autocast.
        template_kwargs: GRPOConfig's chat_template_kwargs.
        prefill: the text that prompts end in and completions begin with.
        sampling, seed: how `sample` draws.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    limit: int
    batch_size: int = 1
    number: torch.dtype | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    @classmethod
    def in_training(cls, model: Any, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig, prefill: str) -> "Policy":
        """Make the policy of these settings, in their number format also if accelerate has not wrapped the model."""
        return cls(
            model,
            tokenizer,
            limit=args.max_completion_length or 0,
            batch_size=args.per_device_eval_batch_size,
            number=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None,
            template_kwargs=args.chat_template_kwargs if isinstance(args.chat_template_kwargs, dict) else {},
            prefill=prefill,
            sampling=Sampling.of(args),
            seed=args.seed,
        )

    def answer(
        self, rows: Sequence[Mapping[str, Any]], draws: int = 0, check: Callable[[], Any] = lambda: None
    ) -> list[Sample]:
        """Answer the `prompt` of each row greedily, in order. Each process returns all answers.

        Args:
            draws: further answers to each, sampled as in rollouts. The global random state is kept.
            check: called after each batch; if it raises GivenUp in one process, all raise it.
        """
        tokens = list(tokenized([row["prompt"] for row in rows], self.tokenizer, dict(self.template_kwargs)))
        answers = self.complete(tokens, check=check)
        drawn = self.complete([ids for ids in tokens for _ in range(draws)], self.sampling, check) if draws else []
        return [
            replace(answer, row=row, draws=[replace(draw, row=row) for draw in drawn[at * draws : (at + 1) * draws]])
            for at, (answer, row) in enumerate(zip(answers, rows, strict=True))
        ]

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | None = None,
        check: Callable[[], Any] = lambda: None,
    ) -> list[Sample]:
        """Complete each prompt (token ids) once, in order; greedily if `sampling` is None.

        Prompts are sorted by length internally, so that there is little padding.
        """
        model, tokenizer = unwrapped(self.model), self.tokenizer
        state, ends = PartialState(), end_tokens(model.generation_config, tokenizer)
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        share = order[state.process_index :: state.num_processes]
        if why := reason_against(model, configuration(tokenizer, ends, self.limit, sampling)):
            say(f"note: model.generate answers the questions, because {why}")
        finish = complete_by_generate if why else functools.partial(complete, asked=True)
        hidden = len(share) < 2 or not state.is_main_process
        # None: hidden without a terminal
        bar = tqdm(total=len(share), desc="evaluate", unit=" answers", leave=False, disable=hidden or None)
        device = model.device.type
        autocast = torch.autocast(device, self.number or torch.bfloat16, enabled=self.number is not None)
        devices = [model.device] if device == "cuda" else []
        done: list[tuple[int, list[int]]] = []
        given_up = False

        try:
            with (
                bar,
                autocast,
                sampling_mode(model),
                torch.random.fork_rng(devices, enabled=sampling is not None),
            ):
                if sampling:
                    torch.manual_seed(self.seed + state.process_index)
                for start in range(0, len(share), self.batch_size):
                    batch = share[start : start + self.batch_size]
                    inputs = model, tokenizer, [prompts[index] for index in batch], ends, self.limit, sampling
                    done += zip(batch, finish(*inputs, bar.update), strict=True)
                    check()
        except GivenUp:
            given_up = True
        if largest(given_up):
            raise GivenUp
        return [self._sample(ids, ids[-1] not in ends) for _, ids in sorted(gather_object(done))]

    def _sample(self, ids: list[int], truncated: bool) -> Sample:
        text = self.prefill + str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return Sample(text=text, ids=ids, tokens=len(ids) - (not truncated), truncated=truncated)


def end_tokens(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return all tokens that end a completion, from the tokenizer and from the model's configuration, as in TRL."""
    declared: Any = generation.eos_token_id
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return list(dict.fromkeys([tokenizer.eos_token_id, *declared]))


def complete_by_generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    done: Callable[[int], Any] = lambda rows: None,
) -> list[list[int]]:
    """Like `lean_grpo.sampling.complete`, for models that it does not support (`reason_against`).

    A completion that a stop string of the model's configuration ends gets the first end token, too.
    """
    config = configuration(tokenizer, ends, max_new_tokens, sampling)
    padded = tokenizer.pad({"input_ids": list(map(list, prompts))}, padding_side="left", return_tensors="pt")

    inputs = {**padded.to(model.device), "tokenizer": tokenizer}
    with one_line("model.generate cannot answer (", "); change the model's generation_config.json", REFUSALS):
        output = model.generate(**inputs, generation_config=config)
    done(len(prompts))
    strings, start = merged(model, config).stop_strings, padded["input_ids"].shape[1]
    stops = StopStringCriteria(tokenizer, strings) if strings else lambda ids, scores: [False]
    found = []
    for row in output.cpu():
        tokens = row[start:].tolist()
        length = next((index + 1 for index, token in enumerate(tokens) if token in ends), None)
        written = len(tokens)
        while written > 1 and tokens[written - 1] == config.pad_token_id:
            written -= 1
        is_stopped = length is None and bool(stops(row[None, : start + written], None)[0])
        found.append([*tokens[:written], ends[0]] if is_stopped else tokens[:length])
    return found
