"""What each reward weighs, by stage and by success, also after a resume and on two processes."""

import json
import math
import shutil
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace

import helpers_runs
import pytest
import torch
from helpers_commands import command
from helpers_resume import without_clock
from helpers_runs import ROOT
from transformers import TrainerState

import train_grpo
from grpo.core.settings import Stage
from grpo.rewarding.weighting import RewardWeights, adapted

# --- The rule


@pytest.mark.parametrize(
    ("factor", "values", "threshold", "expected"),
    [
        (1.0, [0, 0, 0, 0], 0.0, 1.2),
        (1.0, [2, 2, 2, 0, 0, 0, 0, 0, 0, 0], 0.0, 1.0),  # 0.3 is not below 0.3
        (1.0, [2, 2, 2, 2, 0], 0.0, 1.0),  # 0.8 is not above 0.8
        (1.0, [2] * 9 + [0], 0.0, 0.9),
        (1.0, [], 0.0, 1.0),  # no value, no news
        (1.0, [0.5] * 4, 0.5, 1.2),  # success is a value above the threshold
        (1.0, [-0.1] * 4, -0.5, 0.9),
        (3.9, [0.0], 0.0, 4.0),  # within the bounds
        (0.26, [1.0], 0.0, 0.25),
        (9.0, [], 0.0, 4.0),
    ],
)
def test_a_rare_reward_gains_weight_and_a_usual_one_loses_it(factor, values, threshold, expected):
    assert adapted(factor, values, threshold, (0.25, 4.0)) == expected


# --- The callback, on a stand-in for the trainer


class Trainer:
    """What the callback knows of a GRPOTrainer, and its loop: micro-batches, rollouts, optimizer steps."""

    def __init__(self, accumulation=1, per_rollout=1, iterations=1, weights=(1.0, 1.0)):
        self.args = SimpleNamespace(steps_per_generation=per_rollout, gradient_accumulation_steps=accumulation)
        self.num_iterations, self._step = iterations, 0
        self.reward_func_names = ["first", "second"]
        self.reward_weights = torch.tensor(weights)
        self._logs = {"rewards": {name: deque(maxlen=4) for name in self.reward_func_names}}
        self._metrics = {"train": defaultdict(list)}
        self.rollouts = []  # the weights that each was scored with

    def train(self, callback, state, steps, rewards):
        callback.on_train_begin(self.args, state, None)
        for _ in range(steps):
            callback.on_step_begin(self.args, state, None)
            for micro in range(self.args.gradient_accumulation_steps):
                if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
                    self.rollouts.append(self.reward_weights.tolist())
                    for name, values in rewards(len(self.rollouts)).items():
                        self._logs["rewards"][name].extend(values)
                self._step += 1
                if micro + 1 < self.args.gradient_accumulation_steps:
                    callback.on_substep_end(self.args, state, None)
            state.global_step += 1
            callback.on_step_end(self.args, state, None)


def script(names=("first", "second"), adaptive=None, threshold=0.0, bounds=(0.25, 4.0)):
    return SimpleNamespace(
        reward_funcs=list(names), adaptive_rewards=adaptive, adaptive_threshold=threshold, adaptive_bounds=list(bounds)
    )


def started():
    return TrainerState(is_world_process_zero=True)


def wrong(rollout):
    return {"first": [0.0] * 4, "second": [math.nan, 1.0, 0.0, 1.0]}


@pytest.mark.parametrize(
    ("accumulation", "per_rollout", "iterations", "rollouts"),
    [(1, 1, 1, 12), (2, 2, 1, 12), (1, 4, 1, 3), (1, 2, 3, 2), (4, 2, 1, 24), (4, 2, 3, 8)],
)
def test_the_rule_applies_once_a_rollout_in_any_geometry(accumulation, per_rollout, iterations, rollouts):
    trainer, state = Trainer(accumulation, per_rollout, iterations), started()
    callback = RewardWeights(trainer, script(adaptive=["first"], bounds=(0.25, 1e9)))
    trainer.train(callback, state, 12, wrong)
    assert len(trainer.rollouts) == rollouts
    assert state.stateful_callbacks["reward_weights"]["first"] == pytest.approx(1.2**rollouts)
    assert all(second == 1.0 for _, second in trainer.rollouts)
    if accumulation <= per_rollout:  # else several rollouts belong to one step, and one set of weights to them
        assert [first for first, _ in trainer.rollouts] == pytest.approx([1.2**n for n in range(rollouts)])


