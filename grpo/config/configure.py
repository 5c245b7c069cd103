"""From HYPERPARAMETERS, a recipe and flags to one checked configuration: HYPERPARAMETERS < recipe < flags."""

import contextlib
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import yaml
from transformers import Trainer, get_scheduler
from trl import GRPOConfig, ModelConfig, TrlParser

from grpo.config import hardware, validate
from grpo.core import processes
from grpo.core.checklist import Check
from grpo.core.errors import UserError, did_you_mean
from grpo.core.settings import IN_MEMORY, Config, ScriptArguments
from grpo.rewarding import registry
from grpo.rewarding.stages import read_stages, settings_of
from grpo.runs import directory
from rewards import REWARD_FUNCS

GIST_REWARDS = list(REWARD_FUNCS)[:5]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
GROUPS = {ScriptArguments: "this project", GRPOConfig: "GRPOConfig (TRL)", ModelConfig: "ModelConfig (TRL)"}
MAPPINGS = {field.name for owner in GROUPS for field in dataclasses.fields(owner) if "dict" in str(field.type)}
# What belongs to one data set: other data by a recipe or a flag never meets it
OF_THE_DATA = ("eval_dataset_name", "dataset_config")
DATA_SETS = ("dataset_name", "eval_dataset_name")
# What other trainers call a setting, or what people type first
ALIASES = {
    "batch_size": "per_device_train_batch_size",
    "cpu": "use_cpu",
    "epochs": "num_train_epochs",
    "group_size": "num_generations",
    "kl_coef": "beta",
    "lr": "learning_rate",
    "max_new_tokens": "max_completion_length",
    "model": "model_name_or_path",
    "steps": "max_steps",
    "torch_dtype": "dtype",
    "use_lora": "use_peft",
    "warmup_ratio": "warmup_steps",
}


def JSON(text: str) -> Any:
    return json.loads(text)


class Parser(TrlParser):
    """TRL's parser, without abbreviated flags and with one-line errors."""

    def __init__(self) -> None:
        for owner, title in GROUPS.items():
            setattr(owner, "_argument_group_name", title)  # noqa: B010 - HfArgumentParser's name for it
        super().__init__(
            list(GROUPS),  # type: ignore[arg-type]  # dataclasses, all of them
            allow_abbrev=False,
            add_help=False,
            usage=f"python {Path(sys.argv[0]).name} [--config RECIPE] [--flag value ...]",
            description="Settings: HYPERPARAMETERS < --config recipe < --flag value.",
        )
        self.settings = {action.dest: action for action in reversed(self._actions)}
        for action in self._actions:  # the spelling with hyphens is understood, too, and not shown
            action.option_strings = [word for word in action.option_strings if "-" not in word[2:]]
        for key in MAPPINGS:
            if key.endswith("_kwargs") or key in ("stages", "reward_args"):
                self.settings[key].type = JSON
        self.settings["prompt_format"].type = lambda text: JSON(text) if text.startswith("{") else text
        self.needed = {key for key, action in self.settings.items() if action.default is not None}
        self.needed -= {"use_vllm"}  # None: where it is installed
        self.add_argument("--config", action="append", metavar="RECIPE", help="A recipe, by its path or its name.")
        self.add_argument("--help_all", action="help", help="Show all settings and exit.")

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument --"))

    def meant(self, key: str) -> str:
        """The end of an error about a setting that does not exist."""
        return did_you_mean(ALIASES.get(key, key), self.settings)

    def layer(self, values: Mapping[str, Any], where: str) -> None:
        """Replace defaults; UserError for a setting that does not exist, or a value of the wrong type."""
        for key, value in values.items():
            if key not in self.settings:
                raise UserError(f"{key}: no such setting (in {where}){self.meant(str(key))}")
            if value is None and key in self.needed:
                raise UserError(f"{key}: it needs a value (in {where})")
        self.set_defaults_with_config(**{key: self._default(key, value) for key, value in values.items()})

    def _default(self, key: str, value: Any) -> Any:
        """A value as argparse takes it for a default: numbers as text, which it then checks as it checks a flag's."""
        action = self.settings[key]
        if action.nargs == "+" and value is not None:
            items = value if isinstance(value, list) else [value]
            kind: Any = action.type
            try:
                return [item if isinstance(item, dict) else kind(str(item)) for item in items]
            except ValueError as error:
                raise UserError(f"{key}: {error}") from None
        if isinstance(value, list):
            raise UserError(f"{key}: use one value, not the list {value}")
        if isinstance(value, dict) and key not in MAPPINGS:
            raise UserError(f"{key}: use one value, not the mapping {value}")
        if value is False and action.choices:  # YAML reads a bare `no` as false
            return "no"
        return str(value) if isinstance(value, int | float) else value


