"""Names and parameters become reward functions, TRL's and one's own too; a mistake names what is wrong."""

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
from trl.trainer.utils import get_callable_name

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.scoring import registry
from grpo.scoring.functions import functions_to_names
from grpo.scoring.registry import needing_gold, rewards_by_name, shipped
from grpo.task import Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS, THINK_FORMAT

pytestmark = pytest.mark.usefixtures("own_files")
FIVE = list(REWARD_FUNCS)


def chosen(*names, args=None, follow=(("max_completion_length", 100),), functions=None):
    return rewards_by_name(list(names), args or {}, dict(follow), {**shipped(), **(functions or {})}, allow_files=True)


def test_the_five_are_themselves_in_order():
    rewards = chosen(*FIVE, follow=registry.parameters_of_run(Task(XML), 9))
    assert list(rewards) == FIVE and all(rewards[name] is REWARD_FUNCS[name] for name in FIVE)


@pytest.mark.parametrize("state", ["missing", "broken"])
def test_the_file_of_more_rewards_is_read_only_for_a_name_of_it(state, monkeypatch):
    """A copy of the clone without examples/ could not run the demo, which needs none of it."""
    monkeypatch.setattr(registry, "MORE_REWARDS", Path("more.py"))
    if state == "broken":
        Path("more.py").write_text("1 / 0\n")
    names = [*FIVE, "judge_reward_func", "my_rewards.my_reward", "get_soft_overlong_punishment"]
    settings = train_grpo.HYPERPARAMETERS | {"allow_custom_rewards": True}
    config = configure(settings | {"reward_funcs": [*names, longest]}, ["--use_cpu", "true"])
    assert len(registry.load_rewards(config, Task(XML))) == 9
    config = configure(settings | {"reward_funcs": [*FIVE, "length_reward_func"]}, ["--use_cpu", "true"])
    said = {"missing": "more.py, which has more, does not exist", "broken": "ZeroDivisionError"}[state]
    with pytest.raises(UserError, match=said):
        registry.load_rewards(config, Task(XML))


def longest(completions, **kwargs):
    return [0.0] * len(completions)


def test_parameters_come_from_recipe_then_run_then_signature():
    follow = {"template": THINK_FORMAT, "max_completion_length": 100}
    names = ["strict_format_reward_func", "get_soft_overlong_punishment", "length_reward_func", "int_reward_func"]
    args = {"get_soft_overlong_punishment": {"soft_punish_cache": 50}, "length_reward_func": {"low": 0, "high": 10}}
    rewards = chosen(*names, args=args, follow=follow)
    given = {"completions": [THINK_FORMAT], "completion_ids": [[1] * 75], "answer": ["7"]}
    assert [reward(**given) for reward in rewards.values()] == [[0.5], [-0.5], [0.35], [0.0]]
    assert list(rewards)[1] == "soft_overlong_punishment_reward"  # as TRL logs it
    usual = chosen("get_soft_overlong_punishment", follow=follow)["soft_overlong_punishment_reward"]
    assert usual(completion_ids=[[1] * 80, [1] * 90, [1] * 100]) == [0.0, -0.5, -1.0]  # over a fifth of the limit


def test_penalties_are_known_by_their_functions_whatever_they_are_called():
    trls = {REPETITION: {"ngram_size": 3, "max_penalty": -1.0}, "style_reward_func": {"phrases": ["so"]}}
    rewards = chosen("get_soft_overlong_punishment", *trls, "int_reward_func", "my_rewards.longer", args=trls)
    assert registry.penalties(rewards) == set(list(rewards)[:3])


def test_a_reward_of_ones_own_says_that_it_is_a_penalty():
    def too_long(completions, *, scale=1.0, **kwargs):
        return [-scale * len(text) for text in completions]

    too_long.is_penalty = True
    rewards = chosen("too_long", "int_reward_func", args={"too_long": {"scale": 2}}, functions={"too_long": too_long})
    assert registry.penalties(rewards) == {"too_long"}


@pytest.mark.parametrize("key", ["my_rewards.my_reward", "my_reward"])
def test_a_reward_of_ones_own_takes_parameters_and_keeps_its_name(key):
    rewards = chosen("int_reward_func", "my_rewards.my_reward", args={key: {"scale": 2}})
    assert rewards["my_reward"](completions=["abc"]) == [6.0]
    assert chosen("my_rewards.longer", args={"Longer": {"than": 0}})["Longer"](completions=["ab"]) == [1.0]
    assert chosen("my_rewards.my_reward", follow={"scale": 4})["my_reward"](completions=["ab"]) == [8]
    assert chosen("my_rewards.part", args={"my_reward": {"scale": 3}})["my_reward"](completions=["ab"]) == [6]
    assert chosen("my_rewards.part")["my_reward"](completions=["ab"]) == [4.0]
    assert all(name == get_callable_name(reward) for name, reward in rewards.items())


