"""A resumed run is the run that was never interrupted, bit by bit."""

import json
import logging
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import LEARNS, ROOT, TINY, flags

import train_grpo
from grpo.runs import checkpoints
from grpo.training import trainer as trainer_module

# 8 prompts are 2 rollouts of 4: 3 epochs of 2 steps, a log at every second one
SHORT = {**EPOCHS, "max_samples": "10", "max_completion_length": "12"}
CASES = {  # and the step of the checkpoint that is resumed
    "all weights, accumulated, adaptive rewards": (
        {"adaptive_rewards": "all", "gradient_accumulation_steps": "2", "per_device_train_batch_size": "8"},
        3,
    ),
    # a rollout serves two steps, twice: checkpoints are due at each step and written at every fourth
    "an adapter, off-policy": (
        {
            **{"use_peft": "true", "lora_r": "4", "learning_rate": "1e-2", "beta": "0.04"},
            **{"steps_per_generation": "2", "num_iterations": "2", "per_device_train_batch_size": "8"},
            "num_train_epochs": "2",
        },
        12,
    ),
    "TRL's own step": ({"packed": "false"}, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_as_the_uninterrupted_one(tiny_run, case):
    overrides, step = CASES[case]
    flags = tiny_run(**{**SHORT, **overrides})
    assert train_grpo.main([*flags, "--output_dir", "whole"]) == 0
    whole = state_of(Path("whole"))
    assert whole["state"]["global_step"] > step
    run = interrupted("whole", step)
    assert train_grpo.main([*flags, "--output_dir", "again", "--resume_from_checkpoint", "auto"]) == 0
    assert_same(state_of(run), whole)


RESUMED = {**TINY, **LEARNS, "save_steps": "1", "stop_on_alarm": "true", "resume_from_checkpoint": "auto"}


@pytest.mark.slow
def test_a_finished_run_that_is_resumed_stays_as_it_is(learned):
    """Within an epoch, transformers would do a step more each time, and TRL replace the last samples with none."""
    run = learned.copy()
    finished = state_of(run)
    assert len(finished["samples"]) == 2
    assert train_grpo.main(flags(**RESUMED)) == 0
    again = state_of(run)
    assert_same({**again, "metrics": again["metrics"][:-1]}, {**finished, "metrics": finished["metrics"][:-1]})


@pytest.mark.slow
def test_two_processes_resume_as_if_they_had_not_stopped(tiny_run):
    argv = tiny_run(**{**SHORT, "per_device_train_batch_size": "8", "output_dir": "whole"})

    def run(argv):
        done = command(ROOT / "train_grpo.py", argv, processes=2)
        assert done.returncode == 0, done.stderr[-3000:]

    run(argv)
    assert (Path("whole/checkpoint-3") / "rng_state_1.pth").exists()
    interrupted("whole", 3)
    run([*argv, "--output_dir", "again", "--resume_from_checkpoint", "auto"])
    assert_same(state_of(Path("again")), state_of(Path("whole")))


def test_a_resumed_epoch_has_its_own_order_unlike_stocks():
    """What the class is for; if TRL learns it, _InEpochs can go."""
    rows = list(range(8))

    def stock():
        return trainer_module.RepeatSampler(rows, mini_repeat_count=1, batch_size=2, seed=3)

    uninterrupted, epochs = stock(), []
    for _ in range(3):
        epochs.append(list(uninterrupted))
    assert epochs[0] != epochs[1] != epochs[2]
    assert list(stock()) == epochs[0]  # a resumed run's first epoch, whichever it is
    now = [0]
    ours = trainer_module._InEpochs(stock(), lambda: now[0])
    for now[0] in (0, 1, 2, 1, 2):
        assert list(ours) == epochs[now[0]]


@pytest.mark.slow
def test_a_checkpoint_that_fails_leaves_the_last_one_whole(tiny_run, monkeypatch):
    from transformers import Trainer

    written = []

    def fail_at_the_second(self, directory):
        written.append(directory)
        if len(written) == 2:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Trainer, "_save_scaler", fail_at_the_second)
    with pytest.raises(OSError, match="Input/output error"):
        train_grpo.main(tiny_run(**{**LEARNS, "save_steps": "1", "max_steps": "3"}))
    assert [path.name for path in checkpoints.list_all(Path("run"))] == ["checkpoint-1"]
    assert checkpoints.problem_with(Path("run/checkpoint-1")) is None


@pytest.mark.slow
def test_the_last_whole_one_outlives_the_writing_of_the_next(tiny_run, monkeypatch):
    """With save_total_limit 1, transformers would remove it before the next one is known to be whole."""
    seen = []
    whole = checkpoints.seal

    def look(directory, *args, **facts):
        seen.append(checkpoints.newest(directory.parent)[0])
        whole(directory, *args, **facts)

    monkeypatch.setattr(checkpoints, "seal", look)
    assert train_grpo.main(tiny_run(**{**LEARNS, "save_steps": "1", "max_steps": "3", "save_total_limit": "1"})) == 0
    assert [path and path.name for path in seen] == [None, "checkpoint-1", "checkpoint-2"]
    assert [path.name for path in checkpoints.list_all(Path("run"))] == ["checkpoint-3"]
    assert json.loads(Path("run/run.json").read_text())["settings"]["save_total_limit"] == 1


def test_tied_weights_are_not_called_missing(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    for missing in (["lm_head.weight"], ["lm_head.weight", "a.weight"]):
        logging.getLogger("transformers.trainer").warning(
            f"There were missing keys in the checkpoint model loaded: {missing}."
        )
    found = {message for message in caplog.messages if "missing keys" in message}
    assert len(found) == 1 and "'a.weight'" in found.pop()