class Read(NamedTuple):
    """Every setting by name, and which of them the recipe and the command line give."""

    settings: dict[str, Any]
    recipe: set[str]
    typed: set[str]
    notes: list[Check]
    reward_functions: registry.Rewards  # that HYPERPARAMETERS lists
    recipe_data: str | None  # the `dataset_name` of a recipe of this repository


def read(hyperparameters: Mapping[str, Any], argv: Sequence[str]) -> Read:
    """The settings of all three sources; UserError for an unknown name or a value of the wrong type."""
    parser, notes = Parser(), list[Check]()
    hyperparameters, functions = registry.by_name(hyperparameters)
    parser.layer(hyperparameters, "HYPERPARAMETERS")
    inline = _parse(parser, [])
    paths = parser.parse_known_args(argv)[0].config or []
    if len(paths) > 1:
        raise UserError(f"config: more than one recipe ({', '.join(paths)}); use one, and flags")
    recipe = read_recipe(paths[0]) if paths else {}
    recipe_data = recipe.get("dataset_name") if paths and find_recipe(paths[0]).parent == RECIPES else None
    if recipe.get("dataset_name", inline["dataset_name"]) != inline["dataset_name"]:
        recipe = dict.fromkeys(OF_THE_DATA) | recipe
    parser.layer(recipe, paths[0] if paths else "")
    below, settings = _parse(parser, []), _parse(parser, argv)
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    typed = {key for key in parser.settings if {key, f"no_{key}"} & flags}
    if settings["dataset_name"] != below["dataset_name"]:
        own = inline if settings["dataset_name"] == inline["dataset_name"] else {}
        settings |= {key: own.get(key) for key in OF_THE_DATA if key not in typed}
    dropped = below["eval_dataset_name"] or inline["eval_dataset_name"]
    if dropped and not settings["eval_dataset_name"] and "eval_dataset_name" not in typed:
        finding = f"{dropped} is ignored: your data replaces the training data, and held-out questions come from yours"
        notes.append(Check("ok", "eval_dataset_name", finding))
    if not typed & {"reward_funcs", "stages"} and (replaced := _replaced_rewards(inline, functions, recipe)):
        finding = f"{paths[0]} replaces the script's own: {', '.join(replaced)}"
        notes.append(Check("ok", "reward_funcs", finding))
    return Read(settings, set(recipe), typed, notes, functions, recipe_data)


def _replaced_rewards(
    inline: Mapping[str, Any], functions: registry.Rewards, recipe: Mapping[str, Any]
) -> Sequence[str]:
    """The script's rewards where a recipe names others; none where the script has the five that it came with."""
    names = inline["reward_funcs"]
    edited = names != GIST_REWARDS or any(functions.get(name) not in (None, REWARD_FUNCS[name]) for name in names)
    replaced = recipe.get("stages") or recipe.get("reward_funcs", names) != names
    return names if edited and replaced else []


def _parse(parser: Parser, argv: Sequence[str]) -> dict[str, Any]:
    namespace, unknown = parser.parse_known_args(argv)
    if unknown and unknown[0].startswith("-"):
        flag = unknown[0].partition("=")[0]
        key = flag.lstrip("-").replace("-", "_")
        raise UserError(f"{flag}: no such flag{parser.meant(key)}")
    if unknown:
        recipe = f" (a recipe: --config {unknown[0]})" if (RECIPES / f"{unknown[0]}.yaml").exists() else ""
        raise UserError(f"{unknown[0]!r} follows no flag; write settings as --flag value{recipe}")
    settings = {key: getattr(namespace, key) for key in parser.settings}
    return settings | {key: None for key in DATA_SETS if settings[key] in ("none", "None")}


def find_recipe(name: str) -> Path:
    """A file by its path, or one of recipes/ by its name."""
    path = Path(name)
    return (path if path.is_file() else RECIPES / f"{name.removesuffix('.yaml')}.yaml").resolve()


