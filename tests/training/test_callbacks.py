"""grpo/training/callbacks.py: what is recorded, observed, skipped and stopped, in runs of a few tiny steps."""

import json
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_commands import command
from helpers_runs import LEARNS, ROOT
from helpers_watch import STEP, Spoil, alarms, is_long, trainer
from transformers import TrainerCallback, TrainerState

import train_grpo
from grpo.training.callbacks import MetricsFile, SkipNonFiniteSteps
from grpo.training.trainer import LeanGRPOTrainer

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


def test_a_run_is_observed_at_each_step_and_alarmed_once(tmp_path, tiny_model, capsys):
    """Whatever logging_steps is, and also in the steps that train on an earlier rollout."""
    flags = {"beta": 0.04, "steps_per_generation": 4, "logging_steps": 50, "max_steps": 5}
    made, watch = trainer(tmp_path, tiny_model, **flags)
    made.train()
    assert {name: len(watch.seen.metrics[name]) for name in ("kl", "entropy", "completions/clipped_ratio")} == {
        "kl": 5, "entropy": 5, "completions/clipped_ratio": 5,
    }  # fmt: skip
    assert len(watch.seen.rollouts) == 2 and list(watch.seen.rollouts[0].rewards) == ["correctness_reward_func"]
    assert len(watch.seen.rollouts[0].completions) == 32 and watch.seen.updates == 5
    assert next(iter(watch.raised)) == "all_truncated" and alarms(tmp_path / "run")["all_truncated"]["step"] == 3
    assert capsys.readouterr().out.count("alarm at step 3: all_truncated") == 1


def test_weights_that_no_step_moves_are_named(tmp_path, tiny_model):
    flags = {"max_steps": 6, "reward_funcs": [is_long], "max_completion_length": 6}
    made, _ = trainer(tmp_path, tiny_model, **flags)
    for group in made.create_optimizer().param_groups:
        group["params"].clear()
    made.train()
    assert alarms(tmp_path / "run")["weights_unchanged"]["step"] == 5


# --- Steps that are not finite


@pytest.mark.parametrize(("what", "max_grad_norm"), [("gradient", 0.0), ("loss", 0.1)])
def test_a_step_that_is_not_finite_changes_nothing(tmp_path, tiny_model, what, max_grad_norm):
    flags = {"max_steps": 5, "reward_funcs": [is_long], "optim": "stable_adamw", "max_grad_norm": max_grad_norm}
    made, _ = trainer(tmp_path, tiny_model, **flags, **STEP)
    made.add_callback(spoil := Spoil(made, [3, 4], what))
    made.train()
    spoil.note()
    assert [spoil.same(step, step + 1) for step in range(5)] == [False, False, True, True, False]
    assert [line["skipped_steps"] for line in made.state.log_history if "skipped_steps" in line] == [1, 2, 2]
    found = alarms(tmp_path / "run")["nonfinite_gradient"]
    assert found["step"] == 3 and found["message"].startswith(
        "the gradient holds" if what == "gradient" else "the loss"
    )
    assert all(math.isfinite(line["loss"]) for line in made.state.log_history if "loss" in line)
    rates = [line["learning_rate"] for line in made.state.log_history if "learning_rate" in line]
    assert len(set(rates)) == 5  # the schedule goes on


def fake_trainer():
    """The parts of a trainer that the callback reads, with a model of one layer."""
    return SimpleNamespace(
        model=torch.nn.Linear(2, 1),
        accelerator=SimpleNamespace(scaler=None, num_processes=1, device="cpu"),
        losses_finite=torch.ones((), dtype=torch.bool),
        weights_are_finite=lambda: True,
        _metrics={"train": defaultdict(list)},
    )


@pytest.mark.parametrize(
    ("steps", "stops"), [("..xx.xx.", []), ("xxx.", [3]), ("xx/x.", [3])]
)  # x: not finite; /: resumed from a checkpoint
def test_three_skipped_in_a_row_end_a_run_and_fewer_do_not(steps, stops):
    made, asked, state = fake_trainer(), [], TrainerState(stateful_callbacks={})
    stopped_at = []
    for part in steps.split("/"):
        callback = SkipNonFiniteSteps(made, lambda reason, save=True: asked.append((reason, save)))
        callback.on_train_begin(None, state, None)
        for step in part:
            state.global_step += 1
            for weight in made.model.parameters():
                weight.grad = torch.full_like(weight, float("nan") if step == "x" else 1.0)
            callback.on_pre_optimizer_step(None, state, None)
            assert all((weight.grad is None) is (step == "x") for weight in made.model.parameters())
            stopped_at += [state.global_step] * (len(asked) - len(stopped_at))
    assert stopped_at == stops and made._metrics["train"]["skipped_steps"] == [steps.count("x")]
    for reason, save in asked:
        assert save and "skipped steps in a row: the gradient holds NaN or infinity" in reason


def checkpoints(run="run"):
    return sorted(int(path.name[11:]) for path in Path(run).glob("checkpoint-*"))


class SpoilTheLastStep(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == state.max_steps:
            with torch.no_grad():
                next(model.parameters())[0, 0] = float("inf")


@pytest.mark.slow
def test_weights_that_are_not_finite_end_a_run_unsaved(tiny_run, monkeypatch, capfd):
    plain = LeanGRPOTrainer.__init__

    def init(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.add_callback(SpoilTheLastStep())

    monkeypatch.setattr(LeanGRPOTrainer, "__init__", init)
    assert train_grpo.main(tiny_run(**{**LEARNS, "save_steps": "1", "eval_samples": "2"})) == 3
    assert checkpoints() == [1] and not Path("run/model.safetensors").exists()
    assert "weights that hold NaN or infinity" in " ".join(capfd.readouterr().out.split())


def test_no_checkpoint_holds_weights_that_are_not_finite(tmp_path, tiny_model):
    """Whoever asks for one."""
    made, _ = trainer(tmp_path, tiny_model, max_steps=1, reward_funcs=[is_long], **STEP)
    made.train()
    made._save_checkpoint(made.model, None)
    assert checkpoints(tmp_path / "run") == [1]
    next(made.model.parameters()).data[0, 0] = float("nan")
    made.state.global_step = 7
    made._save_checkpoint(made.model, None)
    assert checkpoints(tmp_path / "run") == [1]


TWO_PROCESSES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {helpers!r}]
import torch
from accelerate import PartialState
from helpers_watch import STEP, Spoil, is_long, trainer

rank = int(os.environ["RANK"])
for what, steps in (("loss", [2]), ("gradient", [2, 3, 4])):
    made, watch = trainer(Path({out!r}) / what, {model!r}, max_steps=5, reward_funcs=[is_long], **STEP)
    asked = []
    watch.skip.stop = lambda reason, save=True: asked.append((made.state.global_step + 1, save))
    spoil = Spoil(made, steps if rank == 1 else [], what)
    made.add_callback(spoil)
    made.train()
    spoil.note()
    same = [step + 1 for step in range(5) if spoil.same(step, step + 1)]
    print(f"rank {{rank}} {{what}} skipped {{same}} asked {{asked}}", flush=True)
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
        assert f"rank {rank} loss skipped [2] asked []" in done.stdout
        assert f"rank {rank} gradient skipped [2, 3, 4] asked [(4, True)]" in done.stdout


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
