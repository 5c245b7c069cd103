"""The settings of a run, as data: what this project adds to TRL's, the batch geometry, the stages, all of them."""

import dataclasses
import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.core.checklist import counted
from rewards import short_name

if TYPE_CHECKING:
    from trl import GRPOConfig, ModelConfig

IN_MEMORY = "rows in memory"  # the `dataset_name` of rows that are passed to `train_grpo.main`


def as_list(names: str | list[str] | None) -> list[str]:
    """The data sets that `dataset_name` or `eval_dataset_name` lists."""
    return [names] if isinstance(names, str) else list(names or [])


def data_label(name: str) -> str:
    """A data set's short name: a file's without its ending, the last part of a Hub id.

    >>> data_label("data/my sums.jsonl"), data_label("openai/gsm8k:main"), data_label("saved/")
    ('my-sums', 'gsm8k', 'saved')
    """
    last = Path(name).name if os.path.exists(name) else Path(name).name.partition(":")[0]
    return re.sub(r"[.](jsonl?|csv|parquet)$", "", last).replace(" ", "-")


@dataclass
class ScriptArguments:
    """This project's own settings; most have their value in HYPERPARAMETERS, a default here is "off"."""

    # Data
    dataset_name: list[str] | str = field(
        metadata={
            "help": "One or more of: a Hub id, a .jsonl, .json, .csv or .parquet file, a directory written by "
            "save_to_disk."
        }
    )
    dataset_split: str = field(metadata={"help": "Training split; slices allowed: train[:1000], train[:10%%]."})
    eval_split: str = field(metadata={"help": "Split of held-out questions; cut from training rows if there is none."})
    question_column: str = field(
        metadata={
            "help": "The column of questions, as text or lists of messages; `prompt` where there is no question."
        }
    )
    answer_column: str = field(
        metadata={"help": "The column of gold answers: `... #### 72`, or 72 alone, as text or a number."}
    )
    num_shots: int = field(metadata={"help": "Worked examples before each question (0 ... 3, or of `exemplars`)."})
    prompt_format: str = field(metadata={"help": "How questions are asked and answered: xml or think."})
    reward_funcs: list[str] = field(
        metadata={
            "help": "Names from rewards.REWARD_FUNCS, functions in HYPERPARAMETERS, or my_file.my_function with "
            "allow_custom_rewards."
        }
    )
    packed: bool = field(
        metadata={"help": "The training step without padding: the same gradient in less time; false: TRL's own step."}
    )
    dataset_config: str | None = field(
        default=None, metadata={"help": "Configuration of a Hub dataset; or write it after the id: openai/gsm8k:main."}
    )
    eval_dataset_name: list[str] | str | None = field(
        default=None, metadata={"help": "Where the held-out questions come from; unset: from dataset_name."}
    )
    max_samples: int | None = field(default=None, metadata={"help": "Use only this many training rows (>= 1)."})
    eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on at most this many questions; 0: no evaluation."}
    )
    eval_num_samples: int = field(
        default=1, metadata={"help": "Above 1: also sample each held-out question this often, for maj@k and pass@k."}
    )
    eval_every: int | None = field(
        default=None,
        metadata={"help": "Also measure greedy accuracy every so many optimizer steps; unset: before and after only."},
    )
    max_prompt_length: int | None = field(
        default=None, metadata={"help": "Tokens; training rows with longer prompts are dropped, never cut."}
    )
    # Prompt
    exemplars: list[dict[str, Any]] | None = field(
        default=None,
        metadata={"help": "Replace EXEMPLARS: for each a mapping (JSON) of question, reasoning, answer."},
    )
    system_prompt: str | None = field(default=None, metadata={"help": "Replaces the prompt format's system prompt."})
    question_template: str | None = field(
        default=None, metadata={"help": "Replaces the prompt format's question; contains {question}."}
    )
    completion_template: str | None = field(
        default=None,
        metadata={"help": "Replaces its perfect completion; contains {reasoning} and {answer}."},
    )
    answer_pattern: str = field(
        default="xml",
        metadata={
            "help": "Where a completion has its answer: xml (<answer>), boxed (\\boxed{...}), hash (####), final "
            "(Answer: ...), or a template such as `Final: {answer}`. Without a completion_template, the prompt asks "
            "for it."
        },
    )
    use_chat_template: bool | None = field(
        default=None,
        metadata={"help": "Prompts as chat messages or plain text; unset: chat if the model can."},
    )
    # Rewards
    reward_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Parameters of rewards: {"length_reward_func": {"low": 50}}.'}
    )
    judge: str | None = field(
        default=None,
        metadata={
            "help": "What is right: my_file.my_function(text, row) -> bool, with allow_custom_rewards; unset: "
            "rewards.is_right"
        },
    )
    allow_custom_rewards: bool = field(
        default=False, metadata={"help": "Let reward_funcs and judge run functions in your own files."}
    )
    max_faulty_rewards: float = field(
        default=0.1,
        metadata={
            "help": "Share of a rollout's completions on which rewards may fail (raise, NaN, infinity); such "
            "completions are excluded; above it the run ends (status 3)."
        },
    )
    stages: list[dict[str, Any]] | None = field(
        default=None,
        metadata={
            "help": "Stages of training: for each a mapping (JSON) of name, reward_funcs, reward_weights, max_steps."
        },
    )
    adaptive_rewards: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rewards whose weight follows their success: × 1.2 after a rollout in which fewer than 30 %% "
            "of the completions earn it, × 0.9 above 80 %%; `all` for every one."
        },
    )
    adaptive_threshold: float = field(default=0.0, metadata={"help": "A reward above this is a success."})
    adaptive_bounds: list[float] = field(
        default_factory=lambda: [0.25, 4.0],
        metadata={"help": "Smallest and largest multiple of its own weight that a reward's weight may reach."},
    )
    # The training step
    pack_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens a training step computes at once, at most; unset: 8192 with FlashAttention 2, else 2048"
        },
    )
    # The run
    stop_on_alarm: bool = field(
        default=False, metadata={"help": "End at the first alarm, with a checkpoint (status 3)."}
    )
    use_unsloth: bool = field(
        default=False, metadata={"help": "Load and train through Unsloth, on one GPU (requirements-unsloth.txt)."}
    )
    merge_lora: bool = field(
        default=False, metadata={"help": "After training, save the adapter merged into its model, in merged/."}
    )
    # Instead of a run
    dry_run: bool = field(default=False, metadata={"help": "Stop after preflight: nothing is trained or written."})
    eval_only: bool = field(default=False, metadata={"help": "Evaluate model_name_or_path, without training."})
    ask: str | None = field(
        default=None, metadata={"help": "Ask the newest finished run a question, or model_name_or_path."}
    )
    merge_only: str | None = field(
        default=None, metadata={"help": "Merge the adapter in this directory into its model, and stop."}
    )


