"""Settings → stages, and one readable line for every mistake."""

import itertools
import json

import pytest
from helpers_runs import ROOT, examples
from hypothesis import given
from hypothesis import strategies as st

import train_grpo
from grpo.config.resolve import resolve
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


def read(*asked, given=(), unit=1, **settings):
    return stages.read({**SETTINGS, "stages": list(asked), **settings}, set(given), unit)


def spans(found):
    return [(stage.first_step, stage.last_step) for stage in found]


def test_stages_have_their_own_rewards_and_weights():
    found, notes = read(FORMAT, ANSWERS)
    assert notes == [] and spans(found) == [(1, 40), (41, 120)]
    assert found[0].weights == {"xmlcount_reward_func": 1.0, "int_reward_func": 1.0}
    assert found[1].weights == {"correctness_reward_func": 1.0, "int_reward_func": 0.5}
    assert found[1].describe() == "answers: steps 41-120, correctness, int × 0.5"
    assert [stages.at(found, step) for step in (1, 40, 41, 120, 121)] == [0, 0, 1, 1, 1]


def test_without_stages_nothing_changes():
    assert stages.read({**SETTINGS, "stages": None}, {"reward_funcs"}, 1) == ([], [])
    assert stages.whole_run([]) == {}


@pytest.mark.parametrize(
    ("steps", "total", "unit", "expected"),
    [
        ([40, 80], -1, 1, [(1, 40), (41, 120)]),
        ([1, 300], 4, 1, [(1, 1), (2, 4)]),  # each at least one
        ([41, 80], -1, 4, [(1, 40), (41, 121)]),  # a rollout serves four steps; the last may be cut off
        ([1, 1], 5, 4, [(1, 4), (5, 5)]),
    ],
)
def test_max_steps_and_whole_rollouts_move_the_boundaries(steps, total, unit, expected):
    asked = [{**FORMAT, "name": str(index), "max_steps": count} for index, count in enumerate(steps)]
    found, notes = read(*asked, unit=unit, max_steps=total)
    assert spans(found) == expected
    moved = [last - first + 1 for first, last in expected] != steps
    assert len(notes) == moved and all(note.startswith("note: the stages take ") for note in notes)


def test_the_note_says_what_the_stages_take_and_why():
    assert read(FORMAT, ANSWERS, max_steps=6)[1] == [
        "note: the stages take format 2, answers 4 steps, not 40, 80, since max_steps is 6 and a rollout serves 1"
    ]


