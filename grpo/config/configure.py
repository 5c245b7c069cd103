"""Merge HYPERPARAMETERS, a recipe and flags into one checked configuration. Flags win, then the recipe."""

import contextlib
import dataclasses
import math
import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig, Trainer, get_scheduler
from transformers.trainer_utils import HubStrategy
from trl import GRPOConfig, ModelConfig

from grpo.config import adapters, best, hardware, validate
from grpo.config.parsing import DATA_SETS, GROUPS, MAY_BE_NONE, RECIPES, Parser, find_recipe, is_default, read_recipe
from grpo.core import ROOT, commands, folder_of, processes
from grpo.core.checklist import Check
from grpo.core.errors import UserError, one_line
from grpo.core.settings import IN_MEMORY, IN_SCRIPT, Config, ScriptArguments, given_by
from grpo.core.text import shorten
from grpo.runs import directory
from grpo.scoring.functions import Functions, functions_to_names

# Settings of one data set, dropped if a recipe or a flag names another one
OF_THE_DATA = ("eval_dataset_name", "dataset_config")
# Rewards, data and prompt, of which a line says what replaces them if they were edited in HYPERPARAMETERS
TASK_SETTINGS = (
    "reward_funcs",
    "judge",
    "prepare",
    "dataset_name",
    "prompt_format",
    "system_prompt",
    "answer_pattern",
)
Layers = Sequence[tuple[str, Mapping[str, Any]]]  # sources with their settings; later ones override earlier ones


class Given(NamedTuple):
    """The merged settings, before they are adjusted to the machine."""

    settings: dict[str, Any]  # all of them, by name
    origin: dict[str, str]  # setting → default, script, recipe or flag; the lowest come first
    notes: list[Check]
    functions: Functions  # functions in HYPERPARAMETERS, by setting and name
    shipped_data: bool  # True if the data is that of a recipe in recipes/
    recipe: Path | None  # its file
    standalone: bool  # True if nothing of the script but its code is used
    rows: Any  # the data, if it was passed as a Python object


def read(hyperparameters: Mapping[str, Any], argv: Sequence[str], dataset: Any = None, home: Path = ROOT) -> Given:
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
    parser.check_names(script, "HYPERPARAMETERS")
    parser.set_defaults(**script)  # for --help_all
    flags, recipe_name = parser.flags(argv)
    recipe, standalone = read_recipe(recipe_name, home) if recipe_name else ({}, False)
    parser.check_names(recipe, recipe_name or "")
    if dataset is not None and "dataset_name" in flags:
        raise UserError("dataset_name: the rows passed as `dataset` replace it; drop one of them")
    passed = {"dataset_name": IN_MEMORY} if dataset is not None else {}
    below = ("default", own_defaults(parser.defaults)) if standalone else ("script", script)
    layers: Layers = [below, ("recipe", recipe), ("script", passed), ("flag", flags)]

    settings, origin = dict(parser.defaults), dict[str, str]()
    for source, values in layers:
        settings |= values
        origin |= dict.fromkeys(values, source)
    _drop_settings_of_other_data(settings, origin, [("script", parser.defaults), *layers])
    settings |= {key: parser.typed(key, settings[key]) for key, source in origin.items() if source != "flag"}
    settings |= {key: None for key in MAY_BE_NONE if settings[key] in ("none", "None")}
    settings["model_name_or_path"] = os.path.expanduser(settings["model_name_or_path"] or "")
    for key in ("model_name_or_path", *DATA_SETS):  # shipped ones, from any directory, as a recipe's
        name = settings[key]
        if isinstance(name, str) and name.startswith("assets/") and (folder := folder_of(name, home)):
            settings[key] = name if os.path.exists(name) else str(folder / name)
    notes = _replaced(script, parser.defaults, settings, origin, recipe_name or "")
    file = find_recipe(recipe_name, home) if recipe_name else None
    functions = functions if not standalone else functions_to_names({})[1]
    of_recipes = bool(file and file.parent in (RECIPES, home / RECIPES.name))
    shipped_data = of_recipes and settings["dataset_name"] == recipe.get("dataset_name")
    return Given(
        settings, origin, notes, functions, shipped_data, file, standalone, rows.get(settings["dataset_name"])
    )


