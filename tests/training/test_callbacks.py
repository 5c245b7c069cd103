"""grpo/training/callbacks.py: gradients that are not finite teach nothing; an alarm is raised once, and may stop.

On two processes: test_two_processes.py. The alarms themselves: test_causes.py.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from helpers_report import write_run
from helpers_runs import LEARNS, alarms
from helpers_trainer import Spoil, rewards_by_sum, watched

import train_grpo
from grpo.report import report
from grpo.runs import checkpoints
from grpo.task import Task
from grpo.task.prompts import XML
from grpo.training.callbacks import LiveReport, MetricsFile, RoundAlike, callbacks_of


def test_metrics_are_one_json_object_a_line_without_nan(tmp_path):
    run = SimpleNamespace(output=tmp_path, measure="m")
    callback, logs = MetricsFile(run), {"loss": float("nan"), "reward": 2.4375, "rewards/my_own/mean": None}
    for step, first in ((1, True), (2, True), (3, False)):
        callback.on_log(None, SimpleNamespace(is_world_process_zero=first, global_step=step), None, logs=logs)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] is None and lines[0]["reward"] == 2.4375 and "measure" not in lines[0]
    callback.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=3), None, logs={"eval/reward": 1.0})
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["measure"] == "m"


def test_the_live_report_takes_a_hundredth_of_the_time(tmp_path, monkeypatch):
    clock, drawn = [0.0], []

    def draw(directory, steps):
        drawn.append(clock[0])
        clock[0] += 2.5  # seconds
        return ""

    monkeypatch.setattr("grpo.training.callbacks.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(report, "refresh", draw)
    live, state = LiveReport(tmp_path), SimpleNamespace(is_world_process_zero=True, max_steps=9)
    while clock[0] < 1000:
        live.on_log(None, state, None)
        clock[0] += 1
    assert 4 <= len(drawn) <= 5 and sum(2.5 for _ in drawn[1:]) <= 0.01 * clock[0]


def test_the_report_is_rewritten_while_a_run_trains(tmp_path, capsys):
    """Not at every log, and a report that cannot be written costs a line."""
    run, state = write_run(tmp_path / "run"), SimpleNamespace(is_world_process_zero=True, max_steps=48)
    (run / "run.json").write_text('{"status": "running"}')
    page, live = run / "report.html", LiveReport(run)
    live.on_log(None, state, None)
    assert '"refresh"' in page.read_text()  # it reloads itself
    page.unlink()
    live.on_log(None, state, None)
    (run / "run.json").write_text("{")
    LiveReport(run).on_log(None, state, None)
    assert not page.exists() and "no report while it trains" in capsys.readouterr().out


# --- Optimizers that round by chance


@pytest.mark.parametrize(("rounds", "numbers"), [(True, 2), (False, 4)])
def test_an_optimizer_that_rounds_draws_alike_in_all_processes(rounds, numbers):
    """Other numbers in the next step, and the rest of the run, or another optimizer, draws its own."""
    args, drawn = SimpleNamespace(device=torch.device("cpu"), seed=42), []
    optimizer = SimpleNamespace(optimizer=SimpleNamespace(bf16_stochastic_round=rounds))
    callback = RoundAlike()
    for process in (0, 1):
        torch.manual_seed(process)
        own = torch.get_rng_state()
        for step in (3, 4):
            state = SimpleNamespace(global_step=step)
            callback.on_pre_optimizer_step(args, state, None, optimizer=optimizer)
            drawn.append(torch.rand(1).item())
            callback.on_optimizer_step(args, state, None, optimizer=optimizer)
        assert torch.equal(torch.get_rng_state(), own) is rounds
    assert (drawn[:2] == drawn[2:]) is rounds and len(set(drawn)) == numbers


def test_a_run_has_its_processes_round_alike(monkeypatch):
    monkeypatch.setattr("grpo.training.callbacks.console.golds_of", lambda rows: [])
    found = callbacks_of(MagicMock(output=Path("run")), MagicMock(), MagicMock())
    assert sum(isinstance(one, RoundAlike) for one in found) == 1


# --- Steps that are not finite


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
@pytest.mark.parametrize(("steps", "asked"), [([1, 3, 4, 6], []), ([2, 3, 4], [4])], ids=["apart", "in a row"])
def test_a_step_that_is_not_finite_changes_nothing(tiny_model, tmp_path, max_grad_norm, steps, asked):
    """And three in a row ask for the run's end."""
    options = {"max_steps": 6, "reward": rewards_by_sum, "optim": "adamw_torch", "lr_scheduler_type": "linear"}
    trainer, watch = watched(tiny_model, tmp_path, max_grad_norm=max_grad_norm, **options)
    spoil = Spoil(trainer, steps)
    trainer.train()
    assert spoil.unchanged == steps and watch.asked == asked
    skipped = [line["skipped_steps"] for line in trainer.state.log_history if "skipped_steps" in line]
    assert skipped == list(range(1, len(steps) + 1))
    assert alarms(tmp_path)["nonfinite_gradient"]["step"] == steps[0]
    rates = [line["learning_rate"] for line in trainer.state.log_history if "learning_rate" in line]
    assert len(set(rates)) == 6  # the schedule goes on