@pytest.mark.parametrize(
    ("asked", "extra", "expected"),
    [
        ([], {}, ["stages: the list is empty", "max_steps"]),
        (["format"], {}, ["stages: stage 1 is 'format'", "mapping"]),
        ([{**FORMAT, "steps": 4}], {}, ["stage 1 is {", "name, reward_funcs"]),
        ([FORMAT, {**ANSWERS, "name": " "}], {}, ["stages: stage 2: name: ' '"]),
        ([{**FORMAT, "max_steps": None}], {}, ["stage 1 (format): max_steps: None"]),
        ([{**FORMAT, "max_steps": 0}], {}, ["max_steps: 0"]),
        ([{**FORMAT, "max_steps": True}], {}, ["max_steps: True"]),
        ([{**FORMAT, "reward_funcs": []}], {}, ["reward_funcs: []", "one or more"]),
        ([{**FORMAT, "reward_funcs": "int_reward_func"}], {}, ["reward_funcs: 'int_reward_func'"]),
        ([{**FORMAT, "reward_funcs": ["a", "a"]}], {}, ["reward_funcs: ['a', 'a'] lists a reward twice"]),
        ([{**FORMAT, "reward_weights": [1.0]}], {}, ["reward_weights: [1.0] is not a list of 2"]),
        ([{**FORMAT, "reward_weights": [1, float("nan")]}], {}, ["reward_weights: [1, nan]", "finite"]),
        ([{**FORMAT, "reward_weights": [0, 0.0]}], {}, ["reward_weights: [0, 0.0]", "not all 0"]),
        ([FORMAT, FORMAT], {}, ["stages: the names format, format"]),
        ([FORMAT, ANSWERS], {"max_steps": 1}, ["max_steps: 1 is too few for stages of 40, 80 steps"]),
        ([FORMAT, ANSWERS], {"max_steps": 4, "unit": 4}, ["max_steps: 4 is too few", "(4 steps)"]),
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
    first = resolve(train_grpo.HYPERPARAMETERS, ["--config", str(recipe), *CPU])
    second = resolve(train_grpo.HYPERPARAMETERS, ["--stages", json.dumps(FORMAT), json.dumps(ANSWERS), *CPU])
    assert first.stages == second.stages and spans(first.stages) == [(1, 40), (41, 120)]
    assert (
        resolve(train_grpo.HYPERPARAMETERS, ["--stages", json.dumps([FORMAT, ANSWERS]), *CPU]).stages == first.stages
    )
    assert first.script.stages == second.script.stages == [FORMAT, ANSWERS]
    assert first.training.max_steps == 120 and first.training.reward_weights == [1.0, 1.0, 0.0]
    assert first.script.reward_funcs == ["xmlcount_reward_func", "int_reward_func", "correctness_reward_func"]
    assert first.changed["stages"] == {"inline": None, "run": [FORMAT, ANSWERS]}
    inline = resolve({**train_grpo.HYPERPARAMETERS, "stages": [FORMAT, ANSWERS]}, CPU)
    assert inline.stages == first.stages and "stages" not in inline.changed


def test_stages_change_where_a_rollout_ends():
    flags = ["--stages", json.dumps({**FORMAT, "max_steps": 41}), json.dumps(ANSWERS), *CPU]
    found = resolve(train_grpo.HYPERPARAMETERS, [*flags, "--steps_per_generation", "16"])
    assert found.geometry.steps_per_rollout == 4 and spans(found.stages) == [(1, 40), (41, 121)]
    assert any("a rollout serves 4" in note for note in found.notes)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--stages", "{format"], ["stages: '{format' is not JSON", '"max_steps"']),
        (["--adaptive_rewards", "int"], ["adaptive_rewards: 'int'", "int_reward_func"]),
        (["--adaptive_rewards", "style_reward_func", "--reward_funcs", "style_reward_func"], ["never above 0"]),
        (["--adaptive_bounds", "2"], ["adaptive_bounds: [2.0]", "0.25 4"]),
        (["--adaptive_bounds", "2", "4"], ["adaptive_bounds: [2.0, 4.0]"]),
        (["--adaptive_bounds", "0", "4"], ["adaptive_bounds: 0", "above 0"]),
        (["--adaptive_threshold", "nan"], ["adaptive_threshold: nan", "finite"]),
    ],
)
def test_mistakes_on_the_command_line(flags, expected):
    with pytest.raises(UserError) as error:
        resolve(train_grpo.HYPERPARAMETERS, [*flags, *CPU])
    assert all(part in str(error.value) for part in expected), error.value


def test_the_shipped_recipe_teaches_the_format_alone_first():
    argv = ["--config", str(ROOT / "recipes/two_stage.yaml"), *CPU]
    config = resolve(train_grpo.HYPERPARAMETERS, argv)
    assert [(stage.name, stage.last_step) for stage in config.stages] == [("format", 100), ("correctness", 400)]
    assert "correctness_reward_func" not in config.stages[0].reward_funcs
    assert config.stages[1].weights["correctness_reward_func"] == 1.0 and config.training.max_steps == 400
    short = resolve(train_grpo.HYPERPARAMETERS, [*argv, "--max_steps", "4"])
    assert spans(short.stages) == [(1, 1), (2, 4)] and short.training.max_steps == 4


@examples(100)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 7), st.one_of(st.none(), st.integers(1, 200))
)
def test_stages_fill_the_run_in_proportion_at_whole_rollouts(steps, unit, total):
    asked = [{**FORMAT, "name": str(place), "max_steps": count} for place, count in enumerate(steps)]
    try:
        found, notes = read(*asked, unit=unit, max_steps=total or -1)
    except UserError:
        assert (total or sum(steps)) < sum(steps) * (unit + 1)  # where each step may be a rollout, all stages fit
        return
    total = total or sum(steps)
    taken = [stage.last_step - stage.first_step + 1 for stage in found]
    assert sum(taken) == total == found[-1].last_step and min(taken) >= 1 and found[0].first_step == 1
    assert all(after.first_step == before.last_step + 1 for before, after in itertools.pairwise(found))
    assert all(stage.last_step % unit == 0 for stage in found[:-1]) and bool(notes) == (taken != steps)
    for stage, done in zip(found[:-1], itertools.accumulate(steps), strict=False):
        assert stage.last_step == unit or abs(stage.last_step - total * done / sum(steps)) <= unit / 2 + 1e-9
    for step in range(1, total + 1):
        assert found[stages.at(found, step)].first_step <= step <= found[stages.at(found, step)].last_step
