"""Rewards that fail exclude rows, and change nothing for the others."""

import asyncio
import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers_commands import command
from helpers_runs import ROOT
from helpers_trainer import largest_difference, rewards_by_sum, trained
from trl import GRPOTrainer

import train_grpo
from grpo.core.errors import UserError
from grpo.core.out_of_memory import OutOfMemory
from grpo.rewarding.guard import DESCRIBED, LARGEST, Faults, RewardGuard, guarded, numbers_of
from grpo.training.base_trainer import BaseGRPOTrainer
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


async def raises_later(completion_ids, **kwargs):
    await asyncio.sleep(0)
    return raises(completion_ids)


def gives(value):
    def reward(completion_ids, **kwargs):
        return without(completion_ids, value)

    return reward


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


@pytest.mark.parametrize(
    ("result", "values"),
    [
        ([1, 2.5, None], [1.0, 2.5, None]),
        (torch.tensor([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]),
        ([np.float32(1), True, torch.tensor(3)], [1.0, 1.0, 3.0]),
        ((n for n in range(3)), [0.0, 1.0, 2.0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lists_of_numbers_are_taken_whatever_they_are_made_of(result, values):
    assert numbers_of("mine", result, 3) == values


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ([1.0, 2.0], "2 values for 3 completions"),
        (1.0, "float 1.0"),
        (None, "NoneType None"),
        ("111", "str '111'"),
        ({0: 1.0, 1: 1.0, 2: 1.0}, "dict {0: 1.0"),
        (["1", 2.0, 3.0], "str '1' for a completion"),
        ([1.0, [2.0], 3.0], "list [2.0] for a completion"),
    ],
    ids=str,
)
def test_anything_else_is_a_mistake_that_names_the_function(result, named):
    with pytest.raises(UserError) as raised:
        numbers_of("mine", result, 3)
    assert str(raised.value).startswith(f"reward_funcs: mine returned {named}")


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


def test_a_retry_that_succeeds_is_no_fault():
    tries = []

    def flaky(prompts, **kwargs):
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("reset by peer")
        return [1.0] * len(prompts)

    faults = Faults()
    assert guarded("flaky", flaky, faults)(**columns(4)) == [1.0] * 4 and not faults.rows


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_fault(raised):
    def reward(**kwargs):
        raise raised

    with pytest.raises(raised):
        guarded("reward", reward, Faults())(**columns(2))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_a_reward_logs_before_it_raises_counts_once(kind):
    logged = []

    def reward(completion_ids, log_extra, **kwargs):
        log_extra("first", [ids[0] for ids in completion_ids])
        if [1] in completion_ids:
            raise ValueError
        return [1.0] * len(completion_ids)

    async def later(**kwargs):
        await asyncio.sleep(0)
        return reward(**kwargs)

    given = columns(4, log_extra=lambda *what: logged.append(what))
    found = guarded("reward", reward if kind == "sync" else later, Faults())(**given)
    assert (found if kind == "sync" else asyncio.run(found)) == [1.0, 0.0, 1.0, 1.0]
    assert logged == [("first", [0, 1, 2, 3])]


@pytest.mark.parametrize("value", [math.nan, -math.inf, 2 * LARGEST])
def test_values_that_are_not_finite_leave_their_row_out(value):
    values = guarded("mine", lambda **kwargs: [1.0, value, None, 2.0], faults := Faults())(**columns(4))
    assert values == [1.0, 0.0, None, 2.0] and faults.rows == faults.nonfinite == {1}
    assert "it returned" in faults.described[0]["fault"]


def test_async_rewards_run_at_the_same_time():
    async def slow(completion_ids, **kwargs):
        await asyncio.sleep(0.2)
        return [1.0] * len(completion_ids)

    async def both():
        return await asyncio.gather(*(guarded("slow", slow, Faults())(**columns(3)) for _ in range(4)))

    start = time.perf_counter()
    assert asyncio.run(both()) == [[1.0] * 3] * 4
    assert time.perf_counter() - start < 0.6


@pytest.fixture
def trainer():
    """What the guard asks of a trainer with two rewards, a model and a function."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(process_index=0, is_main_process=True),
        reward_funcs=[torch.nn.Identity(), max],
        reward_func_names=["model", "function"],
        state=SimpleNamespace(global_step=0),
        model=torch.nn.Identity(),
        _metrics={"train": {}},
    )


def test_a_reward_models_nan_is_a_fault_and_a_functions_is_none(trainer, tmp_path):
    values = torch.tensor([[1.0, 1.0], [torch.nan, 1.0], [1.0, torch.nan], [torch.inf, 1.0]])
    found = RewardGuard(tmp_path, 1.0).exclude(trainer, values, Faults(), **columns(4))
    assert found.isnan().tolist() == [[False, False], [True, True], [False, True], [True, True]]
    assert trainer._metrics["train"] == {"rewards/left_out": [0.5], "rewards/nonfinite": [0.5]}


def test_the_share_is_logged_from_the_first_fault_on(trainer, tmp_path):
    guard, sound, faulty = RewardGuard(tmp_path, 0.4), torch.ones(2, 2), torch.tensor([[1.0, 1.0], [torch.nan, 1.0]])
    guard.exclude(trainer, sound.clone(), Faults(), **columns(2))
    assert not trainer._metrics["train"] and not guard.excess
    guard.exclude(trainer, faulty, Faults(), **columns(2))
    guard.exclude(trainer, sound.clone(), Faults(), **columns(2))
    assert trainer._metrics["train"]["rewards/left_out"] == [0.5, 0.0]
    assert "50 % of the rows of step 1 were excluded" in guard.excess


def test_share_of_an_evaluation_does_not_end_a_run(trainer, tmp_path):
    guard, trainer._metrics["eval"] = RewardGuard(tmp_path, 0.0), {}
    trainer.model.eval()
    guard.exclude(trainer, torch.full((2, 2), torch.nan), Faults(), **columns(2))
    assert trainer._metrics == {"train": {}, "eval": {"rewards/left_out": [1.0], "rewards/nonfinite": [1.0]}}
    assert not guard.excess


def test_a_result_of_the_wrong_length_ends_the_run(trainer, tmp_path):
    guarded("short", lambda **kwargs: [1.0], faults := Faults())(**columns(2))
    with pytest.raises(UserError, match="short returned 1 values for 2 completions"):
        RewardGuard(tmp_path, 1.0).exclude(trainer, torch.ones(2, 2), faults, **columns(2))


# --- In a trainer


def faults_of(directory):
    return [json.loads(line) for line in (Path(directory) / "faults.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("trainer_class", "reward"),
    [(BaseGRPOTrainer, raises), (LeanGRPOTrainer, raises_later), (LeanGRPOTrainer, gives(math.nan))],
    ids=["base, raises", "raises later", "nan"],
)
def test_a_fault_has_the_gradient_of_none_in_stock_trl(tiny_model, tmp_path, trainer_class, reward):
    stock, stock_log, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=none)
    guarded, log, trainer = trained(trainer_class, tiny_model, tmp_path, reward=reward, own=MANY)
    assert any(gradient.any() for gradient in stock[0].values()) and largest_difference(stock, guarded) < 1e-5
    (earned,) = trainer._logs["rewards"].values()
    left_out = sum(map(math.isnan, earned))
    assert left_out >= 2 and log[0]["rewards/left_out"] == left_out / 16
    assert sum(fault["row"] is not None for fault in faults_of(tmp_path)) == min(left_out, DESCRIBED)
    assert log[0]["rewards/nonfinite"] == (0 if reward in (raises, raises_later) else log[0]["rewards/left_out"])
    assert log[0]["reward"] == pytest.approx(stock_log[0]["reward"])


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.1, "scale_rewards": "batch"},
        {"multi_objective_aggregation": "normalize_then_sum"},
    ],
    ids=str,
)
def test_a_fault_in_one_reward_excludes_the_row_from_both(tiny_model, tmp_path, settings):
    def both_none(completion_ids, **kwargs):
        return [0.5 * value if value is not None else None for value in without(completion_ids, None)]

    def half(completion_ids, **kwargs):
        return [0.5 * float(sum(ids) % 997) for ids in completion_ids]

    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=[none, both_none], **settings)
    lean, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=[raises, half], own=MANY, **settings)
    assert trainer.backend is not None and largest_difference(stock, lean) < 1e-5
    columns = [trainer._logs["rewards"][name] for name in ("raises", "half")]
    left_out = [[math.isnan(value) for value in column] for column in columns]
    assert left_out[0] == left_out[1] and 0 < sum(left_out[0]) < 16


def test_advantages_of_a_group_are_those_without_the_fault(tiny_model, tmp_path):
    _, _, trainer = trained(BaseGRPOTrainer, tiny_model, tmp_path, reward=gives(math.inf), own=MANY)
    earned, advantages = list(trainer._logs["rewards"]["reward"]), list(trainer._logs["advantages"])
    assert any(map(math.isnan, earned))
    for start in range(0, 16, 4):
        group = [value for value in earned[start : start + 4] if not math.isnan(value)]
        for value, advantage in zip(earned[start : start + 4], advantages[start : start + 4], strict=True):
            if math.isnan(value) or len(group) == 1:
                assert advantage == 0
            else:
                rewards = torch.tensor(group)
                assert advantage == pytest.approx(((value - rewards.mean()) / (rewards.std() + 1e-4)).item(), abs=1e-4)


def test_none_from_one_reward_keeps_its_meaning(tiny_model, tmp_path):
    stock, stock_log, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=[none, rewards_by_sum])
    lean, log, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=[none, rewards_by_sum])
    assert largest_difference(stock, lean) < 1e-5 and log[0]["reward"] == stock_log[0]["reward"]
    assert "rewards/left_out" not in log[0] and not (tmp_path / "faults.jsonl").exists()


def test_a_device_that_is_full_is_no_fault_of_a_rows(tiny_model, tmp_path):
    def hungry(completions, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(OutOfMemory, match=r"out of memory in the rewards \(it asked for 2.00 GiB more\)"):
        trained(BaseGRPOTrainer, tiny_model, tmp_path, reward=hungry)


def test_the_first_fault_of_each_reward_is_printed(tiny_model, tmp_path, capfd):
    def closes_a_tag(completions, completion_ids, **kwargs):
        if is_bad(completion_ids):
            raise ValueError("[/bold] is no tag, [red]nor is this")
        return [1.0] * len(completions)

    trained(BaseGRPOTrainer, tiny_model, tmp_path, reward=[closes_a_tag, raises], max_steps=2, own=MANY)
    shown = capfd.readouterr().out
    assert shown.count("faulty reward at step 1: closes_a_tag") == shown.count("faulty reward at step 1: raises") == 1
    assert "at fault at step 2" not in shown and "[/bold] is no tag, [red]nor is this" in shown
    assert "question: What is" in shown and {fault["step"] for fault in faults_of(tmp_path)} == {1, 2}


# --- As a command

REWARDS = """
import os

def training(trainer_state):
    return trainer_state.max_steps > 0  # and not preflight's trial

def faulty(completions, trainer_state, **kwargs):
    if training(trainer_state) and trainer_state.global_step == 1:
        raise ZeroDivisionError(f"planted in {os.environ.get('MY_SECRET')}")
    return [float(len(c[0]["content"])) for c in completions]

def short(completions, trainer_state, **kwargs):
    wrong = training(trainer_state) and os.environ.get("RANK") == "1"
    return [float(len(c[0]["content"])) for c in completions][wrong:]

def on_the_second(completions, trainer_state, **kwargs):
    if training(trainer_state) and os.environ.get("RANK") == "1":
        if os.environ["END"] == "exit":
            os._exit(7)
        if os.environ["END"] == "memory":
            import torch
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
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


def test_too_many_faults_end_a_run_with_a_checkpoint_and_say_why(with_reward, monkeypatch, capfd):
    monkeypatch.setenv("MY_SECRET", "planted-0123456789")
    assert train_grpo.main(with_reward("faulty", max_steps="4", save_steps="50")) == 3
    run, shown = Path("run"), " ".join(capfd.readouterr().out.split())
    status = json.loads((run / "run.json").read_text())["status"]
    assert status.startswith(
        "stopped by the reward guard: 100 % of the rows of step 2 were excluded (first: faulty: Ze"
    )
    assert (run / "checkpoint-2" / "model.safetensors").exists() and not (run / "model.safetensors").exists()
    assert "--resume_from_checkpoint auto" in shown
    text = (run / "faults.jsonl").read_text() + (run / "run.json").read_text() + shown
    assert "planted-0123456789" not in text and "planted in ***" in text
    sys.modules.pop("planted_rewards", None)


def on_two_processes(argv, **environment):
    """The finished command, and its seconds."""
    start = time.monotonic()
    done = command(ROOT / "train_grpo.py", argv, processes=2, PYTHONPATH=os.getcwd(), **environment)
    return done, time.monotonic() - start


ENDS = {  # what the second process does: its exit status, and what the command's standard error names
    "exit": (7, "another process of this run is gone"),
    "memory": (2, "error: [process 1] out of memory in the rewards (it asked for 2.00 GiB more); "),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_process_waiting_for_a_failed_one_ends_soon(end, with_reward):
    done, seconds = on_two_processes(with_reward("on_the_second"), END=end)
    status, cause = ENDS[end]
    assert done.statuses[1] == status and done.statuses[0] != 0 and seconds < 60
    assert cause in done.stderr, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_exclude_rows_and_stop_together(with_reward):
    done, _ = on_two_processes(with_reward("on_the_second"), END="raise")
    assert "the reward guard: 50 % of the rows of step 1 were excluded" in done.stdout + done.stderr
    assert Path("run/checkpoint-1/model.safetensors").exists()
    assert {fault["process"] for fault in faults_of("run")} == {1}
    assert done.stdout.count("faulty reward at step 1: on_the_second") == 1


@pytest.mark.slow
def test_a_wrong_result_on_one_process_is_said_once(with_reward):
    done, seconds = on_two_processes(with_reward("short"))
    assert done.stderr.count("reward_funcs: short returned 3 values for 4 completions") == 1 and seconds < 90
