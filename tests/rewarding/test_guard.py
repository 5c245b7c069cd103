"""A faulty reward teaches nothing: its rows are None for every reward, as in stock TRL, and too many end a run."""

import asyncio
import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers_commands import command
from helpers_programs import run_on_two
from helpers_runs import ROOT, alarms
from helpers_trainer import largest_difference, make_trainer, rewards_by_sum, trained
from trl import GRPOTrainer
from trl.trainer.utils import is_async_callable

import train_grpo
from grpo.rewarding.guard import DESCRIBED, FAILED, RewardGuard
from grpo.rewarding.rollout import LARGEST
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


@pytest.fixture
def guard(tmp_path):
    return RewardGuard(tmp_path, 1.0)


def test_rows_at_fault_are_found_the_others_scored_alone(guard):
    seen = []

    def reward(prompts, answer, whole, trainer_state, **kwargs):
        seen.append((prompts, answer, whole, trainer_state))
        if "question 2" in prompts:
            raise KeyError("two")
        return [float(len(text)) for text in answer]

    state, whole = object(), [1, 2, 3]  # three of something, for four rows
    given = columns(4, answer=["a", "bb", "ccc", "dddd"], whole=whole, trainer_state=state)
    assert guard.guarded("reward", reward)(**given) == [1.0, 2.0, FAILED, 4.0]
    (fault,) = guard.faults
    assert (fault.row, fault.question, fault.completion) == (2, "question 2", "answer 2")
    assert str(fault).startswith("reward: KeyError: 'two' (test_guard.py:") and "raise KeyError" in fault.traceback
    assert [len(prompts) for prompts, *_ in seen] == [4, 1, 1, 1, 1] and seen[2][:2] == (["question 1"], ["bb"])
    assert all(one[2] == whole and one[3] is state for one in seen)


def test_one_value_for_many_completions_is_a_fault_of_all_of_them(guard):
    """Alone, each row would have it, and a reward that forgets all completions but the first would never show."""

    async def later(prompts, **kwargs):
        return [1.0]

    assert guard.guarded("first", lambda prompts, **kwargs: [1.0])(**columns(3)) == [FAILED] * 3
    assert asyncio.run(guard.guarded("later", later)(**columns(3))) == [FAILED] * 3
    assert str(guard.faults[0]).startswith("first: it returned [1.0]; return a list of numbers")
    some = guard.guarded("some", lambda prompts, **kwargs: [1.0 for prompt in prompts if prompt != "question 1"])
    assert some(**columns(3)) == [1.0, FAILED, 1.0]  # the row without a value is known


def test_rows_of_an_async_reward_are_tried_again_all_at_once(guard):
    """A server that is down costs a rollout one more timeout, not one for each row."""
    waiting, most = 0, 0

    async def down(prompts, **kwargs):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        if "question 2" not in prompts or len(prompts) > 1:
            raise ConnectionError("refused")
        return [1.0]

    reward = guard.guarded("down", down)
    assert is_async_callable(reward)
    assert asyncio.run(reward(**columns(64))) == [FAILED] * 2 + [1.0] + [FAILED] * 61
    assert most == 64 and len(guard.faults) == DESCRIBED


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError("CUDA out of memory")])
def test_interruptions_and_full_devices_are_no_fault(raised, guard):
    def reward(**kwargs):
        raise raised

    with pytest.raises(raised if isinstance(raised, type) else RuntimeError):
        guard.guarded("reward", reward)(**columns(2))


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, 2 * LARGEST])
def test_values_that_are_not_finite_leave_their_row_out(value, guard):
    values = guard.guarded("mine", lambda **kwargs: [1.0, value, None, 2.0])(**columns(4))
    assert values == [1.0, FAILED, None, 2.0]


@pytest.mark.parametrize("result", [[1.0, 2.0], "abc", ["1", "2", "3"], None])
def test_a_result_that_is_no_list_of_numbers_is_a_fault_of_all_rows(result, guard):
    assert guard.guarded("odd", lambda **kwargs: result)(**columns(3)) == [FAILED] * 3


def vandal(prompts, completions, completion_ids, level, trace, **kwargs):
    """A reward that leaves nothing of its arguments as it was."""
    scores = [float(len(completion[0]["content"])) for completion in completions]
    for row, completion in enumerate(completions):
        completion[0]["content"] = completion[0]["content"].strip("a")
        completion_ids[row].append(0)
        prompts[row].clear()
        trace[row]["steps"].sort()
    completions.clear()
    level.reverse()
    return scores


def vandal_of_one(prompts, **columns):
    scores = vandal(prompts, **columns)
    if len(scores) > 1:
        raise ValueError("not all at once")
    return scores


async def async_vandal(**columns):
    return vandal_of_one(**columns)


def messages(count):
    return columns(
        count,
        prompts=[[{"role": "user", "content": f"question {row}"}] for row in range(count)],
        completions=[[{"role": "assistant", "content": "a" * row + "b"}] for row in range(count)],
        level=list(range(count)),
        trace=[{"steps": [3, 1, 2]} for _ in range(count)],
    )


@pytest.mark.parametrize("reward", [vandal, vandal_of_one, async_vandal])
def test_a_reward_changes_only_its_own_copy(reward, guard):
    given = messages(3)
    for _ in range(2):  # the next reward gets what this one got
        score = guard.guarded("reward", reward)
        result = score(**given)
        assert (asyncio.run(result) if is_async_callable(score) else result) == [1.0, 2.0, 3.0]
    expected = messages(3)
    assert all(given[key] == expected[key] for key in expected if not callable(expected[key]))
    assert not guard.faults


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


def test_faults_end_a_run_in_training_and_not_in_an_evaluation(tiny_model, tmp_path):
    trainer = make_trainer(RunTrainer, tiny_model, tmp_path)
    for training in (False, True):
        trainer.model.train(training)
        values = trainer.guard.exclude(trainer, torch.tensor([[FAILED], [1.0]]))
        assert values.isnan().tolist() == [[True], [False]] and bool(trainer.guard.excess) is training


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
