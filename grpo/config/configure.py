"""From HYPERPARAMETERS, a recipe and flags to one checked configuration: HYPERPARAMETERS < recipe < flags."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
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
from grpo.rewarding import registry, weighting
from grpo.runs import directory
from rewards import REWARD_FUNCS

GIST_REWARDS = list(REWARD_FUNCS)[:5]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
GROUPS = {ScriptArguments: "this project", GRPOConfig: "GRPOConfig (TRL)", ModelConfig: "ModelConfig (TRL)"}
MAPPINGS = {field.name for owner in GROUPS for field in dataclasses.fields(owner) if "dict" in str(field.type)}
DATA_SETS = ("dataset_name", "eval_dataset_name")
# Settings that belong to one data set: they never meet another one, which a recipe or a flag names
OF_THE_DATA = ("eval_dataset_name", "dataset_config")
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
Layers = Sequence[tuple[str, Mapping[str, Any]]]  # an origin with its settings, the weaker ones first


# --- Names and types ----------------------------------------------------------------------------------------------


def JSON(text: str) -> Any:
    return json.loads(text)


def JSON_or_name(text: str) -> Any:
    return JSON(text) if text.startswith("{") else text


class Parser(TrlParser):
    """TRL's parser, without abbreviated flags and with one-line errors; it also checks what is no flag."""

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
        self.settings["prompt_format"].type = JSON_or_name
        self.defaults = {key: action.default for key, action in self.settings.items()}
        self.required = {key for key, action in self.settings.items() if action.required}
        for key in self.required:  # of all sources together
            self.settings[key].required = False
        self.never_none = {key for key, default in self.defaults.items() if default is not None} | self.required
        self.never_none -= {"dataset_name", "use_vllm"}  # where a run only evaluates; where vLLM is installed
        self.add_argument("--config", action="append", metavar="RECIPE", help="A recipe, by its path or its name.")
        self.add_argument("--help_all", action="help", help="Show all settings and exit.")

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument --"))

    def flags(self, argv: Sequence[str]) -> tuple[dict[str, Any], str | None]:
        """The settings that the command line gives, and its recipe."""
        unset = object()
        namespace, unknown = self.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(self.settings, unset)))
        if unknown and unknown[0].startswith("-"):
            flag = unknown[0].partition("=")[0]
            raise UserError(f"{flag}: no such flag{self._meant(flag.lstrip('-').replace('-', '_'))}")
        if unknown:
            recipe = f" (a recipe: --config {unknown[0]})" if (RECIPES / f"{unknown[0]}.yaml").exists() else ""
            raise UserError(f"{unknown[0]!r} follows no flag; write settings as --flag value{recipe}")
        recipes = namespace.config or []
        if len(recipes) > 1:
            raise UserError(f"config: more than one recipe ({', '.join(recipes)}); use one, and flags")
        given = {key: getattr(namespace, key) for key in self.settings}
        return {key: value for key, value in given.items() if value is not unset}, next(iter(recipes), None)

    def check_names(self, values: Mapping[str, Any], where: str) -> None:
        """Raise UserError for a setting that does not exist."""
        for key in values:
            if key not in self.settings:
                raise UserError(f"{key}: no such setting (in {where}){self._meant(str(key))}")

    def _meant(self, key: str) -> str:
        """The end of an error about a setting that does not exist."""
        return did_you_mean(ALIASES.get(key, key), self.settings)

    def typed(self, key: str, value: Any) -> Any:
        """A value of HYPERPARAMETERS or a recipe, checked like a flag's; YAML reads 1e-5 as text."""
        if value is None:
            if key in self.never_none:
                raise UserError(f"{key}: it needs a value")
            return None
        if self.settings[key].nargs == "+":
            return [self._item(key, item) for item in (value if isinstance(value, list | tuple) else [value])]
        if isinstance(value, list | tuple):
            raise UserError(f"{key}: use one value, not the list {value}")
        return self._item(key, value)

    def _item(self, key: str, value: Any) -> Any:
        action = self.settings[key]
        if isinstance(value, dict) and key not in MAPPINGS:
            raise UserError(f"{key}: use a value, not the mapping {value}")
        if not isinstance(value, str | int | float):
            return value
        text = "no" if value is False and action.choices else str(value)  # YAML reads a bare `no` as false
        try:
            return self._get_value(action, text)
        except argparse.ArgumentError as error:
            self.error(str(error))


# --- The sources --------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """The merged settings, before they are fitted to the machine."""

    settings: dict[str, Any]  # all of them, by name
    origin: dict[str, str]  # of those that are given: script, recipe or flag; the script's in its order
    notes: list[Check]
    reward_functions: registry.Rewards  # the functions in HYPERPARAMETERS, by name
    shipped_data: bool  # whether a recipe of this repository brings the data


