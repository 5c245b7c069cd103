"""The settings as they were asked for: HYPERPARAMETERS (the defaults) < recipe (YAML) < flags.

One parser reads all three, so that a value is checked alike wherever it comes from.
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig, TrlParser

from grpo.config import help
from grpo.config.validate import refuse_secrets
from grpo.core.ending import pipe_may_close
from grpo.core.errors import UserError, did_you_mean
from grpo.core.parsing import ArgumentParser, from_yaml, in_our_words, json_word
from grpo.core.settings import ScriptArguments
from grpo.data import prompts
from grpo.rewarding import registry, stages

# What belongs to one data set: other data by a flag or a recipe never meets it
OF_THE_DATA = ("eval_dataset_name", "dataset_config")
DATA_SETS = ("dataset_name", "eval_dataset_name")


class Arguments(NamedTuple):
    """Every setting by name, and the names of those that the command line itself gives."""

    settings: dict[str, Any]
    typed: set[str]
    recipe: set[str]  # those that the recipe sets
    below: dict[str, Any]  # what inline block and recipe alone say


class Parser(TrlParser):
    """TRL's parser, without abbreviated flags and with one-line errors."""

    def __init__(self) -> None:
        super().__init__(
            [ScriptArguments, GRPOConfig, ModelConfig],  # type: ignore[list-item]  # dataclasses, all of them
            allow_abbrev=False,
            usage="python train_grpo.py [--config recipes/X.yaml] [--flag value ...]",
            description="Settings: HYPERPARAMETERS < --config recipe < --flag value.",
        )
        self.add_argument("--config", action="append", metavar="RECIPE.yaml", help="A recipe; at most one.")
        self.keys: dict[str, argparse.Action] = {
            action.dest: action for action in reversed(self._actions) if action.dest not in ("help", "config")
        }
        self.keys["stages"].type = json_word(stages.EXAMPLE)
        self.keys["exemplars"].type = json_word(prompts.EXAMPLE)
        for key in DATA_SETS:  # one is a text, several are a list
            self.keys[key].nargs = "+"
        self.keys["liger_kernel_config"].type = str  # JSON, like others; dict("{}") would raise
        self.texts = {key for key, action in self.keys.items() if action.type is str or action.choices is not None}
        for action in self.keys.values():
            if action.default is None and not action.required and action.nargs is None:
                action.type = _or_none(action.type)

    def error(self, message: str) -> NoReturn:
        raise UserError(in_our_words(message))

    def words(self, key: str, value: Any) -> list[str]:
        """A setting of HYPERPARAMETERS or a recipe as words of a command line."""
        action = self.keys[key]
        if isinstance(value, list):
            if action.nargs != "+":
                raise UserError(f"{key}: one value is needed, not the list {value}")
            return [f"--{key}", *(json.dumps(item) if isinstance(item, dict) else str(item) for item in value)]
        if isinstance(value, dict):
            return [f"--{key}={json.dumps(value)}"]
        if isinstance(value, bool) and key in self.texts:
            return [f"--{key}={'yes' if value else 'no'}"]  # YAML reads a bare `no` as false
        return [f"--{key}={value}"]


NONE = ("none", "None", "null")


def _or_none(read: Any) -> Callable[[str], Any]:
    """The type of a setting that `none` unsets, as in `--dataset_config none`."""

    @functools.wraps(read)  # argparse's errors name it
    def unset_or_read(text: str) -> Any:
        return None if text in NONE else read(text)

    return unset_or_read


_parser = functools.cache(Parser)  # a tenth of a second, and nothing below changes it


def to_dataclasses(settings: dict[str, Any]) -> tuple[ScriptArguments, GRPOConfig, ModelConfig]:
    """The settings as this project's and TRL's own objects; UserError for what TRL refuses."""
    try:
        script, training, model = _parser().parse_dict(settings)
    except (ValueError, TypeError, ImportError, OSError) as error:
        known = any(key in str(error) for key in settings)
        raise UserError(str(error) if known else f"TRL refuses the settings: {error}") from None
    return script, training, model


