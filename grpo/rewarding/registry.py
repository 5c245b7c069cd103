"""Names and parameters → the reward functions of a run, and its judge.

A parameter of a reward comes after the `*` of its signature. `reward_args` sets it; otherwise it follows the run where
the run has a value of that name (the completion template, the longest completion); otherwise it keeps its default.
"""

import functools
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo.core.errors import UserError, did_you_mean, one_line
from grpo.core.settings import Config
from grpo.data.prompts import PromptFormat
from grpo.rewarding.judge import Judge
from rewards import REWARD_FUNCS

RewardFunc = Callable[..., list[float]]
Rewards = dict[str, RewardFunc]
ROOT = Path(__file__).resolve().parents[2]  # whose examples are found wherever the command runs
TRLS = ("get_soft_overlong_punishment", "get_repetition_penalty_reward")  # functions of trl.rewards that make one


def by_name(hyperparameters: Mapping[str, Any]) -> tuple[dict[str, Any], Rewards]:
    """HYPERPARAMETERS with names where it has functions as rewards or judge, and those functions by name."""
    functions: Rewards = {}

    def names(listed: Any) -> list[Any]:
        rewards = listed if isinstance(listed, list | tuple) else [listed]
        functions.update({_logged_name(reward): reward for reward in rewards if callable(reward)})
        return [_logged_name(reward) if callable(reward) else reward for reward in rewards]

    def named(settings: Mapping[str, Any]) -> dict[str, Any]:
        listed = settings.get("reward_funcs")
        return {**settings, **({} if listed is None else {"reward_funcs": names(listed)})}

    found = named(hyperparameters)
    if callable(found.get("judge")):
        (found["judge"],) = names(found["judge"])
    if found.get("stages"):
        found["stages"] = [named(stage) if isinstance(stage, Mapping) else stage for stage in found["stages"]]
    return found, functions


def load_rewards(config: Config, prompt_format: PromptFormat) -> tuple[Rewards, Judge]:
    """The rewards that a run's settings choose, which follow its judge and its templates; and that judge.

    Raises:
        UserError: an unknown, repeated or unloadable reward, or a parameter that it does not have.
    """
    script, training = config.script, config.training
    files = UserFiles(script.allow_custom_rewards)
    judge = Judge(prompt_format.pattern)
    if script.judge:
        own = config.reward_functions.get(script.judge)
        if not own:
            _check_quotes(script.judge, "judge", config.script_file)
        judge = Judge(prompt_format.pattern, own or files.function(script.judge, "judge"), script.judge)
    follow = {
        "template": prompt_format.completion,
        "answer_pattern": prompt_format.pattern,
        "judge": judge,
        "max_completion_length": config.completion_limit,
    }
    weights = training.reward_weights
    if not all(map(math.isfinite, weights or [])):
        raise UserError(f"reward_weights: {weights}: use finite numbers")
    if weights is not None and len(weights) != len(script.reward_funcs):
        count = len(script.reward_funcs)
        raise UserError(f"reward_weights: {len(weights)} weights for {count} reward_funcs; set one for each")
    args: Any = script.reward_args or {}
    if not isinstance(args, Mapping):
        raise UserError(f"reward_args: {args!r} is not a dictionary; write {{reward: {{parameter: value}}}}")
    for name in script.reward_funcs:
        if name not in {**REWARD_FUNCS, **config.reward_functions} and name not in TRLS:
            _check_quotes(name, "reward_funcs", config.script_file)
    return choose(script.reward_funcs, args, follow, config.reward_functions, files), judge


def _check_quotes(name: str, setting: str, script_file: str) -> None:
    """Raise UserError for the name of a function that the script has and HYPERPARAMETERS does not list itself."""
    loaded = (module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == script_file)
    function = next((vars(module)[name] for module in loaded if name in vars(module)), None)
    if callable(function):
        file = Path(script_file).name
        raise UserError(
            f"{setting}: {name!r} is a function of {file}; write it into HYPERPARAMETERS without quotes: "
            f'"{setting}": ' + (f"[{name}]" if setting == "reward_funcs" else name)
        )


