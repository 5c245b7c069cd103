"""Inline hyperparameters < recipe (YAML) < command line → one resolved configuration.

`resolve` merges the three, checks every value and only then lets TRL construct its own configuration. All mistakes are
`UserError`s that name the key, what was given and what would do.
"""

import argparse
import difflib
import json
import os
import re
import sys
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from trl import GRPOConfig, ModelConfig, TrlParser

from grpo.config import conflicts, hardware
from grpo.config.geometry import solve as geometry_of
from grpo.config.limits import check_adaptive, check_values, refuse_secrets
from grpo.core import processes
from grpo.core.errors import UserError
from grpo.core.parsing import from_yaml
from grpo.core.processes import is_first_process
from grpo.core.settings import Config, Geometry, ScriptArguments, Stage
from grpo.policy import engines
from grpo.rewarding import stages
from grpo.runs import directory as run_directory
from grpo.runs import resume

# TRL's default for it, and transformers 5.17, still use the old name that transformers 5.23 warns of
warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)


class _Parser(TrlParser):
    """TRL's parser, without abbreviated flags and with one-line errors."""

    def __init__(self) -> None:
        super().__init__(
            [ScriptArguments, GRPOConfig, ModelConfig],
            allow_abbrev=False,
            usage="python train_grpo.py [--config recipes/X.yaml] [--flag value ...]",
            description="Settings: HYPERPARAMETERS (inline) < --config recipe < --flag value.",
        )
        self.add_argument("--config", action="append", metavar="RECIPE.yaml", help="A recipe; at most one.")
        self.keys["stages"].type = stages.from_json
        self.keys["liger_kernel_config"].type = str  # JSON, as its like; dict("{}") raises

    def error(self, message: str) -> NoReturn:
        found = re.match(r"argument (--\w+)\S*: (.*)", message, re.DOTALL)
        if found is None:
            raise UserError(message)
        key, problem = found[1][2:].replace("-", "_"), found[2]
        if wrong := re.match(r"invalid (int|float) value: (.*)", problem, re.DOTALL):
            problem = f"{wrong[2]} is no {'whole ' if wrong[1] == 'int' else ''}number; give one"
        elif wrong := re.match(r"Truthy value expected: got (.*) but expected", problem, re.DOTALL):
            problem = f"{wrong[1]!r} is neither true nor false; give one of them"
        elif problem.startswith("expected "):  # one argument, or at least one
            problem = "no value follows it; give one"
        raise UserError(f"{key}: {problem}")

    @property
    def keys(self) -> dict[str, argparse.Action]:
        hidden = {"help", "config"}
        return {action.dest: action for action in reversed(self._actions) if action.dest not in hidden}

    def tokens(self, key: str, value: Any) -> list[str]:
        """A setting from the inline block or a recipe as command-line words, so that one parser checks all three."""
        if isinstance(value, list):
            if self.keys[key].nargs != "+":
                raise UserError(f"{key}: one value is needed, not the list {value}")
            return [f"--{key}", *(json.dumps(item) if isinstance(item, dict) else str(item) for item in value)]
        if isinstance(value, dict):
            return [f"--{key}={json.dumps(value)}"]
        if isinstance(value, bool) and _is_text(self.keys[key]):
            return [f"--{key}={'yes' if value else 'no'}"]  # YAML reads a bare `no` as false
        return [f"--{key}={value}"]


def _is_text(action: argparse.Action) -> bool:
    return action.type is str or action.choices is not None


