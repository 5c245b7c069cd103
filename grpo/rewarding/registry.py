"""Names and parameters → the reward functions of a run, from the registry or from the user's own file.

A parameter of a reward comes after the `*` of its signature. `reward_args` sets it; otherwise it follows the
run where the run has a value of that name (the completion template, the longest completion); otherwise it keeps its
default.
"""

import difflib
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError
from grpo.core.settings import Config
from grpo.data.prompts import PromptFormat
from grpo.rewarding.judge import Judge
from rewards import REWARD_FUNCS

RewardFunc = Callable[..., list[float]]
Rewards = dict[str, RewardFunc]
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"  # importable wherever the command runs
NOT_PASSED = {"prompt", "completion", "completion_ids"}  # the columns that TRL keeps from rewards
# What rewards get by keyword besides the data's columns, and two columns that all data has by then
PASSED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
ALWAYS = (*PASSED, "question", "answer")
OF_THE_SCRIPT: Rewards = {}  # functions that HYPERPARAMETERS lists, by name
TRLS = ("get_soft_overlong_punishment", "get_repetition_penalty_reward")  # functions of trl.rewards that make one


def named(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """HYPERPARAMETERS with the names of the rewards that it lists as functions; these are known by them from here on.

    Raises:
        UserError: something that is neither a name nor a function.
    """
    OF_THE_SCRIPT.clear()
    found = dict(hyperparameters)
    for key in ("reward_funcs", "adaptive_rewards"):
        if found.get(key) is not None:
            found[key] = _names(found[key])
    for number, stage in enumerate(found.get("stages") or []):
        if isinstance(stage, Mapping) and stage.get("reward_funcs") is not None:
            found["stages"] = list(found["stages"])
            found["stages"][number] = {**stage, "reward_funcs": _names(stage["reward_funcs"])}
    return found


def _names(reward_funcs: Any) -> list[str]:
    names = []
    for reward in [reward_funcs] if isinstance(reward_funcs, str) or callable(reward_funcs) else reward_funcs:
        if not isinstance(reward, str) and not callable(reward):
            raise UserError(f"reward_funcs: {reward!r} is neither a function nor the name of one")
        name = reward if isinstance(reward, str) else _logged_name(reward)
        if not isinstance(reward, str) and reward is not REWARD_FUNCS.get(name):
            OF_THE_SCRIPT[name] = reward
        names.append(name)
    return names


class ByName:
    """A reward without `**kwargs`, which gets what it asks for by name, of all that TRL passes."""

    def __init__(self, name: str, reward: RewardFunc) -> None:
        self.__name__, self.__wrapped__ = name, reward  # inspect.signature looks into __wrapped__
        self.asks = frozenset(inspect.signature(reward).parameters)

    def _asked(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in columns.items() if key in self.asks}

    def __call__(self, *args: Any, **columns: Any) -> Any:
        return self.__wrapped__(*args, **self._asked(columns))


class AsyncByName(ByName):
    async def __call__(self, *args: Any, **columns: Any) -> Any:  # by which TRL knows that it is async
        return await self.__wrapped__(*args, **self._asked(columns))  # type: ignore[misc]


def choose(
    names: Sequence[str],
    weights: Sequence[float] | None,
    args: Mapping[str, Mapping[str, Any]] | None,
    run_parameters: Mapping[str, Any],
    allow_custom: bool,
) -> Rewards:
    """The rewards of these names with their parameters, in this order, by the names that TRL logs.

    Args:
        names: of REWARD_FUNCS or TRLS, or `module.function` in the working directory.
        weights: one for each name, or None; only counted here.
        args: reward → parameter → value; a reward of one's own is called by `module.function` or by `function`.
        run_parameters: values of the run, for every chosen reward that has a parameter of that name.
        allow_custom: whether code of the user's files may run.

    Raises:
        UserError: an unknown, repeated or unloadable reward, or a parameter that it does not have or cannot take.
    """
    known = {**REWARD_FUNCS, **OF_THE_SCRIPT}
    for name in names or ["nothing"]:
        if name not in known and name not in TRLS and "." not in name:
            raise UserError(f"reward_funcs: {name!r} is not a reward{_instead(name, [*known, *TRLS])}")
    if weights is not None and len(weights) != len(names):
        raise UserError(f"reward_weights: {len(weights)} weights for {len(names)} reward_funcs; set one for each")
    chosen: Rewards = {}
    unused = dict(args or {})
    for name in names:
        if name in TRLS:
            reward = _of_trl(name, unused.pop(name, {}) or {}, run_parameters)
            logged = _logged_name(reward)
        else:
            reward = known[name] if name in known else _load(name, allow_custom)
            logged = name if name in known else _logged_name(reward)
            given = unused.pop(name, None) or unused.pop(logged, None) or {}
            reward = _with_parameters(logged, reward, given, run_parameters, check=reward is REWARD_FUNCS.get(name))
        if logged in chosen:
            raise UserError(f"reward_funcs: two rewards are called {logged!r}; drop or rename one of them")
        chosen[logged] = reward
    for name in unused:
        raise UserError(f"reward_args: {name!r} is not among reward_funcs ({', '.join(names)}); add or drop it")
    return chosen


def _of_trl(name: str, given: Mapping[str, Any], run_parameters: Mapping[str, Any]) -> RewardFunc:
    """A reward that TRL makes of parameters; the overlong punishment follows the run's longest completion."""
    import trl.rewards  # here: the X-ray does without TRL

    maker = getattr(trl.rewards, name)
    usual = {key: each.default for key, each in inspect.signature(maker).parameters.items()}
    if name == "get_soft_overlong_punishment":
        limit = int(run_parameters["max_completion_length"])
        usual = {"max_completion_len": limit, "soft_punish_cache": max(1, limit // 5)}
    _refuse_unfit(name, given, usual)
    try:
        made: RewardFunc = maker(**{**usual, **given})
        made(completion_ids=[[1, 2, 3]])  # has the parameters looked at
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"reward_args: {name}: {error}") from None
    return made


def load_rewards(config: Config, prompt_format: PromptFormat) -> tuple[Rewards, Judge]:
    """The rewards that a run's settings choose, which follow its judge and its templates; and that judge."""
    script, training = config.script, config.training
    judge = Judge(prompt_format.pattern)
    if script.judge:
        function = _load(script.judge, script.allow_custom_rewards, "judge")
        if inspect.iscoroutinefunction(function):
            raise UserError(f"judge: {script.judge} is async; write a plain function of text and row")
        judge = Judge(prompt_format.pattern, function, script.judge)
    follow = {
        "template": prompt_format.completion,
        "answer_pattern": prompt_format.pattern,
        "judge": judge,
        "max_completion_length": training.max_completion_length,
    }
    args = script.reward_args if isinstance(script.reward_args, dict) else None  # read from JSON by now
    return choose(script.reward_funcs, training.reward_weights, args, follow, script.allow_custom_rewards), judge


def parameters(reward: RewardFunc) -> dict[str, inspect.Parameter]:
    """What can be set of a reward: its keyword-only parameters, by name, but for what every reward gets.

    >>> list(parameters(REWARD_FUNCS["length_reward_func"])), parameters(REWARD_FUNCS["xmlcount_reward_func"])
    (['low', 'high', 'margin'], {})
    """
    found = inspect.signature(reward).parameters.values()
    own = (each for each in found if each.kind is each.KEYWORD_ONLY and each.name not in ALWAYS)
    return {parameter.name: parameter for parameter in own}


def weights_of(config: Config, rewards: Rewards) -> dict[str, float]:
    """The weight of each reward; that of the last stage, since an early one need not tell right from wrong."""
    weights = config.training.reward_weights or [1.0] * len(rewards)
    if config.stages:
        weights = [config.stages[-1].weights.get(name, 0.0) for name in config.script.reward_funcs]
    return dict(zip(rewards, weights, strict=True))


def needing_gold(config: Config, rewards: Rewards, judge: Judge) -> list[str]:
    """The run's rewards and settings that need gold answers; empty where its data may lack them."""
    built_in, script = judge.function is None, config.script
    found = []
    for name, reward in rewards.items() if built_in or not script.eval_only else ():
        asked = inspect.signature(reward).parameters.get("answer")
        if (asked and asked.default is asked.empty) or (built_in and "judge" in parameters(reward)):
            found.append(name)
    if built_in and script.eval_num_samples > 1:
        found.append("eval_num_samples")
    return found


def refuse_missing(rewards: Mapping[str, Callable[..., Any]], column_names: Sequence[str]) -> None:
    """UserError where a reward asks for something that neither TRL nor the data has."""
    there = {*PASSED, *column_names} - (NOT_PASSED - {*PASSED})
    for name, reward in rewards.items():
        asked = [each for each in inspect.signature(reward).parameters.values() if each.default is each.empty]
        named = [each.name for each in asked if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        if missing := [asked for asked in named if asked not in there]:
            columns = [column for column in column_names if column not in NOT_PASSED]
            raise UserError(
                f"reward_funcs: {name} asks for {', '.join(missing)}, which it cannot get; there are "
                f"{', '.join(PASSED)}, and of the data {', '.join(columns)}: rename it, or let it have a default"
            )


def refuse_collisions(rewards: Mapping[str, Callable[..., Any]], column_names: Iterable[str]) -> None:
    """UserError where a column of the dataset has a parameter's name: TRL passes it by keyword, so it would win."""
    columns = set(column_names) - NOT_PASSED
    for name, reward in rewards.items():
        for column in sorted(columns & parameters(reward).keys()):
            raise UserError(
                f"the dataset's column {column!r} would replace the parameter {column!r} of {name}; "
                "rename or remove the column"
            )


def _instead(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*known, *(other.removesuffix("_reward_func") for other in known)], n=1)
    full = next((other for other in known if close and other.startswith(close[0])), None)
    return f"; did you mean {full}?" if full else f"; use one or more of {', '.join(known)}"


def _load(name: str, allow_custom: bool, setting: str = "reward_funcs") -> Callable[..., Any]:
    """A function of a module in the working directory, or of this repository's examples."""
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise UserError(f"{setting}: {name!r} is not a function of a file; write my_file.my_function")
    if not allow_custom:
        raise UserError(
            f"{setting}: {name!r} runs the code of {module_name.replace('.', '/')}.py; if you trust it, use "
            "--allow_custom_rewards true"
        )
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise UserError(
            f"{setting}: importing {module_name!r} from {here} raises {type(error).__name__}: {error}; fix it"
        ) from error
    file = Path(module.__file__ or "").resolve()
    if not any(file.is_relative_to(folder) for folder in (here.resolve(), EXAMPLES)):
        raise UserError(f"{setting}: {module_name!r} is the name of another module ({module.__file__}); rename yours")
    functions = {key: value for key, value in vars(module).items() if callable(value) and not isinstance(value, type)}
    if attribute not in functions:
        raise UserError(f"{setting}: {module_name!r} has no function {attribute!r}{_instead(attribute, functions)}")
    return functions[attribute]


def _logged_name(reward: RewardFunc) -> str:
    """The name that TRL logs a reward by: the innermost function's, or the class's."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return getattr(reward, "__name__", type(reward).__name__)


def _with_parameters(
    name: str, reward: RewardFunc, given: Mapping[str, Any], run_parameters: Mapping[str, Any], check: bool
) -> RewardFunc:
    """The reward with what is given and what follows the run; it keeps its name and can be pickled."""
    known = parameters(reward)
    _refuse_unfit(name, given, {key: each.default for key, each in known.items() if key != "judge"})
    follows = {key: value for key, value in run_parameters.items() if key in known and value != known[key].default}
    values = follows | dict(given)
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in values:
            raise UserError(
                f"reward_args: {name} needs a value for its parameter {key!r}; set one in reward_args, or write it "
                "before the * if it is a column"
            )
    if check and values:
        try:
            # only to have the parameters looked at; a judge of one's own would need a row of the data
            reward([""], answer=[""], completion_ids=[[]], **{**values, "judge": None})
        except (ValueError, TypeError) as error:
            raise UserError(f"reward_args: {name}: {error}") from None
    if values or not hasattr(reward, "__name__"):
        reward = functools.partial(reward, **values)
        reward.__name__ = name  # type: ignore[attr-defined]  # by which TRL logs it
    if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(reward).parameters.values()):
        return reward
    from trl.trainer.utils import is_async_callable  # here: the X-ray does without TRL

    return AsyncByName(name, reward) if is_async_callable(reward) else ByName(name, reward)


def _refuse_unfit(name: str, given: Any, defaults: Mapping[str, Any]) -> None:
    """UserError for the first of a reward's `reward_args` that it does not have or cannot take."""
    if not isinstance(given, Mapping):
        raise UserError(f"reward_args: {name}: {given!r} is not a dictionary; write {{parameter: value}}")
    for key, value in given.items():
        if key not in defaults:
            raise UserError(f"reward_args: {name} has no parameter {key!r}; it has {', '.join(defaults) or 'none'}")
        if not _fits(value, defaults[key]):
            raise UserError(f"reward_args: {name}: {key} is {value!r}; use a value such as {defaults[key]!r}")


def _fits(value: Any, default: Any) -> bool:
    """Whether a value from a recipe is of the default's kind; without a default, or with None, anything is."""
    if type(default) in (int, float):
        return type(value) in (int, float) and math.isfinite(value)
    if isinstance(default, list | tuple):
        return isinstance(value, list | tuple)
    return not isinstance(default, str | bool) or type(value) is type(default)
