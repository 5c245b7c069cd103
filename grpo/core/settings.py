"""The settings of a run as dataclasses: this project's own, batch geometry, stages, and all of them together."""

import dataclasses
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.core.checklist import Check
from grpo.core.commands import program
from grpo.core.text import counted, short_name

if TYPE_CHECKING:
    from trl import GRPOConfig, ModelConfig

# The `dataset_name` of rows passed to `main`, and of rows in HYPERPARAMETERS
IN_MEMORY, IN_SCRIPT = "rows in memory", "rows of the script"


def given_by(origin: Mapping[str, str], *sources: str) -> set[str]:
    """Return the settings that come from these sources: script, recipe, flag or machine."""
    return {key for key, source in origin.items() if source in sources}


def data_label(name: str) -> str:
    """Return a data set's short name: a file's without its extension, or the last part of a Hub id.

    >>> data_label("data/my sums.jsonl"), data_label("openai/gsm8k:main"), data_label("saved/")
    ('my-sums', 'gsm8k', 'saved')
    """
    last = Path(name).name if os.path.exists(name) else Path(name).name.partition(":")[0]
    return re.sub(r"(?i)[.](jsonl?|[ct]sv|parquet)([.](gz|bz2|xz|zst|zip))?$", "", last).replace(" ", "-")


# ruff: noqa: RUF009 - `_setting` makes a field for each dataclass anew


def _setting(text: str, default: Any = dataclasses.MISSING) -> Any:
    """Make a field with a help text for --help_all."""
    return field(default=default, metadata={"help": text})


@dataclass
class ScriptArguments:
    """This project's own settings. Most defaults are in HYPERPARAMETERS; those here mean "off"."""

    # Data
    dataset_name: str = _setting(
        "A Hub id, a .jsonl, .json, .csv, .tsv or .parquet file, also compressed, a directory of such files or of "
        "save_to_disk."
    )
    dataset_split: str = _setting("Training split; slices allowed: train[:1000], train[:10%%].")
    eval_split: str = _setting("Split of held-out questions; cut from training rows if there is none.")
    question_column: str = _setting("The column of questions, as text or lists of messages.")
    answer_column: str = _setting(
        "The column of gold answers, marked the same way in all rows: `... #### 72`, \\boxed{72}, `Answer: 72` or "
        "<answer>72</answer>, or 72 alone, as text or a number."
    )
    num_shots: int = _setting("Worked examples before each question: 0 to the number of EXEMPLARS.")
    prompt_format: dict[str, Any] | str = _setting(
        "How questions are asked and answered: xml or think, or a mapping (JSON) of system, question, completion, "
        "pattern, chat and exemplars."
    )
    reward_funcs: list[str] = _setting(
        "Names from rewards.REWARD_FUNCS, functions in HYPERPARAMETERS, or my_file.my_function."
    )
    packed: bool = _setting("Train without padding: the same gradient in less time; false: TRL's own step.")
    dataset_config: str | None = _setting("Configuration of a Hub dataset; or write openai/gsm8k:main.", None)
    prepare: str | None = _setting(
        "Turns a row into `question` and `answer`: my_file.my_function(row) -> dict, or None to drop it.", None
    )
    eval_dataset_name: str | None = _setting("Where the held-out questions come from; unset: from dataset_name.", None)
    max_samples: int | None = _setting("Use only the first rows of the training split, this many.", None)
    eval_samples: int | None = _setting("Held-out questions, at most; 0: no evaluation, also while training.", None)
    eval_num_samples: int = _setting(
        "Above 1: also sample this many answers to each held-out question, for maj@k and pass@k.", 1
    )
    eval_every: int | None = _setting("Also evaluate every N optimizer steps; 0: only before and after.", None)
    max_prompt_length: int | None = _setting("In tokens; longer training prompts are dropped, never cut.", None)
    # Prompt
    system_prompt: str | None = _setting("Replaces the prompt format's system prompt.", None)
    answer_pattern: str | None = _setting(
        "Where a completion has its answer: xml (<answer>), boxed (\\boxed{...}), hash (####), final (Answer: ...), "
        "text (all of it), or a template such as `Final: {answer}`; the prompt asks for it. Unset: the prompt "
        "format's own.",
        None,
    )
    # Rewards
    reward_args: dict[str, Any] | str | None = _setting(
        'Parameters of rewards: {"length_reward_func": {"low": 50}}.', None
    )
    judge: str | None = _setting(
        "Decides what is right: my_file.my_function(text, row) -> bool; unset: the lenient rule.", None
    )
    allow_custom_rewards: bool = _setting(
        "Let reward_funcs, judge and prepare run functions in your own files.", False
    )
    max_faulty_rewards: float = _setting(
        "Share of a rollout's completions on which rewards may fail; above it the run ends (status 3).", 0.1
    )
    stages: list[dict[str, Any]] | None = _setting(
        "Stages of training: one mapping (JSON) for each, with name, reward_funcs, reward_weights, max_steps.", None
    )
    # The training step
    pack_tokens: int | None = _setting(
        "The most tokens computed at once in a training step; unset: 8192 with FlashAttention 2, else 2048, and up to "
        "a whole group if prompts are long.",
        None,
    )
    # The run
    stop_on_alarm: bool = _setting("End at the first alarm, with a checkpoint (status 3).", False)
    dry_run: bool = _setting("Stop after preflight: nothing is trained or written.", False)
    eval_only: bool = _setting("Evaluate model_name_or_path, without training.", False)


