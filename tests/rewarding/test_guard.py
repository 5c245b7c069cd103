"""Rewards that fail exclude rows, and change nothing for the others."""

import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_commands import command
from helpers_runs import ROOT
from helpers_trainer import largest_difference, rewards_by_sum, trained
from trl import GRPOTrainer

import train_grpo
from grpo.core.errors import UserError
from grpo.rewarding.guard import DESCRIBED, LARGEST, Faults, RewardGuard, guarded
from grpo.training.trainer import LeanGRPOTrainer

MANY = {"max_faulty_rewards": 1.0}  # more than in a real run: their number is not what a test is about


def is_bad(completion_ids):
    """Rows at fault, known by their own text, so that it does not matter with which others they are scored."""
    return {index for index, ids in enumerate(completion_ids) if sum(ids) % 5 == 0}


def without(completion_ids, instead):
    bad = is_bad(completion_ids)
    return [instead if index in bad else float(sum(ids) % 997) for index, ids in enumerate(completion_ids)]


def none(completion_ids, **kwargs):
    return without(completion_ids, None)


def raises(completion_ids, **kwargs):
    if is_bad(completion_ids):
        raise ValueError("a fault in the reward")
    return rewards_by_sum(completion_ids)


def columns(count, **more):
    ids = [[index] for index in range(count)]
    return {
        "prompts": [f"question {index}" for index in range(count)],
        "completions": [f"answer {index}" for index in range(count)],
        "completion_ids": ids,
        "trainer_state": None,
        "log_extra": lambda *_: None,
        "log_metric": lambda *_: None,
        **more,
    }


# --- A single reward's values


def test_rows_at_fault_are_found_the_others_scored_alone():
    seen = []

    def reward(prompts, answer, whole, trainer_state, **kwargs):
        seen.append((prompts, answer, whole, trainer_state))
        if "question 2" in prompts:
            raise KeyError("two")
        return [float(len(text)) for text in answer]

    state, whole = object(), [1, 2, 3]  # three of something, for four rows
    given = columns(4, answer=["a", "bb", "ccc", "dddd"], whole=whole, trainer_state=state)
    faults = Faults()
    assert guarded("reward", reward, faults)(**given) == [1.0, 2.0, 0.0, 4.0]
    assert faults.rows == {2} and not faults.nonfinite
    (fault,) = faults.described
    assert (fault["row"], fault["question"], fault["completion"]) == (2, "question 2", "answer 2")
    assert fault["fault"] == "KeyError: 'two'" and "raise KeyError" in fault["traceback"]
    assert [len(prompts) for prompts, *_ in seen] == [4, 1, 1, 1, 1] and seen[2][:2] == (["question 1"], ["bb"])
    assert all(one[2] is whole and one[3] is state for one in seen)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_fault(raised):
    def reward(**kwargs):
        raise raised

    with pytest.raises(raised):
        guarded("reward", reward, Faults())(**columns(2))


@pytest.mark.parametrize("value", [math.nan, -math.inf, 2 * LARGEST])
def test_values_that_are_not_finite_leave_their_row_out(value):
    values = guarded("mine", lambda **kwargs: [1.0, value, None, 2.0], faults := Faults())(**columns(4))
    assert values == [1.0, 0.0, None, 2.0] and faults.rows == faults.nonfinite == {1}
    assert "it returned" in faults.described[0]["fault"]


def test_a_result_of_the_wrong_length_ends_the_run(tmp_path):
    guarded("short", lambda **kwargs: [1.0], faults := Faults())(**columns(2))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=0), reward_funcs=[])
    with pytest.raises(UserError, match="short returned 1 values for 2 completions"):
        RewardGuard(tmp_path, 1.0).exclude(trainer, torch.ones(2, 2), faults, **columns(2))


# --- In a trainer


def faults_of(directory):
    return [json.loads(line) for line in (Path(directory) / "faults.jsonl").read_text().splitlines()]


