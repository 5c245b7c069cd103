"""Each reward has the weight of its stage, also after a resume."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers_resume import without_clock
from helpers_runs import LEARNS
from transformers import TrainerState

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.core.settings import Stage
from grpo.rewarding.stages import StageWeights, read_stages, settings_of

# --- The callback, on a stand-in for the trainer


class Trainer:
    """The part of a RunTrainer that the callback knows, and its loop: rollouts, each for some optimizer steps."""

    def __init__(self, steps_per_rollout):
        self.steps_per_rollout, self.steps = steps_per_rollout, 0
        self.reward_func_names, self.reward_weights = ["first", "second"], torch.ones(2)
        self.training_metrics = {}

    @property
    def at_boundary(self):
        return self.steps % self.steps_per_rollout == 0

    def weights_of_steps(self, callback, count):
        """The weights of each step that begins with a rollout, None for the others."""
        state, weights = TrainerState(is_world_process_zero=True), []
        for self.steps in range(count):
            state.global_step = self.steps
            callback.on_step_begin(None, state, None)
            weights.append(self.reward_weights.tolist() if self.at_boundary else None)
        return weights


STAGES = [Stage("one", 1, 3, ["first"], [2.0]), Stage("two", 4, 6, ["second", "first"], [1.0, 0.5])]


def test_a_stage_sets_its_weights_before_its_first_rollout():
    trainer = Trainer(steps_per_rollout=1)
    callback = StageWeights(trainer, ["first", "second"], STAGES)
    assert trainer.weights_of_steps(callback, 7) == [[2.0, 0.0]] * 3 + [[0.5, 1.0]] * 4
    assert trainer.training_metrics == {"stage": [2], "reward_weights/first": [0.5], "reward_weights/second": [1.0]}


def test_weights_do_not_change_amid_a_rollout():
    trainer = Trainer(steps_per_rollout=2)
    callback = StageWeights(trainer, ["first", "second"], STAGES)
    assert trainer.weights_of_steps(callback, 4) == [[2.0, 0.0], None] * 2
    assert trainer.training_metrics["stage"] == [1]
    assert trainer.weights_of_steps(callback, 6)[4] == [0.5, 1.0]


# --- Settings

FIRST = {"name": "format", "reward_funcs": ["xmlcount_reward_func", "int_reward_func"], "max_steps": 40}
SECOND = {"name": "answers", "reward_funcs": ["correctness_reward_func", "int_reward_func"], "max_steps": 80}
SECOND |= {"reward_weights": [1, 0.5]}
CPU = ["--use_cpu", "true", "--report_to", "none"]


def test_stages_follow_each_other_with_their_own_weights():
    stages = read_stages([FIRST, SECOND])
    assert [(stage.first_step, stage.last_step) for stage in stages] == [(1, 40), (41, 120)]
    assert stages[0].weights == {"xmlcount_reward_func": 1.0, "int_reward_func": 1.0}
    assert stages[1].weights == {"correctness_reward_func": 1.0, "int_reward_func": 0.5}
    assert [settings_of(stages, given)["max_steps"] for given in (-1, 4, 500)] == [120, 4, 500]


@pytest.mark.parametrize(
    "changed", [{"steps": 4}, {"max_steps": 0}, {"reward_funcs": "int_reward_func"}, {"reward_weights": ["x", 1]}]
)
def test_a_stage_that_is_not_complete_is_named(changed):
    with pytest.raises(UserError, match="stages: stage 2 "):
        read_stages([FIRST, {**FIRST, **changed}])
    with pytest.raises(UserError, match="stages: stage 1 is 'format'"):
        read_stages(["format"])


def test_a_recipe_the_script_and_the_command_line_list_stages_alike(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"stages": [FIRST, SECOND]}))  # JSON is YAML
    first = configure(train_grpo.HYPERPARAMETERS, ["--config", str(recipe), *CPU])
    second = configure(train_grpo.HYPERPARAMETERS, ["--stages", json.dumps(FIRST), json.dumps(SECOND), *CPU])
    inline = configure({**train_grpo.HYPERPARAMETERS, "stages": [FIRST, SECOND]}, CPU)
    assert first.stages == second.stages == inline.stages == read_stages([FIRST, SECOND])
    assert first.training.max_steps == 120 and first.training.reward_weights == [1.0, 1.0, 0.0]
    assert first.script.reward_funcs == ["xmlcount_reward_func", "int_reward_func", "correctness_reward_func"]
    assert inline.origin["stages"] == inline.origin["max_steps"] == "script"


@pytest.mark.parametrize("flags", [["--stages", "{format"], ["--reward_weights", "1", "--stages", json.dumps(FIRST)]])
def test_a_mistake_names_its_setting(flags):
    with pytest.raises(UserError, match=flags[0].removeprefix("--")):
        configure(train_grpo.HYPERPARAMETERS, [*flags, *CPU])


# --- A real run

FORMAT = {"name": "format", "reward_funcs": ["xmlcount_reward_func", "soft_format_reward_func"], "max_steps": 1}
ANSWERS = {
    "name": "answers",
    "reward_funcs": ["correctness_reward_func", "soft_format_reward_func"],
    "reward_weights": [1.0, 0.5],
    "max_steps": 2,
}
SHORT = {**LEARNS, "learning_rate": "2e-4", "eval_samples": "2", "log_completions": "false", "max_steps": None}


def in_stages(tiny_run, *stages, **overrides):
    return [*tiny_run(**{**SHORT, **overrides}), "--stages", *map(json.dumps, stages)]


def logged(run):
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: without_clock(line) for line in lines if "reward" in line}


def weights(line):
    return {key.partition("/")[2]: value for key, value in line.items() if key.startswith("reward_weights/")}


@pytest.mark.slow
def test_two_stages_and_a_resume_between_them(tiny_run):
    assert train_grpo.main(in_stages(tiny_run, FORMAT, ANSWERS, save_steps="1", save_total_limit="9")) == 0
    whole = logged("run")
    assert [whole[step]["stage"] for step in (1, 2, 3)] == [1, 2, 2]
    names = ["xmlcount_reward_func", "soft_format_reward_func", "correctness_reward_func"]
    assert all(list(weights(line)) == names for line in whole.values())
    assert list(weights(whole[1]).values()) == [1.0, 1.0, 0.0]
    for step in (2, 3):
        assert list(weights(whole[step]).values()) == [0.0, 0.5, 1.0]
    for line in whole.values():
        total = sum(weight * line[f"rewards/{name}/mean"] for name, weight in weights(line).items())
        assert line["reward"] == pytest.approx(total, abs=1e-5)
    stages = json.loads(Path("run/run.json").read_text())["stages"]
    assert [(stage["name"], stage["last_step"]) for stage in stages] == [("format", 1), ("answers", 3)]
    for step in (2, 3):
        shutil.rmtree(f"run/checkpoint-{step}")
    Path("run/metrics.jsonl").unlink()
    flags = {"resume_from_checkpoint": "auto", "save_strategy": "no"}
    assert train_grpo.main(in_stages(tiny_run, FORMAT, ANSWERS, **flags)) == 0
    assert logged("run") == {step: line for step, line in whole.items() if step > 1}
