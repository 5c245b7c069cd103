"""A resumed run is the run that was never interrupted, bit by bit, also in another epoch than the first.

After a kill, and on two processes: tests/test_killed.py; with sharded weights: tests/policy/test_sharding.py.
"""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import LEARNS, TINY, flags
from helpers_trainer import make_trainer
from transformers import Trainer, TrainerCallback

import train_grpo
from grpo.core.kinds import fault
from grpo.runs import checkpoints
from grpo.training.checkpointing import SAVED_STATE
from grpo.training.run_trainer import RunTrainer

# Evaluated while it trains, too
# 8 prompts are 2 rollouts of 4: 3 epochs of 2 steps, a log at every second one
SHORT = {**EPOCHS, "max_samples": "10", "max_completion_length": "12", "eval_every": "2"}
OFF_POLICY, BY_CHANCE = "an adapter, off-policy", "TRL's own step, rewards by chance"
REFILLED = "groups replaced by further prompts"
ROUNDED = "bfloat16 weights that are rounded by chance"
CASES = {  # and the step of the checkpoint that is resumed
    # a rollout serves two steps, twice: checkpoints are due at each step and written at every fourth
    OFF_POLICY: (
        {
            **{"use_peft": "true", "lora_r": "4", "learning_rate": "1e-2", "beta": "0.04"},
            **{"steps_per_generation": "2", "num_iterations": "2", "per_device_train_batch_size": "8"},
            "num_train_epochs": "2",
        },
        12,
    ),
    BY_CHANCE: (
        {"packed": "false", "reward_funcs": "chance.chance", "allow_custom_rewards": "true"},
        5,
    ),
    REFILLED: (
        {"dynamic_sampling": "2", "reward_funcs": "chance.rarely", "allow_custom_rewards": "true"},
        5,
    ),
    ROUNDED: ({"dtype": "bfloat16", "optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=true"}, 3),
}
CHANCE = """
import random

def chance(completions, **kwargs):
    return [random.random() for _ in completions]

def rarely(completions, **kwargs):
    return [float(random.random() < 0.2) for _ in completions]
"""


@pytest.mark.parametrize(
    "case", [OFF_POLICY, REFILLED, *(pytest.param(case, marks=pytest.mark.slow) for case in (BY_CHANCE, ROUNDED))]
)
def test_a_resumed_run_ends_as_the_uninterrupted_one(tiny_run, case):
    if case == ROUNDED:
        pytest.importorskip("torchao")
    overrides, step = CASES[case]
    Path("chance.py").write_text(CHANCE)
    flags = tiny_run(**{**SHORT, **overrides})
    assert train_grpo.main([*flags, "--output_dir", "whole"]) == 0
    whole = state_of(Path("whole"))
    assert whole["state"]["global_step"] > step
    if case == REFILLED:
        rounds = [line["dynamic_sampling/rounds"] for line in whole["metrics"] if "reward" in line]
        assert len(set(rounds)) > 1 and whole["state"]["stateful_callbacks"]["dynamic_sampling"]["prompts"] > 9
    run = interrupted("whole", step)
    assert train_grpo.main([*flags, "--output_dir", "again", "--resume_from_checkpoint", "auto"]) == 0
    assert_same(state_of(run), whole)


def test_what_is_due_when_follows_the_resumed_runs_settings(tiny_run):
    """Not those in the checkpoint's state, which transformers would follow."""
    settings = {**SHORT, "num_train_epochs": "9", "eval_samples": "2", "eval_every": "0"}
    assert train_grpo.main(tiny_run(**{**settings, "max_steps": "2", "save_steps": "1", "logging_steps": "9"})) == 0
    changed = {"max_steps": "6", "save_steps": "3", "logging_steps": "1", "eval_every": "2"}
    assert train_grpo.main(tiny_run(**{**settings, **changed, "resume_from_checkpoint": "auto"})) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "eval/n" in line] == [2, 4, 6]  # that of the checkpoint, too
    assert {path.name for path in Path("run").glob("checkpoint-*")} == {f"checkpoint-{step}" for step in (1, 2, 3, 6)}


def shown(capsys):
    return " ".join(capsys.readouterr().out.split())


RESUMED = {**TINY, **LEARNS, "save_steps": "1", "stop_on_alarm": "true", "resume_from_checkpoint": "auto"}


@pytest.mark.slow
def test_a_finished_run_that_is_resumed_stays_as_it_is(learned, capsys):
    """Within an epoch, transformers would do a step more each time, and TRL replace the last samples with none."""
    run = learned.copy()
    finished = state_of(run)
    assert len(finished["samples"]) == 2
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert train_grpo.main(flags(**RESUMED)) == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
    assert capsys.readouterr().out.count("run has finished, and its settings and code have not changed") == 1
    assert train_grpo.main(flags(**RESUMED, per_device_eval_batch_size="9")) == 0
    assert "it is only evaluated and saved again (per_device_eval_batch_size changed)" in shown(capsys)
    again = state_of(run)
    assert_same({**again, "metrics": again["metrics"][:-1]}, {**finished, "metrics": finished["metrics"][:-1]})
    (run / "model.safetensors").unlink()  # which is then made again
    assert train_grpo.main(flags(**RESUMED, per_device_eval_batch_size="9")) == 0
    assert_same(state_of(run)["model"], finished["model"])


