"""A run before its weights are loaded, and the lists of its checks."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import psutil
import torch
from peft import PeftConfig
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from grpo.core.checklist import Check
from grpo.core.processes import largest
from grpo.core.settings import Config
from grpo.data.dataset import Data, Questions
from grpo.policy import memory
from grpo.policy.loading import read_configs
from grpo.preflight.reward_trial import Trial, perfect_values, perturbed, try_rewards
from grpo.runs.run import Run
from grpo.scoring.guard import without_effects
from grpo.scoring.registry import penalties, weights_of
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Rewards, Scorer
from grpo.task import prompts
from grpo.task.given_back import MOST, Refused, try_golds
from grpo.task.task import Task


class Device(NamedTuple):
    """The memory of each process' device, in bytes; of several processes the least."""

    kind: str  # torch's: cuda or cpu
    name: str
    free: int
    total: int

    @property
    def room(self) -> float:
        """The bytes that a run may take by the estimate."""
        return memory.room(self.free, self.total)

    def has_room_for(self, parts: Mapping[str, float]) -> bool:
        """True if an estimate fits."""
        return sum(parts.values()) <= self.room


@dataclass(frozen=True)
class Plan:
    """An evaluation before its weights are loaded, or a run (`TrainingPlan`): the input of checks."""

    run: Run
    tokenizer: PreTrainedTokenizerBase
    task: Task
    data: Questions
    rewards: Rewards

    @property
    def config(self) -> Config:
        """The configuration that the user asked for."""
        return self.run.config

    @property
    def scorer(self) -> Scorer:
        """The scorer of the run's completions."""
        return Scorer(self.task, self.rewards, weights_of(self.config, self.rewards))

    @cached_property
    def judged(self) -> dict[str, Sample]:
        """Test completions of the first row by kind, with the verdicts of the user's judge."""
        texts = perturbed("", self.first_row.get("answer"), self.task, self.data.wrong_answer)
        with without_effects():
            samples = Scorer(self.task, {}, {}).judge([Sample(self.first_row, text) for text in texts.values()])
        return dict(zip(texts, samples, strict=True))

    @property
    def trial(self) -> Trial:
        """The rewards on test completions of the first training row; empty without training."""
        return Trial()

    @cached_property
    def _configs(self) -> tuple[PretrainedConfig, PeftConfig | None]:
        return read_configs(self.config)

    @property
    def model_config(self) -> PretrainedConfig:
        """The configuration of the model, or of a saved adapter's base model."""
        return self._configs[0]

    @property
    def peft_config(self) -> PeftConfig | None:
        """The configuration of the saved or new adapter, or None."""
        return self._configs[1]

    @property
    def first_row(self) -> dict[str, Any]:
        """The first row that the model gets."""
        return self.data.rows[0]

    @cached_property
    def shape(self) -> memory.Shape | Check:
        """The model's sizes, or why they are unknown."""
        name, trust = self.config.model.model_name_or_path, self.config.training.trust_remote_code
        try:
            return memory.shape(self.model_config, self.peft_config, trust)
        except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as error:  # of any config.json
            fits = f"the adapter does not fit {name}" if self.peft_config else f"{name} is not a causal language model"
            remedy = "use --lora_target_modules all-linear" if self.peft_config else "use another model"
            if "lora_dropout" in str(error):  # PEFT's, about experts
                remedy = "use --lora_dropout 0"
            return Check("error", "model", f"{fits}: {next(iter(str(error).splitlines()), '')}", remedy)
        except RuntimeError as error:
            finding = f"its size is known only once it is loaded ({error})"
            return Check("warning", "model", finding, "watch the memory")

    @property
    def usable_shape(self) -> memory.Shape | None:
        """The model's sizes with its adapter; None if they are unknown, or the adapter does not fit."""
        return None if isinstance(self.shape, Check) or self.shape.unmatched else self.shape

    @cached_property
    def refused_golds(self) -> dict[str, Refused]:
        """The gold answers that the judge refuses when they are given back, by their table."""
        tables = {"training": self.data.rows, "held-out": self.data.held_out}
        if self.data.cut_off or self.data.rows is self.data.held_out:
            tables = {"": self.data.rows}
        refused = {}
        for name, table in tables.items():
            if self.task.judge:  # it may read any column
                rows = table.select(range(min(len(table), MOST)))
            else:
                rows = table.select_columns(["question", "answer"])
            refused[name] = try_golds(self.task, rows.to_list(), bool(self.trial.exact))
        return refused

    def prompt_ids(self) -> list[int]:
        """Tokens of the first prompt, as the sampler gets them."""
        return next(prompts.tokenized([self.first_row["prompt"]], self.tokenizer, self.config.template_kwargs))

    def prompt(self) -> str:
        """The first prompt as the model gets it: its tokens, decoded."""
        return str(self.tokenizer.decode(self.prompt_ids()))

    def encode(self, text: str) -> list[int]:
        """Tokenize a text without special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)


@dataclass(frozen=True)
class TrainingPlan(Plan):
    """A run that trains, before its weights are loaded."""

    data: Data

    @cached_property
    def device(self) -> Device:
        """The device of each process. All processes must read it, since they compare theirs."""
        device = self.config.training.device
        if device.type == "cuda":
            (free, total), name = torch.cuda.mem_get_info(device), torch.cuda.get_device_name(device)
        else:  # whose memory the processes of a machine share
            machine, processes = psutil.virtual_memory(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            free, total = machine.available // processes, machine.total // processes
            name = "this machine" + f" for each of {processes} processes" * (processes > 1)
        return Device(device.type, name, -largest(-free), -largest(-total))

    @property
    def judged(self) -> dict[str, Sample]:  # type: ignore[override]  # the rewards' own
        return self.trial.judged

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        training, per_epoch = self.config.training, self.config.geometry.steps_per_epoch(len(self.data.train))
        return training.max_steps if training.max_steps > 0 else math.ceil(per_epoch * training.num_train_epochs)

    @cached_property
    def trial(self) -> Trial:
        data = self.data
        return try_rewards(self.scorer, data.train[0], data.reasoning[0], self.tokenizer, data.wrong_answer)

    @property
    def perfect(self) -> dict[str, float]:
        """Each reward's value for a perfect completion, by logged name, if it pays more for that than for another."""
        return perfect_values(self.trial, penalties(self.rewards))


class Checks:
    """The checks of a module, in the order of their lines in the table.

    `@CHECKS.add` above a function adds it, for evaluations without training, too; `@CHECKS.add_for_training` adds
    it for runs that train.
    """

    def __init__(self) -> None:
        self._checks: list[tuple[type[Plan], Callable[[Any], Iterator[Check]]]] = []

    def add(self, check: Callable[[Plan], Iterator[Check]]) -> Callable[[Plan], Iterator[Check]]:
        """Add a check, which yields lines of the table, and return it."""
        self._checks.append((Plan, check))
        return check

    def add_for_training(
        self, check: Callable[[TrainingPlan], Iterator[Check]]
    ) -> Callable[[TrainingPlan], Iterator[Check]]:
        """Add a check of runs that train, and return it."""
        self._checks.append((TrainingPlan, check))
        return check

    def outcomes(self, plan: Plan) -> Iterator[Check]:
        """Yield the lines of the checks that this plan has."""
        for kind, check in self._checks:
            if isinstance(plan, kind):
                yield from check(plan)
