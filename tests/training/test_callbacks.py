"""grpo/training/callbacks.py: what is recorded, observed, skipped and stopped, in runs of a few tiny steps."""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_commands import command
from helpers_runs import LEARNS, ROOT
from helpers_watch import STEP, Spoil, alarms, is_long, trainer

import train_grpo
from grpo.training.callbacks import MetricsFile, SkipNonFiniteSteps

LOGS = {"loss": float("nan"), "reward": 2.4375, "rewards/my_own/mean": None}


def test_metrics_are_one_json_object_a_line_without_nan(tmp_path):
    callback = MetricsFile(tmp_path)
    for step in (1, 2):
        callback.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=step), None, logs=LOGS)
    callback.on_log(None, SimpleNamespace(is_world_process_zero=False, global_step=3), None, logs=LOGS)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] is None and lines[0]["reward"] == 2.4375


# --- What is observed


def test_each_rollout_is_read_and_an_alarm_raised_once(tmp_path, tiny_model, capsys):
    """Whatever logging_steps is; not in the steps that train on an earlier rollout."""
    flags = {"beta": 0.04, "steps_per_generation": 2, "logging_steps": 50, "max_steps": 8}
    made, watch = trainer(tmp_path, tiny_model, **flags)
    made.train()
    assert len(watch.seen.rollouts) == 4 and watch.seen.updates == watch.seen.steps == 8
    assert {"kl", "entropy", "completions/clipped_ratio", "frac_reward_zero_std"} <= watch.seen.rollouts[-1].keys()
    assert "all_truncated" in watch.raised and alarms(tmp_path / "run")["all_truncated"]["step"] == 5
    assert capsys.readouterr().out.count("alarm at step 5: all_truncated") == 1


def test_weights_that_no_step_moves_are_named(tmp_path, tiny_model):
    flags = {"max_steps": 6, "reward_funcs": [is_long], "max_completion_length": 6}
    made, _ = trainer(tmp_path, tiny_model, **flags)
    for group in made.create_optimizer().param_groups:
        group["params"].clear()
    made.train()
    assert alarms(tmp_path / "run")["weights_unchanged"]["step"] == 5


# --- Steps that are not finite


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_a_step_that_is_not_finite_changes_nothing(tmp_path, tiny_model, max_grad_norm):
    flags = {"max_steps": 5, "reward_funcs": [is_long], "max_grad_norm": max_grad_norm}
    made, _ = trainer(tmp_path, tiny_model, **flags, **STEP)
    made.add_callback(spoil := Spoil(made, [3, 4]))
    made.train()
    spoil.note()
    assert [spoil.same(step, step + 1) for step in range(5)] == [False, False, True, True, False]
    assert [line["skipped_steps"] for line in made.state.log_history if "skipped_steps" in line] == [1, 2]
    found = alarms(tmp_path / "run")["nonfinite_gradient"]
    assert found["step"] == 3 and found["message"].startswith("the gradient holds")
    rates = [line["learning_rate"] for line in made.state.log_history if "learning_rate" in line]
    assert len(set(rates)) == 5  # the schedule goes on


@pytest.mark.parametrize(("steps", "stops"), [("..xx.xx.", []), ("xxx.", [3]), (".xxxx", [4])])  # x: not finite
def test_three_skipped_in_a_row_end_a_run_and_fewer_do_not(steps, stops):
    made = SimpleNamespace(
        model=torch.nn.Linear(2, 1), accelerator=SimpleNamespace(scaler=None), _metrics={"train": defaultdict(list)}
    )
    asked, taken = [], []
    callback = SkipNonFiniteSteps(made, lambda reason: asked.append((len(taken), reason)))
    for step in steps:
        taken.append(step)
        for weight in made.model.parameters():
            weight.grad = torch.full_like(weight, float("nan") if step == "x" else 1.0)
        callback.on_pre_optimizer_step(None, None, None)
        assert all((weight.grad is None) is (step == "x") for weight in made.model.parameters())
    assert [number for number, _ in asked] == stops and made._metrics["train"]["skipped_steps"] == [steps.count("x")]
    assert all("skipped steps in a row: the gradient holds NaN or infinity" in reason for _, reason in asked)


def checkpoints(run="run"):
    return sorted(int(path.name[11:]) for path in Path(run).glob("checkpoint-*"))


TWO_PROCESSES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {helpers!r}]
import torch
from accelerate import PartialState
from helpers_watch import STEP, Spoil, is_long, trainer

rank = int(os.environ["RANK"])
made, watch = trainer(Path({out!r}), {model!r}, max_steps=5, reward_funcs=[is_long], **STEP)
spoil = Spoil(made, [2, 3, 4] if rank == 1 else [])
made.add_callback(spoil)
made.train()
spoil.note()
same = [step + 1 for step in range(5) if spoil.same(step, step + 1)]
print(f"rank {{rank}} skipped {{same}} asked {{[step for step, _ in watch.asked]}}", flush=True)
PartialState().wait_for_everyone()
made.accelerator.end_training()
"""


@pytest.mark.slow
def test_what_one_process_skips_all_skip(tiny_model, tmp_path):
    script = tmp_path / "two.py"
    paths = {"root": str(ROOT), "helpers": str(ROOT / "tests" / "helpers"), "out": str(tmp_path / "out")}
    script.write_text(TWO_PROCESSES.format(**paths, model=tiny_model))
    done = command(script, processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        assert f"rank {rank} skipped [2, 3, 4] asked [4]" in done.stdout


# --- Stopping at an alarm


@pytest.mark.slow
def test_stop_on_alarm_ends_a_run_that_can_be_resumed(tiny_run, capfd):
    argv = tiny_run(**{**LEARNS, "max_completion_length": "3"}, stop_on_alarm="true", max_steps="5")
    assert train_grpo.main(argv) == 3
    assert alarms()["all_truncated"]["step"] == 3 and checkpoints() == [3]
    run = Path("run")
    assert (run / "checkpoint-3" / "model.safetensors").exists() and not (run / "model.safetensors").exists()
    record = json.loads((run / "run.json").read_text())
    assert record["status"].startswith("stopped by an alarm: all_truncated")
    assert "all_truncated" in (run / "report.html").read_text() and not (run / "eval_after.json").exists()
    assert "--resume_from_checkpoint auto" in capfd.readouterr().out
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("alarms/all_truncated") == 1 for line in logged)  # where trackers read it
    # the same alarm does not end it again: the command that was printed would do one step at a time
    assert train_grpo.main([*argv, "--resume_from_checkpoint", "auto"]) == 0
    assert (run / "model.safetensors").exists()


def test_groups_that_are_all_right_are_no_collapse(tmp_path, tiny_model):
    """The judge's reward says so where a run has it (recipes/countdown.yaml)."""

    for verdict in (True, False):

        def judge_reward_func(completions, verdict=verdict, **kwargs):
            return [2.0 * verdict] * len(completions)

        made, watch = trainer(tmp_path / str(verdict), tiny_model, reward_funcs=[judge_reward_func])
        made._generate_single_turn = lambda ids, *_: ([[5 + sum(prompt) % 300, 2] for prompt in ids], None)
        made.train()
        assert ("mode_collapse" in watch.raised) is not verdict
        found = alarms(tmp_path / str(verdict) / "run")["zero_variance"]["message"]
        assert ("all right" if verdict else "all wrong") in found
