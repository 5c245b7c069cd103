"""Each reward has the weight of its stage times its success's factor, also after a resume."""

import json
import math
import shutil
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_resume import without_clock
from helpers_runs import LEARNS
from transformers import TrainerState

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.core.settings import Stage
from grpo.rewarding.weighting import RewardWeights, adapted, read_stages, settings_of_stages

# --- The rule


@pytest.mark.parametrize(
    ("factor", "values", "threshold", "expected"),
    [
        (1.0, [0, 0, 0, 0], 0.0, 1.2),
        (1.0, [2, 2, 2, 2, 0], 0.0, 1.0),  # 0.8 is not above 0.8
        (1.0, [2] * 9 + [0], 0.0, 0.9),
        (1.0, [0.5] * 4, 0.5, 1.2),  # success is a value above the threshold
        (3.9, [0.0], 0.0, 4.0),  # within the bounds
    ],
)
def test_a_rare_reward_gains_weight_and_a_usual_one_loses_it(factor, values, threshold, expected):
    assert adapted(factor, values, threshold) == expected


# --- The callback, on a stand-in for the trainer


class Trainer:
    """The part of a GRPOTrainer that the callback knows, and its loop: micro-batches, rollouts, optimizer steps."""

    def __init__(self, accumulation=1, per_rollout=1, iterations=1, weights=(1.0, 1.0)):
        self.args = SimpleNamespace(steps_per_generation=per_rollout, gradient_accumulation_steps=accumulation)
        self.num_iterations, self._step = iterations, 0
        self.reward_func_names = ["first", "second"]
        self.reward_weights = torch.tensor(weights)
        self.last_rollout = {"rewards": {name: deque(maxlen=4) for name in self.reward_func_names}}
        self.training_metrics = defaultdict(list)
        self.rollouts = []  # the weights that each was scored with

    @property
    def at_boundary(self):
        return self._step % (self.args.steps_per_generation * self.num_iterations) == 0

    def train(self, callback, state, steps, rewards):
        callback.on_train_begin(self.args, state, None)
        for _ in range(steps):
            callback.on_step_begin(self.args, state, None)
            for _ in range(self.args.gradient_accumulation_steps):
                if self.at_boundary:
                    self.rollouts.append(self.reward_weights.tolist())
                    for name, values in rewards(len(self.rollouts)).items():
                        self.last_rollout["rewards"][name].extend(values)
                self._step += 1
            state.global_step += 1
            callback.on_step_end(self.args, state, None)


def script(names=("first", "second"), adaptive=None, threshold=0.0):
    return SimpleNamespace(reward_funcs=list(names), adaptive_rewards=adaptive, adaptive_threshold=threshold)


def started():
    return TrainerState(is_world_process_zero=True)


def wrong(rollout):
    return {"first": [0.0] * 4, "second": [math.nan, 1.0, 0.0, 1.0]}


@pytest.mark.parametrize(
    ("accumulation", "per_rollout", "iterations", "changes"),
    [(1, 1, 1, 12), (1, 2, 3, 2), (4, 2, 1, 12)],
)
def test_the_rule_applies_once_a_rollout(accumulation, per_rollout, iterations, changes):
    """Or once a step, where several rollouts belong to it."""
    trainer, state = Trainer(accumulation, per_rollout, iterations), started()
    callback = RewardWeights(trainer, script(adaptive=["first"]))
    trainer.train(callback, state, 12, wrong)
    assert state.stateful_callbacks["reward_weights"]["first"] == pytest.approx(min(1.2**changes, 4.0))
    assert all(second == 1.0 for _, second in trainer.rollouts)
    each = len(trainer.rollouts) // changes
    firsts = [first for first, _ in trainer.rollouts]
    assert firsts == pytest.approx([min(1.2 ** (n // each), 4.0) for n in range(len(trainer.rollouts))])


def test_missing_values_do_not_count():
    trainer, state = Trainer(), started()
    columns = {"first": [math.nan] * 4, "second": [math.nan, math.nan, math.nan, 1.0]}
    trainer.train(RewardWeights(trainer, script(adaptive=["all"])), state, 2, lambda rollout: columns)
    assert (
        trainer.rollouts[1] == [1.0, pytest.approx(0.9)] and "first" not in state.stateful_callbacks["reward_weights"]
    )


def test_a_reward_with_a_weight_of_0_or_below_is_not_scaled():
    trainer, state = Trainer(weights=(0.0, -1.0)), started()
    trainer.train(RewardWeights(trainer, script(adaptive=["all"])), state, 3, wrong)
    assert trainer.rollouts == [[0.0, -1.0]] * 3 and state.stateful_callbacks["reward_weights"] == {}


def test_a_stage_sets_its_weights_before_its_first_rollout():
    stages = [Stage("one", 1, 2, ["first"], [2.0]), Stage("two", 3, 6, ["second", "first"], [1.0, 0.5])]
    trainer = Trainer()
    trainer.train(RewardWeights(trainer, script(), stages), started(), 6, wrong)
    assert trainer.rollouts == [[2.0, 0.0]] * 2 + [[0.5, 1.0]] * 4
    assert trainer.training_metrics["stage"] == [2]


# --- Settings

FIRST = {"name": "format", "reward_funcs": ["xmlcount_reward_func", "int_reward_func"], "max_steps": 40}
SECOND = {"name": "answers", "reward_funcs": ["correctness_reward_func", "int_reward_func"], "max_steps": 80}
SECOND |= {"reward_weights": [1, 0.5]}
CPU = ["--use_cpu", "true", "--report_to", "none"]


def test_stages_follow_each_other_with_their_own_weights():
    found = read_stages([FIRST, SECOND])
    assert [(stage.first_step, stage.last_step) for stage in found] == [(1, 40), (41, 120)]
    assert found[0].weights == {"xmlcount_reward_func": 1.0, "int_reward_func": 1.0}
    assert found[1].weights == {"correctness_reward_func": 1.0, "int_reward_func": 0.5}
    assert [settings_of_stages(found, given)["max_steps"] for given in (-1, 4, 500)] == [120, 4, 500]


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
    judged = {**SECOND, "reward_funcs": ["judge_reward_func", "int_reward_func"]}
    adaptive = ["--adaptive_rewards", "judge_reward_func"]  # a reward that only a stage has
    assert configure({**train_grpo.HYPERPARAMETERS, "stages": [judged]}, [*adaptive, *CPU]).stages


@pytest.mark.parametrize(
    "flags",
    [
        ["--stages", "{format"],
        ["--reward_weights", "1", "--stages", json.dumps(FIRST)],
        ["--adaptive_rewards", "int"],
    ],
)
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
RISING = {**LEARNS, "learning_rate": "2e-4", "eval_samples": "2", "log_completions": "false", "max_steps": None}
RISING |= {"adaptive_rewards": "all", "adaptive_threshold": "0.5"}  # the format earns less: its weight rises


def in_stages(tiny_run, *stages, **overrides):
    return [*tiny_run(**{**RISING, **overrides}), "--stages", *map(json.dumps, stages)]


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
        off, soft, correct = weights(whole[step]).values()
        assert off == 0 and soft == pytest.approx(0.5 * 1.2 ** (step - 1)) and 0.8 <= correct <= 1.5
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
