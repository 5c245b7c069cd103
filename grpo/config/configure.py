"""Merge HYPERPARAMETERS, a recipe and flags into one checked configuration. Flags win, then the recipe."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import GenerationConfig
from transformers.trainer_utils import HubStrategy
from trl import GRPOConfig, ModelConfig

from grpo.config import adapters, best, hardware, validate
from grpo.config.parsing import DATA_SETS, GROUPS, MAY_BE_NONE, RECIPES, Parser, find_recipe, read_recipe
from grpo.core import ROOT, commands, folder_of, processes
from grpo.core.errors import UserError
from grpo.core.settings import IN_MEMORY, IN_SCRIPT, MACHINE, Config, ScriptArguments, Settings
from grpo.core.text import shorten
from grpo.report import trackers
from grpo.runs import directory
from grpo.scoring.functions import Functions, functions_to_names
from grpo.task.prompts import FORMATS, PromptFormat, shots_of, words_of

# Settings of one data set, dropped if a recipe or a flag names another one
OF_THE_DATA = ("eval_dataset_name", "dataset_config")
# Rewards, data and prompt, of which a line says what replaces them if they were edited in HYPERPARAMETERS
TASK_SETTINGS = (
    "reward_funcs",
    "judge",
    "prepare",
    "dataset_name",
    "prompt_format",
    "exemplars",
    "system_prompt",
    "answer_pattern",
)
Layers = Sequence[tuple[str, Mapping[str, Any]]]  # sources with their settings; later ones override earlier ones
Sourced = tuple[Any, str]  # a value and its source


class Merged(NamedTuple):
    """The merged settings, before they are adjusted to the machine, and what comes with them."""

    settings: Settings
    functions: Functions  # functions in HYPERPARAMETERS, by setting and name
    shipped_data: bool  # True if the data is that of a recipe in recipes/
    recipe: Path | None  # its file
    rows: Any  # the data, if it was passed as a Python object


def merge(hyperparameters: Mapping[str, Any], argv: Sequence[str], dataset: Any = None, home: Path = ROOT) -> Merged:
    """Merge the settings of all sources; `dataset` replaces `dataset_name`, `home` is the script's folder."""
    parser = Parser()
    script, functions = functions_to_names(hyperparameters)
    script = {key: str(value) if isinstance(value, Path) else value for key, value in script.items()}
    rows = {IN_MEMORY: dataset}
    if not isinstance(script.get("dataset_name"), str | None):
        rows[IN_SCRIPT], script["dataset_name"] = script["dataset_name"], IN_SCRIPT
    if not isinstance(script.get("eval_dataset_name"), str | None):
        kind = type(script["eval_dataset_name"]).__name__
        raise UserError(
            f"eval_dataset_name: a {kind} is not a name; let dataset_name be a DatasetDict with the splits train and "
            "test"
        )
    for name, prompt in FORMATS.items():
        if script.get("prompt_format") == prompt:
            script["prompt_format"] = name
    parser.check_names(script, "HYPERPARAMETERS")
    parser.set_defaults(**script)  # for --help_all
    flags, recipe_name = parser.flags(argv)
    recipe, standalone = read_recipe(recipe_name, home) if recipe_name else ({}, False)
    parser.check_names(recipe, recipe_name or "")
    if dataset is not None and "dataset_name" in flags:
        raise UserError("dataset_name: the rows passed as `dataset` replace it; drop one of them")
    passed = {"dataset_name": IN_MEMORY} if dataset is not None else {}
    below = ("default", own_defaults(parser.defaults)) if standalone else ("script", _exemplars_apart(script))
    layers: Layers = [
        below,
        ("recipe", _exemplars_apart(recipe)),
        ("script", passed),
        ("flag", _exemplars_apart(flags)),
    ]

    def checked(key: str, value: Any, source: str) -> Any:
        value = value if source == "flag" else parser.typed(key, value)
        if key in MAY_BE_NONE and value in ("none", "None"):
            return None
        if key == "model_name_or_path":
            value = os.path.expanduser(value or "")
        of_files = key in ("model_name_or_path", *DATA_SETS) and isinstance(value, str)
        if of_files and value.startswith("assets/") and not os.path.exists(value):  # shipped, from any directory
            return str((folder_of(value, home) or Path()) / value)
        return value

    settings = Settings(parser.defaults)
    sourced = {key: (value, source) for source, values in layers for key, value in values.items()}
    _drop_settings_of_other_data(sourced, [("script", parser.defaults), *layers])
    shots = checked("num_shots", *sourced.get("num_shots", (0, "default")))
    if shots and standalone and sourced["exemplars"][1] == "default":  # of a flag beside a recipe that has none
        sourced["exemplars"] = script.get("exemplars", []), "script"
    for key, (value, source) in sourced.items():
        value = checked(key, value, source)
        own = script.get(key, parser.defaults[key])
        if key == "exemplars":
            inline = script.get("num_shots")
            of_script = max(shots, inline) if isinstance(inline, int) else shots
            value, own = shots_of(value, shots), own[:of_script] if isinstance(own, list) else own
        why, is_edited = "", own not in (parser.defaults[key], value)
        if key in TASK_SETTINGS and is_edited and source in ("default", "recipe", "flag") and (shown := _shown(own)):
            why = f"{'the flag' if source == 'flag' else recipe_name} replaces the script's own: {shown}"
        settings.set(key, value, source, why)
    file = find_recipe(recipe_name, home) if recipe_name else None
    functions = functions if not standalone else functions_to_names({})[1]
    of_recipes = bool(file and file.parent in (RECIPES, home / RECIPES.name))
    shipped_data = of_recipes and settings["dataset_name"] == recipe.get("dataset_name")
    return Merged(settings, functions, shipped_data, file, rows.get(settings["dataset_name"]))


