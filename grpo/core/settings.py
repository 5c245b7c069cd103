"""The settings: what is known of each, this project's own, batch geometry, and a run's configuration."""

import dataclasses
import enum
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo.core.checklist import Check
from grpo.core.commands import program
from grpo.core.text import counted
from rewards import REWARD_FUNCS

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


# --- What is known of each setting ----------------------------------------------------------------------------------


class Change(enum.Enum):
    """The meaning of another value, for a run that is resumed with it and for two runs that are compared."""

    NOTHING = enum.auto()  # logging, files, speed
    COMMAND = enum.auto()  # the same, and a resumed run's command has another value than the first one's
    MEASURE = enum.auto()  # other questions or samples: what is learned is the same, gains are not comparable
    DATA = enum.auto()  # another name, perhaps of the same rows; a resumed run compares the rows themselves
    PROMPT = enum.auto()  # other words in the prompt, which is compared by its hash
    LENGTH = enum.auto()  # a longer or shorter run
    EXPERIMENT = enum.auto()  # something else is learned
    CHECKPOINT = enum.auto()  # so that a checkpoint's optimizer state or place in the data has no meaning


NOTHING, COMMAND, MEASURE, DATA, PROMPT, LENGTH, EXPERIMENT, CHECKPOINT = Change


class Range(NamedTuple):
    """The numbers that a setting may be."""

    label: str
    contains: Callable[[float], bool]


AT_LEAST_0 = Range("at least 0", lambda number: number >= 0)
AT_LEAST_1 = Range("at least 1", lambda number: number >= 1)
AT_LEAST_2 = Range("at least 2", lambda number: number >= 2)
ABOVE_0 = Range("above 0", lambda number: 0 < number < math.inf)
FINITE = Range("at least 0", lambda number: 0 <= number < math.inf)
FROM_0_TO_1 = Range("from 0 to 1", lambda number: 0 <= number <= 1)
ABOVE_0_TO_1 = Range("above 0 and at most 1", lambda number: 0 < number <= 1)
BELOW_1 = Range("at least 0 and below 1", lambda number: 0 <= number < 1)
STEPS = Range("at least 1, or -1 for whole epochs", lambda number: number == -1 or number >= 1)
UNSET: Any = object()
NO_EFFECT = "it has no effect:"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What this project knows of a setting: all that it asks about one before, during and after a run.

    Attributes:
        default: this project's default, where it is not TRL's.
        may_be_none: True if None is a value, although TRL's default is another.
        on_cpu: the value that `use_cpu` implies, whatever HYPERPARAMETERS or a recipe says.
        change: the meaning of another value.
        same: values that compute the same, so that one instead of another is no change.
        is_seed: True if it may differ between runs of one experiment.
        of_process: True if it may differ between the processes of one run.
        choices: the values, where TRL accepts any text and fails in the first step.
        fixed: the only value that works, and what is wrong with others: "it ...".
        needs: the setting without which a flag of this one has no effect.
        aliases: its names in other trainers, and common guesses.
    """

    range: Range | None = None
    default: Any = UNSET
    may_be_none: bool = False
    on_cpu: Any = UNSET
    change: Change = EXPERIMENT
    same: tuple[str, ...] = ()
    is_seed: bool = False
    of_process: bool = False
    choices: tuple[str, ...] = ()
    fixed: tuple[Any, str] | None = None
    needs: str = ""
    aliases: tuple[str, ...] = ()


class _Metadata(dict[str, Any]):
    """A field's metadata; a copy, which HfArgumentParser passes to argparse, has the help text alone."""

    def copy(self) -> dict[str, Any]:
        return {"help": self["help"]}


# ruff: noqa: RUF009 - `_setting` makes a field for each dataclass anew


