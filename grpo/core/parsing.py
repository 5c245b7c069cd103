"""Strict readers: JSON and YAML with unique keys, where their own would keep the last value; flags spelled out."""

import argparse
import json
from typing import Any, NoReturn

import yaml

from grpo.core.errors import UserError


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, without abbreviated flags, and a mistake is a UserError instead of the whole usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument --')}; see {self.prog} --help")


def from_json(text: str) -> Any:
    """The value; ValueError, in one line, for what is not JSON or has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice; keep one")
        found[key] = value
    return found


def from_yaml(text: str) -> Any:
    """The value; ValueError, with the line, for what is not YAML or has a key twice."""
    try:
        found = _Loader(text).get_single_data()
        json.dumps(found, default=str, skipkeys=True)  # an alias may contain itself
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"line {mark.line + 1}: {error.problem}" if mark else str(error.problem)) from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"character {error.position + 1}: {error.reason}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in lines:
                problem = f"the key {key.value!r} appears twice (first in line {lines[key.value]}); keep one"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)
