"""Replace groups that teach nothing by groups of further prompts, before a rollout is trained on.

This is the dynamic sampling of DAPO (Yu et al., 2025, https://arxiv.org/abs/2503.14476). A group whose completions all
earn the same has no advantage: a batch of them is sampled for nothing. Each further round samples as many groups as
are still dead, so that a rollout costs no more completions than it needs. TRL then computes advantages and loss of the
chosen groups as it would have, had they been sampled first.
"""

import copy
import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from lean_grpo import trial

COLUMN = object()
STATE = "dynamic_sampling"  # in `stateful_callbacks` of the trainer's state, which is part of every checkpoint


@dataclass(frozen=True)
class Completion:
    """A scored completion.

    Attributes:
        row: of the data.
        generated: its entries of the columns that `_generate` returns.
        logged: what rewards logged of it (TRL's `log_extra`), by column.
    """

    row: dict[str, Any]
    generated: tuple[Any, ...]
    logged: dict[str, Any]


@dataclass
class Rollout:
    """Completions of all processes, group by group, and how they were found.

    Attributes:
        completions: (rows of all processes).
        rewards: (rows of all processes, functions), NaN for None.
        first_rewards: those of the prompts that the data's sampler showed, in the same shape.
        outline: what `_generate` returns, with COLUMN for each column.
        rounds, sampled: further rounds, and the completions of all rounds and processes.
        live: the share of groups that teach, in [0, 1].
    """

    completions: list[Completion]
    rewards: torch.Tensor
    first_rewards: torch.Tensor
    outline: list[Any]
    rounds: int = 0
    sampled: int = 0
    live: float = 0.0

    def of_process(self, index: int, rows: int) -> list[Completion]:
        """Return a process' completions, if each process has so many."""
        return self.completions[index * rows : (index + 1) * rows]

    def generated(self, completions: Sequence[Completion]) -> tuple[Any, ...]:
        """Return what `_generate` would have returned for these completions."""
        columns = map(list, zip(*(completion.generated for completion in completions), strict=True))
        whole = (None if all(entry is None for entry in column) else column for column in columns)
        return tuple(next(whole) if part is COLUMN else part for part in self.outline)


def reason_against_filling(trainer: Any) -> str | None:
    """Return why groups of a LeanGRPOTrainer cannot be replaced, or None."""
    if trial.others_write(trainer):
        return "tools, environments or a rollout_func write parts of completions"
    if not hasattr(trainer.train_dataset, "__len__"):
        return "the training data is a stream, which has no further prompts at hand"
    if {"image", "images"} & set(trainer.train_dataset.column_names):
        return "the training data has images"
    return None


def fill_groups(trainer: Any, inputs: list[dict[str, Any]], most: int) -> Rollout:
    """Sample and score a rollout, and replace its dead groups in further rounds. All processes take as many.

    Args:
        trainer: a LeanGRPOTrainer.
        inputs: rows of this process, a group's one after another (a group may span processes).
        most: further rounds, at most.
    """
    group, processes = trainer.num_generations, trainer.accelerator.num_processes
    used = set(inputs[0])  # columns; rewards may add some
    completions, rewards, outline = _sample_and_score(trainer, inputs)
    rollout = Rollout(completions, rewards.clone(), rewards, outline, sampled=len(completions))
    dead = _dead(trainer, rewards)
    together = processes // math.gcd(group, processes)  # the fewest groups that all processes can share
    while dead and rollout.rounds < most:
        prompts = _further(trainer, math.ceil(len(dead) / together) * together)
        rows = [row for row in prompts for _ in range(group)]
        share = len(rows) // processes
        first = trainer.accelerator.process_index * share
        own = [{key: copy.deepcopy(row[key]) for key in row if key in used} for row in rows[first : first + share]]
        with trainer.further_round():
            found, earned, _ = _sample_and_score(trainer, own)
        rollout.rounds, rollout.sampled = rollout.rounds + 1, rollout.sampled + len(found)
        replaced = list(zip(dead, _live(trainer, earned), strict=False))
        for old, new in replaced:
            here, there = (slice(number * group, (number + 1) * group) for number in (old, new))
            rollout.completions[here], rollout.rewards[here] = found[there], earned[there]
        dead = dead[len(replaced) :]
    rollout.live = len(_live(trainer, rollout.rewards)) * group / len(rollout.completions)
    return rollout


def _sample_and_score(trainer: Any, inputs: list[dict[str, Any]]) -> tuple[list[Completion], torch.Tensor, list[Any]]:
    """Return the completions of all processes, their rewards, and the outline (`Rollout`)."""
    prompts, count = [row["prompt"] for row in inputs], len(inputs)
    generated = trainer._generate(prompts)
    for name, values in generated[5].items():  # for rewards, as in TRL
        for place, row in enumerate(inputs):
            row[name] = values[place] if isinstance(values, list) else values
    rewards = trainer._calculate_rewards(inputs, prompts, generated[3], generated[1])
    logged = {name: values[-count:] for name, values in trainer._pending_extra_logs.items() if len(values) >= count}
    trainer._pending_extra_logs.clear()
    outline, columns = list[Any](), list[Any]()
    for part in generated:
        if isinstance(part, dict):  # it is in the rows by now
            outline.append({})
        elif part is None or len(part) == count:
            outline.append(COLUMN)
            columns.append([None] * count if part is None else part)
        else:
            outline.append(part)
    completions = [
        Completion(row, entries, {name: values[place] for name, values in logged.items()})
        for place, (row, *entries) in enumerate(zip(inputs, *columns, strict=True))
    ]
    return gather_object(completions), rewards, outline


def _dead(trainer: Any, rewards: torch.Tensor) -> list[int]:
    """Return the groups that are replaced: their rewards are all equal, and none has failed."""
    whole = ~rewards.isnan().all(1).view(-1, trainer.num_generations).any(1)
    return (whole.cpu() & trainer.tied_groups(rewards)).nonzero().flatten().tolist()


def _live(trainer: Any, rewards: torch.Tensor) -> list[int]:
    """Return the groups that teach."""
    scored = ~rewards.isnan().all(1).view(-1, trainer.num_generations).all(1)
    return (scored.cpu() & ~trainer.tied_groups(rewards)).nonzero().flatten().tolist()


def _further(trainer: Any, count: int) -> list[dict[str, Any]]:
    """Return the next rows of the training data in an order of their own, which the trainer's state remembers."""
    rows, seen = trainer.train_dataset, trainer.state.stateful_callbacks.setdefault(STATE, {"prompts": 0})
    places = range(seen["prompts"], seen["prompts"] + count)
    seen["prompts"] += count
    return [rows[_order(trainer.args.seed, place // len(rows), len(rows))[place % len(rows)]] for place in places]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, size: int) -> list[int]:
    return random.Random(f"dynamic sampling {seed} {epoch}").sample(range(size), size)
