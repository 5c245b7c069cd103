"""A faulty reward teaches nothing: its rows are None for every reward, as in stock TRL, and too many end a run."""

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_programs import run_on_two
from helpers_runs import ROOT, alarms
from helpers_trainer import largest_difference, make_trainer, rewards_by_sum, trained
from trl import GRPOTrainer

import train_grpo
from grpo.scoring.guard import DESCRIBED
from grpo.scoring.sample import Fault, Sample
from grpo.training.run_trainer import RunTrainer

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


# --- In a trainer


def faults_of(directory):
    return [json.loads(line) for line in (Path(directory) / "faults.jsonl").read_text().splitlines()]


def test_a_fault_has_the_gradient_of_none_in_stock_trl(tiny_model, tmp_path):
    """In one of two rewards it excludes the row from both."""

    def both_none(completion_ids, **kwargs):
        return [0.5 * value if value is not None else None for value in without(completion_ids, None)]

    async def half(completion_ids, **kwargs):
        return [0.5 * float(sum(ids) % 997) for ids in completion_ids]

    settings = {"beta": 0.1, "scale_rewards": "batch"}
    stock, stock_log, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=[none, both_none], **settings)
    lean, log, trainer = trained(RunTrainer, tiny_model, tmp_path, reward=[raises, half], own=MANY, **settings)
    assert trainer.kernel is not None and any(gradient.any() for gradient in stock[0].values())
    assert largest_difference(stock, lean) < 1e-5 and log[0]["reward"] == pytest.approx(stock_log[0]["reward"])
    left_out = [[math.isnan(value) for value in trainer._logs["rewards"][name]] for name in ("raises", "half")]
    assert left_out[0] == left_out[1] and 2 <= sum(left_out[0]) < 16
    assert log[0]["rewards/left_out"] == sum(left_out[0]) / 16
    assert sum(fault["row"] is not None for fault in faults_of(tmp_path)) == min(sum(left_out[0]), DESCRIBED)


def test_groups_of_a_reward_that_fails_everywhere_are_not_judged(tiny_model, tmp_path):
    def correctness_reward_func(completions, **kwargs):
        raise ValueError("it fails")

    _, log, trainer = trained(RunTrainer, tiny_model, tmp_path, reward=correctness_reward_func, own=MANY)
    assert log[0]["rewards/left_out"] == 1 and "groups/all_wrong" not in log[0]
    assert trainer.solved.shape == (4,) and trainer.solved.isnan().all()


def test_a_row_that_fails_has_no_value_and_too_many_end_the_run(tiny_model, tmp_path):
    trainer = make_trainer(RunTrainer, tiny_model, tmp_path)
    failed = Sample(rewards={"a": None, "b": None}, faults=[Fault("a", 0, "1 + 1?", "x", "ZeroDivisionError", "")])
    values = trainer.guard.gather(trainer, [failed, Sample(rewards={"a": 1.0, "b": None})])
    assert values.isnan().tolist() == [[True, True], [False, True]] and values[1, 0] == 1
    assert "50 % of the rows of step 1 were excluded (first: a: Zero" in trainer.guard.excess


def test_none_from_one_reward_keeps_its_meaning(tiny_model, tmp_path):
    stock, stock_log, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=[none, rewards_by_sum])
    lean, log, _ = trained(RunTrainer, tiny_model, tmp_path, reward=[none, rewards_by_sum])
    assert largest_difference(stock, lean) < 1e-5 and log[0]["reward"] == stock_log[0]["reward"]
    assert "rewards/left_out" not in log[0] and not (tmp_path / "faults.jsonl").exists()


# --- As a command


@pytest.fixture
def with_reward(tiny_run, monkeypatch):
    """The command line of a tiny run with one of planted_rewards.py."""
    shutil.copy(ROOT / "tests/programs/planted_rewards.py", ".")
    monkeypatch.delitem(sys.modules, "planted_rewards", raising=False)
    return lambda reward, **flags: tiny_run(
        reward_funcs=f"planted_rewards.{reward}", allow_custom_rewards="true", eval_samples="2", **flags
    )


def test_too_many_faults_end_a_run_with_a_checkpoint_and_say_why(with_reward, capfd):
    assert train_grpo.main(with_reward("faulty", max_steps="4", save_steps="50")) == 3
    run, shown = Path("run"), " ".join(capfd.readouterr().out.split())
    status = json.loads((run / "run.json").read_text())["status"]
    assert "reward guard: 100 % of the rows of step 2" in status and "faulty: ZeroDivisionError" in status
    assert (run / "checkpoint-2" / "model.safetensors").exists() and not (run / "model.safetensors").exists()
    assert "--resume_from_checkpoint auto" in shown and "planted in vain" in shown
    assert all("planted in vain" in fault["traceback"] for fault in faults_of(run))


def test_a_run_whose_only_reward_returns_none_ends_and_says_so(with_reward, capfd):
    assert train_grpo.main(with_reward("nothing", max_steps="4", learning_rate="1e-2")) == 0
    assert "returned None" in alarms("run")["dead_reward"]["message"]
    shown = " ".join(capfd.readouterr().out.split())
    assert "the reward nothing has returned None for every completion" in shown
    assert "nothing has returned None" in json.loads(Path("run/comparison.json").read_text())["diagnosis"][0]
    assert "nothing has returned None" in Path("run/report.html").read_text()


@pytest.mark.slow
def test_two_processes_judge_once_exclude_rows_and_stop_together(with_reward):
    argv = with_reward("on_the_second", judge="planted_rewards.judge")
    done = command(ROOT / "train_grpo.py", argv, processes=2)
    assert done.returncode != 0 and "[rank" not in done.stderr  # torch's mark of a traceback
    assert "Stopped by the reward guard" in done.stdout
    status = json.loads(Path("run/run.json").read_text())["status"]
    assert "reward guard: 50 % of the rows of step 1" in status
    assert Path("run/checkpoint-1/model.safetensors").exists()
    assert {fault["process"] for fault in faults_of("run")} == {1}
    assert done.stdout.count("faulty reward at step 1: on_the_second") == 1
    asked = Path("asked").read_text().splitlines()  # a judge may be a paid model
    records = [json.loads(line) for line in Path("run/completions_before.jsonl").read_text().splitlines()]
    assert [asked.count(record["question"]) for record in records] == [1, 1]
    run_on_two(ROOT / "train_grpo.py", *argv, "--resume_from_checkpoint", "auto")
    assert json.loads(Path("run/run.json").read_text())["status"] == "finished"