def choose(
    names: Sequence[str],
    args: Mapping[str, Mapping[str, Any]],
    follow: Mapping[str, Any],
    functions: Rewards | None = None,
    files: "UserFiles | None" = None,
) -> Rewards:
    """The rewards of these names with their parameters, in this order, by the names that TRL logs.

    Args:
        names: of REWARD_FUNCS or TRLS, of `functions`, or `my_file.my_function`.
        args: reward → parameter → value; a reward of a file is called by `my_file.my_function` or by `my_function`.
        follow: values of the run, for every chosen reward that has a parameter of that name.
        functions: of HYPERPARAMETERS, by name.
        files: where `my_file.my_function` is looked for; None: nowhere.
    """
    for name, given in args.items():
        if not isinstance(given, Mapping):
            raise UserError(f"reward_args: {name}: {given!r} is not a dictionary; write {{parameter: value}}")
    known = {**REWARD_FUNCS, **(functions or {})}
    chosen: Rewards = {}
    unused = dict(args)
    if not names:
        raise UserError(f"reward_funcs: the list is empty; use some of {', '.join(known)}")
    for name in names:
        if name in TRLS:
            reward = _of_trl(name, unused.pop(name, {}), follow)
        elif name in known:
            reward = _with_parameters(known[name], unused.pop(name, {}), follow)
        elif "." in name and files is not None:
            reward = files.function(name, "reward_funcs")
            given = {**unused.pop(_logged_name(reward), {}), **unused.pop(name, {})}
            reward = _with_parameters(reward, given, follow)
        else:
            raise UserError(f"reward_funcs: {name!r} is not a reward{did_you_mean(name, [*known, *TRLS])}")
        logged = name if name in known else _logged_name(reward)
        if logged in chosen:
            raise UserError(f"reward_funcs: two rewards are called {logged!r}; drop or rename one of them")
        chosen[logged] = reward
    for name in unused:
        raise UserError(f"reward_args: {name!r} is not among reward_funcs ({', '.join(names)}); add or drop it")
    return chosen