def own_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of this project's own settings, and of those that every run has an origin for."""
    names = [field.name for field in dataclasses.fields(ScriptArguments)]
    return {key: defaults[key] for key in (*names, "output_dir", "run_name")}


def _replaced(
    script: Mapping[str, Any],
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    origin: Mapping[str, str],
    recipe: str,
) -> list[Check]:
    """Note the rewards, data and prompt in HYPERPARAMETERS that a recipe or a flag replaces."""
    return [
        Check("ok", key, f"{'the flag' if origin[key] == 'flag' else recipe} replaces the script's own: {own}")
        for key in TASK_SETTINGS
        if key in script and script[key] != defaults[key] and settings[key] != script[key]
        if origin[key] in ("default", "recipe", "flag") and (own := _shown(script[key]))
    ]


def _shown(value: Any) -> str:
    return shorten(", ".join(value) if isinstance(value, list) else str("" if value is None else value), 60)


def _drop_settings_of_other_data(settings: dict[str, Any], origin: dict[str, str], layers: Layers) -> None:
    """Keep the settings of OF_THE_DATA only from layers that use the run's data."""
    for key in OF_THE_DATA:
        settings[key], origin[key] = None, origin["dataset_name"]
        data = None
        for source, values in layers:
            data = values.get("dataset_name", data)
            if key in values and data == settings["dataset_name"]:
                settings[key], origin[key] = values[key], source


def configure(
    hyperparameters: Mapping[str, Any], argv: Sequence[str], dataset: Any = None, script_file: str = "train_grpo.py"
) -> Config:
    """Resolve the configuration of this run on this machine. Writes nothing; `choose_run` chooses the directory later.

    Args:
        dataset: rows in memory (DataFrame, Dataset, list of dictionaries). They replace `dataset_name`.
        script_file: the script of these settings, named in the commands that the run prints.
    """
    settings, origin, notes, functions, shipped_data, recipe, standalone, rows = read(
        hyperparameters, argv, dataset, Path(script_file).resolve().parent
    )
    given = settings | {"report_to": (settings["report_to"] or "none").split(",")}
    program = commands.program(script_file)
    validate.check(settings, origin, functions)
    geometry = validate.solve_geometry(settings, int(os.environ.get("WORLD_SIZE", "1")))
    hardware.choose_gpu(settings, argv, program)
    notes += hardware.fit_to_machine(settings, origin, program)
    notes += adapters.take_from_saved(settings, origin)
    data = settings["dataset_name"] or settings["eval_dataset_name"]
    default_dir, default_run = directory.default_names(
        settings["model_name_or_path"], data, settings["eval_only"], of_recipe=shipped_data
    )
    settings["output_dir"] = settings["output_dir"] or default_dir
    settings["run_name"] = settings["run_name"] or default_run
    best.fill_in(settings, origin, geometry)
    origin |= {key: "machine" for key, value in settings.items() if value != given[key]}
    script, training, model = to_dataclasses(settings, given_by(origin, "flag"))
    return Config(
        script=script,
        training=training,
        model=model,
        geometry=geometry,
        notes=tuple(notes),
        origin=origin,
        script_file=script_file,
        argv=list(argv),
        functions=functions,
        default_dir=default_dir,
        recipe=recipe,
        standalone=standalone,
        rows=rows,
    )


def _try_optimizer(training: GRPOConfig, flags: Collection[str] = ()) -> None:
    """Make the optimizer, of one weight. Raise UserError for what it refuses, or ignores.

    The latter is a part of optim_args, or one of these flags.
    """

    def read(key: str = "optim_args", value: Any = None) -> Any:
        changed = copy(training)
        setattr(changed, key, value)
        return Trainer.get_optimizer_cls_and_kwargs(changed)

    name, given = getattr(training.optim, "value", training.optim), training.optim_args or ""
    try:
        default = read()
    except (ValueError, AttributeError) as error:
        if isinstance(error, ValueError) and "pass a" not in str(error):
            raise
        return  # GaLore and similar optimizers need the model
    for part in filter(None, given.split(",")):
        if "=" not in part:
            raise UserError(f"optim_args: {part.strip()!r} is no name=value")
        try:
            ignored = read(value=part) == default == read(value=f"{part}1")  # its value may be the default
        except (ValueError, TypeError):
            ignored = False
        if ignored:
            raise UserError(f"optim_args: optim {name} does not read {part.strip()}; drop it")
    for key in ("adam_beta1", "adam_beta2", "adam_epsilon"):
        asks = key in flags and not is_default(key, getattr(training, key))
        if asks and read(key, 0.25) == read(key, 0.5):
            raise UserError(f"{key}: it has no effect: optim {name} does not read it; drop it")
    if given:
        with one_line(f"optim_args: {given}: ", kinds=(ValueError, TypeError)):
            _try_step(*read(value=given))