def test_logged_weights_are_those_the_rollout_was_scored_with():
    trainer, logged = Trainer(per_rollout=3), []
    callback = RewardWeights(trainer, script(adaptive=["all"]))
    on_step_end = callback.on_step_end

    def note(*args):
        logged.append((trainer._metrics["train"]["reward_weights/first"], trainer.reward_weights.tolist()[0]))
        on_step_end(*args)

    callback.on_step_end = note
    trainer.train(callback, started(), 6, wrong)
    assert logged == [([1.0], 1.0)] * 3 + [([pytest.approx(1.2)], pytest.approx(1.2))] * 3


def test_missing_values_do_not_count():
    trainer, state = Trainer(), started()
    columns = {"first": [math.nan] * 4, "second": [math.nan, math.nan, math.nan, 1.0]}
    trainer.train(RewardWeights(trainer, script(adaptive=["all"])), state, 2, lambda rollout: columns)
    assert (
        trainer.rollouts[1] == [1.0, pytest.approx(0.9)] and "first" not in state.stateful_callbacks["reward_weights"]
    )


@pytest.mark.parametrize(("threshold", "factor"), [(0.0, 1.0), (-0.5, 0.9)])
def test_all_leaves_penalties_alone_unless_they_can_succeed(threshold, factor):
    trainer, settings = Trainer(), script(("first", "style_reward_func"), ["all"], threshold)
    trainer.train(RewardWeights(trainer, settings), started(), 2, lambda _: {"first": [-1.0] * 4, "second": [0.0] * 4})
    assert trainer.rollouts[1] == pytest.approx([1.2, factor])


def test_a_reward_with_a_weight_of_0_or_below_is_not_scaled():
    trainer, state = Trainer(weights=(0.0, -1.0)), started()
    trainer.train(RewardWeights(trainer, script(adaptive=["all"])), state, 3, wrong)
    assert trainer.rollouts == [[0.0, -1.0]] * 3 and state.stateful_callbacks["reward_weights"] == {}


STAGES = [Stage("one", 1, 2, ["first"], [2.0]), Stage("two", 3, 6, ["second", "first"], [1.0, 0.5])]


def test_a_stage_sets_its_weights_before_its_first_rollout(capsys):
    trainer = Trainer()
    trainer.train(RewardWeights(trainer, script(), STAGES), started(), 6, wrong)
    assert trainer.rollouts == [[2.0, 0.0]] * 2 + [[0.5, 1.0]] * 4
    assert trainer._metrics["train"]["stage"] == [2]
    shown = capsys.readouterr().out
    assert "Stage 1 of 2, one: steps 1-2, first × 2" in shown
    assert "Stage 2 of 2, two: steps 3-6, second, first × 0.5" in shown and shown.count("Stage") == 2


def test_factors_span_stages_and_rest_while_their_reward_is_off():
    trainer = Trainer()
    trainer.train(RewardWeights(trainer, script(adaptive=["first"]), STAGES), started(), 4, wrong)
    assert [first for first, _ in trainer.rollouts] == pytest.approx([2.0, 2.4, 0.5 * 1.44, 0.5 * 1.728])
    trainer, off = Trainer(), [STAGES[0], Stage("two", 3, 6, ["second"], [1.0])]
    state = started()
    trainer.train(RewardWeights(trainer, script(adaptive=["all"]), off), state, 6, wrong)
    assert state.stateful_callbacks["reward_weights"]["first"] == pytest.approx(1.44)


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_saved_state_goes_on_with_the_same_weights(tmp_path, stop):
    whole, settings = Trainer(), script(adaptive=["all"])
    whole.train(RewardWeights(whole, settings, STAGES), started(), 6, wrong)
    first, state = Trainer(), started()
    first.train(RewardWeights(first, settings, STAGES), state, stop, wrong)
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    second, state = Trainer(), TrainerState.load_from_json(str(tmp_path / "trainer_state.json"))
    second.train(RewardWeights(second, settings, STAGES), state, 6 - stop, wrong)
    assert first.rollouts + second.rollouts == whole.rollouts