class UserFiles:
    """The user's own files, each of which is run once for a run.

    They are loaded by their path: a `wandb.py` beside them is not mistaken for the library, nor the library for it.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._modules: dict[Path, ModuleType] = {}

    def function(self, name: str, setting: str) -> Callable[..., Any]:
        """`my_file.my_function` of the working directory, or of this repository; UserError where there is none."""
        module_name, _, attribute = name.rpartition(".")
        if not module_name:
            raise UserError(f"{setting}: {name!r} is not a function of a file; write my_file.my_function")
        file = f"{module_name.replace('.', '/')}.py"
        if not self.allowed:
            trust = "if you trust it, use --allow_custom_rewards true"
            raise UserError(f"{setting}: {name!r} runs the code of {file}; {trust}")
        for folder in (Path.cwd(), ROOT):
            if (folder / file).is_file():
                module = self._load(folder, file, setting)
                break
        else:
            raise UserError(f"{setting}: {name!r}: {Path.cwd() / file} does not exist; write my_file.my_function")
        functions = {key: each for key, each in vars(module).items() if callable(each) and not isinstance(each, type)}
        if attribute not in functions:
            hint = did_you_mean(attribute, functions) if functions else ""
            raise UserError(f"{setting}: {file} has no function {attribute!r}{hint}")
        return functions[attribute]

    def _load(self, folder: Path, file: str, setting: str) -> ModuleType:
        path = folder / file
        if path not in self._modules:
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # at the end: for a file that imports another one beside it
            # under a name that no library has
            spec = importlib.util.spec_from_file_location(f"own_{file.removesuffix('.py').replace('/', '_')}", path)
            assert spec is not None and spec.loader is not None  # a .py file has both
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except (Exception, SystemExit) as error:  # a user's file may raise anything
                raise UserError(f"{setting}: {path} raises {type(error).__name__}: {error}; fix it") from error
            self._modules[path] = module
        return self._modules[path]


def _of_trl(name: str, given: Mapping[str, Any], follow: Mapping[str, Any]) -> RewardFunc:
    """A reward that TRL makes of parameters; the overlong punishment follows the run's longest completion."""
    import trl.rewards  # here: the X-ray does without TRL

    maker = getattr(trl.rewards, name)
    if name == "get_soft_overlong_punishment":
        limit = int(follow["max_completion_length"])
        given = {"max_completion_len": limit, "soft_punish_cache": max(1, limit // 5), **given}
    with one_line(f"reward_args: {name}: ", kinds=(TypeError, ValueError)):
        return maker(**given)


def _logged_name(reward: RewardFunc) -> str:
    """The name that TRL logs a reward by: the innermost function's, or the class's."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return getattr(reward, "__name__", type(reward).__name__)


def _with_parameters(reward: RewardFunc, given: Mapping[str, Any], follow: Mapping[str, Any]) -> RewardFunc:
    """The reward with what is given and what follows the run, under its name."""
    name, known = _logged_name(reward), parameters(reward)
    for key in given:
        if key not in known:
            raise UserError(f"reward_args: {name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
    follows = {key: value for key, value in follow.items() if key in known and value != known[key].default}
    if follows or given or not hasattr(reward, "__name__"):
        reward = functools.partial(reward, **{**follows, **given})
        reward.__name__ = name  # type: ignore[attr-defined]  # by which TRL logs it
    return reward


def parameters(reward: RewardFunc) -> dict[str, inspect.Parameter]:
    """The parameters of a reward that can be set: the keyword-only ones, by name.

    >>> list(parameters(REWARD_FUNCS["length_reward_func"])), parameters(REWARD_FUNCS["xmlcount_reward_func"])
    (['low', 'high', 'margin'], {})
    """
    found = inspect.signature(reward).parameters
    return {name: parameter for name, parameter in found.items() if parameter.kind is parameter.KEYWORD_ONLY}


def check_columns(rewards: Rewards, columns: Collection[str]) -> None:
    """Raise UserError for a column of the data that would replace the value of a reward's parameter.

    A parameter without a value, or with None, takes its column. So do `question` and `answer`, which all rows have,
    where nothing but the signature gives them one.
    """
    for name, reward in rewards.items():
        bound = reward.keywords if isinstance(reward, functools.partial) else {}
        for key, parameter in inspect.signature(reward).parameters.items():
            by_default = parameter.default not in (parameter.empty, None) and key not in ("question", "answer")
            if key in columns and key != "prompt" and (key in bound or by_default):
                raise UserError(
                    f"reward_funcs: the data's column {key!r} would replace the parameter {key!r} of {name}; rename "
                    "the column, or the parameter in a reward of your own"
                )


def weights_of(config: Config, rewards: Rewards) -> dict[str, float]:
    """The weight of each reward; that of the last stage, since an early one need not tell right from wrong."""
    weights = config.training.reward_weights or [1.0] * len(rewards)
    if config.stages:
        weights = [config.stages[-1].weights.get(name, 0.0) for name in config.script.reward_funcs]
    return dict(zip(rewards, weights, strict=True))


def needs_answer(reward: RewardFunc, judge: Judge) -> bool:
    """Whether a reward needs gold answers, by its parameters or through the built-in judge."""
    asked = inspect.signature(reward).parameters.get("answer")
    by_judge = judge.function is None and "judge" in parameters(reward)
    return by_judge or (asked is not None and asked.default is asked.empty)


def needing_gold(config: Config, rewards: Rewards, judge: Judge) -> list[str]:
    """The run's rewards and settings that need gold answers; empty where its data may lack them."""
    built_in, script = judge.function is None, config.script
    scored = rewards if built_in or not script.eval_only else {}
    found = [name for name, reward in scored.items() if needs_answer(reward, judge)]
    if built_in and script.eval_num_samples > 1:
        found.append("eval_num_samples")
    return found