def _read_recipe(path: str, parser: _Parser) -> dict[str, Any]:
    if not path.strip() or path.startswith("--"):
        raise UserError("config: no recipe is named; give one of recipes/*.yaml")
    try:
        recipe = from_yaml(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"config: cannot read {path!r} ({error.strerror}); recipes are in recipes/*.yaml") from None
    except UnicodeDecodeError as error:
        raise UserError(f"config: {path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:
        raise UserError(f"config: {path} is not valid YAML ({error}); write `key: value` lines") from None
    if not isinstance(recipe, dict):
        found = "is empty" if recipe is None else f"is a {type(recipe).__name__}"
        raise UserError(f"config: {path} {found}; write `key: value` lines")
    for key in recipe:
        if key == "env":
            raise UserError(f"env: {path} may not set environment variables; export them in the shell instead")
        if key not in parser.keys:
            raise UserError(f"{key}: no such setting (in {path}){_did_you_mean(str(key), parser)}")
    if recipe.get("stages") and "reward_funcs" in recipe:
        raise UserError(f"reward_funcs: {path} holds stages too, which have their own; drop one of them")
    return recipe


def _did_you_mean(key: str, parser: _Parser) -> str:
    close = difflib.get_close_matches(key, parser.keys, n=1, cutoff=0.75)
    close = close or [name for name in parser.keys if key and name.startswith(f"{key}_")][:4]
    close = close or difflib.get_close_matches(key, parser.keys, n=1)
    return f"; did you mean {' or '.join(close)}?" if close else "; `python train_grpo.py --help` lists them all"


def _parse(hyperparameters: dict[str, Any], argv: list[str]) -> tuple[dict[str, Any], set[str], _Parser]:
    """All settings, and the names of those that the command line gave itself."""
    for index in range(len(argv) - 1, 0, -1):
        # argparse takes -1e-6 and -inf for flags, and would complain of a missing value instead of a bad one
        if re.fullmatch(r"-([\d.]+e[+-]?\d+|inf|nan)", argv[index]) and re.fullmatch(r"--\w+", argv[index - 1]):
            argv = [*argv[: index - 1], f"{argv[index - 1]}={argv[index]}", *argv[index + 1 :]]
    parser = _Parser()
    defaults = {key: action.default for key, action in parser.keys.items()}
    parser.set_defaults(**hyperparameters)  # what --help shows
    recipes = [word.partition("=")[2] for word in argv if word.startswith("--config=")]
    recipes += [value for word, value in pairwise([*argv, ""]) if word == "--config"]
    if len(recipes) > 1:
        raise UserError(f"config: given {len(recipes)} times ({', '.join(recipes)}); give one recipe and use flags")
    merged = {**hyperparameters, **(_read_recipe(recipes[0], parser) if recipes else {})}
    for key in hyperparameters:
        if key not in parser.keys:
            raise UserError(f"{key}: no such setting (in HYPERPARAMETERS){_did_you_mean(key, parser)}")
    # None and the empty list cannot be said on a command line
    unset = {key: value for key, value in merged.items() if value is None or value == []}
    for key in unset:
        if defaults[key] is not None or key == "model_name_or_path":
            raise UserError(f"{key}: a value is needed")
    parser.set_defaults(**unset)
    words = [word for key, value in merged.items() if key not in unset for word in parser.tokens(key, value)]
    namespace, unknown = parser.parse_known_args(words + argv)
    if unknown and not unknown[0].startswith("-"):
        raise UserError(f"{unknown[0]!r} follows no flag that takes it; give settings as --flag value")
    if unknown:
        key = unknown[0].lstrip("-").partition("=")[0].replace("-", "_")
        refuse_secrets({key: ""})
        raise UserError(f"{unknown[0]}: no such flag{_did_you_mean(key, parser)}")
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    given = {key for key in parser.keys if key in flags or f"no_{key}" in flags}
    return {key: getattr(namespace, key) for key in parser.keys}, given, parser


@dataclass
class Merged:
    """The settings before they are fitted to a machine: all that can be said of a run on another one."""

    settings: dict[str, Any]
    given: set[str]  # what the command line gave itself
    parser: _Parser
    geometry: Geometry
    stages: list[Stage]
    notes: list[str]
    rollout_given: str | None


def merge(hyperparameters: dict[str, Any], argv: list[str], world_size: int) -> Merged:
    """The settings of so many processes, each checked, but for what depends on this machine; raises UserError."""
    settings, given, parser = _parse(hyperparameters, argv)
    check_values(settings)
    conflicts.read_dictionaries(settings)
    refuse_secrets(settings)
    geometry = geometry_of(settings, world_size)
    rollout_given = next((key for key in ("generation_batch_size", "steps_per_generation") if settings[key]), None)
    in_stages, notes = stages.read(settings, given, geometry.steps_per_rollout)
    settings.update(stages.whole_run(in_stages))
    check_adaptive(settings)
    if settings["merge_only"] and "dtype" not in given:  # as it was trained
        settings["dtype"] = run_directory.recorded(settings["merge_only"], "settings", "dtype") or settings["dtype"]
    conflicts.check_together(settings, world_size)
    engines.settle(settings, given)
    return Merged(settings, given, parser, geometry, in_stages, notes, rollout_given)


def resolve(hyperparameters: dict[str, Any], argv: list[str] | None = None) -> Config:
    """The configuration of this run; raises UserError for the first thing that is wrong.

    Args:
        hyperparameters: the inline block of train_grpo.py.
        argv: the command line without the program's name; None reads sys.argv.
    """
    argv = sys.argv[1:] if argv is None else argv
    merged = merge(hyperparameters, argv, hardware.world_size())
    settings, given, parser, notes = merged.settings, merged.given, merged.parser, merged.notes
    notes += hardware.fit_to_machine(settings, given)
    settings["model_name_or_path"] = os.path.expanduser(settings["model_name_or_path"])
    inline = {**_parse(hyperparameters, [])[0], "output_dir": None, "run_name": None}
    conflicts.read_dictionaries(inline)
    inline["report_to"] = (inline["report_to"] or "none").split(",")
    changed = {key: {"inline": inline[key], "run": value} for key, value in settings.items() if value != inline[key]}
    output_dir, run_name = run_directory.default_names(
        settings["model_name_or_path"], settings["dataset_name"], settings["eval_only"]
    )
    claim = run_directory.claim(
        settings["output_dir"], output_dir, settings["resume_from_checkpoint"], settings["overwrite_run"]
    )
    settings["output_dir"], settings["resume_from_checkpoint"] = claim.output_dir, claim.checkpoint
    notes += claim.notes
    if not processes.is_other():  # `held` looks whether they have the same directory
        run_directory.refuse_unwritable(Path(settings["output_dir"]))
    if is_first_process():  # the others would find this process' lock
        run_directory.refuse_in_use(Path(settings["output_dir"]))
    start, output = (Path(settings[key]).resolve() for key in ("model_name_or_path", "output_dir"))
    if settings["overwrite_run"] and start.is_relative_to(output):
        raise UserError(f"overwrite_run: {settings['output_dir']!r} holds the model to start from; give another name")
    settings["run_name"] = settings["run_name"] or run_name
    settings["shuffle_dataset"] = settings["shuffle_dataset"] and not settings["curriculum"]
    processes.meet_on_cpu(settings)
    try:
        script, training, model = parser.parse_dict(settings)
    except (ValueError, TypeError, ImportError, OSError) as error:
        known = any(key in str(error) for key in settings)
        raise UserError(str(error) if known else f"TRL refuses the settings: {error}") from None
    hardware.check_optimizer(training)
    hardware.check_schedule(training)
    if model.model_revision != "main":  # TRL loads the reference model with these
        training.model_init_kwargs = {"revision": model.model_revision, **(training.model_init_kwargs or {})}
    seen = run_directory.last_written(Path(claim.output_dir))
    config = Config(
        script, training, model, merged.geometry, notes, changed, argv, merged.stages, merged.rollout_given, seen
    )
    if claim.checkpoint:
        notes += resume.compare(Path(claim.checkpoint), config.settings(), merged.geometry.world_size)
    return config