def read(hyperparameters: Mapping[str, Any], argv: Sequence[str], rows_in_memory: bool = False) -> Given:
    """Merge the settings of all sources; UserError for an unknown name or a value of the wrong type.

    Args:
        rows_in_memory: whether the script passes rows, which replace `dataset_name`.
    """
    parser = Parser()
    script, functions = registry.by_name(hyperparameters)
    parser.check_names(script, "HYPERPARAMETERS")
    parser.set_defaults(**script)  # which --help_all shows
    flags, recipe_name = parser.flags(argv)
    recipe = read_recipe(recipe_name) if recipe_name else {}
    parser.check_names(recipe, str(recipe_name))
    if rows_in_memory and "dataset_name" in flags:
        raise UserError("dataset_name: the rows passed as `dataset` replace it; drop one of them")
    rows = {"dataset_name": IN_MEMORY} if rows_in_memory else {}
    layers: Layers = [("script", script), ("recipe", recipe), ("script", rows), ("flag", flags)]

    settings, origin = dict(parser.defaults), dict[str, str]()
    for source, values in layers:
        settings |= values
        origin |= dict.fromkeys(values, source)
    for key in parser.required - origin.keys():
        raise UserError(f"{key}: it needs a value; write it into HYPERPARAMETERS")
    notes = _drop_settings_of_other_data(settings, origin, layers)
    notes += _about_replaced_rewards(script, functions, settings, origin, recipe_name)
    for key, source in origin.items():
        if source != "flag":
            settings[key] = parser.typed(key, settings[key])
    settings |= {key: None for key in DATA_SETS if settings[key] in ("none", "None")}
    settings["model_name_or_path"] = os.path.expanduser(settings["model_name_or_path"])
    shipped = bool(recipe_name) and find_recipe(str(recipe_name)).parent == RECIPES
    return Given(
        settings, origin, notes, functions, shipped and settings["dataset_name"] == recipe.get("dataset_name")
    )


def _drop_settings_of_other_data(settings: dict[str, Any], origin: dict[str, str], layers: Layers) -> list[Check]:
    """Take settings of the data from those layers that mean the run's data; a note where held-out data are ignored."""
    ignored: dict[str, Any] = {}
    for key in OF_THE_DATA:
        settings[key], origin[key] = None, origin["dataset_name"]
        data = None
        for source, values in layers:
            data = values.get("dataset_name", data)
            if key not in values:
                continue
            if data == settings["dataset_name"]:
                settings[key], origin[key], ignored[key] = values[key], source, None
            else:
                ignored[key] = values[key]
    if not (name := ignored.get("eval_dataset_name")):
        return []
    finding = f"{name} is ignored: your data replaces the training data, and held-out questions come from yours"
    return [Check("ok", "eval_dataset_name", finding)]


def _about_replaced_rewards(
    script: Mapping[str, Any],
    functions: registry.Rewards,
    settings: Mapping[str, Any],
    origin: Mapping[str, str],
    recipe: str | None,
) -> list[Check]:
    """A note where a recipe's rewards replace others than the five that the script came with."""
    names, origins = script.get("reward_funcs", []), (origin["reward_funcs"], origin.get("stages"))
    edited = names != GIST_REWARDS or any(functions.get(name) not in (None, REWARD_FUNCS[name]) for name in names)
    replaced = settings["reward_funcs"] != names or (origins[1] == "recipe" and settings["stages"])
    if edited and replaced and "recipe" in origins and "flag" not in origins:
        return [Check("ok", "reward_funcs", f"{recipe} replaces the script's own: {', '.join(names)}")]
    return []


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


# --- The configuration --------------------------------------------------------------------------------------------


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
    settings, origin, notes, functions, shipped_data = read(hyperparameters, argv, dataset is not None)
    program = processes.program(script_file)
    stages = weighting.read_stages(settings["stages"] or [])
    if stages:
        if origin.get("reward_funcs") == "flag" or settings["reward_weights"] is not None:
            key = "reward_funcs" if origin.get("reward_funcs") == "flag" else "reward_weights"
            raise UserError(f"{key}: it cannot be combined with stages, which have their own; drop one of them")
        of_stages = weighting.settings_of_stages(stages, settings["max_steps"])
        settings |= of_stages
        origin |= dict.fromkeys(of_stages, origin["stages"])
    given = settings | {"report_to": (settings["report_to"] or "none").split(",")}
    validate.check(settings, origin)
    geometry = validate.solve_geometry(settings, int(os.environ.get("WORLD_SIZE", "1")))
    hardware.choose_gpu(settings, argv, program)
    notes += hardware.fit_to_machine(settings, origin, program)
    default_dir, default_run = directory.default_names(
        settings["model_name_or_path"], settings["dataset_name"], settings["eval_only"], of_recipe=shipped_data
    )
    settings["output_dir"] = settings["output_dir"] or default_dir
    settings["run_name"] = settings["run_name"] or default_run
    origin |= {key: "machine" for key, value in settings.items() if value != given[key]}
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
        reward_functions=functions,
        default_dir=default_dir,
    )


def to_dataclasses(settings: Mapping[str, Any]) -> tuple[ScriptArguments, GRPOConfig, ModelConfig]:
    """The settings as this project's and TRL's own objects; UserError for what TRL refuses."""

    def of(owner: Any) -> Any:
        return owner(**{field.name: settings[field.name] for field in dataclasses.fields(owner) if field.init})

    try:
        script, training, model = map(of, GROUPS)
        with contextlib.suppress(AttributeError):  # GaLore's kin ask for the model, after their package
            Trainer.get_optimizer_cls_and_kwargs(training)
        any_optimizer = torch.optim.SGD([torch.zeros(1)])
        kind, options = training.lr_scheduler_type, training.lr_scheduler_kwargs
        get_scheduler(kind, any_optimizer, num_warmup_steps=0, num_training_steps=1, scheduler_specific_kwargs=options)
    except (ValueError, TypeError, ImportError, OSError) as error:
        known = any(key in str(error) for key in settings)
        raise UserError(str(error) if known else f"TRL refuses the settings: {error}") from None
    if model.model_revision != "main":  # TRL loads the reference model with these
        options = training.model_init_kwargs
        training.model_init_kwargs = {
            "revision": model.model_revision,
            **(options if isinstance(options, dict) else {}),
        }
    return script, training, model