def _try_step(kind: Any, options: dict[str, Any]) -> None:
    """Make an optimizer and, if it is torch's own, step. Raise ValueError if no finite weight is left."""
    weight = torch.ones(1, requires_grad=True)
    if not isinstance(kind, type):  # a function of the model makes it
        return
    try:
        optimizer = kind([weight], **options)
    except RuntimeError:  # it needs a GPU
        return
    if kind.__module__.startswith("torch.optim"):
        for _ in range(2):  # the second one reads what the first one keeps
            weight.grad = torch.ones(1)
            optimizer.step()
        if not weight.isfinite().all():
            raise ValueError("there is no finite weight after a step")


def _try_schedule(training: GRPOConfig) -> None:
    """Make the learning-rate schedule, and ask for its rates to the end. Raise UserError for what it does not take."""
    kind, given = training.lr_scheduler_type, cast(dict[str, Any], training.lr_scheduler_kwargs or {})
    name = getattr(kind, "value", kind)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    steps = training.max_steps if training.max_steps > 0 else 1000 + int(training.warmup_steps)  # the rows decide
    steps = min(steps, 10**9)  # some are too large for a float
    warmup = training.get_warmup_steps(steps)
    before = f"lr_scheduler_{'kwargs' if given else 'type'}: {name}: "
    kinds = (TypeError, ValueError, ArithmeticError)
    with one_line(before, kinds=kinds):
        schedule = get_scheduler(kind, optimizer, warmup, steps, scheduler_specific_kwargs=given)
    for step in sorted({0, 1, min(warmup, steps), (min(warmup, steps) + steps) // 2, steps - 1, steps}):
        with one_line(before, f" (the learning rate of step {step})", kinds):
            if isinstance(schedule, LambdaLR) and not 0 <= schedule.lr_lambdas[0](step) < math.inf:
                raise ValueError("it is below 0, or infinite")
    if given:
        with contextlib.suppress(TypeError):
            get_scheduler(kind, optimizer, warmup, steps, scheduler_specific_kwargs={**given, "no_such_argument": 0})
            raise UserError(f"lr_scheduler_kwargs: the schedule {name} has none; drop them")


def _try_checkpointing(given: dict[str, Any] | None) -> None:
    """Checkpoint a tiny forward. Raise UserError for arguments that torch refuses in the first step."""
    if not given:
        return
    with one_line("gradient_checkpointing_kwargs: "), warnings.catch_warnings(action="ignore"):
        checkpoint(torch.neg, torch.ones(1, requires_grad=True), **given).backward()


def _try_compiling(training: GRPOConfig) -> None:
    """Let torch read its compiler's settings, which it compiles by in the first step."""
    if training.torch_compile:
        with one_line("torch_compile: "):
            torch.compile(torch.neg, backend=training.torch_compile_backend or "", mode=training.torch_compile_mode)


def to_dataclasses(
    settings: Mapping[str, Any], flags: Collection[str] = ()
) -> tuple[ScriptArguments, GRPOConfig, ModelConfig]:
    """Build this project's and TRL's configuration objects. Raise UserError if TRL refuses a setting."""
    options = [
        {field.name: settings[field.name] for field in dataclasses.fields(owner) if field.init} for owner in GROUPS
    ]
    processes.ignore_old_names()
    try:
        script, training, model = ScriptArguments(**options[0]), GRPOConfig(**options[1]), ModelConfig(**options[2])
        _try_optimizer(training, flags)
        _try_schedule(training)
        _try_checkpointing(cast(Any, training.gradient_checkpointing_kwargs))
        _try_compiling(training)
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
