"""The settings: what is known of each, this project's own, batch geometry, and a run's configuration."""

import dataclasses
import enum
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
MACHINE = "machine"  # the source of settings that the program chooses


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
    MEASURE = enum.auto()  # other questions or samples: what is learned is the same, gains are not comparable
    LENGTH = enum.auto()  # a longer or shorter run
    LEARNING = enum.auto()  # something else is learned
    CHECKPOINT = enum.auto()  # so that a checkpoint's optimizer state or place in the data has no meaning


NOTHING, MEASURE, LENGTH, LEARNING, CHECKPOINT = Change


class Range(NamedTuple):
    """The numbers that a setting may be; NaN and infinity are none of any setting."""

    label: str
    contains: Callable[[float], bool]


AT_LEAST_0 = Range("at least 0", lambda number: number >= 0)
AT_LEAST_1 = Range("at least 1", lambda number: number >= 1)
AT_LEAST_2 = Range("at least 2", lambda number: number >= 2)
ABOVE_0 = Range("above 0", lambda number: number > 0)
FROM_0_TO_1 = Range("from 0 to 1", lambda number: 0 <= number <= 1)
ABOVE_0_TO_1 = Range("above 0 and at most 1", lambda number: 0 < number <= 1)
BELOW_1 = Range("at least 0 and below 1", lambda number: 0 <= number < 1)
STEPS = Range("at least 1, or -1 for whole epochs", lambda number: number == -1 or number >= 1)
SEEDS = Range("from 0 to 4294967295", lambda number: 0 <= number < 2**32)  # NumPy's
PORTS = Range("from 1 to 65535", lambda number: 1 <= number <= 65535)
ANY = Range("", lambda number: True)


class Bound(NamedTuple):
    """A number that a setting must be above, which follows from other settings."""

    label: str
    number: Callable[[Mapping[str, Any]], float]


class Condition(NamedTuple):
    """A condition of a setting's effect: "it has no effect without <label>; drop it, or use <remedy>"."""

    label: str
    holds: Callable[[Mapping[str, Any]], bool]
    remedy: str


def is_on(name: str, value: Any = "true") -> Condition:
    """Return the condition that a switch, or a number that may be 0, is set."""
    return Condition(name, lambda settings: bool(settings[name]), f"--{name} {value}")


def is_one_of(name: str, *values: str) -> Condition:
    """Return the condition that a setting has one of these values; the first one is the remedy."""
    *others, last = values
    words = f"{', '.join(others)} or {last}" if others else last
    return Condition(f"{name} {words}", lambda settings: str(settings[name]) in values, f"--{name} {values[0]}")


def is_named(name: str, part: str, label: str, remedy: str) -> Condition:
    """Return the condition that a setting's text has a part that this regular expression finds."""
    return Condition(label, lambda settings: bool(re.search(part, str(settings[name]))), f"--{name} {remedy}")


def _is_off_policy(settings: Mapping[str, Any]) -> bool:
    """Return whether an optimizer step follows another one of the same rollout, as TRL decides it."""
    uses = steps_per_generation(settings, int(os.environ.get("WORLD_SIZE", "1"))) * settings["num_iterations"]
    return bool(settings["gradient_accumulation_steps"] % uses)


def _vllm_samples(settings: Mapping[str, Any]) -> bool:
    """Return whether vLLM samples; if the setting is open, it does where it is installed."""
    return bool(settings["use_vllm"]) or (settings["use_vllm"] is None and not settings["use_cpu"])


def _is_sharded(way: str, settings: Mapping[str, Any]) -> bool:
    """Return whether weights or optimizer are divided among devices in this way, by a setting or by a launcher."""
    return bool(settings[way]) or os.environ.get(f"ACCELERATE_USE_{way.upper()}") == "true"


def _highest_ratio(settings: Mapping[str, Any]) -> float:
    high = settings["epsilon_high"]
    return 1 + float(settings["epsilon"] if high is None else high)


