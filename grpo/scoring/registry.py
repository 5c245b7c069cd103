"""The task of a run and its rewards, by the names and parameters in its settings.

A reward's parameters come after the `*` of its signature. A parameter gets its value from `reward_args`, else from the
run if it has a value of that name (`parameters_of_run`), else from its default.
"""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from exact_answers import extract_answer
from grpo.core import ROOT
from grpo.core.errors import UserError, did_you_mean, one_line
from grpo.core.functions import innermost
from grpo.core.settings import Config
from grpo.scoring.functions import function_of_file, function_of_setting, functions_of_script, logged_name, run_file
from grpo.scoring.scorer import Rewards, judge_reward_func
from grpo.task import prompts
from grpo.task.task import Task
from rewards import REWARD_FUNCS, extract_xml_answer

RewardFunc = Callable[..., list[float]]
MORE_REWARDS = ROOT / "examples" / "more_rewards.py"
# Functions of trl.rewards that make a reward. Both are penalties
MAKERS = ("get_soft_overlong_punishment", "get_repetition_penalty_reward")


def shipped(names: Collection[str] | None = None) -> Rewards:
    """Return the rewards that are found by their names: the five, the judge's, and those of examples/more_rewards.py.

    Args:
        names: those that are needed; the file of the others is read only for a name that is not here. None: all.

    Raises:
        UserError: the file of the others raises.
    """
    here = {**REWARD_FUNCS, "judge_reward_func": judge_reward_func}
    elsewhere = [name for name in names or () if not (name in here or name in MAKERS or "." in name)]
    if not MORE_REWARDS.exists() or (names is not None and not elsewhere):
        return here
    return {**here, **run_file(MORE_REWARDS, "reward_funcs").REWARD_FUNCS}


def make_task(config: Config) -> Task:
    """Build the task from a run's settings, with a note for words of the prompt that stay or are replaced.

    Raises:
        UserError: an unknown format, or a judge or `prepare` that cannot be loaded.
    """
    script = config.script
    prompt, notes = prompts.resolve(
        script.prompt_format, script.system_prompt, script.answer_pattern, script.exemplars
    )
    judge, prepare = (function_of_setting(config, setting) for setting in ("judge", "prepare"))
    return Task(prompt, script.exemplars, judge, script.judge or "", prepare, notes)


def load_rewards(config: Config, task: Task) -> Rewards:
    """Load the rewards that a run's settings choose, with their parameters.

    Raises:
        UserError: a reward is unknown, repeated or cannot be loaded, or does not have a given parameter.
    """
    script, weights = config.script, config.training.reward_weights
    if not all(map(math.isfinite, weights or [])):
        raise UserError(f"reward_weights: {weights}: use finite numbers")
    if weights is not None and len(weights) != len(script.reward_funcs):
        count = len(script.reward_funcs)
        raise UserError(f"reward_weights: {len(weights)} weights for {count} reward_funcs; set one for each")
    args: Any = script.reward_args or {}
    if not isinstance(args, Mapping):
        raise UserError(f"reward_args: {args!r} is not a dictionary; write {{reward: {{parameter: value}}}}")
    # a function in HYPERPARAMETERS replaces a shipped one of its name; others of the script do not
    own, of_script = config.functions["reward_funcs"], functions_of_script(config, script.reward_funcs)
    names = [name for name in script.reward_funcs if name not in {*own, *of_script}]
    by_name = {**of_script, **shipped(names), **own}
    follow = parameters_of_run(task, config.completion_limit)
    return rewards_by_name(script.reward_funcs, args, follow, by_name, script.allow_custom_rewards)


def parameters_of_run(task: Task, completion_limit: int) -> dict[str, Any]:
    """Return the run's values for rewards that have a parameter of that name."""
    pattern = task.prompt.pattern
    return {
        "task": task,
        "template": task.prompt.completion,
        "extract": extract_xml_answer if pattern == "xml" else functools.partial(extract_answer, pattern=pattern),
        "max_completion_length": completion_limit,
    }


def rewards_by_name(
    names: Sequence[str],
    args: Mapping[str, Mapping[str, Any]],
    follow: Mapping[str, Any],
    known: Rewards,
    allow_files: bool = False,
) -> Rewards:
    """Load rewards by name, in this order, with their parameters. The keys are the names that TRL logs.

    Args:
        names: names in `known` or MAKERS, or `my_file.my_function`.
        args: reward → parameter → value; a file's reward is `my_file.my_function` or `my_function`.
        follow: values of the run, for each reward with a parameter of that name.
        allow_files: True if the user's files may be run.
    """
    for name, values in args.items():
        if not isinstance(values, Mapping):
            raise UserError(f"reward_args: {name}: {values!r} is not a dictionary; write {{parameter: value}}")
    rewards: Rewards = {}
    unused = dict(args)
    if not names:
        raise UserError(f"reward_funcs: the list is empty; use some of {', '.join(known)}")
    for name in names:
        values = dict(unused.pop(name, {}))
        if name in MAKERS:
            reward = _made_by_trl(name, values, follow)
        elif name in known:
            reward = _with_parameters(known[name], values, follow)
        elif "." in name:
            function = function_of_file(name, "reward_funcs", allow_files)
            reward = _with_parameters(function, {**unused.pop(logged_name(function), {}), **values}, follow)
        else:
            missing = "" if MORE_REWARDS.exists() else f" ({MORE_REWARDS}, which has more, does not exist)"
            hint = _where_rewards_are(name, [*known, *MAKERS])
            raise UserError(f"reward_funcs: {name!r} is not a reward{missing}{hint}")
        logged = logged_name(reward)
        if logged in rewards:
            raise UserError(f"reward_funcs: two rewards are called {logged!r}; drop or rename one of them")
        rewards[logged] = reward
    for name in unused:
        raise UserError(f"reward_args: {name!r} is not among reward_funcs ({', '.join(names)}); add or drop it")
    return rewards


