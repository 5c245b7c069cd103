"""What `--help` and `--version` print, and the flags that people try first; no library, so that it answers at once."""

import argparse
import dataclasses
import difflib
import re
import shutil
import subprocess
import textwrap
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError
from grpo.core.redaction import is_secret_name
from grpo.core.settings import ScriptArguments

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"

MODES = {
    "python train_grpo.py": "train, and compare answers before and after",
    "torchrun --nproc_per_node=4 ...": "the same on four GPUs (instead of python)",
    "... --dry_run true": "check everything that can be, and stop",
    "... --resume_from_checkpoint auto": "resume a run, with its own flags",
    "... --eval_only true": "evaluate a model, without training",
    "python -m grpo TOOL": "report, xray, compare, ask or merge",
}
MAIN = {
    "Model": {
        "model_name_or_path": "a Hub id, a directory, or a saved run",
        "use_peft": "train a LoRA adapter (lora_r, lora_alpha, ...)",
        "dtype": "of the weights",
        "use_cpu": "train on the CPU",
    },
    "Data and prompt": {
        "dataset_name": "Hub ids, .jsonl, .json, .csv or .parquet files, save_to_disk directories",
        "question_column": "the column of questions, or of message lists",
        "answer_column": "its gold answers: `... #### 72`, or 72 alone",
        "eval_dataset_name": "held-out questions; unset: the test split or a slice",
        "eval_samples": "held-out questions, at most; 0: none",
        "eval_every": "accuracy every so many steps, too",
        "max_samples": "training rows, at most",
        "prompt_format": "xml (<reasoning> and <answer>) or think",
        "num_shots": "worked examples in each prompt (0 to 3)",
    },
    "Rewards": {
        "reward_funcs": "names from rewards.py, or my_file.my_function with --allow_custom_rewards true",
        "reward_weights": "one for each; unset: all 1",
        "judge": "what is right: my_file.my_function; unset: the gold answer",
    },
    "GRPO": {
        "num_generations": "completions of each prompt: the group",
        "max_completion_length": "tokens; longer completions are cut off",
        "temperature": "of sampling",
        "beta": "weight of the KL penalty; 0: no reference model",
        "use_vllm": "unset: vLLM samples where it is installed, on a GPU",
    },
    "Optimization": {
        "per_device_train_batch_size": "completions computed at once per device",
        "gradient_accumulation_steps": "such batches in an optimizer step",
        "learning_rate": "",
        "num_train_epochs": "",
        "max_steps": "steps; above 0 replaces num_train_epochs",
        "optim": "",
        "seed": "",
    },
    "The run": {
        "output_dir": "unset: outputs/<model>-GRPO",
        "report_to": "wandb, tensorboard, swanlab, trackio or none",
        "save_steps": "optimizer steps between checkpoints",
        "stop_on_alarm": "end at the first alarm, with a checkpoint",
    },
}
MORE = {  # where --help_all lists this project's other settings
    "Instead of training": ("dry_run", "eval_only"),
    "Model": ("use_unsloth",),
    "Data and prompt": (
        *("dataset_config", "dataset_split", "eval_split", "eval_num_samples", "max_prompt_length"),
        *("exemplars", "system_prompt", "question_template", "completion_template", "answer_pattern"),
        "use_chat_template",
    ),
    "Rewards": (
        *("reward_args", "allow_custom_rewards", "max_faulty_rewards", "stages"),
        *("adaptive_rewards", "adaptive_threshold", "adaptive_bounds"),
    ),
    "GRPO": (),
    "Optimization": ("packed", "pack_tokens"),
    "The run": (),
}
EXAMPLES = (
    "python train_grpo.py --config demo",
    "python train_grpo.py --config smollm2 --learning_rate 1e-5 --max_steps 200",
    "python train_grpo.py --dataset_name my.csv --answer_column solution",
)
# What other trainers call a setting, or what people type first
ALIASES = {
    "batch_size": "per_device_train_batch_size", "bs": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size", "checkpoint": "resume_from_checkpoint",
    "resume": "resume_from_checkpoint", "cpu": "use_cpu", "data": "dataset_name", "dataset": "dataset_name",
    "dataset_path": "dataset_name", "train_file": "dataset_name", "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs", "eval": "eval_only", "eval_dataset": "eval_dataset_name",
    "grad_accum": "gradient_accumulation_steps", "grad_acc_steps": "gradient_accumulation_steps",
    "accumulation_steps": "gradient_accumulation_steps", "group_size": "num_generations", "n": "num_generations",
    "num_samples": "num_generations", "kl_coef": "beta", "kl_beta": "beta", "kl": "beta", "lora": "use_peft",
    "use_lora": "use_peft", "lora_rank": "lora_r", "lr": "learning_rate", "max_grad": "max_grad_norm",
    "max_length": "max_completion_length", "max_new_tokens": "max_completion_length",
    "max_response_length": "max_completion_length", "max_seq_length": "max_completion_length",
    "max_tokens": "max_completion_length", "model": "model_name_or_path", "model_id": "model_name_or_path",
    "model_name": "model_name_or_path", "model_path": "model_name_or_path", "num_steps": "max_steps",
    "steps": "max_steps", "total_steps": "max_steps", "optimizer": "optim", "out": "output_dir",
    "output": "output_dir", "output_path": "output_dir", "recipe": "config",
    "reward": "reward_funcs", "rewards": "reward_funcs", "reward_functions": "reward_funcs", "shots": "num_shots",
    "tracker": "report_to", "wandb": "report_to", "warmup": "warmup_steps", "warmup_ratio": "warmup_steps",
}  # fmt: skip
LAUNCHED = ("gpus", "num_gpus", "n_gpus", "nproc_per_node", "devices", "num_processes", "world_size")
ANSWERED = ("help", "help_all", "version", "config")  # flags that are no settings
# Where the libraries' settings are defined; importing these takes seconds
SOURCES = (
    ("transformers", "training_args.py"),
    *(("trl", f"trainer/{name}_config.py") for name in ("base", "grpo", "model")),
)