TWICE = ["my_rewards.my_reward", "my_rewards.other_name"]
LENGTH = ["length_reward_func"]
REPETITION = "get_repetition_penalty_reward"
MISTAKES = [  # the rewards, their parameters, and what the error names
    (["corectness_reward_func"], {}, "correctness_reward_func"),
    (
        ["my_reward"],
        {},
        "nor a function of the script; if it is in a file of yours, use my_file.my_reward with --allow",
    ),
    (["style"], {}, "did you mean style_reward_func"),
    (["nowhere.reward"], {}, "nowhere.py"),
    (["my_rewards.my_rewrd"], {}, "my_reward"),
    (["broken.f"], {}, "ZeroDivisionError"),
    (TWICE, {}, "'my_reward'"),
    (LENGTH, {"length_reward_func": {"lo": 3}}, "'lo'"),
    (LENGTH, {"length_reward_func": 3}, "reward_args: length_reward_func"),
    (["int_reward_func"], {"length_reward_func": {}}, "'length_reward_func'"),
    ([REPETITION], {REPETITION: {"max_penalty": 1.0}}, "max_penalty"),
]


@pytest.mark.parametrize(("names", "args", "named"), MISTAKES)
def test_a_mistake_names_what_is_wrong(names, args, named):
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(UserError, match=named):
        chosen(*names, args=args)


def at_will(completions, *, level=1, answer=None, question="", **kwargs):
    return [1.0] * len(completions)


def needs_level(completions, level, *, source, template="x", **kwargs):
    return [1.0] * len(completions)


AT_WILL, NEEDS = {"at_will": at_will}, {"needs_level": needs_level}
REPLACED = [  # the rewards, their parameters, what follows the run, the data's columns: the one that is in the way
    ("length_reward_func", {}, {}, ["low"], "low"),
    ("length_reward_func", {"high": 9}, {}, ["high"], "high"),
    ("soft_format_reward_func", {}, {"template": THINK_FORMAT}, ["template"], "template"),
    ("my_rewards.part", {}, {}, ["scale"], "scale"),
    ("my_rewards.longer", {}, {}, ["than"], "than"),
    ("my_rewards.my_reward", {}, {}, ["kwargs", "completions", "low"], ""),
    ("at_will", {}, {}, ["level"], "level"),
    ("at_will", {"answer": "9"}, {}, [], "answer"),
    ("needs_level", {}, {}, ["level", "source"], ""),
    ("needs_level", {}, {"source": "run"}, ["source"], "source"),
]


@pytest.mark.parametrize(("name", "args", "follow", "columns", "inway"), REPLACED)
def test_a_column_never_replaces_a_parameter(name, args, follow, columns, inway):
    rewards = chosen(name, args={name: args} if args else {}, follow=follow, functions=AT_WILL | NEEDS)
    columns = {"question", "prompt", "answer", *columns}
    if not inway:
        return registry.refuse_columns_like_parameters(rewards, columns)
    with pytest.raises(UserError, match=f"column '{inway}' .*parameter '{inway}' of {next(iter(rewards))}; rename"):
        registry.refuse_columns_like_parameters(rewards, columns)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_no_column_replaces_a_parameter_of_a_shipped_reward(name):
    rewards = chosen(name, follow=registry.parameters_of_run(Task(XML), 64))
    for parameter in registry.parameters(shipped()[name]):
        with pytest.raises(UserError, match=f"column '{parameter}' .*rename the column by a `prepare`"):
            registry.refuse_columns_like_parameters(rewards, {"question", "answer", parameter})


def test_what_needs_gold_answers_is_found_by_signature():
    names = ["correctness_reward_func", "int_reward_func", "my_rewards.with_gold", "my_rewards.gold_at_will"]
    script = SimpleNamespace(eval_num_samples=2)
    config, rewards = SimpleNamespace(script=script), chosen(*names, "judge_reward_func", follow={"task": Task(XML)})
    needed = ["correctness_reward_func", "with_gold", "judge_reward_func", "eval_num_samples"]
    assert needing_gold(config, rewards, Task(XML)) == needed
    judged = Task(XML, judge=lambda text, row: True)
    assert needing_gold(config, rewards, judged) == needed[:2]


def test_a_function_of_the_scripts_replaces_the_one_of_its_name():
    def int_reward_func(completions, *, template="x", **kwargs):
        return [0.75] * len(completions)

    _, functions = functions_to_names({"reward_funcs": [int_reward_func]})
    assert chosen("int_reward_func", functions=functions["reward_funcs"])["int_reward_func"](completions=["a"]) == [
        0.75
    ]
    assert chosen("int_reward_func")["int_reward_func"](completions=["a"]) == [0.0]


def test_a_parameter_that_the_user_has_bound_stays():
    bound = functools.partial(REWARD_FUNCS["correctness_reward_func"], extract=str.upper)
    follow = registry.parameters_of_run(Task(XML), 9)
    (reward,) = chosen("mine", follow=follow, functions={"mine": bound}).values()
    assert reward(["a"], answer=["A"]) == [2.0]
    (reward,) = chosen(
        "mine", args={"mine": {"extract": str.lower}}, follow=follow, functions={"mine": bound}
    ).values()
    assert reward(["A"], answer=["a"]) == [2.0]


def test_what_is_no_function_of_completions_is_one_line():
    with pytest.raises(UserError, match="reward_funcs: 'max' has no signature"):
        chosen("max", functions={"max": max})