@dataclass(frozen=True)
class Geometry:
    """Counts of *completions* unless the name says prompts. TRL's rule: a rollout holds whole groups.

    W = world_size, B = per_device_train_batch_size, A = gradient_accumulation_steps, S = steps_per_generation,
    G = num_generations: a rollout is B·W·S completions (which G must divide), an optimizer step B·W·A.
    """

    world_size: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_generations: int
    num_iterations: int

    @property
    def rollout(self) -> int:
        """Completions that are sampled at once, on all devices together (`generation_batch_size`)."""
        return self.per_device_train_batch_size * self.world_size * self.steps_per_generation

    @property
    def rollout_prompts(self) -> int:
        return self.rollout // self.num_generations

    @property
    def per_step(self) -> int:
        """Completions per optimizer step, on all devices together."""
        return self.per_device_train_batch_size * self.world_size * self.gradient_accumulation_steps

    def steps_per_epoch(self, num_rows: int) -> int:
        """Optimizer steps that one pass over `num_rows` prompts takes; prompts that fill no rollout are dropped."""
        micro_steps = num_rows // self.rollout_prompts * self.steps_per_generation * self.num_iterations
        return math.ceil(micro_steps / self.gradient_accumulation_steps)

    def describe(self) -> str:
        prompts = self.per_step / self.num_generations
        rollouts = self.per_step / self.rollout
        share = f"{self.per_step // self.world_size} on each of {self.world_size} devices, " * (self.world_size > 1)
        line = (
            f"Geometry: {counted(prompts, 'prompt')} × {self.num_generations} generations = {self.per_step} "
            f"completions per optimizer step ({share}in micro-batches of {self.per_device_train_batch_size}); "
        )
        if rollouts == 1 and self.num_iterations == 1:
            return line + "one optimizer step per rollout (on-policy)"
        steps = self.num_iterations / rollouts
        return line + f"a rollout of {self.rollout} completions serves {counted(steps, 'optimizer step')}"


@dataclass(frozen=True)
class Stage:
    """Optimizer steps `first_step` … `last_step` (counted from 1) with these rewards, each with its weight."""

    name: str
    first_step: int
    last_step: int
    reward_funcs: list[str]
    reward_weights: list[float]

    @property
    def weights(self) -> dict[str, float]:
        return dict(zip(self.reward_funcs, self.reward_weights, strict=True))

    def describe(self) -> str:
        parts = [short_name(name) + (f" × {weight:g}" if weight != 1 else "") for name, weight in self.weights.items()]
        return f"{self.name}: steps {self.first_step}-{self.last_step}, {', '.join(parts)}"


@dataclass
class Config:
    """The one resolved configuration that trainer, names, tracker and report are fed from."""

    script: ScriptArguments
    training: "GRPOConfig"
    model: "ModelConfig"
    geometry: Geometry
    notes: list[str]  # one line for each setting that was adjusted
    changed: dict[str, dict[str, Any]]  # settings that differ from the defaults: {"inline": …, "run": …}
    argv: list[str]
    stages: list[Stage]  # none: the same rewards all the time
    typed: set[str]  # the settings that the command line itself gives
    started: float = field(default_factory=time.perf_counter)  # seconds are counted from here

    @property
    def model_name(self) -> str:
        """A Hub id, or the directory of a model or an adapter."""
        return self.model.model_name_or_path or ""

    @property
    def output(self) -> Path:
        """The run's directory."""
        return Path(self.training.output_dir or "")

    @property
    def completion_limit(self) -> int:
        """Tokens of a completion at most."""
        return self.training.max_completion_length or 0

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Arguments of the chat template."""
        found = self.training.chat_template_kwargs
        return found if isinstance(found, dict) else {}

    @property
    def step_options(self) -> dict[str, Any]:
        """LeanGRPOTrainer's own arguments."""
        own = {key: getattr(self.script, key) for key in ("packed", "pack_tokens", "max_faulty_rewards")}
        return {**own, "attn_implementation": self.model.attn_implementation}

    def settings(self) -> dict[str, Any]:
        """All of them, flat; TRL masks its tokens."""
        ours = {**dataclasses.asdict(self.script), **dataclasses.asdict(self.model)}
        return {**ours, **self.training.to_dict()}