def _setting(default: Any, text: str, range: Range | None = None, **known: Any) -> Any:
    """Make a field with a help text for --help_all, and what is known of the setting."""
    metadata = _Metadata(help=text, setting=Setting(range=range, **known))
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class ScriptArguments:
    """This project's own settings. HYPERPARAMETERS in the script repeats the defaults that many people change."""

    # Data
    dataset_name: str | None = _setting(
        "openai/gsm8k",
        "A Hub id, a .jsonl, .json, .csv, .tsv or .parquet file, also compressed, a directory of such files or of "
        "save_to_disk.",
        change=DATA,
        aliases=("dataset_id_or_path",),
    )
    dataset_config: str | None = _setting(
        "main", "Configuration of a Hub dataset; or write openai/gsm8k:main.", change=DATA, may_be_none=True
    )
    dataset_split: str = _setting(
        "train",
        "Training split; slices allowed: train[:1000], train[:10%%].",
        change=DATA,
        aliases=("dataset_train_split",),  # open-r1's, as are dataset_test_split and dataset_prompt_column
    )
    question_column: str = _setting(
        "question", "The column of questions, as text or lists of messages.", aliases=("dataset_prompt_column",)
    )
    answer_column: str = _setting(
        "answer",
        "The column of gold answers, marked the same way in all rows: `... #### 72`, \\boxed{72}, `Answer: 72` or "
        "<answer>72</answer>, or 72 alone, as text or a number.",
    )
    prepare: str | None = _setting(
        None, "Turns a row into `question` and `answer`: my_file.my_function(row) -> dict, or None to drop it."
    )
    max_samples: int | None = _setting(
        None, "Use only the first rows of the training split, this many.", AT_LEAST_1, change=DATA
    )
    max_prompt_length: int | None = _setting(
        256, "In tokens; longer training prompts are dropped, never cut.", AT_LEAST_1, may_be_none=True
    )
    # Prompt
    prompt_format: dict[str, Any] | str = _setting(
        "xml",
        "How questions are asked and answered: xml or think, or a mapping (JSON) of system, question, completion, "
        "pattern, chat and exemplars.",
        change=PROMPT,
    )
    system_prompt: str | None = _setting(None, "Replaces the prompt format's system prompt.", change=PROMPT)
    answer_pattern: str | None = _setting(
        None,
        "Where a completion has its answer: xml (<answer>), boxed (\\boxed{...}), hash (####), final (Answer: ...), "
        "text (all of it), or a template such as `Final: {answer}`; the prompt asks for it. Unset: the prompt "
        "format's own.",
        change=PROMPT,
    )
    num_shots: int = _setting(0, "Worked examples before each question: 0 to the number of EXEMPLARS.", AT_LEAST_0)
    # Rewards
    reward_funcs: list[str] = _setting(
        list(REWARD_FUNCS),
        "Names of rewards.py and examples/more_rewards.py, functions in HYPERPARAMETERS, or my_file.my_function.",
    )
    reward_args: dict[str, Any] | str | None = _setting(
        None, 'Parameters of rewards: {"length_reward_func": {"low": 50}}.'
    )
    judge: str | None = _setting(
        None, "Decides what is right: my_file.my_function(text, row) -> bool; unset: the lenient rule."
    )
    allow_custom_rewards: bool = _setting(
        False, "Let reward_funcs, judge and prepare run functions in your own files.", change=NOTHING
    )
    max_faulty_rewards: float = _setting(
        0.1,
        "Share of a rollout's completions on which rewards may fail; above it the run ends (status 3).",
        FROM_0_TO_1,
        change=NOTHING,
    )
    # Evaluation
    eval_dataset_name: str | None = _setting(
        None, "Where the held-out questions come from; unset: from dataset_name.", change=MEASURE, of_process=True
    )
    eval_split: str = _setting(
        "test",
        "Split of held-out questions; cut from training rows if there is none.",
        change=MEASURE,
        aliases=("dataset_test_split",),
    )
    eval_samples: int | None = _setting(
        200,
        "Held-out questions, at most; 0: no evaluation, also while training.",
        AT_LEAST_0,
        may_be_none=True,
        change=MEASURE,
    )
    eval_num_samples: int = _setting(
        1,
        "Above 1: also sample this many answers to each held-out question, for maj@k and pass@k.",
        AT_LEAST_1,
        change=MEASURE,
    )
    eval_every: int | None = _setting(
        None, "Also evaluate every N optimizer steps; 0: only before and after.", AT_LEAST_0, change=NOTHING
    )
    eval_only: bool = _setting(False, "Evaluate model_name_or_path, without training.", change=MEASURE)
    # The training step
    packed: bool = _setting(
        True, "Train without padding: the same gradient in less time; false: TRL's own step.", change=NOTHING
    )
    pack_tokens: int | None = _setting(
        None,
        "The most tokens computed at once in a training step; unset: 8192 with FlashAttention 2, else 2048, and up to "
        "a whole group if prompts are long.",
        AT_LEAST_1,
        change=NOTHING,
    )
    # The run
    stop_on_alarm: bool = _setting(False, "End at the first alarm, with a checkpoint (status 3).", change=NOTHING)
    dry_run: bool = _setting(False, "Stop after preflight: nothing is trained or written.", change=COMMAND)