class Rates(TrainerCallback):
    """The learning rate of each optimizer step, as the optimizer takes it."""

    def __init__(self):
        self.rates = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.rates += [group["lr"] for group in optimizer.param_groups][:1]


WATCHED = {"seen": {"steps": "x"}, "raised": []}
OTHERS = [("epoch", math.nan), ("log_history", "x"), ("global_step", "1"), ("stateful_callbacks", [1])]
OTHERS += [("stateful_callbacks", {"watch": other}) for other in ("x", {}, WATCHED)]


@pytest.mark.parametrize(("key", "other"), OTHERS)
def test_other_values_in_a_checkpoints_state_are_named(key, other, learned):
    state = json.loads((learned.path / "checkpoint-1" / checkpoints.STATE).read_text())
    assert fault(state, SAVED_STATE) == "" and fault(state | {key: other}, SAVED_STATE).startswith(key)


def test_another_value_in_a_checkpoints_state_is_one_line(learned, capsys):
    run = learned.copy()
    shutil.rmtree(run / "checkpoint-2")
    (run / "model.safetensors").unlink()  # so that it has not finished
    path = run / "checkpoint-1" / checkpoints.STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stateful_callbacks": {"watch": WATCHED}}))
    assert train_grpo.main(flags(**RESUMED)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "checkpoint-1 does not load" in line and "stateful_callbacks.watch.seen.steps" in line


def test_a_resumed_optimizer_follows_the_settings(tiny_model, tmp_path):
    """More steps have no step at a rate of 0 in between, and a changed rate or option is used."""

    def trained(steps, resume=None, **settings):
        settings = {"lr_scheduler_type": "cosine", "optim": "adamw_torch", "save_steps": 2} | settings
        settings |= {"max_steps": steps, "save_strategy": "steps", "lengths": 3, "learning_rate": 1e-3} | settings
        trainer = make_trainer(RunTrainer, tiny_model, tmp_path, callbacks=[rates := Rates()], **settings)
        trainer.train(resume_from_checkpoint=resume)
        return rates.rates, trainer.optimizer.param_groups

    whole, _ = trained(4)
    assert len(whole) == 4 and min(whole) > 0
    trained(2)
    rates, _ = trained(4, tmp_path / "checkpoint-2")
    assert rates == whole[2:]
    changed = {"learning_rate": 2e-3, "weight_decay": 0.3, "adam_beta2": 0.9}
    rates, groups = trained(4, tmp_path / "checkpoint-2", **changed)
    assert rates == pytest.approx([2 * rate for rate in whole[2:]])
    assert {(group["betas"][1], group["initial_lr"]) for group in groups} == {(0.9, 2e-3)}
    assert {group["weight_decay"] for group in groups} <= {0.3, 0.0} and groups[0]["weight_decay"] == 0.3


@pytest.mark.parametrize("ways", [("adamw_torch", "adamw_torch_fused"), ("adamw_torch_fused", "adamw_torch")])
def test_fused_adamw_and_the_other_resume_each_other(ways, tiny_model, tmp_path):
    """Each goes on in its own way, from the same state."""

    def trained(optim, steps, resume=None):
        settings = {"max_steps": steps, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3, "lengths": 3}
        trainer = make_trainer(RunTrainer, tiny_model, tmp_path, optim=optim, **settings)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    first, then = ways
    whole = trained(first, 4)
    trained(first, 2)
    resumed = trained(then, 4, str(tmp_path / "checkpoint-2"))
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert {bool(group["fused"]) for group in resumed.optimizer.param_groups} == {then == "adamw_torch_fused"}
    assert {int(state["step"]) for state in resumed.optimizer.state.values()} == {4}


def test_a_checkpoint_that_fails_leaves_the_last_one_whole(tiny_run, monkeypatch, capsys):
    written = []

    def fail_at_the_second(self, directory):
        written.append(directory)
        if len(written) == 2:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Trainer, "_save_scaler", fail_at_the_second)
    assert train_grpo.main(tiny_run(**{**LEARNS, "save_steps": "1", "max_steps": "3"})) == 2  # this file is a user's
    assert "Input/output error" in capsys.readouterr().err
    assert [path.name for path in checkpoints.list_all(Path("run"))] == ["checkpoint-1"]
    assert checkpoints.problem_with(Path("run/checkpoint-1")) is None


def test_the_last_whole_one_outlives_the_writing_of_the_next(tiny_run, monkeypatch):
    """With save_total_limit 1, transformers would remove it before the next one is known to be whole."""
    seen, written = [], []
    whole = checkpoints.seal

    def look(directory, *args, **facts):
        seen.append(checkpoints.newest(directory.parent)[0])
        written.append({path.name for path in directory.iterdir()})
        whole(directory, *args, **facts)

    monkeypatch.setattr(checkpoints, "seal", look)
    assert train_grpo.main(tiny_run(**{**LEARNS, "save_steps": "1", "max_steps": "3", "save_total_limit": "1"})) == 0
    assert [path and path.name for path in seen] == [None, "checkpoint-1", "checkpoint-2"]
    assert [path.name for path in checkpoints.list_all(Path("run"))] == ["checkpoint-3"]
    assert {path.name for path in Path("run/checkpoint-3").iterdir()} - written[-1] == {checkpoints.SEAL}  # the last
    assert json.loads(Path("run/run.json").read_text())["settings"]["save_total_limit"] == 1
