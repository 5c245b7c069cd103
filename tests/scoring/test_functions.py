"""The user's functions are found by name: in HYPERPARAMETERS, in the script, in a file that may run."""

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.scoring import registry
from grpo.scoring.functions import function_of_file, functions_to_names

pytestmark = pytest.mark.usefixtures("own_files")


def loaded(name):
    return function_of_file(name, "reward_funcs", allowed=True)


# --- In a file


def test_files_in_folders_and_the_examples_are_known_from_any_directory():
    Path("a_package").mkdir()
    Path("a_package/inner.py").write_text("def deep(completions, **kwargs): return [1.0] * len(completions)")
    assert loaded("a_package.inner.deep")(completions=["ab"]) == [1.0]
    assert loaded("examples.countdown.value")(expression="2 * (3 + 7)") == 20


def test_a_files_path_is_a_name_too_and_its_place_is_shown():
    Path("a.folder").mkdir()
    Path("a.folder/inner.py").write_text("def deep(completions, **kwargs): return [1.0] * len(completions)")
    for name in ("a.folder/inner.deep", "./a.folder/inner.deep", f"{Path.cwd()}/a.folder/inner.deep"):
        assert loaded(name)(completions=["ab"]) == [1.0]
    for name, file in (("./none.f", "none.py"), ("a.folder/none.f", "a.folder/none.py"), ("none.f", "none.py")):
        with pytest.raises(UserError, match=f"{re.escape(str(Path.cwd() / file))} does not exist"):
            loaded(name)


def test_files_beside_the_users_shadow_no_library():
    Path("statistics.py").write_text("def f(completions, **kwargs): return [3.0]")
    before = list(sys.path), sys.modules["statistics"]
    assert loaded("statistics.f")(completions=["a"]) == [3.0]  # not the library, which is imported already
    assert sys.path[:-1] == before[0] and sys.modules["statistics"] is before[1]


def test_a_file_is_run_once_while_it_stays_as_it_is():
    """Its judge and rewards share what it loads; an edited file is another one."""

    def counted():
        return loaded("my_rewards.counted")(completions=["a"])

    assert [counted(), counted()] == [[1.0], [2.0]]
    os.utime("my_rewards.py", (1, 1))
    assert counted() == [1.0]


# --- In HYPERPARAMETERS and in the script


def mine(completions, **kwargs):
    return [0.5] * len(completions)


def test_functions_become_names_wherever_hyperparameters_have_them():
    settings, functions = functions_to_names({"reward_funcs": mine, "judge": mine, "prepare": mine, "x": 1})
    assert settings == {"reward_funcs": ["mine"], "judge": "mine", "prepare": "mine", "x": 1}
    assert functions == {key: {"mine": mine} for key in ("reward_funcs", "judge", "prepare")}
    assert functions_to_names({"reward_funcs": "int_reward_func"})[0] == {"reward_funcs": ["int_reward_func"]}


def test_a_name_is_also_that_of_a_function_that_the_script_defines():
    flags = ["--use_cpu", "true", "--report_to", "none", "--judge", "mine", "--prepare", "mine"]
    flags += ["--reward_funcs", "int_reward_func", "mine"]
    config = configure(train_grpo.HYPERPARAMETERS, flags, script_file=__file__)
    task = registry.make_task(config)
    assert task.judge is task.prepare is registry.load_rewards(config, task)["mine"] is mine
    for name, file in (("mine", train_grpo.__file__), ("shutil", __file__), ("functions_to_names", __file__)):
        script = dataclasses.replace(config.script, judge=name)  # not there, no function, imported
        other = dataclasses.replace(config, script_file=file, script=script)
        with pytest.raises(UserError, match=f"^judge: '{name}' is not a function of the script, or of a file"):
            registry.make_task(other)


def test_functions_of_different_settings_may_share_a_name():
    def check(completions, **kwargs):
        return [0.0] * len(completions)

    def of_a_row(row):
        return {"question": "?", "answer": "1"}

    of_a_row.__name__ = "check"
    given = {"reward_funcs": [check], "judge": lambda text, row: True, "prepare": lambda row: None}
    for settings in (given, given | {"judge": of_a_row, "prepare": check}):
        config = configure({**train_grpo.HYPERPARAMETERS, **settings}, ["--use_cpu", "true", "--report_to", "none"])
        task = registry.make_task(config)
        assert (task.judge, task.prepare) == (settings["judge"], settings["prepare"])
        assert list(registry.load_rewards(config, task).values()) == [check]


def test_two_rewards_of_one_name_are_a_mistake():
    functions = [lambda completions, **kwargs: [1.0], lambda completions, **kwargs: [2.0]]
    with pytest.raises(UserError, match="reward_funcs: two functions are called '<lambda>'"):
        functions_to_names({"reward_funcs": functions})
