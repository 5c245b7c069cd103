"""Check names and types of settings in flags, in HYPERPARAMETERS and in recipes."""

import argparse
import dataclasses
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml
from trl import GRPOConfig, ModelConfig, TrlParser

from grpo.core import ROOT, folder_of
from grpo.core.errors import UserError, did_you_mean
from grpo.core.settings import ALIASES, SETTINGS, UNSET, ScriptArguments, about

RECIPES = ROOT / "recipes"
GROUPS = {ScriptArguments: "this project", GRPOConfig: "GRPOConfig (TRL)", ModelConfig: "ModelConfig (TRL)"}
DEFAULTS = {field.name: field.default for owner in GROUPS for field in dataclasses.fields(owner)}
MAPPINGS = {field.name for owner in GROUPS for field in dataclasses.fields(owner) if "dict" in str(field.type)}
# Settings that are numbers or switches, with their type: a value of that type needs no reading
TYPES: dict[str, type] = {
    field.name: kind
    for owner in GROUPS
    for field in dataclasses.fields(owner)
    for kind in (float, int, bool)
    if re.fullmatch(rf"(<class ')?(list\[|Optional\[|typing.)*{kind.__name__}(\]|'>| \| None)*", str(field.type))
}
DATA_SETS = ("dataset_name", "eval_dataset_name")
MAY_BE_NONE = (*DATA_SETS, "judge", "prepare")  # by the flag `none`


def is_default(key: str, value: Any) -> bool:
    """Return whether a setting has its default: a flag of it, as programs write, asks for nothing."""
    default = about(key).default
    return bool(value == (DEFAULTS.get(key) if default is UNSET else default))