def _where_rewards_are(name: str, known: Sequence[str]) -> str:
    """Suggest the reward of nearly this name, or else where a function of the user's is found."""
    if any(choice.startswith(name) for choice in known) or difflib.get_close_matches(name, known, n=1, cutoff=0.8):
        return did_you_mean(name, known)
    return (
        f", nor a function of the script; if it is in a file of yours, use my_file.{name} with "
        f"--allow_custom_rewards true; known are {', '.join(known)}"
    )


def _made_by_trl(name: str, given: Mapping[str, Any], follow: Mapping[str, Any]) -> RewardFunc:
    """Build one of TRL's rewards from its parameters; the overlong punishment uses the run's completion limit."""
    import trl.rewards  # here: most runs have none of them

    maker = getattr(trl.rewards, name)
    if name == "get_soft_overlong_punishment":
        limit = int(follow["max_completion_length"])
        given = {"max_completion_len": limit, "soft_punish_cache": max(1, limit // 5), **given}
    with one_line(f"reward_args: {name}: ", kinds=(TypeError, ValueError)):
        reward = maker(**given)
    reward.is_penalty = True
    return reward


def penalties(rewards: Rewards) -> set[str]:
    """Return the rewards that never pay more than 0, by their `is_penalty`. At 0 they had nothing to punish."""
    return {name for name, reward in rewards.items() if getattr(innermost(reward), "is_penalty", False)}


def _with_parameters(reward: RewardFunc, given: Mapping[str, Any], follow: Mapping[str, Any]) -> RewardFunc:
    """Bind a reward's given parameters and those of the run, under its own name."""
    name = logged_name(reward)
    try:
        own = parameters(reward)
    except (ValueError, TypeError):  # of some built-in functions
        raise UserError(f"reward_funcs: {name!r} has no signature; write a function that calls it") from None
    for key in given:
        if key not in own:
            raise UserError(f"reward_args: {name} has no parameter {key!r}; it has {', '.join(own) or 'none'}")
    bound = reward.keywords if isinstance(reward, functools.partial) else {}  # by the user
    follows = {
        key: value for key, value in follow.items() if key in own and key not in bound and value != own[key].default
    }
    if follows or given or not hasattr(reward, "__name__"):
        reward = functools.partial(reward, **{**follows, **given})
        reward.__name__ = name  # type: ignore[attr-defined]  # by which TRL logs it
    return reward


def parameters(reward: RewardFunc) -> dict[str, inspect.Parameter]:
    """Return the parameters of a reward that can be set, the keyword-only ones, by name.

    >>> list(parameters(REWARD_FUNCS["int_reward_func"])), parameters(REWARD_FUNCS["xmlcount_reward_func"])
    (['extract'], {})
    """
    signature = inspect.signature(reward).parameters
    return {name: parameter for name, parameter in signature.items() if parameter.kind is parameter.KEYWORD_ONLY}


def refuse_columns_like_parameters(rewards: Rewards, columns: Collection[str]) -> None:
    """Raise UserError if a column of the data would replace the value of a reward's parameter.

    A parameter without a value, or with None, takes its column. So do `question` and `answer`, which all rows have,
    unless `reward_args` or the run sets them.
    """
    for name, reward in rewards.items():
        bound = reward.keywords if isinstance(reward, functools.partial) else {}
        for key, parameter in inspect.signature(reward).parameters.items():
            by_default = parameter.default not in (parameter.empty, None) and key not in ("question", "answer")
            if key in columns and key != "prompt" and (key in bound or by_default):
                raise UserError(
                    f"reward_funcs: the data's column {key!r} would replace the parameter {key!r} of {name}; rename "
                    "the column by a `prepare` (docs/your-own-task.md), or the parameter in a reward of your own"
                )


def weights_of(config: Config, rewards: Rewards) -> dict[str, float]:
    """Return each reward's weight."""
    weights = config.training.reward_weights or [1.0] * len(rewards)
    return dict(zip(rewards, weights, strict=True))


def needs_answer(reward: RewardFunc, task: Task) -> bool:
    """True if a reward needs gold answers, by its parameters or through the lenient rule."""
    asked = inspect.signature(reward).parameters.get("answer")
    by_rule = task.judge is None and "task" in parameters(reward)
    return by_rule or (asked is not None and asked.default is asked.empty)


def needing_gold(config: Config, rewards: Rewards, task: Task) -> list[str]:
    """List the run's rewards and settings that need gold answers; empty if the data may lack them."""
    needing = [name for name, reward in rewards.items() if needs_answer(reward, task)]
    if task.judge is None and config.script.eval_num_samples > 1:
        needing.append("eval_num_samples")
    return needing