def read_recipe(name: str) -> dict[str, Any]:
    """The settings in a YAML file, found by `find_recipe`."""
    path = find_recipe(name)
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError:
        names = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
        raise UserError(f"config: {name!r} cannot be read; use a file's path, or one of {names}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"config: {name} is not valid YAML in UTF-8 ({error})") from None
    if not isinstance(recipe, dict):
        raise UserError(f"config: {name} is not a mapping; write `key: value` lines")
    if recipe.get("stages") and "reward_funcs" in recipe:
        raise UserError(f"reward_funcs: {name} also has stages, which name their own rewards; drop one of them")
    if path.parent == RECIPES:  # its files are found from any directory
        for key in ("model_name_or_path", *DATA_SETS):
            given = recipe.get(key)
            if isinstance(given, str) and not os.path.exists(given) and (ROOT / given).exists():
                recipe[key] = str(ROOT / given)
    return recipe


def configure(
    hyperparameters: Mapping[str, Any], argv: Sequence[str], dataset: Any = None, script_file: str = "train_grpo.py"
) -> Config:
    """Resolve the configuration of this run on this machine; write nothing. Its directory is settled later.

    Args:
        dataset: rows in memory, which replace `dataset_name`.
        script_file: the script whose settings these are, for commands that people copy.

    Raises:
        UserError: for the first thing that is wrong.
    """
    settings, recipe, typed, notes, functions, recipe_data = read(hyperparameters, argv)
    program = processes.program(script_file)
    if dataset is not None:
        if "dataset_name" in typed:
            raise UserError("dataset_name: the rows passed as `dataset` replace it; drop one of them")
        settings |= {**dict.fromkeys(set(OF_THE_DATA) - typed), "dataset_name": IN_MEMORY}
    stages = read_stages(settings["stages"] or [])
    if stages:
        for key in ("reward_funcs", "reward_weights"):
            if key in typed or (key == "reward_weights" and settings[key] is not None):
                raise UserError(f"{key}: it cannot be combined with stages, which have their own; drop one of them")
        settings.update(settings_of(stages, settings["max_steps"]))
    asked = settings | {"report_to": (settings["report_to"] or "none").split(",")}  # before the machine has its say
    validate.check(settings, typed)
    geometry = validate.solve_geometry(settings, int(os.environ.get("WORLD_SIZE", "1")))
    hardware.choose_gpu(settings, argv, program)
    notes += hardware.fit_to_machine(settings, typed, typed | recipe, program)
    settings["model_name_or_path"] = os.path.expanduser(settings["model_name_or_path"])
    default_dir, default_run = directory.default_names(
        settings["model_name_or_path"],
        settings["dataset_name"] or settings["eval_dataset_name"],
        settings["eval_only"],
        of_recipe=settings["dataset_name"] == recipe_data,
    )
    named = settings["output_dir"]
    settings["output_dir"] = named or default_dir
    if settings["run_name"]:
        default_run = ""
    else:
        settings["run_name"] = default_run
    origin = origin_of(settings, asked, {"flag": typed, "recipe": recipe, "script": hyperparameters})
    if stages:
        origin |= dict.fromkeys(("reward_funcs", "reward_weights", "max_steps"), origin["stages"])
    if dataset is not None:
        origin["dataset_name"] = "script"
    origin |= {key: origin["dataset_name"] for key in OF_THE_DATA if settings[key] is None and key not in typed}
    script, training, model = to_dataclasses(settings)
    return Config(
        script=script,
        training=training,
        model=model,
        geometry=geometry,
        notes=notes,
        origin=origin,
        script_file=script_file,
        argv=list(argv),
        stages=stages,
        typed=typed,
        chosen=typed | recipe,
        reward_functions=functions,
        named_dir=named,
        default_dir=default_dir,
        default_run=default_run,
    )


def origin_of(
    settings: Mapping[str, Any], asked: Mapping[str, Any], sources: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """The source of each setting that has another value than its default: the script's block first, in its order.

    Args:
        settings: their values.
        asked: their values before the program has adjusted them to the machine and the data.
        sources: the settings that the flags, the recipe and the script give, the stronger source first.
    """
    found = {}
    for key in dict.fromkeys([*sources["script"], *settings]):
        given = next((source for source, keys in sources.items() if key in keys), None)
        if settings[key] != asked[key]:
            given = "machine"
        if given:
            found[key] = given
    return found


def to_dataclasses(settings: dict[str, Any]) -> tuple[ScriptArguments, GRPOConfig, ModelConfig]:
    """The settings as this project's and TRL's own objects; UserError for what TRL refuses."""
    # TRL's default for it, and its trainer, use the name that transformers 5.23 warns of
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
    try:
        script, training, model = Parser().parse_dict(settings)
        with contextlib.suppress(AttributeError):  # GaLore's kin ask for the model, after their package
            Trainer.get_optimizer_cls_and_kwargs(training)
        any_optimizer = torch.optim.SGD([torch.zeros(1)])
        kind, options = training.lr_scheduler_type, training.lr_scheduler_kwargs
        get_scheduler(kind, any_optimizer, num_warmup_steps=0, num_training_steps=1, scheduler_specific_kwargs=options)
    except (ValueError, TypeError, ImportError, OSError) as error:
        known = any(key in str(error) for key in settings)
        raise UserError(str(error) if known else f"TRL refuses the settings: {error}") from None
    if model.model_revision != "main":  # TRL loads the reference model with these
        given = training.model_init_kwargs
        training.model_init_kwargs = {"revision": model.model_revision, **(given if isinstance(given, dict) else {})}
    return script, training, model
