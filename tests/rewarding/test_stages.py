"""Settings → stages, and one readable line for every mistake."""

import json

import pytest
from helpers_runs import ROOT

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.rewarding import stages

FORMAT = {"name": "format", "reward_funcs": ["xmlcount_reward_func", "int_reward_func"], "max_steps": 40}
ANSWERS = {
    "name": "answers",
    "reward_funcs": ["correctness_reward_func", "int_reward_func"],
    "reward_weights": [1, 0.5],
    "max_steps": 80,
}
SETTINGS = {"reward_funcs": ["any"], "reward_weights": None, "max_steps": -1}
CPU = ["--use_cpu", "true", "--report_to", "none"]


def read(*asked, given=(), **settings):
    return stages.read({**SETTINGS, "stages": list(asked), **settings}, set(given))


def spans(found):
    return [(stage.first_step, stage.last_step) for stage in found]


def test_stages_have_their_own_rewards_and_weights():
    found = read(FORMAT, ANSWERS)
    assert spans(found) == [(1, 40), (41, 120)]
    assert found[0].weights == {"xmlcount_reward_func": 1.0, "int_reward_func": 1.0}
    assert found[1].weights == {"correctness_reward_func": 1.0, "int_reward_func": 0.5}
    assert found[1].describe() == "answers: steps 41-120, correctness, int × 0.5"
    assert [stages.at(found, step) for step in (1, 40, 41, 120, 121)] == [0, 0, 1, 1, 1]


def test_without_stages_nothing_changes():
    assert stages.read({**SETTINGS, "stages": None}, {"reward_funcs"}) == []
    assert stages.whole_run([], -1) == {}


def test_max_steps_ends_the_run_wherever_its_stages_are():
    found = read(FORMAT, ANSWERS)
    assert [stages.whole_run(found, given)["max_steps"] for given in (-1, 4, 500)] == [120, 4, 500]


@pytest.mark.parametrize(
    ("asked", "extra", "expected"),
    [
        ([], {}, ["stages: the list is empty", "max_steps"]),
        (["format"], {}, ["stages: stage 1 is 'format'", "mapping"]),
        ([{**FORMAT, "steps": 4}], {}, ["stage 1 is {", "name, reward_funcs"]),
        ([{**FORMAT, "max_steps": None}], {}, ["stage 1 (format): max_steps: None"]),
        ([{**FORMAT, "max_steps": 0}], {}, ["max_steps: 0"]),
        ([{**FORMAT, "reward_funcs": []}], {}, ["reward_funcs: []", "one or more"]),
        ([{**FORMAT, "reward_funcs": "int_reward_func"}], {}, ["reward_funcs: 'int_reward_func'"]),
        ([{**FORMAT, "reward_weights": [1.0]}], {}, ["reward_weights: [1.0] is not a list of 2"]),
        ([{**FORMAT, "reward_funcs": [1]}], {}, ["reward_funcs: [1]"]),
        ([{**FORMAT, "reward_funcs": ["int_reward_func"] * 2}], {}, ["has a reward twice"]),
        *(
            ([{**FORMAT, "reward_weights": weights}], {}, [f"reward_weights: {weights} are not finite"])
            for weights in (["x", 1], [float("nan"), 1], [10**400, 1], [0, 0])
        ),
        ([FORMAT], {"given": ["reward_funcs"]}, ["reward_funcs:", "combined with stages"]),
        ([FORMAT], {"reward_weights": [1.0]}, ["reward_weights: [1.0]"]),
    ],
)
def test_mistakes_name_the_stage_and_the_key(asked, extra, expected):
    with pytest.raises(UserError) as error:
        read(*asked, **extra)
    assert all(part in str(error.value) for part in expected), error.value


def test_a_recipe_and_the_command_line_give_stages_alike(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"stages": [FORMAT, ANSWERS]}))  # JSON is YAML
    first = configure(train_grpo.HYPERPARAMETERS, ["--config", str(recipe), *CPU])
    second = configure(train_grpo.HYPERPARAMETERS, ["--stages", json.dumps(FORMAT), json.dumps(ANSWERS), *CPU])
    assert first.stages == second.stages and spans(first.stages) == [(1, 40), (41, 120)]
    assert first.script.stages == second.script.stages == [FORMAT, ANSWERS]
    assert first.training.max_steps == 120 and first.training.reward_weights == [1.0, 1.0, 0.0]
    assert first.script.reward_funcs == ["xmlcount_reward_func", "int_reward_func", "correctness_reward_func"]
    assert first.changed["stages"] == {"inline": None, "run": [FORMAT, ANSWERS]}
    inline = configure({**train_grpo.HYPERPARAMETERS, "stages": [FORMAT, ANSWERS]}, CPU)
    assert inline.stages == first.stages and "stages" not in inline.changed


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--stages", "{format"], ["stages: invalid JSON value: '{format'"]),
        (["--adaptive_rewards", "int"], ["adaptive_rewards: 'int'", "int_reward_func"]),
        (["--adaptive_rewards", "style_reward_func", "--reward_funcs", "style_reward_func"], ["never above 0"]),
        (["--adaptive_bounds", "2"], ["adaptive_bounds: [2.0]", "0.25 4"]),
        (["--adaptive_bounds", "2", "4"], ["adaptive_bounds: [2.0, 4.0]"]),
        (["--adaptive_bounds", "0", "4"], ["adaptive_bounds: [0.0, 4.0]"]),
    ],
)
def test_mistakes_on_the_command_line(flags, expected):
    with pytest.raises(UserError) as error:
        configure(train_grpo.HYPERPARAMETERS, [*flags, *CPU])
    assert all(part in str(error.value) for part in expected), error.value


def test_the_shipped_recipe_teaches_the_format_alone_first():
    argv = ["--config", str(ROOT / "recipes/two_stage.yaml"), *CPU]
    config = configure(train_grpo.HYPERPARAMETERS, argv)
    assert [(stage.name, stage.last_step) for stage in config.stages] == [("format", 100), ("correctness", 400)]
    assert "correctness_reward_func" not in config.stages[0].reward_funcs
    assert config.stages[1].weights["correctness_reward_func"] == 1.0 and config.training.max_steps == 400
    short = configure(train_grpo.HYPERPARAMETERS, [*argv, "--max_steps", "4"])
    assert short.stages == config.stages and short.training.max_steps == 4
