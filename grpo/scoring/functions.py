"""Find the user's functions by name: rewards, the judge and `prepare`, in the script or in a file."""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo.core import folder_of
from grpo.core.errors import UserError, did_you_mean, users_code
from grpo.core.functions import innermost
from grpo.core.settings import Config

Functions = dict[str, dict[str, Callable[..., Any]]]  # setting → name → function


def functions_to_names(hyperparameters: Mapping[str, Any]) -> tuple[dict[str, Any], Functions]:
    """Replace the functions in HYPERPARAMETERS (rewards, judge, `prepare`) by names. Return both.

    Raises:
        UserError: two rewards have the same name.
    """
    functions: Functions = {"reward_funcs": {}, "judge": {}, "prepare": {}}

    def name_of(setting: str, item: Any) -> Any:
        if not callable(item):
            return item
        name = logged_name(item)
        if functions[setting].setdefault(name, item) is not item:
            raise UserError(f"{setting}: two functions are called {name!r}; rename one of them")
        return name

    names = {key: name_of(key, hyperparameters[key]) for key in ("judge", "prepare") if key in hyperparameters}
    if (rewards := hyperparameters.get("reward_funcs")) is not None:
        listed = rewards if isinstance(rewards, list | tuple) else [rewards]
        names["reward_funcs"] = [name_of("reward_funcs", reward) for reward in listed]
    return {**hyperparameters, **names}, functions


def logged_name(reward: Callable[..., Any]) -> str:
    """Return the name by which TRL logs a reward: the innermost function's, or the class's."""
    reward = innermost(reward)
    return getattr(reward, "__name__", type(reward).__name__)


def function_of_setting(config: Config, setting: str) -> Callable[..., Any] | None:
    """Return the function that `judge` or `prepare` names; None if it is unset."""
    name = getattr(config.script, setting)
    if not name:
        return None
    functions = {**functions_of_script(config, [name]), **config.functions[setting]}
    return functions.get(name) or function_of_file(name, setting, config.script.allow_custom_rewards)


def functions_of_script(config: Config, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions of these names that the script defines."""
    return {
        name: function
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) == config.script_file
        for name, function in vars(module).items()
        if name in names and callable(function) and getattr(innermost(function), "__module__", "") == module.__name__
    }


def function_of_file(name: str, setting: str, allowed: bool) -> Callable[..., Any]:
    """Load `my_file.my_function` from the working directory or among the shipped files. Raise UserError if that fails.

    A file runs again only after a change. Its module has a unique name, so that a `wandb.py` in the working
    directory does not hide the library.
    """
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise UserError(f"{setting}: {name!r} is not a function of the script, or of a file (my_file.my_function)")
    is_path = os.sep in module_name  # ./my_file.my_function, as a shell completes it
    file = f"{os.path.normpath(module_name) if is_path else module_name.replace('.', os.sep)}.py"
    if not allowed:
        trust = "if you trust it, use --allow_custom_rewards true"
        raise UserError(f"{setting}: {name!r} runs the code of {file}; {trust}")
    folder = folder_of(file)
    if folder is None:
        raise UserError(f"{setting}: {name!r}: {Path.cwd() / file} does not exist; write my_file.my_function")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # at the end; for a file that imports one from its own folder
    module = run_file(folder / file, setting)
    functions = {key: item for key, item in vars(module).items() if callable(item) and not isinstance(item, type)}
    if attribute not in functions:
        hint = did_you_mean(attribute, functions) if functions else ""
        raise UserError(f"{setting}: {file} has no function {attribute!r}{hint}")
    return functions[attribute]


def run_file(path: Path, setting: str) -> ModuleType:
    """Run a file and return its module. Raise UserError, named after the setting, for what it raises."""
    with users_code(f"{setting}: {path}", "; fix it"):
        return _run_once(path, path.stat().st_mtime_ns)


@functools.cache
def _run_once(path: Path, changed: int) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}_{changed}", path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