# --- Alarms


def test_each_rollout_is_read_and_an_alarm_raised_once(tiny_model, tmp_path, capsys):
    """Alarms do not depend on logging_steps, and steps on an earlier rollout are not read again."""
    options = {"beta": 0.04, "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_completion_length": 1}
    trainer, watch = watched(tiny_model, tmp_path, logging_steps=50, max_steps=8, **options)
    trainer.train()
    assert len(watch.seen.rollouts) == 4 and watch.seen.updates == watch.seen.steps == 8
    assert {"kl", "entropy", "completions/clipped_ratio", "frac_reward_zero_std"} <= watch.seen.rollouts[-1].keys()
    assert "all_truncated" in watch.raised and alarms(tmp_path)["all_truncated"]["step"] == 5
    assert capsys.readouterr().out.count("alarm at step 5: all_truncated") == 1


def test_weights_that_no_step_moves_are_named(tiny_model, tmp_path):
    trainer, _ = watched(tiny_model, tmp_path, max_steps=6, reward=rewards_by_sum)
    for group in trainer.create_optimizer().param_groups:
        group["params"].clear()
    trainer.train()
    assert alarms(tmp_path)["weights_unchanged"]["step"] == 5


def test_a_reward_of_one_value_raises_alarms(tiny_model, tmp_path):
    """Also of 0.7, whose float32 mean differs from it."""

    def constant(completions, **kwargs):
        return [-0.7] * len(completions)

    trainer, _ = watched(tiny_model, tmp_path, max_steps=20, reward=[constant])
    trainer.train()
    found = alarms(tmp_path)
    assert found["zero_variance"]["step"] == 3 and "earned the same" in found["zero_variance"]["message"]
    assert "has been -0.7 for every completion" in found["dead_reward"]["message"]
    assert found["weights_unchanged"]["step"] == 5


@pytest.mark.parametrize("right", [True, False])
def test_groups_that_are_all_right_are_no_collapse(tiny_model, tmp_path, right):
    """The run's judge says so."""

    def constant(completions, **kwargs):
        return [2.0] * len(completions)

    def one_answer_to_each_prompt(prompt_ids, *others):
        return [[5 + sum(prompt) % 300, 2] for prompt in prompt_ids], None

    task = Task(XML, judge=lambda text, row: right, judge_name="mine")
    options = {"reward": [constant], "lengths": one_answer_to_each_prompt, "task": task}
    trainer, watch = watched(tiny_model, tmp_path, max_steps=4, **options)
    trainer.train()
    assert ("mode_collapse" in watch.raised) is not right
    reason = "every completion was right" if right else "no completion was right"
    assert reason in alarms(tmp_path)["zero_variance"]["message"]


@pytest.mark.parametrize("text", ["<answer>7</answer>", "no number"])
def test_a_policy_that_answers_everything_alike_raises_an_alarm(tiny_model, tmp_path, monkeypatch, text):
    """Whatever it writes beside its answer, and whether it is right now and then."""
    options = {"lengths": lambda ids, *_: ([[5, 2] for _ in ids], None), "task": Task(XML)}
    trainer, watch = watched(tiny_model, tmp_path, max_steps=8, **options)
    monkeypatch.setattr("grpo.training.run_trainer.completion_text", lambda completion: text)
    trainer.train()
    assert "the gold answer of" in alarms(tmp_path)["mode_collapse"]["message"]
    assert watch.seen.given[-1]["questions"] == len(trainer.last_rollout["prompt"]) // trainer.num_generations


def test_stop_on_alarm_ends_a_run_that_can_be_resumed(tiny_run):
    argv = tiny_run(**{**LEARNS, "max_completion_length": "3"}, stop_on_alarm="true", max_steps="5")
    run = Path("run")
    assert train_grpo.main(argv) == 3
    assert alarms(run)["all_truncated"]["step"] == 3
    assert checkpoints.list_all(run) == [run / "checkpoint-3"] and "all_truncated" in (run / "report.html").read_text()
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("alarms/all_truncated") == 1 for line in logged)  # where trackers read it
    # the same alarm does not end it again: the command that was printed would do one step at a time
    assert train_grpo.main([*argv, "--resume_from_checkpoint", "auto"]) == 0
    assert (run / "model.safetensors").exists()