def own_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of this project's own settings, and of those that every run has an origin for."""
    names = [field.name for field in dataclasses.fields(ScriptArguments)]
    return {key: defaults[key] for key in (*names, "output_dir", "run_name")}


def _exemplars_apart(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a source, with the `exemplars` of its prompt format as the setting of that name."""
    fields = values.get("prompt_format")
    if not isinstance(fields, Mapping) or "exemplars" not in fields:
        return dict(values)
    if "exemplars" in values:
        raise UserError("exemplars: prompt_format has others, from the same place; drop one of them")
    format_alone = {key: value for key, value in fields.items() if key != "exemplars"}
    return {**values, "prompt_format": format_alone, "exemplars": fields["exemplars"]}


def _shown(value: Any) -> str:
    """Return an edit of HYPERPARAMETERS in a few words."""
    if isinstance(value, PromptFormat):
        return words_of(value)
    items = value if isinstance(value, list) else [] if value is None else [value]
    return shorten(", ".join(str(item[0] if isinstance(item, tuple) else item) for item in items), 60)


def _drop_settings_of_other_data(sourced: dict[str, Sourced], layers: Layers) -> None:
    """Keep the settings of OF_THE_DATA only from layers that use the run's data."""
    used, source_of_data = sourced.get("dataset_name", (layers[0][1]["dataset_name"], "default"))
    for key in OF_THE_DATA:
        sourced[key] = None, source_of_data
        data = None
        for source, values in layers:
            data = values.get("dataset_name", data)
            if key in values and data == used:
                sourced[key] = values[key], source


def configure(
    hyperparameters: Mapping[str, Any], argv: Sequence[str], dataset: Any = None, script_file: str = "train_grpo.py"
) -> Config:
    """Resolve the configuration of this run on this machine. Writes nothing; `choose_run` chooses the directory later.

    Args:
        dataset: rows in memory (DataFrame, Dataset, list of dictionaries). They replace `dataset_name`.
        script_file: the script of these settings, named in the commands that the run prints.
    """
    merged = merge(hyperparameters, argv, dataset, Path(script_file).resolve().parent)
    settings, program = merged.settings, commands.program(script_file)
    validate.check(settings, merged.functions)
    geometry = validate.solve_geometry(settings, int(os.environ.get("WORLD_SIZE", "1")))
    hardware.choose_gpu(settings, argv, program)
    hardware.fit_to_machine(settings, program)
    adapters.take_from_saved(settings)
    data = settings["dataset_name"] or settings["eval_dataset_name"]
    default_dir, default_run = directory.default_names(
        settings["model_name_or_path"], data, settings["eval_only"], of_recipe=merged.shipped_data
    )
    settings.set("output_dir", settings["output_dir"] or default_dir, MACHINE)
    settings.set("run_name", settings["run_name"] or default_run, MACHINE)
    best.fill_in(settings, geometry)
    script, training, model = to_dataclasses(settings)
    return Config(
        script=script,
        training=training,
        model=model,
        geometry=geometry,
        notes=tuple(settings.notes),
        origin=settings.origin,
        script_file=script_file,
        argv=list(argv),
        functions=merged.functions,
        default_dir=default_dir,
        recipe=merged.recipe,
        rows=merged.rows,
    )


def to_dataclasses(settings: Mapping[str, Any]) -> tuple[ScriptArguments, GRPOConfig, ModelConfig]:
    """Build this project's and TRL's configuration objects. Raise UserError if TRL refuses a setting."""
    values = {**settings, "report_to": trackers.names(settings["report_to"])}
    options = [
        {field.name: values[field.name] for field in dataclasses.fields(owner) if field.init} for owner in GROUPS
    ]
    processes.ignore_old_names()
    try:
        script, training, model = ScriptArguments(**options[0]), GRPOConfig(**options[1]), ModelConfig(**options[2])
        GenerationConfig(cache_implementation=training.cache_implementation)
    except (ValueError, TypeError, ImportError, OSError) as error:
        known = any(key in str(error) for key in settings)
        raise UserError(str(error) if known else f"TRL refuses the settings: {error}") from None
    targets = model.lora_target_modules  # TRL passes one name as a string: PEFT's regular expression
    if isinstance(targets, str) and re.fullmatch(r"[\w.]+", targets):
        model.lora_target_modules = [targets]
    training.hub_strategy = HubStrategy.END  # uploads at checkpoints would include pickles, locks and completions
    if model.model_revision != "main":  # TRL loads the reference model with these
        given = training.model_init_kwargs
        training.model_init_kwargs = {"revision": model.model_revision, **(given if isinstance(given, dict) else {})}
    return script, training, model