# TRL's settings about which this project knows something. A name that ends in * is a family: all settings that begin
# so and have no line of their own
TRL_SETTINGS = {
    # The model
    "model_name_or_path": Setting(change=CHECKPOINT, aliases=("model", "model_id")),
    "model_revision": Setting(aliases=("revision",)),
    "dtype": Setting(default="bfloat16", change=CHECKPOINT, on_cpu="float32", aliases=("torch_dtype",)),
    "attn_implementation": Setting(default="flash_attention_2", on_cpu="sdpa"),
    "load_in_4bit": Setting(on_cpu=False, aliases=("quantization_config",)),
    "load_in_8bit": Setting(on_cpu=False),
    "bnb_*": Setting(needs="load_in_4bit"),
    "use_bnb_nested_quant": Setting(needs="load_in_4bit"),
    "use_peft": Setting(change=CHECKPOINT, aliases=("use_lora",)),
    "lora_r": Setting(range=AT_LEAST_1, change=CHECKPOINT, needs="use_peft", aliases=("lora_rank",)),
    "lora_alpha": Setting(range=ABOVE_0, default=64, needs="use_peft"),
    "lora_dropout": Setting(range=BELOW_1, needs="use_peft"),
    "lora_target_modules": Setting(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        change=CHECKPOINT,
        needs="use_peft",
    ),
    "lora_*": Setting(needs="use_peft"),
    "use_rslora": Setting(needs="use_peft"),
    "use_dora": Setting(needs="use_peft"),
    # Batches
    "per_device_train_batch_size": Setting(
        range=AT_LEAST_1, change=CHECKPOINT, aliases=("batch_size", "micro_batch_size", "train_batch_size")
    ),
    "gradient_accumulation_steps": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "steps_per_generation": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "generation_batch_size": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "num_generations": Setting(
        range=AT_LEAST_2,
        change=CHECKPOINT,
        aliases=("group_size", "rollout_n", "n", "num_return_sequences"),  # the last two are vLLM's and transformers'
    ),
    "num_iterations": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "seed": Setting(range=AT_LEAST_0, change=CHECKPOINT, is_seed=True),
    "data_seed": Setting(is_seed=True),
    "shuffle_dataset": Setting(change=CHECKPOINT),
    "max_steps": Setting(range=STEPS, change=LENGTH, aliases=("num_training_steps", "steps", "total_steps")),
    "num_train_epochs": Setting(range=ABOVE_0, default=1, change=LENGTH, aliases=("epochs",)),
    # Sampling
    "max_completion_length": Setting(
        range=AT_LEAST_1,
        aliases=("max_length", "max_new_tokens", "max_response_length", "max_tokens"),  # transformers', verl's, vLLM's
    ),
    "temperature": Setting(range=ABOVE_0),
    "top_p": Setting(range=ABOVE_0_TO_1),
    "top_k": Setting(range=AT_LEAST_0),
    "min_p": Setting(range=FROM_0_TO_1),
    "repetition_penalty": Setting(range=ABOVE_0),
    "use_vllm": Setting(default=None, may_be_none=True),  # None: if it is installed and there is a CUDA GPU
    "vllm_enable_sleep_mode": Setting(default=True, needs="use_vllm"),
    "vllm_gpu_memory_utilization": Setting(range=ABOVE_0_TO_1, needs="use_vllm"),
    "vllm_importance_sampling_clip_max": Setting(may_be_none=True, needs="use_vllm"),  # None: no upper end
    "vllm_*": Setting(needs="use_vllm"),
    "use_transformers_continuous_batching": Setting(
        fixed=(False, "it draws other samples for the same seed, so that no run can be repeated")
    ),
    # The loss
    "loss_type": Setting(choices=("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo")),
    "importance_sampling_level": Setting(choices=("token", "sequence")),
    "scale_rewards": Setting(choices=("group", "batch", "none")),
    "beta": Setting(range=FINITE, aliases=("kl_coef", "kl_coeff")),
    "epsilon": Setting(range=AT_LEAST_0),
    "epsilon_high": Setting(range=AT_LEAST_0),
    "delta": Setting(range=ABOVE_0),
    # The optimizer
    "optim": Setting(change=CHECKPOINT, same=("adamw_torch", "adamw_torch_fused")),
    "learning_rate": Setting(range=FROM_0_TO_1, aliases=("lr",)),
    "adam_beta1": Setting(range=BELOW_1),
    "adam_beta2": Setting(range=BELOW_1),
    "weight_decay": Setting(range=FINITE),
    "warmup_steps": Setting(range=AT_LEAST_0, aliases=("num_warmup_steps", "warmup_ratio")),
    "max_grad_norm": Setting(range=AT_LEAST_0),
    # The machine
    "use_cpu": Setting(aliases=("cpu",)),
    "bf16": Setting(default=True),  # on a CPU only if a recipe or a flag asks for it
    "fp16": Setting(on_cpu=False),
    "tf32": Setting(on_cpu=None),
    "use_liger_kernel": Setting(on_cpu=False),
    "gradient_checkpointing": Setting(default=None, may_be_none=True, change=NOTHING),  # None: preflight/room.py
    "gradient_checkpointing*": Setting(change=NOTHING),
    "activation_checkpointing*": Setting(change=NOTHING),
    "dataloader_persistent_workers": Setting(change=NOTHING, needs="dataloader_num_workers", of_process=True),
    "dataloader_prefetch_factor": Setting(change=NOTHING, needs="dataloader_num_workers", of_process=True),
    "dataloader_num_workers": Setting(change=NOTHING, of_process=True),
    "dataloader_pin_memory": Setting(change=NOTHING, of_process=True),
    "dataloader*": Setting(change=NOTHING),
    "ddp_find_unused_parameters": Setting(default=False),
    "ddp_timeout": Setting(change=NOTHING),
    "local_rank": Setting(change=COMMAND),
    # The run's files, logs and evaluations
    "output_dir": Setting(change=COMMAND),
    "resume_from_checkpoint": Setting(change=COMMAND),
    "run_name": Setting(change=NOTHING, of_process=True),
    "report_to": Setting(change=NOTHING, of_process=True),
    "project": Setting(change=NOTHING, of_process=True),
    "trackio*": Setting(change=NOTHING, of_process=True),
    "disable_tqdm": Setting(change=NOTHING, of_process=True),
    "save_steps": Setting(range=ABOVE_0, default=100, change=NOTHING),
    "save_total_limit": Setting(range=AT_LEAST_0, default=2, change=NOTHING),
    "save*": Setting(change=NOTHING),
    "logging_steps": Setting(range=ABOVE_0, change=NOTHING),
    "log_on_each_node": Setting(default=False, change=NOTHING),
    "log_completions": Setting(default=True, change=NOTHING),
    "log*": Setting(change=NOTHING),
    "num_completions_to_print": Setting(default=2, change=NOTHING),
    "hub*": Setting(change=NOTHING, of_process=True),
    "push*": Setting(change=NOTHING, of_process=True),
    "per_device_eval_batch_size": Setting(range=AT_LEAST_1, default=256, change=NOTHING),
    "eval*": Setting(change=MEASURE),
    "enable_jit_checkpoint": Setting(
        fixed=(False, "it saves in the middle of a rollout, from where no run can resume (SIGTERM saves, too)")
    ),
    # Settings of other trainers
    "remove_unused_columns": Setting(
        fixed=(False, "it removes the columns that rewards read, gold answers among them")
    ),
    "neftune_noise_alpha": Setting(
        fixed=(None, "it adds noise to training's log-probabilities that the sampled completions did not have")
    ),
    "train_sampling_strategy": Setting(
        fixed=("random", f"{NO_EFFECT} rollouts take their prompts in groups; shuffle_dataset false keeps the order")
    ),
    "length_column_name": Setting(fixed=("length", f"{NO_EFFECT} rollouts take their prompts in groups")),
    "label_smoothing_factor": Setting(fixed=(0.0, f"{NO_EFFECT} GRPO has no labels to smooth")),
    "label_names": Setting(fixed=(None, f"{NO_EFFECT} GRPO has no labels")),
    "include_for_metrics": Setting(fixed=([], f"{NO_EFFECT} GRPO computes its own metrics")),
    "batch_eval_metrics": Setting(fixed=(False, f"{NO_EFFECT} GRPO computes its own metrics")),
}
SETTINGS = {one.name: one.metadata["setting"] for one in dataclasses.fields(ScriptArguments)} | TRL_SETTINGS
FAMILIES = {name[:-1]: known for name, known in SETTINGS.items() if name.endswith("*")}
ALIASES = {alias: name for name, known in SETTINGS.items() for alias in known.aliases}


