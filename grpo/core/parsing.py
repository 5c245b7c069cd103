"""Strict readers: JSON and YAML with unique keys, where their own would keep the last value; flags spelled out."""

import argparse
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import yaml

from grpo.core.errors import UserError, did_you_mean


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, without abbreviated flags, and a mistake is a UserError instead of the whole usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{in_our_words(message)}; see {self.prog} --help")


def _unknown(found: re.Match[str]) -> str:
    return f"{found[1]} is unknown{did_you_mean(found[1][1:-1], found[2].replace(chr(39), '').split(', '))}"


# argparse's words, and ours
WORDS = (
    (r"invalid choice: (.*) \(choose from (.*)\)", _unknown),
    (r"invalid int value: (.*)", r"\1 is not a whole number"),
    (r"invalid float value: (.*)", r"\1 is not a number"),
    (r"Truthy value expected: got (.*) but expected one of .*", r"'\1' is neither true nor false"),
    (r"expected (one|at least one) argument", "it needs a value"),
    (r"the following arguments are required: (.*)", r"\1 is missing"),
    (r"unrecognized arguments: (-.*)", r"\1: no such flag"),
    (r"unrecognized arguments: (.*)", r"\1 is one word too many"),
)


def in_our_words(message: str) -> str:
    """argparse's error as one of ours: the setting, what is wrong with its value, and what would be right."""
    message = re.sub(r"^argument --([^:/]*)[^:]*", r"\1", message)  # --bf16/--no_bf16
    for theirs, ours in WORDS:
        message = re.sub(theirs, ours, message, flags=re.DOTALL)
    return message


def from_json(text: str) -> Any:
    """The value; ValueError, in one line, for what is not JSON or has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_word(example: str) -> Callable[[str], Any]:
    """The type of a flag whose words are mappings in JSON; argparse adds the flag to the error."""

    def read(text: str) -> Any:
        try:
            return from_json(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not JSON ({error}); write one mapping for each: '{example}'"
            ) from None

    return read


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
