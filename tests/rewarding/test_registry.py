"""grpo/rewarding/registry.py: names and parameters become functions, or one sentence that says what is wrong."""

import math
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.core.errors import UserError
from grpo.rewarding import probe, registry
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import choose, needing_gold, parameters, refuse_collisions, refuse_missing
from rewards import GIST_REWARDS, REWARD_FUNCS, THINK_FORMAT

OWN = """
import functools
class Longer:
    def __call__(self, completions, *, than: int = 3, **kwargs):
        return [float(len(text) > than) for text in completions]

def my_reward(completions, *, scale: float = 1.0, **kwargs):
    return [scale * len(text) for text in completions]

def strict(completions, *, needed, **kwargs):
    return [needed] * len(completions)

def plain(completions, answer): return [float(text == gold) for text, gold in zip(completions, answer)]
def by_keyword(*, completions, answer, scale=1.0): return [scale] * len(completions)
async def later(completions, level=None): return [float(bool(level))] * len(completions)
def odd(texts, completions, prompt): return []
class Plain:
    def __call__(self, completions): return [1.0] * len(completions)

plain_part, plain_object = functools.partial(by_keyword, scale=2.0), Plain()
longer, other_name = Longer(), my_reward
part = functools.partial(my_reward, scale=2.0)
"""


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """The user's files in the working directory."""
    Path("my_rewards.py").write_text(OWN)
    Path("a_package").mkdir()
    Path("a_package/inner.py").write_text("def deep(completions, **kwargs): return [1.0] * len(completions)")
    Path("a_package/__init__.py").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("my_rewards", "a_package", "a_package.inner"):
        sys.modules.pop(name, None)


def chosen(*names, weights=None, args=None, run=(), allow=True):
    return choose(list(names), weights, args, dict(run), allow)


def test_the_five_are_themselves_in_order():
    rewards = chosen(*GIST_REWARDS, weights=[1.0] * 5, run={"max_completion_length": 9})
    assert list(rewards) == GIST_REWARDS and all(rewards[name] is REWARD_FUNCS[name] for name in GIST_REWARDS)


def test_parameters_come_from_recipe_then_run_then_signature():
    run = {"template": THINK_FORMAT, "max_completion_length": 100}
    names = ["strict_format_reward_func", "get_soft_overlong_punishment", "length_reward_func", "int_reward_func"]
    names.append("get_repetition_penalty_reward")
    args = {"get_soft_overlong_punishment": {"soft_punish_cache": 50}, "length_reward_func": {"low": 0, "high": 10}}
    args |= {"get_repetition_penalty_reward": {"max_penalty": -2.0}}
    rewards = chosen(*names, args=args, run=run)
    given = {"completions": [THINK_FORMAT], "completion_ids": [[1] * 75], "answer": ["7"]}
    assert [reward(**given) for reward in rewards.values()] == [
        [0.5],
        [-0.5],
        [0.35],
        [0.0],
        [pytest.approx(-2 * 72 / 73)],
    ]
    assert list(rewards)[1] == "soft_overlong_punishment_reward"  # as TRL logs it
    args["get_soft_overlong_punishment"]["max_completion_len"] = 75
    assert chosen(*names, args=args, run=run)["soft_overlong_punishment_reward"](**given) == [-1.0]
    usual = chosen("get_soft_overlong_punishment", run=run)["soft_overlong_punishment_reward"]  # a fifth of the limit
    assert usual(completion_ids=[[1] * 80, [1] * 90, [1] * 100]) == [0.0, -0.5, -1.0]


def test_a_chosen_reward_keeps_its_name_and_can_be_pickled():
    from trl.trainer.utils import get_callable_name

    rewards = chosen(
        "length_reward_func", "my_rewards.my_reward", "my_rewards.longer", args={"length_reward_func": {"low": 1}}
    )
    assert list(rewards) == ["length_reward_func", "my_reward", "Longer"]
    for name, reward in rewards.items():
        copy = pickle.loads(pickle.dumps(reward))
        assert name == reward.__name__ == copy.__name__ == get_callable_name(reward) == get_callable_name(copy)
        assert copy(completions=["7"], completion_ids=[[1]]) == reward(completions=["7"], completion_ids=[[1]])