def about(name: str) -> Setting:
    """Return what is known of a setting: its own line, else its family's, else nothing."""
    family = next((known for start, known in FAMILIES.items() if name.startswith(start)), Setting())
    return SETTINGS.get(name, family)


def changes_learning(name: str) -> bool:
    """True if another value of a setting makes a resumed run learn something else."""
    return about(name).change not in (NOTHING, COMMAND, MEASURE, DATA)


def meaning(name: str, value: Any) -> Any:
    """Return a setting's value, or of values that compute the same the first one.

    >>> meaning("optim", "adamw_torch_fused"), meaning("optim", "adafactor")
    ('adamw_torch', 'adafactor')
    """
    same = about(name).same
    return same[0] if value in same else value


def must_agree(name: str) -> bool:
    """True if all processes of a run need the same value. Names of data may differ, since the rows are compared."""
    return about(name).change not in (COMMAND, DATA) and not about(name).of_process


def makes_another_experiment(name: str) -> bool:
    """True if two runs with different values of a setting are not comparable, unless another hash says so."""
    return about(name).change not in (NOTHING, COMMAND, PROMPT)


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
class Config:
    """The resolved configuration. Nothing changes it: what is found out later belongs to the run (runs/run.py)."""

    script: ScriptArguments
    training: "GRPOConfig"
    model: "ModelConfig"
    geometry: Geometry
    notes: Sequence[Check]  # automatic decisions, for preflight's table
    origin: Mapping[str, str]  # setting → default, script, recipe, flag, or machine (adjusted to it)
    script_file: str  # the script that runs
    argv: Sequence[str]
    functions: Mapping[str, Mapping[str, Callable[..., Any]]]  # functions in HYPERPARAMETERS, by setting and name
    default_dir: str  # the default output_dir, without a number
    own_metric: str | None = None  # the measure of the run's own evaluations that chooses the best checkpoint
    recipe: Path | None = None  # the file of --config
    standalone: bool = False  # True: nothing of the script but its code, as the recipe says
    rows: Any = None  # training data passed as a Python object: grpo/data/sources.py
    started: float = field(default_factory=time.perf_counter)  # seconds are counted from here

    @property
    def program(self) -> str:
        """The script's name in commands to copy."""
        return program(self.script_file)

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
    def checkpointing_is_open(self) -> bool:
        """True if the user leaves gradient checkpointing to the run, which is on until preflight has decided."""
        return self.origin.get("gradient_checkpointing") == "machine"

    @property
    def trl_evaluates(self) -> bool:
        """True if the user asks for TRL's evaluation."""
        return self.training.eval_strategy != "no" and self.origin.get("eval_strategy") != "machine"

    def settings(self) -> dict[str, Any]:
        """All settings by name; TRL masks its tokens."""
        ours = {**dataclasses.asdict(self.script), **dataclasses.asdict(self.model)}
        return {**ours, **self.training.to_dict()}