@dataclass(frozen=True)
class Geometry:
    """Batch sizes, in *completions* unless the name says prompts. TRL needs whole groups in each rollout.

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
        """Completions of one rollout, on all devices together (`generation_batch_size`)."""
        return self.per_device_train_batch_size * self.world_size * self.steps_per_generation

    @property
    def rollout_prompts(self) -> int:
        """Prompts of one rollout, on all devices together."""
        return self.rollout // self.num_generations

    @property
    def per_step(self) -> int:
        """Completions per optimizer step, on all devices together."""
        return self.per_device_train_batch_size * self.world_size * self.gradient_accumulation_steps

    def steps_per_epoch(self, num_rows: int) -> int:
        """Optimizer steps in one pass over `num_rows` prompts. Prompts that do not fill a rollout are dropped."""
        micro_steps = num_rows // self.rollout_prompts * self.steps_per_generation * self.num_iterations
        return math.ceil(micro_steps / self.gradient_accumulation_steps)

    def describe(self) -> str:
        """Describe the batch sizes in a sentence, for preflight's table."""
        prompts = self.per_step / self.num_generations
        rollouts = self.per_step / self.rollout
        share = f"{self.per_step // self.world_size} on each of {self.world_size} devices, " * (self.world_size > 1)
        line = (
            f"{counted(prompts, 'prompt')} × {self.num_generations} generations = {self.per_step} "
            f"completions per optimizer step ({share}in micro-batches of {self.per_device_train_batch_size}); "
        )
        if rollouts == 1 and self.num_iterations == 1:
            return line + "one optimizer step per rollout (on-policy)"
        steps = self.num_iterations / rollouts
        return line + f"a rollout of {self.rollout} completions serves {counted(steps, 'optimizer step')}"


@dataclass(frozen=True)
class Stage:
    """The rewards and weights of the optimizer steps `first_step` … `last_step`, counted from 1."""

    name: str
    first_step: int
    last_step: int
    reward_funcs: list[str]
    reward_weights: list[float]

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward, by name."""
        return dict(zip(self.reward_funcs, self.reward_weights, strict=True))

    def describe(self) -> str:
        """Describe the stage in a line: name, steps, rewards and weights."""
        parts = [short_name(name) + (f" × {weight:g}" if weight != 1 else "") for name, weight in self.weights.items()]
        return f"{self.name}: steps {self.first_step}-{self.last_step}, {', '.join(parts)}"


@dataclass
class Config:
    """The resolved configuration, the only one that trainer, tracker and report read."""

    script: ScriptArguments
    training: "GRPOConfig"
    model: "ModelConfig"
    geometry: Geometry
    notes: list[Check]  # automatic decisions, for preflight's table
    origin: dict[str, str]  # setting → script, recipe, flag, or machine (adjusted to it)
    script_file: str  # the script that runs
    argv: list[str]
    stages: list[Stage]  # empty: the same rewards all the time
    functions: dict[str, dict[str, Callable[..., Any]]]  # functions in HYPERPARAMETERS, by setting and name
    default_dir: str  # the default output_dir, without a number; empty if another one was chosen
    own_metric: str | None = None  # the measure of the run's own evaluations that chooses the best checkpoint
    recipe: Path | None = None  # the file of --config
    rows: Any = None  # training data passed as a Python object: grpo/data/sources.py
    resumed_with: list[str] = field(default_factory=list)  # differences from the checkpoint's run, in words
    sources: dict[str, str] = field(default_factory=dict)  # hashes of the prompt and of the code of rewards and judge
    source_files: dict[str, bytes] = field(default_factory=dict)  # by name: runs/source.py
    code: dict[str, str] = field(default_factory=dict)  # source code of each reward and of the judge, by label
    started: float = field(default_factory=time.perf_counter)  # seconds are counted from here

    @property
    def program(self) -> str:
        """The script's name in commands to copy."""
        return program(self.script_file)

    @property
    def output(self) -> Path:
        """The run's directory."""
        return Path(self.training.output_dir or "")

    def move(self, output: Path) -> None:
        """Use another numbered directory (`-2`, …), and its number in a default run name."""
        before, after = (str(path).removeprefix(self.default_dir) for path in (self.output, output))
        if self.origin["run_name"] == "machine":
            self.training.run_name = (self.training.run_name or "").removesuffix(before) + after
        self.training.output_dir = str(output)

    @property
    def completion_limit(self) -> int:
        """The most tokens of a completion."""
        return self.training.max_completion_length or 0

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Arguments of the chat template."""
        arguments = self.training.chat_template_kwargs
        return arguments if isinstance(arguments, dict) else {}

    @property
    def step_options(self) -> dict[str, Any]:
        """RunTrainer's own arguments."""
        options = {key: getattr(self.script, key) for key in ("packed", "pack_tokens", "max_faulty_rewards")}
        return options | {"attn_implementation": self.model.attn_implementation}

    @property
    def trl_evaluates(self) -> bool:
        """True if the user asks for TRL's evaluation."""
        return self.training.eval_strategy != "no" and self.origin.get("eval_strategy") != "machine"

    def settings(self) -> dict[str, Any]:
        """All settings by name; TRL masks its tokens."""
        ours = {**dataclasses.asdict(self.script), **dataclasses.asdict(self.model)}
        return {**ours, **self.training.to_dict()}