def test_a_fault_has_the_gradient_of_none_in_stock_trl(tiny_model, tmp_path):
    """In one of two rewards it excludes the row from both."""

    def both_none(completion_ids, **kwargs):
        return [0.5 * value if value is not None else None for value in without(completion_ids, None)]

    def half(completion_ids, **kwargs):
        return [0.5 * float(sum(ids) % 997) for ids in completion_ids]

    settings = {"beta": 0.1, "scale_rewards": "batch"}
    stock, stock_log, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=[none, both_none], **settings)
    lean, log, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=[raises, half], own=MANY, **settings)
    assert trainer.kernel is not None and any(gradient.any() for gradient in stock[0].values())
    assert largest_difference(stock, lean) < 1e-5 and log[0]["reward"] == pytest.approx(stock_log[0]["reward"])
    left_out = [[math.isnan(value) for value in trainer._logs["rewards"][name]] for name in ("raises", "half")]
    assert left_out[0] == left_out[1] and 2 <= sum(left_out[0]) < 16
    assert log[0]["rewards/left_out"] == sum(left_out[0]) / 16 and log[0]["rewards/nonfinite"] == 0
    assert sum(fault["row"] is not None for fault in faults_of(tmp_path)) == min(sum(left_out[0]), DESCRIBED)


def test_none_from_one_reward_keeps_its_meaning(tiny_model, tmp_path):
    stock, stock_log, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=[none, rewards_by_sum])
    lean, log, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=[none, rewards_by_sum])
    assert largest_difference(stock, lean) < 1e-5 and log[0]["reward"] == stock_log[0]["reward"]
    assert "rewards/left_out" not in log[0] and not (tmp_path / "faults.jsonl").exists()


# --- As a command

REWARDS = """
import os

def training(trainer_state):
    return trainer_state.max_steps > 0  # and not preflight's trial

def faulty(completions, trainer_state, **kwargs):
    if training(trainer_state) and trainer_state.global_step == 1:
        raise ZeroDivisionError("planted in vain")
    return [float(len(c[0]["content"])) for c in completions]

def on_the_second(completions, trainer_state, **kwargs):
    if training(trainer_state) and os.environ.get("RANK") == "1":
        if os.environ["END"] == "exit":
            os._exit(7)
        raise ValueError("planted on the second process")
    return [float(len(c[0]["content"])) for c in completions]
"""


@pytest.fixture
def with_reward(tiny_run, monkeypatch):
    """The command line of a tiny run with one of REWARDS."""
    Path("planted_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(os.getcwd())
    yield lambda reward, **flags: tiny_run(
        reward_funcs=f"planted_rewards.{reward}", allow_custom_rewards="true", eval_samples="2", **flags
    )
    sys.modules.pop("planted_rewards", None)


def test_too_many_faults_end_a_run_with_a_checkpoint_and_say_why(with_reward, capfd):
    assert train_grpo.main(with_reward("faulty", max_steps="4", save_steps="50")) == 3
    run, shown = Path("run"), " ".join(capfd.readouterr().out.split())
    status = json.loads((run / "run.json").read_text())["status"]
    assert status.startswith(
        "stopped by the reward guard: 100 % of the rows of step 2 were excluded (first: faulty: Ze"
    )
    assert (run / "checkpoint-2" / "model.safetensors").exists() and not (run / "model.safetensors").exists()
    assert "--resume_from_checkpoint auto" in shown
    text = (run / "faults.jsonl").read_text() + (run / "run.json").read_text() + shown
    assert text.count("planted in vain") > 2
    sys.modules.pop("planted_rewards", None)


def on_two_processes(argv, **environment):
    """The finished command, and its seconds."""
    start = time.monotonic()
    done = command(ROOT / "train_grpo.py", argv, processes=2, PYTHONPATH=os.getcwd(), **environment)
    return done, time.monotonic() - start


@pytest.mark.slow
def test_a_process_waiting_for_a_failed_one_ends_soon(with_reward):
    done, seconds = on_two_processes(with_reward("on_the_second"), END="exit")
    assert done.statuses[1] == 7 and done.statuses[0] != 0 and seconds < 60


@pytest.mark.slow
def test_two_processes_exclude_rows_and_stop_together(with_reward):
    done, _ = on_two_processes(with_reward("on_the_second"), END="raise")
    assert "the reward guard: 50 % of the rows of step 1 were excluded" in done.stdout + done.stderr
    assert Path("run/checkpoint-1/model.safetensors").exists()
    assert {fault["process"] for fault in faults_of("run")} == {1}
    assert done.stdout.count("faulty reward at step 1: on_the_second") == 1