def read(hyperparameters: dict[str, Any], argv: list[str]) -> Arguments:
    """The settings of all three sources; UserError for an unknown name or a value of the wrong type."""
    hyperparameters = registry.named(hyperparameters)
    if {"--help", "-h", "--help_all"} & set(argv):
        _print_and_exit(hyperparameters, argv)
    parser = _parser()
    if argv and not argv[0].startswith("-") and argv[0].endswith((".yaml", ".yml")):
        argv = ["--config", *argv]
    recipes = ArgumentParser(prog="python train_grpo.py", add_help=False)
    recipes.add_argument("--config", action="append", default=[])
    given, argv = recipes.parse_known_args(argv)
    if len(given.config) > 1:
        raise UserError(f"config: more than one recipe ({', '.join(given.config)}); use one, and flags")
    for key in hyperparameters:
        if key not in parser.keys:
            raise UserError(f"{key}: no such setting (in HYPERPARAMETERS){help.did_you_mean(key, parser.keys)}")
    recipe = _read_recipe(given.config[0], parser) if given.config else {}
    merged = {**hyperparameters, **recipe}
    merged |= {key: _data_sets(key, merged[key]) for key in DATA_SETS if key in merged}
    if merged.get("dataset_name") != hyperparameters.get("dataset_name"):
        merged |= {key: None for key in OF_THE_DATA if key not in recipe}
    # A command line cannot say None or the empty list
    unset = {key: value for key, value in merged.items() if value is None or value == []}
    for key in unset:
        needed = parser.keys[key].default is not None and key != "use_vllm"  # None: where it is installed
        if needed or key in ("model_name_or_path", "dataset_name"):
            raise UserError(f"{key}: a value is needed")
    words = [word for key, value in merged.items() if key not in unset for word in parser.words(key, value)]
    namespace, unknown = parser.parse_known_args(words + argv, argparse.Namespace(**unset))
    if unknown and not unknown[0].startswith("-"):
        if "--report_to" in argv and unknown[0] in argv[argv.index("--report_to") + 2 :][:1]:
            raise UserError(
                f"report_to: {unknown[0]!r} is a second value; write several trackers as wandb,tensorboard"
            )
        if unknown[0] in help.recipes():
            raise UserError(f"{unknown[0]!r} is a recipe; use --config {unknown[0]}")
        raise UserError(f"{unknown[0]!r} follows no flag that takes it; write settings as --flag value")
    if unknown:
        key = unknown[0].lstrip("-").partition("=")[0].replace("-", "_")
        refuse_secrets({key: ""})
        raise UserError(f"{unknown[0]}: no such flag{help.did_you_mean(key, parser.keys)}")
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    typed = {key for key in parser.keys if key in flags or f"no_{key}" in flags}
    settings = {key: getattr(namespace, key) for key in parser.keys}
    settings |= {key: _data_sets(key, settings[key]) for key in DATA_SETS}
    for key in ("stages", "exemplars"):  # all of them may be one word of the command line
        if settings[key] and len(settings[key]) == 1 and isinstance(settings[key][0], list):
            settings[key] = settings[key][0]
    names, usual = settings["dataset_name"], hyperparameters.get("dataset_name")
    if names != merged.get("dataset_name"):
        own = hyperparameters if names == usual else {}
        settings |= {key: own.get(key) for key in OF_THE_DATA if key not in typed}
    if isinstance(names, list) and usual in names and not settings["dataset_config"]:  # GSM8K beside other data
        own_config = f"{usual}:{hyperparameters.get('dataset_config') or ''}".rstrip(":")
        settings["dataset_name"] = [own_config if name == usual else name for name in names]
    return Arguments(settings, typed, set(recipe), merged)


def _data_sets(key: str, value: Any) -> Any:
    """The data sets of a setting: None, one as a text, or a list of several; UserError for one that is there twice."""
    if not isinstance(value, list):
        return value
    if key == "eval_dataset_name" and value and value[0] in NONE and len(value) == 1:
        return None
    for name in value:
        if value.count(name) > 1:
            raise UserError(f"{key}: {name!r} is listed twice; drop one of them")
    return value[0] if len(value) == 1 else value


def _print_and_exit(hyperparameters: dict[str, Any], argv: list[str]) -> NoReturn:
    if "--help_all" in argv:
        parser = Parser()
        parser.set_defaults(**hyperparameters)
        owners = {
            "ModelConfig (TRL)": ModelConfig,
            "TrainingArguments (transformers)": TrainingArguments,
            "GRPOConfig (TRL)": GRPOConfig,
        }
        shown = help.everything(parser, owners)
    else:
        shown = help.overview({key: action.default for key, action in _parser().keys.items()} | hyperparameters)
    with pipe_may_close():
        print(shown)
    sys.exit(0)


def _read_recipe(path: str, parser: Parser) -> dict[str, Any]:
    """A recipe by its path, or by its name for one of recipes/."""
    if not os.path.isfile(path) and (shipped := help.RECIPES / f"{path.removesuffix('.yaml')}.yaml").is_file():
        path = str(shipped)
    try:
        recipe = from_yaml(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        names = did_you_mean(Path(path).stem, [*help.recipes(), "a file's path"])
        raise UserError(f"config: cannot read {path!r} ({error.strerror}){names}") from None
    except ValueError as error:
        raise UserError(f"config: {path} is not valid YAML in UTF-8 ({error}); write `key: value` lines") from None
    if not isinstance(recipe, dict):
        raise UserError(f"config: {path} is not a mapping; write `key: value` lines")
    for key in recipe:
        if key == "env":
            raise UserError(f"env: {path} may not set environment variables; export them in the shell instead")
        if key not in parser.keys:
            raise UserError(f"{key}: no such setting (in {path}){help.did_you_mean(str(key), parser.keys)}")
    if recipe.get("stages") and "reward_funcs" in recipe:
        raise UserError(f"reward_funcs: {path} contains stages, too, which have their own; drop one of them")
    if Path(path).resolve().parent == help.RECIPES:  # its files are found from any directory
        for setting in ("model_name_or_path", *DATA_SETS):
            if given := recipe.get(setting):
                recipe[setting] = [_found(name) for name in given] if isinstance(given, list) else _found(given)
    return recipe


def _found(name: Any) -> Any:
    """The path of a file that a shipped recipe names by its place in this project; any other name as it is."""
    here = isinstance(name, str) and not os.path.exists(name) and (help.ROOT / name).exists()
    return str(help.ROOT / name) if here else name