def test_the_examples_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (loaded,) = chosen("examples.countdown.value").values()
    assert loaded(expression="2 * (3 + 7)") == 20


@pytest.mark.parametrize("key", ["my_rewards.my_reward", "my_reward"])
def test_a_reward_of_ones_own_takes_parameters_too(key):
    rewards = chosen("int_reward_func", "my_rewards.my_reward", args={key: {"scale": 2}})
    assert rewards["my_reward"](completions=["abc"]) == [6.0]
    assert chosen("my_rewards.longer", args={"Longer": {"than": 0}})["Longer"](completions=["ab"]) == [1.0]
    assert chosen("my_rewards.strict", run={"needed": 4})["strict"](completions=["ab"]) == [4]
    assert chosen("my_rewards.part", args={"my_reward": {"scale": 3}})["my_reward"](completions=["ab"]) == [6]
    assert chosen("my_rewards.part")["my_reward"](completions=["ab"]) == [4.0]
    assert chosen("a_package.inner.deep")["deep"](completions=["ab"]) == [1.0]


MISTAKES = {
    "near": (dict(names=["corectness_reward_func"]), "did you mean correctness_reward_func?"),
    "weights": (dict(names=GIST_REWARDS, weights=[1]), "1 weights for 5 reward_funcs; set one for each"),
    "untrusted": (dict(allow=False), "'my_rewards.my_reward' runs the code of my_rewards.py; if you trust it, use "),
    "no file": (dict(names=["nowhere.reward"]), "importing 'nowhere' from "),
    "same name": (
        dict(names=["my_rewards.my_reward", "my_rewards.other_name"]),
        "two rewards are called 'my_reward'; drop or rename one",
    ),
    "parameter": (
        dict(names=["length_reward_func"], args={"length_reward_func": {"lo": 3}}),
        "length_reward_func has no parameter 'lo'; it has low, high, margin",
    ),
    "parameter of TRL's": (
        dict(names=["get_repetition_penalty_reward"], args={"get_repetition_penalty_reward": {"max_penalty": 1.0}}),
        "reward_args: get_repetition_penalty_reward: max_penalty 1.0 should not be positive",
    ),
    "no n-grams": (
        dict(names=["get_repetition_penalty_reward"], args={"get_repetition_penalty_reward": {"ngram_size": 0}}),
        "reward_args: get_repetition_penalty_reward: ",
    ),
    "NaN": (
        dict(
            names=["get_repetition_penalty_reward"],
            args={"get_repetition_penalty_reward": {"max_penalty": math.nan}},
        ),
        "reward_args: get_repetition_penalty_reward: max_penalty is nan; use a value such as -1.0",
    ),
    "TRL's twice": (dict(names=["get_repetition_penalty_reward"] * 2), "two rewards are called 'repetition_pen"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_one_sentence(kind):
    call, message = MISTAKES[kind]
    given = {"names": ["my_rewards.my_reward"], **call}
    with pytest.raises(UserError) as error:
        chosen(*given.pop("names"), **given)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("reward", "parameter", "value", "message"),
    [
        ("length", "low", "3", "low is '3'; use a value such as 50"),
        ("style", "phrases", "certainly", "use a value such as ("),
        ("soft_format", "template", "no places", "needs {reasoning}, one or more tags"),
    ],
)
def test_values_that_a_parameter_cannot_take(reward, parameter, value, message):
    name = f"{reward}_reward_func"
    with pytest.raises(UserError) as error:
        chosen(name, args={name: {parameter: value}})
    assert message in str(error.value) and str(error.value).startswith(f"reward_args: {name}: ")


def test_columns_that_would_replace_a_parameter_are_refused():
    rewards = chosen("length_reward_func", "int_reward_func", args={"length_reward_func": {"low": 3}})
    assert list(parameters(rewards["length_reward_func"])) == ["low", "high", "margin"]
    refuse_collisions(rewards, ["prompt", "answer", "completion_ids", "level"])
    with pytest.raises(UserError, match="the dataset's column 'low' would replace the parameter 'low' of length_rew"):
        refuse_collisions(rewards, ["answer", "low"])


GIVEN = {"completions": ["7", "8"], "answer": ["7", "7"], "level": [1, 2], "prompts": ["", ""], "trainer_state": None}


@pytest.mark.parametrize(
    ("attribute", "name", "args", "values"),
    [
        ("plain", "plain", {}, [1.0, 0.0]),
        ("by_keyword", "by_keyword", {"by_keyword": {"scale": 3}}, [3, 3]),
        ("plain_part", "by_keyword", {}, [2.0, 2.0]),
        ("plain_object", "Plain", {}, [1.0, 1.0]),
        ("later", "later", {}, [1.0, 1.0]),
    ],
)
def test_rewards_without_kwargs_get_what_they_ask_for(attribute, name, args, values):
    from trl.trainer.utils import get_callable_name, is_async_callable

    (reward,) = chosen(f"my_rewards.{attribute}", args=args).values()
    assert reward.__name__ == get_callable_name(reward) == name and is_async_callable(reward) == (name == "later")
    for each in (reward, pickle.loads(pickle.dumps(reward))):
        assert probe.call(each, GIVEN) == values


def test_what_a_reward_cannot_get_is_named_with_what_there_is():
    refuse_missing(chosen("my_rewards.plain", "my_rewards.later", "my_rewards.strict", run={"needed": 1}), ["answer"])
    expected = "odd asks for texts, prompt, .* of the data question, level: rename it"
    with pytest.raises(UserError, match=expected):
        refuse_missing(chosen("my_rewards.odd"), ["question", "prompt", "level"])


def test_what_needs_gold_answers_is_found_by_signature():
    names = ["correctness_reward_func", "int_reward_func", "my_rewards.plain", "my_rewards.later"]
    script = SimpleNamespace(eval_num_samples=2, eval_only=False)
    config, rewards = SimpleNamespace(script=script), chosen(*names, "judge_reward_func", run={"judge": Judge()})
    needed = ["correctness_reward_func", "plain", "judge_reward_func", "eval_num_samples"]
    assert needing_gold(config, rewards, Judge()) == needed
    own = Judge(function=lambda text, row: True)
    assert needing_gold(config, rewards, own) == needed[:2]
    script.eval_only = True  # where a judge of one's own is all that is asked
    assert needing_gold(config, rewards, own) == [] and needing_gold(config, rewards, Judge()) == needed


def mine(completions, **kwargs):
    return [0.5] * len(completions)


def test_functions_become_names_wherever_hyperparameters_list_rewards():
    found = registry.named(
        {"reward_funcs": mine, "adaptive_rewards": [mine], "stages": [{"name": "a", "reward_funcs": [mine]}], "x": 1}
    )
    assert found == {
        "reward_funcs": ["mine"], "adaptive_rewards": ["mine"], "stages": [{"name": "a", "reward_funcs": ["mine"]}],
        "x": 1,
    }  # fmt: skip
    assert choose(["mine"], None, None, {}, False) == {"mine": mine}
    assert registry.named({"reward_funcs": "int_reward_func"})["reward_funcs"] == ["int_reward_func"]
    with pytest.raises(UserError, match="3 is neither a function nor the name of one"):
        registry.named({"reward_funcs": [3]})


def test_a_function_of_another_run_is_forgotten():
    """As in a notebook, which runs one after the other."""

    def int_reward_func(completions, *, template="x"):  # takes no answer, as the built-in does
        return [0.75] * len(completions)

    registry.named({"reward_funcs": [int_reward_func]})
    (chosen,) = choose(["int_reward_func"], None, None, {}, False).values()
    assert chosen(completions=["a"]) == [0.75]
    registry.named({"reward_funcs": [REWARD_FUNCS["int_reward_func"]]})
    (chosen,) = choose(["int_reward_func"], None, None, {}, False).values()
    assert chosen(completions=["a"]) == [0.0]