def JSON(text: str) -> Any:
    """Parse a flag's value as JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise argparse.ArgumentTypeError("it is nested too deeply") from None


def JSON_or_name(text: str) -> Any:
    """Parse a flag's value as a JSON object if it begins with `{`; otherwise return it as a name."""
    if not text.startswith("{"):
        return text
    try:
        return JSON(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None


def or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser of a flag's value that also takes `none`."""
    return lambda text: None if text.lower() == "none" else parse(text)


class _Yaml(yaml.SafeLoader):
    """Refuses integers that Python would not write, of thousands of digits, and keys that are there twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        if twice := next((key for index, key in enumerate(keys) if key in keys[:index]), None):
            raise ValueError(f"it has {twice!r} twice; drop one of them")
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        number = super().construct_yaml_int(node)
        str(number)
        return number


_Yaml.add_constructor("tag:yaml.org,2002:int", _Yaml.construct_yaml_int)


class Parser(TrlParser):
    """TRL's parser with one-line errors and without abbreviated flags. It also checks HYPERPARAMETERS and recipes."""

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
        self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)", re.IGNORECASE)  # argparse's knows no -1e-5
        self.settings = {action.dest: action for action in reversed(self._actions)}
        for action in self._actions:  # flags with hyphens work, too, but --help_all does not show them
            action.option_strings = [word for word in action.option_strings if "-" not in word[2:]]
        for key in MAPPINGS:
            if key.endswith("_kwargs") or key == "reward_args":
                self.settings[key].type = JSON
        self.settings["prompt_format"].type = JSON_or_name
        self.settings["exemplars"].type = JSON
        for key, action in self.settings.items():
            if action.const is True and about(key).may_be_none:
                action.type = or_none(cast(Any, action.type))
        usual = {key for key, action in self.settings.items() if action.default is not None}
        self.never_none = {key for key in usual if not about(key).may_be_none}
        self.set_defaults(**{key: known.default for key, known in SETTINGS.items() if known.default is not UNSET})
        self.defaults = {key: action.default for key, action in self.settings.items()}
        self.add_argument("--config", action="append", metavar="RECIPE", help="A recipe, by its path or its name.")
        self.add_argument("--help_all", action="help", help="Show all settings and exit.")

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument --"))

    def flags(self, argv: Sequence[str]) -> tuple[dict[str, Any], str | None]:
        """Parse the command line into its settings and the name of its recipe, or None."""
        given_words = list(self._words(argv))
        for key, words in given_words:
            if self.settings[key].nargs == "+" and (values := _in_one_word(words)):
                raise UserError(f"{key}: separate its values by spaces: --{key} {' '.join(values)}")
        unset = object()
        namespace, unknown = self.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(self.settings, unset)))
        if unknown and unknown[0].startswith("-"):
            flag = unknown[0].partition("=")[0]
            raise UserError(f"{flag}: no such flag{self._meant(flag.lstrip('-').replace('-', '_'))}")
        if unknown:
            recipe = f" (a recipe: --config {unknown[0]})" if (RECIPES / f"{unknown[0]}.yaml").exists() else ""
            key, words = next(((key, words) for key, words in given_words if unknown[0] in words[1:]), ("", []))
            form = "settings as --flag value"
            if key == "report_to":
                form = f"--report_to {','.join(words)}"
            elif key and self.settings[key].nargs is None:
                form += ", a text with spaces in quotes"
            raise UserError(f"{unknown[0]!r} follows no flag; write {form}{recipe}")
        recipes = namespace.config or []
        if len(recipes) > 1:
            raise UserError(f"config: more than one recipe ({', '.join(recipes)}); use one, and flags")
        given = {key: getattr(namespace, key) for key in self.settings}
        given = {key: value for key, value in given.items() if value is not unset}
        for key, value in given.items():
            self._check_if_none(key, value)
        return given, next(iter(recipes), None)

    def _words(self, argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each setting of a command line with the words that follow its flag."""
        flags = [place for place, word in enumerate(argv) if word.startswith("--")]
        for place, end in itertools.pairwise([*flags, len(argv)]):
            flag, equals, value = argv[place][2:].partition("=")
            if (key := flag.replace("-", "_")) in self.settings:
                yield key, [*([value] if equals else []), *argv[place + 1 : end]]

    def check_names(self, values: Mapping[str, Any], where: str) -> None:
        """Raise UserError for a setting that does not exist."""
        for key in values:
            if key not in self.settings:
                raise UserError(f"{key}: no such setting (in {where}){self._meant(str(key))}")

    def _meant(self, key: str) -> str:
        """End an error about an unknown setting with a suggestion."""
        return did_you_mean(ALIASES.get(key, key), self.settings)

    def typed(self, key: str, value: Any) -> Any:
        """Check a value of HYPERPARAMETERS or a recipe, and read texts like flags: to YAML 1e-5 is a text."""
        self._check_if_none(key, value)
        if value is None:
            return None
        if self.settings[key].nargs == "+":
            items = value if isinstance(value, list | tuple) else [value]
            if values := _in_one_word(items):
                raise UserError(
                    f"{key}: {', '.join(map(str, items))!r} is one text; write a list: [{', '.join(values)}]"
                )
            return [self._item(key, item) for item in items]
        if isinstance(value, list | tuple):
            instead = f"; write {','.join(map(str, value)) or 'none'}" if key == "report_to" else ""
            raise UserError(f"{key}: use one value, not the list {value}{instead}")
        return self._item(key, value)

    def _check_if_none(self, key: str, value: Any) -> None:
        if value is None and key in self.never_none:
            raise UserError(f"{key}: it needs a value")

    def _item(self, key: str, value: Any) -> Any:
        action = self.settings[key]
        if isinstance(value, dict) and key not in MAPPINGS and action.type is not JSON:
            raise UserError(f"{key}: use a value, not the mapping {value}")
        if not isinstance(value, str | int | float) or (type(value) is TYPES.get(key)):
            return value
        if type(value) is int and TYPES.get(key) is float:
            try:
                return float(value)
            except OverflowError:
                return math.inf  # which no setting may be
        text = "no" if value is False and action.choices else str(value)  # YAML reads a bare `no` as false
        try:
            return self._get_value(action, text)
        except argparse.ArgumentError as error:
            self.error(str(error))


def _in_one_word(words: Sequence[Any]) -> list[str]:
    """Return the values that are written as one word, such as `a,b`, `[a, b]` or "a b"; [] if none are.

    >>> _in_one_word(["a,b"]), _in_one_word(["['a',", "'b']"]), _in_one_word(["a", "b"]), _in_one_word(["[ab]{1,2}"])
    (['a', 'b'], ['a', 'b'], [], [])
    """
    texts = [word for word in words if isinstance(word, str)]
    values = re.findall(r"[^\s,;]+", re.sub(r"\A\s*[\[(]|[\])]\s*\Z|[\"']", "", " ".join(texts)))
    joined = any(re.search(r"[\s,;]|\A[\[(]|[\])]\Z", text.strip()) for text in texts)
    return values if joined and all(re.fullmatch(r"[\w./+-]+", value) for value in values) else []


def find_recipe(name: str, home: Path = ROOT) -> Path:
    """Return the path of a recipe, given a path (from here, from the script's folder or ROOT) or a name in recipes/.

    Args:
        home: the script's folder. Its recipes/ come before the shipped ones.
    """
    by_name = f"recipes/{name.removesuffix('.yaml')}.yaml"
    paths = [folder / name for folder in (Path(), home, ROOT)] + [folder / by_name for folder in (home, ROOT)]
    return next(filter(Path.is_file, paths), paths[-1]).resolve()


def read_recipe(name: str, home: Path = ROOT) -> tuple[dict[str, Any], bool]:
    """Read a recipe, found by `find_recipe`: its settings, and whether it stands alone (`standalone: true`).

    A relative path of its model or data is kept if it exists from here; otherwise it is one from the script's folder,
    or a shipped file's.
    """
    path = find_recipe(name, home)
    try:
        recipe = _Yaml(path.read_text(encoding="utf-8-sig")).get_single_data()
    except OSError:
        recipes = {recipe.stem for folder in (home, ROOT) for recipe in folder.glob("recipes/*.yaml")}
        names = ", ".join(sorted(recipes))
        raise UserError(f"config: {name!r} cannot be read; use a file's path, or one of {names}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"config: {name} is not valid YAML in UTF-8 ({error})") from None
    if not isinstance(recipe, dict):
        raise UserError(f"config: {name} is not a mapping; write `key: value` lines")
    standalone = recipe.pop("standalone", False)
    if not isinstance(standalone, bool):
        raise UserError(f"config: {name}: standalone is {standalone!r}; write true or false")
    for key in ("model_name_or_path", *DATA_SETS):
        given = recipe.get(key)
        if given and isinstance(given, str) and not os.path.exists(given) and (folder := folder_of(given, home)):
            recipe[key] = str(folder / given)
    return recipe, standalone