def answer_at_once(argv: Sequence[str]) -> bool:
    """Whether `--version` was all that was wanted, which is then printed; UserError for a flag that does not exist."""
    if "--version" in argv:
        print(versions())
        return True
    names = set(_defined_names())
    for word in argv if names else ():
        flag = re.match(r"--([\w-]+)(=|$)", word)  # a text that begins with dashes is a value
        key = flag[1].replace("-", "_") if flag else "config"
        known = key in names or key.removeprefix("no_") in names or key in ANSWERED
        if not known and not is_secret_name(key):  # a secret's line has another remedy
            raise UserError(f"{word}: no such flag{did_you_mean(key, names)}")
    return False


def _defined_names() -> Iterator[str]:
    """What the modules of the settings annotate, read as text: all settings, and a few names more.

    None at all where a module is not where it is expected, so that no flag is refused for that.
    """
    found = [field.name for field in dataclasses.fields(ScriptArguments)]
    for package, path in SOURCES:
        spec = find_spec(package)
        places = (spec and spec.submodule_search_locations) or [""]
        file = Path(places[0]) / path
        if not file.is_file():
            return
        found += re.findall(r"^    (\w+): ", file.read_text(encoding="utf-8"), re.MULTILINE)
    yield from found


def did_you_mean(key: str, names: Collection[str]) -> str:
    """The end of an error about a setting that does not exist."""
    if key in LAUNCHED:
        return "; start several processes by torchrun --nproc_per_node=N train_grpo.py"
    if key == "device":
        return "; a GPU is found by itself, and --use_cpu true does without"
    if key in ALIASES:
        return f"; use --{ALIASES[key]}"
    close = difflib.get_close_matches(key, [*names, *ANSWERED], n=1, cutoff=0.75)
    close = close or [name for name in names if key and name.startswith(f"{key}_")][:4]
    close = close or difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {' or '.join(close)}?" if close else "; --help_all lists all of them"


def recipes() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def overview(defaults: dict[str, Any]) -> str:
    """Modes, the main settings with their defaults, recipes and examples, for the terminal's width."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    lines = ["usage: python train_grpo.py [--config RECIPE] [--flag value ...]", ""]
    lines += textwrap.wrap(
        "Teach a small language model to reason with GRPO, and measure what it learned. Edit HYPERPARAMETERS at the "
        "top of train_grpo.py; a recipe and then flags override it.",
        width,
    )
    lines += ["", "Modes", *_columns(MODES, width)]
    for title, settings in MAIN.items():
        rows = {f"--{key}": " ".join([words, *_default(defaults[key])]).strip() for key, words in settings.items()}
        lines += ["", title, *_columns(rows, width)]
    names = ", ".join(recipes())
    lines += ["", "Recipes (--config NAME)", *textwrap.wrap(names, width, initial_indent="  ", subsequent_indent="  ")]
    lines += ["", "Examples", *(f"  {example}" for example in EXAMPLES)]
    return "\n".join([*lines, "", "--help_all lists every setting of this project, TRL and transformers."])


def _columns(rows: dict[str, str], width: int) -> list[str]:
    """Names on the left, words wrapped on the right."""
    left, lines = max(map(len, rows)) + 4, []
    for name, words in rows.items():
        first, *others = textwrap.wrap(words, max(width - left, 20)) or [""]
        lines += [f"  {name:<{left - 2}}{first}"]
        lines += [" " * left + other for other in others]
    return lines


def _default(value: Any) -> list[str]:
    """In brackets; nothing where the setting is unset."""
    if isinstance(value, list):
        return [f"[{' '.join(map(str, value))}]"]
    return [] if value is None else [f"[{str(value).lower() if isinstance(value, bool) else value}]"]


def everything(parser: argparse.ArgumentParser, owners: dict[str, type]) -> str:
    """All settings with their help, each once: the groups of `overview`, then what is left of each dataclass."""
    options = [option for option in parser._actions if not option.option_strings[0].startswith("--no_")]
    groups = {title: {*MAIN.get(title, ()), *MORE.get(title, ())} for title in [*MORE, *MAIN]}
    groups |= {title: {field.name for field in dataclasses.fields(owner)} for title, owner in owners.items()}
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        group._group_actions = [option for option in options if option.dest in names]
        options = [option for option in options if option.dest not in names]
    parser._optionals._group_actions = options
    for option in parser._actions:  # without the spelling with hyphens
        option.option_strings = [word for word in option.option_strings if "-" not in word[2:]]
    return parser.format_help()


def versions() -> str:
    """This project's, with its commit where git knows it, and those of the libraries that matter."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "of no repository"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft", "accelerate"))
    return f"train_grpo.py {commit}; {libraries}"
