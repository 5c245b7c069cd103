"""What preflight checks: a run before its weights are loaded; and the lists of its checks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from peft import PeftConfig
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from grpo.core.checklist import Check
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.preflight.reward_trial import Trial
from grpo.task import prompts
from grpo.task.task import Task


@dataclass(frozen=True)
class Plan:
    """A run before its weights are loaded, the input of all preflight checks."""

    config: Config
    tokenizer: PreTrainedTokenizerBase
    task: Task
    data: Data
    rewards: dict[str, Callable[..., Any]]
    model_config: PretrainedConfig
    peft_config: PeftConfig | None
    trial: Trial = field(default_factory=Trial)

    @property
    def first_row(self) -> dict[str, Any]:
        """The first training row."""
        return self.data.train[0]

    def prompt_ids(self) -> list[int]:
        """Tokens of the first training prompt, as the sampler gets them."""
        return next(prompts.tokenized([self.first_row["prompt"]], self.tokenizer, self.config.template_kwargs))

    def prompt(self) -> str:
        """The first training prompt as the model gets it: its tokens, decoded."""
        return str(self.tokenizer.decode(self.prompt_ids()))

    def encode(self, text: str) -> list[int]:
        """Tokenize a text without special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)


class Checks(list[Callable[[Plan], Iterator[Check]]]):
    """A module's checks, in the order of their lines in the table; `@CHECKS.add` above a function adds it."""

    def add(self, check: Callable[[Plan], Iterator[Check]]) -> Callable[[Plan], Iterator[Check]]:
        """Add a check, which yields lines of the table, and return it."""
        self.append(check)
        return check