def test_other_settings_on_resuming_hold_at_once():
    state = started()
    state.stateful_callbacks["reward_weights"] = {"first": 3.0}
    trainer = Trainer()
    trainer.train(RewardWeights(trainer, script(adaptive=["first"], bounds=(0.5, 2.0))), state, 1, wrong)
    assert trainer.rollouts == [[2.0, 1.0]]
    trainer = Trainer()
    trainer.train(RewardWeights(trainer, script()), state, 1, wrong)
    assert trainer.rollouts == [[1.0, 1.0]] and not trainer._metrics["train"]


def test_a_reward_of_ones_own_is_logged_by_its_short_name():
    trainer, names = Trainer(), ("first", "my_rewards.second")
    stages = [Stage("one", 1, 1, ["first"], [1.0]), Stage("two", 2, 3, ["my_rewards.second"], [1.0])]
    trainer.train(
        RewardWeights(trainer, script(names, ["all"]), stages), started(), 3, lambda _: {"second": [1.0] * 4}
    )
    assert trainer.rollouts == [[1.0, 0.0], [0.0, 1.0], [0.0, pytest.approx(0.9)]]
    assert trainer._metrics["train"]["reward_weights/second"] == [pytest.approx(0.9)]


# --- Real runs

FORMAT = {"name": "format", "reward_funcs": ["xmlcount_reward_func", "soft_format_reward_func"], "max_steps": 1}
ANSWERS = {
    "name": "answers",
    "reward_funcs": ["correctness_reward_func", "soft_format_reward_func"],
    "reward_weights": [1.0, 0.5],
    "max_steps": 2,
}
LEARNS = {
    **helpers_runs.LEARNS,
    "learning_rate": "2e-4",
    "eval_samples": "2",
    "log_completions": "false",
    "max_steps": None,
    "adaptive_rewards": "all",
    "adaptive_threshold": "0.5",  # more than the format earns, so that its weight rises with each rollout
}


def in_stages(tiny_run, *stages, **overrides):
    return [*tiny_run(**{**LEARNS, **overrides}), "--stages", *map(json.dumps, stages)]


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
    assert [(stage["name"], stage["last_step"], stage["reward_weights"]) for stage in stages] == [
        ("format", 1, [1.0, 1.0]),
        ("answers", 3, [1.0, 0.5]),
    ]
    for step in (2, 3):
        shutil.rmtree(f"run/checkpoint-{step}")
    Path("run/metrics.jsonl").unlink()
    flags = {"resume_from_checkpoint": "auto", "save_strategy": "no"}
    assert train_grpo.main(in_stages(tiny_run, FORMAT, ANSWERS, **flags)) == 0
    assert logged("run") == {step: line for step, line in whole.items() if step > 1}


RANKS = """
import json, os, sys
sys.path.insert(0, {root!r})
from grpo.rewarding import weighting
on_step_end, seen = weighting.RewardWeights.on_step_end, []
def note(self, args, state, control, **kwargs):
    on_step_end(self, args, state, control, **kwargs)
    seen.append([self.trainer.reward_weights.tolist(), self.factors])
    with open(f"rank{{os.environ['RANK']}}.json", "w") as file:
        json.dump(seen, file)
weighting.RewardWeights.on_step_end = note
import train_grpo
sys.exit(train_grpo.main())
"""


@pytest.mark.slow
def test_two_processes_agree_on_the_weights(tiny_run):
    Path("ranks.py").write_text(RANKS.format(root=str(ROOT)))
    done = command("ranks.py", in_stages(tiny_run, FORMAT, ANSWERS, save_strategy="no"), processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(Path(f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1] and len(ranks[0]) == 3 and ranks[0][2][1]
    assert done.stdout.count("Stage 2 of 2") == 1