# What several settings need
ADAPTER, QUANTIZED = is_on("use_peft"), is_on("load_in_4bit")
VLLM = Condition("use_vllm", _vllm_samples, "--use_vllm true")
SERVER, COLOCATED = is_one_of("vllm_mode", "server"), is_one_of("vllm_mode", "colocate")
CORRECTED = is_on("vllm_importance_sampling_correction")
OFF_POLICY = Condition("steps on older completions (else all ratios are 1)", _is_off_policy, "--num_iterations 2")
OFF_POLICY_OR_VLLM = OFF_POLICY._replace(holds=lambda settings: _is_off_policy(settings) or _vllm_samples(settings))
OFF_POLICY_OR_CISPO = OFF_POLICY._replace(  # which weights by the clipped ratio
    holds=lambda settings: _is_off_policy(settings) or settings["loss_type"] == "cispo"
)
CLIPPED = is_one_of("loss_type", "dapo", "grpo", "bnpo", "dr_grpo", "luspo")
CLIPPED_OR_CISPO = is_one_of("loss_type", "dapo", "grpo", "bnpo", "dr_grpo", "luspo", "cispo")
CLIPPED_BY_EPSILON = CLIPPED_OR_CISPO._replace(  # cispo has an upper end alone
    holds=lambda settings: (
        CLIPPED.holds(settings) or (settings["loss_type"] == "cispo" and settings["epsilon_high"] is None)
    )
)
SAPO, VESPO = is_one_of("loss_type", "sapo"), is_one_of("loss_type", "vespo")
KL = Condition("beta above 0", lambda settings: bool(settings["beta"]), "--beta 0.04")
SYNCHRONIZED, ADAPTIVE = is_on("sync_ref_model"), is_on("use_adaptive_entropy")
WARMS_UP = is_named(
    "lr_scheduler_type",
    "^(?!(constant|reduce_lr_on_plateau|greedy)$)",
    "a schedule with a warm-up",
    "constant_with_warmup",
)
HAS_ARGUMENTS = is_named(
    "lr_scheduler_type", "^(?!constant(_with_warmup)?$)", "a schedule that takes any", "cosine_with_min_lr"
)
HAS_BETAS = is_named("optim", "^(?!galore|grok).*(adam|ademamix|lion)", "an optimizer that reads it", "adamw_torch")
HAS_EPSILON = is_named("optim", "^(?!galore|grok).*(adam|ademamix)", "an optimizer that reads it", "adamw_torch")
READS_ARGUMENTS = is_named(
    "optim",
    "sgd|adagrad|rmsprop|ademamix|anyprecision|galore|apollo|grok|torch_[48]bit|schedule_free|stable",
    "an optimizer that reads them",
    "sgd",
)
LOW_RANK = is_named("optim", "galore|apollo", "a GaLore or APOLLO optimizer", "galore_adamw")
CHECKPOINTED = Condition(  # None: preflight decides
    "gradient_checkpointing",
    lambda settings: settings["gradient_checkpointing"] is not False or bool(settings.get("activation_checkpointing")),
    "--gradient_checkpointing true",
)
WORKERS = is_on("dataloader_num_workers", 1)
FSDP = Condition("fsdp", functools.partial(_is_sharded, "fsdp"), "--fsdp true")
DEEPSPEED = Condition("deepspeed", functools.partial(_is_sharded, "deepspeed"), "--deepspeed FILE")
HELD_OUT = Condition("held-out questions", lambda settings: settings["eval_samples"] != 0, "--eval_samples 200")
EVALUATES = Condition(
    "evaluations while training",
    lambda settings: bool(settings["eval_every"]) or str(settings["eval_strategy"]) != "no",
    "--eval_every 10",
)
PUSHES, SHOWS = is_on("push_to_hub"), is_on("log_completions")
TRACKIO = is_named("report_to", "trackio|all", "report_to trackio", "trackio")
UPLOADS = Condition(
    "push_to_hub",
    lambda settings: bool(settings["push_to_hub"] or settings["log_completions_hub_repo"] or TRACKIO.holds(settings)),
    "--push_to_hub true",
)
UNSET: Any = object()
NO_EFFECT = "it has no effect:"
OTHER_SAMPLES = "it draws other samples for the same seed, so that no run can be repeated"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Facts about a setting: all that the project asks about one before, during and after a run.

    Attributes:
        above: a number that it must be above, if this setting or the bound is set.
        default: this project's default, where it is not TRL's.
        may_be_none: True if None is a value, although TRL's default is another.
        on_cpu: the value that `use_cpu` implies, whatever HYPERPARAMETERS or a recipe says.
        change: the meaning of another value.
        names: the `rows` or the `prompt` if it names or changes these, whose hash is compared, too.
        of_command: True if a resumed run's command has another value than the first one's.
        measures: what of an evaluation rests on it: `answers`, or only `samples` of several to a question.
        same: values that compute the same, so that one instead of another is no change.
        is_seed: True if it may differ between runs of one experiment.
        of_process: True if it may differ between the processes of one run.
        choices: the values, where TRL accepts any text and fails in the first step.
        fixed: the only value that works, and what is wrong with others: "it ...".
        needs: what must hold, or a flag of this setting has no effect.
        aliases: its names in other trainers, and common guesses.
    """

    range: Range | None = None
    above: Bound | None = None
    default: Any = UNSET
    may_be_none: bool = False
    on_cpu: Any = UNSET
    change: Change = LEARNING
    names: str = ""
    of_command: bool = False
    measures: str = ""
    same: tuple[str, ...] = ()
    is_seed: bool = False
    of_process: bool = False
    choices: tuple[str, ...] = ()
    fixed: tuple[Any, str] | None = None
    needs: tuple[Condition, ...] = ()
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
        names="rows",
        aliases=("dataset_id_or_path",),
    )
    dataset_config: str | None = _setting(
        "main", "Configuration of a Hub dataset; or write openai/gsm8k:main.", names="rows", may_be_none=True
    )
    dataset_split: str = _setting(
        "train",
        "Training split; slices allowed: train[:1000], train[:10%%].",
        names="rows",
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
        None, "Use only the first rows of the training split, this many.", AT_LEAST_1, names="rows"
    )
    max_prompt_length: int | None = _setting(
        256, "In tokens; longer training prompts are dropped, never cut.", AT_LEAST_1, may_be_none=True
    )
    # Prompt
    prompt_format: dict[str, Any] | str = _setting(
        "xml",
        "How questions are asked and answered: xml or think, or a mapping (JSON) of system, question, completion, "
        "pattern, chat and exemplars; in HYPERPARAMETERS a PromptFormat, too.",
        names="prompt",
    )
    system_prompt: str | None = _setting(None, "Replaces the prompt format's system prompt.", names="prompt")
    answer_pattern: str | None = _setting(
        None,
        "Where a completion has its answer: xml (<answer>), boxed (\\boxed{...}), hash (####), final (Answer: ...), "
        "text (all of it), or a template such as `Final: {answer}`; the prompt asks for it. Unset: the prompt "
        "format's own.",
        names="prompt",
    )
    num_shots: int = _setting(0, "Worked examples before each question: 0 to the number of exemplars.", AT_LEAST_0)
    exemplars: list[Any] = _setting(
        [],
        "Worked examples, of which num_shots are used: mappings (JSON) of question, reasoning and answer.",
        names="prompt",
    )
    # Rewards
    reward_funcs: list[str] = _setting(
        list(REWARD_FUNCS),
        "Names of rewards.py and examples/more_rewards.py, functions in HYPERPARAMETERS, or my_file.my_function.",
        measures="answers",
    )
    reward_args: dict[str, Any] | str | None = _setting(
        None, 'Parameters of rewards: {"length_reward_func": {"low": 50}}.', measures="answers"
    )
    judge: str | None = _setting(
        None,
        "Decides what is right: my_file.my_function(text, row) -> bool; unset: the lenient rule.",
        measures="answers",
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
        needs=(HELD_OUT,),
    )
    eval_by: str | None = _setting(
        None,
        "A column of the data: held-out accuracy for each of its values, too.",
        change=NOTHING,
        needs=(HELD_OUT,),
    )
    eval_every: int | None = _setting(
        None,
        "Also evaluate every N optimizer steps (eval_strategy steps, eval_steps N); 0: only before and after.",
        AT_LEAST_0,
        change=NOTHING,
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
        needs=(is_on("packed"),),
    )
    dynamic_sampling: int = _setting(
        0,
        "Replace groups whose rewards are all equal by further prompts', in up to N more rounds of a rollout.",
        AT_LEAST_0,
        change=LEARNING,
    )
    # The run
    stop_on_alarm: bool = _setting(False, "End at the first alarm, with a checkpoint (status 3).", change=NOTHING)
    dry_run: bool = _setting(
        False, "Stop after preflight: nothing is trained or written.", change=NOTHING, of_command=True
    )


# All of TRL's settings
TRL_SETTINGS = {
    # The model
    "model_name_or_path": Setting(change=CHECKPOINT, aliases=("model", "model_id")),
    "model_revision": Setting(aliases=("revision",)),
    "model_init_kwargs": Setting(),
    "trust_remote_code": Setting(),
    "dtype": Setting(default="bfloat16", change=CHECKPOINT, on_cpu="float32", aliases=("torch_dtype",)),
    "attn_implementation": Setting(default="flash_attention_2", on_cpu="sdpa"),
    "disable_dropout": Setting(),
    "cast_lm_head_to_fp32": Setting(),
    "router_aux_loss_coef": Setting(range=AT_LEAST_0),
    "use_cache": Setting(),
    "load_in_4bit": Setting(on_cpu=False, aliases=("quantization_config",)),
    "load_in_8bit": Setting(on_cpu=False),
    "bnb_4bit_quant_storage": Setting(needs=(QUANTIZED,)),
    "bnb_4bit_quant_type": Setting(needs=(QUANTIZED,)),
    "use_bnb_nested_quant": Setting(needs=(QUANTIZED,)),
    "use_peft": Setting(change=CHECKPOINT, aliases=("use_lora",)),
    "lora_r": Setting(range=AT_LEAST_1, change=CHECKPOINT, needs=(ADAPTER,), aliases=("lora_rank",)),
    "lora_alpha": Setting(range=ABOVE_0, default=64, needs=(ADAPTER,)),
    "lora_dropout": Setting(range=BELOW_1, needs=(ADAPTER,)),
    "lora_target_modules": Setting(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        change=CHECKPOINT,
        needs=(ADAPTER,),
    ),
    "lora_task_type": Setting(fixed=("CAUSAL_LM", "GRPO trains causal language models"), needs=(ADAPTER,)),
    "lora_modules_to_save": Setting(needs=(ADAPTER,)),
    "lora_target_parameters": Setting(needs=(ADAPTER,)),
    "use_rslora": Setting(needs=(ADAPTER,)),
    "use_dora": Setting(needs=(ADAPTER,)),
    # Batches
    "per_device_train_batch_size": Setting(
        range=AT_LEAST_1, change=CHECKPOINT, aliases=("batch_size", "micro_batch_size", "train_batch_size")
    ),
    "gradient_accumulation_steps": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "steps_per_generation": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "generation_batch_size": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "auto_find_batch_size": Setting(),  # TRL refuses it
    "pad_to_multiple_of": Setting(range=AT_LEAST_1),
    "num_generations": Setting(
        range=AT_LEAST_2,
        change=CHECKPOINT,
        aliases=("group_size", "rollout_n", "n", "num_return_sequences"),  # the last two are vLLM's and transformers'
    ),
    "num_iterations": Setting(range=AT_LEAST_1, change=CHECKPOINT),
    "seed": Setting(range=SEEDS, change=CHECKPOINT, is_seed=True),
    "data_seed": Setting(fixed=(None, f"{NO_EFFECT} TRL's order of prompts follows from seed"), change=NOTHING),
    "full_determinism": Setting(),
    "shuffle_dataset": Setting(change=CHECKPOINT),
    "max_steps": Setting(range=STEPS, change=LENGTH, aliases=("num_training_steps", "steps", "total_steps")),
    # max_steps replaces it, as everywhere: a command line with both is no mistake
    "num_train_epochs": Setting(range=ABOVE_0, default=1, change=LENGTH, aliases=("epochs",)),
    # Sampling
    "max_completion_length": Setting(
        range=AT_LEAST_1,
        measures="answers",
        aliases=("max_length", "max_new_tokens", "max_response_length", "max_tokens"),  # transformers', verl's, vLLM's
    ),
    "temperature": Setting(range=ABOVE_0, measures="samples"),
    "top_p": Setting(range=ABOVE_0_TO_1, measures="samples"),
    "top_k": Setting(range=AT_LEAST_0, measures="samples"),
    "min_p": Setting(range=FROM_0_TO_1, measures="samples"),
    "repetition_penalty": Setting(range=ABOVE_0, measures="samples"),
    "generation_kwargs": Setting(measures="samples"),
    "chat_template_kwargs": Setting(measures="answers"),
    "cache_implementation": Setting(measures="samples"),
    "max_tool_calling_iterations": Setting(fixed=(None, f"{NO_EFFECT} the model gets no tools")),
    "use_vllm": Setting(default=None, may_be_none=True),  # None: if it is installed and there is a CUDA GPU
    "vllm_mode": Setting(choices=("colocate", "server"), needs=(VLLM,)),
    "vllm_model_impl": Setting(choices=("vllm", "transformers"), needs=(VLLM, COLOCATED)),
    "vllm_structured_outputs_regex": Setting(needs=(VLLM,)),
    "vllm_server_base_url": Setting(needs=(VLLM, SERVER)),
    "vllm_server_host": Setting(needs=(VLLM, SERVER)),
    "vllm_server_port": Setting(range=PORTS, needs=(VLLM, SERVER)),
    "vllm_server_timeout": Setting(range=AT_LEAST_0, needs=(VLLM, SERVER)),
    "vllm_group_port": Setting(range=PORTS, needs=(VLLM, SERVER)),
    "vllm_enable_sleep_mode": Setting(default=True, needs=(VLLM, COLOCATED)),
    "vllm_gpu_memory_utilization": Setting(range=ABOVE_0_TO_1, needs=(VLLM, COLOCATED)),
    "vllm_max_model_length": Setting(range=AT_LEAST_1, needs=(VLLM, COLOCATED)),
    "vllm_tensor_parallel_size": Setting(range=AT_LEAST_1, needs=(VLLM, COLOCATED)),
    "vllm_importance_sampling_correction": Setting(needs=(VLLM,)),
    "vllm_importance_sampling_mode": Setting(
        choices=("sequence_mask", "sequence_truncate", "token_mask", "token_truncate"), needs=(VLLM, CORRECTED)
    ),
    "vllm_importance_sampling_clip_min": Setting(range=AT_LEAST_0, needs=(VLLM, CORRECTED)),
    "vllm_importance_sampling_clip_max": Setting(
        range=ABOVE_0, may_be_none=True, needs=(VLLM, CORRECTED)
    ),  # None: no end
    "vllm_importance_sampling_cap": Setting(range=ABOVE_0, needs=(VLLM, CORRECTED)),  # the older name
    "use_transformers_continuous_batching": Setting(fixed=(False, OTHER_SAMPLES)),
    "use_transformers_paged": Setting(fixed=(False, OTHER_SAMPLES)),
    "transformers_continuous_batching_config": Setting(fixed=(None, OTHER_SAMPLES)),
    # Rewards and advantages
    "reward_weights": Setting(measures="answers"),
    "multi_objective_aggregation": Setting(choices=("sum_then_normalize", "normalize_then_sum")),
    "scale_rewards": Setting(choices=("group", "batch", "none")),
    # The loss
    "loss_type": Setting(choices=("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo")),
    "importance_sampling_level": Setting(choices=("token", "sequence")),
    "mask_truncated_completions": Setting(),
    "epsilon": Setting(range=AT_LEAST_0, needs=(CLIPPED_BY_EPSILON, OFF_POLICY_OR_CISPO)),
    "epsilon_high": Setting(range=AT_LEAST_0, needs=(CLIPPED_OR_CISPO, OFF_POLICY_OR_CISPO)),
    "delta": Setting(range=ABOVE_0, above=Bound("1 + epsilon_high", _highest_ratio), needs=(CLIPPED, OFF_POLICY)),
    "sapo_temperature_pos": Setting(range=ABOVE_0, needs=(SAPO, OFF_POLICY)),
    "sapo_temperature_neg": Setting(range=ABOVE_0, needs=(SAPO, OFF_POLICY)),
    "vespo_k_neg": Setting(range=AT_LEAST_0, needs=(VESPO, OFF_POLICY_OR_VLLM)),
    "vespo_k_pos": Setting(range=AT_LEAST_0, needs=(VESPO, OFF_POLICY_OR_VLLM)),
    "vespo_lambda_neg": Setting(range=ABOVE_0, needs=(VESPO, OFF_POLICY_OR_VLLM)),
    "vespo_lambda_pos": Setting(range=ABOVE_0, needs=(VESPO, OFF_POLICY_OR_VLLM)),
    "off_policy_mask_threshold": Setting(range=ABOVE_0, needs=(OFF_POLICY_OR_VLLM,)),
    "beta": Setting(range=AT_LEAST_0, aliases=("kl_coef", "kl_coeff")),
    "use_bias_correction_kl": Setting(needs=(KL,)),
    "sync_ref_model": Setting(needs=(KL,)),
    "ref_model_mixup_alpha": Setting(range=ABOVE_0_TO_1, needs=(SYNCHRONIZED,)),
    "ref_model_sync_steps": Setting(range=AT_LEAST_1, needs=(SYNCHRONIZED,)),
    "top_entropy_quantile": Setting(range=FROM_0_TO_1),
    "entropy_coef": Setting(range=ANY),  # below 0 it is a penalty
    "use_adaptive_entropy": Setting(),
    "entropy_coef_min": Setting(range=ANY, needs=(ADAPTIVE,)),
    "entropy_coef_max": Setting(
        range=ANY,
        above=Bound("entropy_coef_min", lambda settings: settings["entropy_coef_min"]),
        needs=(ADAPTIVE,),
    ),
    "entropy_coef_delta": Setting(range=ABOVE_0, needs=(ADAPTIVE,)),
    "entropy_target": Setting(range=ABOVE_0, needs=(ADAPTIVE,)),
    # The optimizer
    "optim": Setting(change=CHECKPOINT, same=("adamw_torch", "adamw_torch_fused")),
    "optim_args": Setting(change=CHECKPOINT, needs=(READS_ARGUMENTS,)),  # a checkpoint's state replaces them
    "optim_target_modules": Setting(needs=(LOW_RANK,)),
    "learning_rate": Setting(range=FROM_0_TO_1, aliases=("lr",)),
    "lr_scheduler_kwargs": Setting(needs=(HAS_ARGUMENTS,)),
    "lr_scheduler_type": Setting(),
    "adam_beta1": Setting(range=BELOW_1, needs=(HAS_BETAS,)),
    "adam_beta2": Setting(range=BELOW_1, needs=(HAS_BETAS,)),
    "adam_epsilon": Setting(range=ABOVE_0, needs=(HAS_EPSILON,)),  # with 0, a gradient of 0 is divided by 0
    "weight_decay": Setting(range=AT_LEAST_0),
    "warmup_steps": Setting(range=AT_LEAST_0, needs=(WARMS_UP,), aliases=("num_warmup_steps", "warmup_ratio")),
    "max_grad_norm": Setting(range=Range("at least 0; 0 does not clip", AT_LEAST_0.contains)),
    "average_tokens_across_devices": Setting(fixed=(True, f"{NO_EFFECT} TRL's losses count tokens themselves")),
    # The machine
    "use_cpu": Setting(aliases=("cpu",)),
    "bf16": Setting(default=True, measures="answers"),  # on a CPU only if a recipe or a flag asks for it
    "fp16": Setting(on_cpu=False, measures="answers"),
    "tf32": Setting(on_cpu=None),
    "bf16_full_eval": Setting(fixed=(False, f"{NO_EFFECT} an evaluation computes like training")),
    "fp16_full_eval": Setting(fixed=(False, f"{NO_EFFECT} an evaluation computes like training")),
    "use_liger_kernel": Setting(on_cpu=False),
    "liger_kernel_config": Setting(needs=(is_on("use_liger_kernel"),)),
    "torch_compile_mode": Setting(
        choices=("default", "lite", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
    ),
    "torch_compile_backend": Setting(),
    "torch_compile": Setting(),
    "torch_empty_cache_steps": Setting(range=AT_LEAST_1, change=NOTHING),
    "gradient_checkpointing": Setting(default=None, may_be_none=True, change=NOTHING),  # None: preflight/room.py
    "activation_checkpointing": Setting(change=NOTHING),
    "gradient_checkpointing_kwargs": Setting(change=NOTHING, needs=(CHECKPOINTED,)),
    "activation_checkpointing_kwargs": Setting(change=NOTHING, needs=(CHECKPOINTED,)),
    "dataloader_num_workers": Setting(range=AT_LEAST_0, change=NOTHING, of_process=True),
    "dataloader_prefetch_factor": Setting(range=AT_LEAST_1, change=NOTHING, needs=(WORKERS,), of_process=True),
    "dataloader_persistent_workers": Setting(change=NOTHING, needs=(WORKERS,), of_process=True),
    "dataloader_multiprocessing_context": Setting(change=NOTHING, needs=(WORKERS,)),
    "dataloader_in_order": Setting(change=NOTHING, needs=(WORKERS,)),
    "dataloader_pin_memory": Setting(change=NOTHING, of_process=True),
    "dataloader_drop_last": Setting(change=NOTHING),
    "accelerator_config": Setting(),
    "parallelism_config": Setting(),
    "fsdp": Setting(),
    "fsdp_config": Setting(needs=(FSDP,)),
    "deepspeed": Setting(),
    "ds3_gather_for_generation": Setting(needs=(DEEPSPEED,)),
    "ddp_find_unused_parameters": Setting(default=False),
    "ddp_bucket_cap_mb": Setting(range=AT_LEAST_1),
    "ddp_timeout": Setting(range=AT_LEAST_1, change=NOTHING),
    "ddp_backend": Setting(),
    "ddp_static_graph": Setting(),
    "ddp_broadcast_buffers": Setting(),
    "local_rank": Setting(range=Range("at least -1", lambda number: number >= -1), change=NOTHING, of_command=True),
    "debug": Setting(),
    "skip_memory_metrics": Setting(change=NOTHING),
    # The run's files, logs and evaluations
    "do_train": Setting(fixed=(True, f"{NO_EFFECT} the script trains; use --eval_only true to evaluate alone")),
    "do_eval": Setting(change=NOTHING, needs=(EVALUATES,)),
    "do_predict": Setting(
        fixed=(False, f"{NO_EFFECT} the script answers held-out questions; and eval_samples is their number")
    ),
    "output_dir": Setting(change=NOTHING, of_command=True),
    "resume_from_checkpoint": Setting(change=NOTHING, of_command=True),
    "ignore_data_skip": Setting(),
    "restore_callback_states_from_checkpoint": Setting(
        fixed=(False, f"{NO_EFFECT} a resumed run gives callbacks their state anyway"), change=NOTHING
    ),
    "run_name": Setting(change=NOTHING, of_process=True),
    "report_to": Setting(change=NOTHING, of_process=True),
    "project": Setting(change=NOTHING, needs=(TRACKIO,), of_process=True),
    "trackio_static_space_id": Setting(change=NOTHING, needs=(TRACKIO,), of_process=True),
    "trackio_bucket_id": Setting(change=NOTHING, needs=(TRACKIO,), of_process=True),
    "trackio_space_id": Setting(change=NOTHING, needs=(TRACKIO,), of_process=True),
    "disable_tqdm": Setting(change=NOTHING, of_process=True),
    "save_steps": Setting(range=ABOVE_0, default=100, change=NOTHING, needs=(is_one_of("save_strategy", "steps"),)),
    "save_total_limit": Setting(range=AT_LEAST_0, default=2, change=NOTHING),
    "save_on_each_node": Setting(change=NOTHING),
    "save_strategy": Setting(change=NOTHING),
    "save_only_model": Setting(change=NOTHING),
    "load_best_model_at_end": Setting(),
    "metric_for_best_model": Setting(),
    "greater_is_better": Setting(needs=(is_on("metric_for_best_model", "accuracy_lenient"),)),
    "logging_steps": Setting(range=ABOVE_0, change=NOTHING, needs=(is_one_of("logging_strategy", "steps"),)),
    "log_on_each_node": Setting(default=False, change=NOTHING),
    "log_completions": Setting(default=True, change=NOTHING),
    "log_completions_hub_repo": Setting(change=NOTHING, needs=(SHOWS,)),
    "log_unique_prompts": Setting(change=NOTHING, needs=(SHOWS,)),
    "log_multimodal": Setting(fixed=(True, f"{NO_EFFECT} the model gets text only"), change=NOTHING),
    "log_level_replica": Setting(change=NOTHING),
    "log_level": Setting(change=NOTHING),
    "logging_nan_inf_filter": Setting(change=NOTHING),
    "logging_first_step": Setting(change=NOTHING),
    "logging_strategy": Setting(change=NOTHING),
    "num_completions_to_print": Setting(range=AT_LEAST_0, default=2, change=NOTHING, needs=(SHOWS,)),
    "include_num_input_tokens_seen": Setting(  # the flag `no` is read as false
        fixed=(False, f"{NO_EFFECT} TRL counts tokens itself: num_tokens")
    ),
    "push_to_hub": Setting(change=NOTHING, of_process=True),
    "hub_model_id": Setting(change=NOTHING, needs=(PUSHES,), of_process=True),
    "hub_revision": Setting(change=NOTHING, needs=(PUSHES,), of_process=True),
    "hub_always_push": Setting(change=NOTHING, needs=(PUSHES,), of_process=True),
    "hub_private_repo": Setting(change=NOTHING, needs=(UPLOADS,), of_process=True),
    "hub_strategy": Setting(change=NOTHING, of_process=True),
    "hub_token": Setting(change=NOTHING, of_process=True),
    "per_device_eval_batch_size": Setting(range=AT_LEAST_1, default=256, change=NOTHING),
    "num_generations_eval": Setting(
        fixed=(None, f"{NO_EFFECT} an evaluation answers each question once, and samples as eval_num_samples says"),
        change=NOTHING,
    ),
    "eval_strategy": Setting(change=NOTHING, needs=(HELD_OUT,)),
    "eval_on_start": Setting(
        fixed=(False, f"{NO_EFFECT} held-out questions are answered before training anyway"), change=NOTHING
    ),
    "eval_steps": Setting(range=ABOVE_0, change=NOTHING, needs=(is_one_of("eval_strategy", "steps"),)),
    "eval_delay": Setting(range=AT_LEAST_0, change=NOTHING, needs=(EVALUATES,)),
    "eval_accumulation_steps": Setting(fixed=(None, f"{NO_EFFECT} GRPO's evaluation keeps no outputs")),
    "eval_do_concat_batches": Setting(fixed=(True, f"{NO_EFFECT} GRPO's evaluation keeps no outputs")),
    "eval_use_gather_object": Setting(fixed=(False, f"{NO_EFFECT} GRPO's evaluation keeps no outputs")),
    "prediction_loss_only": Setting(fixed=(False, f"{NO_EFFECT} GRPO's evaluation keeps no outputs")),
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
SETTINGS = {entry.name: entry.metadata["setting"] for entry in dataclasses.fields(ScriptArguments)} | TRL_SETTINGS
ALIASES = {alias: name for name, known in SETTINGS.items() for alias in known.aliases}


def about(name: str) -> Setting:
    """Return what is known of a setting: its line, else nothing."""
    return SETTINGS.get(name, Setting())


def adapter_decides(name: str, origin: Mapping[str, str]) -> bool:
    """True if a saved adapter that is trained further has replaced a setting (config/adapters.py)."""
    return origin.get(name) == MACHINE and (name == "use_peft" or ADAPTER in about(name).needs)


def meaning(name: str, value: Any) -> Any:
    """Return a setting's value, or of values that compute the same the first one.

    >>> meaning("optim", "adamw_torch_fused"), meaning("optim", "adafactor")
    ('adamw_torch', 'adafactor')
    """
    same = about(name).same
    return same[0] if value in same else value


def must_agree(name: str) -> bool:
    """True if all processes of a run need the same value. Names of data may differ, since the rows are compared."""
    return not (about(name).of_command or about(name).of_process or about(name).names == "rows")


def makes_another_experiment(name: str) -> bool:
    """True if two runs with different values of a setting are not comparable, unless another hash says so."""
    return about(name).change is not NOTHING and about(name).names != "prompt"


def steps_per_generation(settings: Mapping[str, Any], world_size: int) -> int:
    """Return the micro-steps that one rollout serves once, as TRL counts them."""
    steps, total = settings["steps_per_generation"], settings["generation_batch_size"]
    if total is not None and steps is None:
        return max(1, total // (settings["per_device_train_batch_size"] * world_size))  # TRL refuses non-multiples
    return int(steps or settings["gradient_accumulation_steps"])


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


class Settings(Mapping[str, Any]):
    """The value of each setting while a configuration is made; `set` alone changes one.

    Attributes:
        origin: setting → default, script, recipe, flag, or machine (the program chose another value); of those that a
            source sets, in the order of the lowest source.
        notes: automatic decisions, for preflight's table.

    >>> settings = Settings({"beta": 0.0, "seed": 42})
    >>> settings.set("beta", 0.1, "flag"), settings.set("seed", 42, "machine")
    (None, None)
    >>> dict(settings), settings.origin
    ({'beta': 0.1, 'seed': 42}, {'beta': 'flag'})
    """

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._values = dict(defaults)
        self.origin: dict[str, str] = {}
        self.notes: list[Check] = []

    def set(self, key: str, value: Any, source: str, why: str | Check = "") -> None:
        """Set a value, its origin and, with a reason, its note. The program's own choice of the same value is none."""
        if source == MACHINE and value == self._values[key]:
            return
        self._values[key], self.origin[key] = value, source
        if why:
            self.notes.append(Check("ok", key, why) if isinstance(why, str) else why)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


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
    recipe: Path | None = None  # the file of --config
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
        keys = "packed", "pack_tokens", "dynamic_sampling", "max_faulty_rewards"
        return {key: getattr(self.script, key) for key in keys} | {
            "attn_implementation": self.model.attn_implementation
        }

    @property
    def checkpointing_is_open(self) -> bool:
        """True if the user leaves gradient checkpointing to the run, which is on until preflight has decided."""
        return self.origin.get("gradient_checkpointing") == MACHINE

    def settings(self) -> dict[str, Any]:
        """All settings by name; TRL masks its tokens."""
        ours = {**dataclasses.asdict(self.script), **dataclasses.asdict(self.model)}
        return {**ours, **self.training.to_dict()}
