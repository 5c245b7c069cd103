"""grpo/policy/sharding.py and launch/fsdp2.yaml: FSDP2 trains as one process does on the same completions."""

from pathlib import Path

import pytest
import sharded_step
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from helpers_commands import command
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import DEMO, ROOT
from helpers_trainer import no_group_lives
from trl import GRPOTrainer

from grpo.policy import sharding
from grpo.runs import checkpoints

HELPERS = ROOT / "tests" / "helpers"
MODEL = str(DEMO / "model")


def launch(script, *argv):
    """Run a script in two processes with what Accelerate's launcher tells them of our file."""
    words = ["--config_file", str(ROOT / "launch" / "fsdp2.yaml"), "--num_processes", "2", str(script)]
    given, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    environment = {**prepare_multi_gpu_env(given), "PYTHONPATH": str(ROOT)}
    done = command(HELPERS / "sharded_on_cpu.py", [script, *argv], processes=2, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Where one process' trained weights are, before and after a step on the whole batch."""
    directory = tmp_path_factory.mktemp("one")
    for name, settings in sharded_step.SETTINGS.items():
        both = (settings | {"reward": no_group_lives}, settings)
        before, after = (sharded_step.step(GRPOTrainer, MODEL, directory, 16, **one)[0] for one in both)
        torch.save({key: (before[key], after[key]) for key in after}, directory / f"{name}.pt")
    return directory


@pytest.mark.slow
def test_two_processes_move_the_weights_as_one_does(one_process):
    shown = launch(HELPERS / "sharded_step.py", MODEL, str(one_process))
    assert shown.count("all equal") == 2 and "FSDP LeanGRPOTrainer adapter" in shown


@pytest.mark.slow
def test_sharded_run_is_resumed_and_saves_all_weights(tiny_run):
    own = {"per_device_train_batch_size": "8", "num_train_epochs": None, "max_steps": "2"}
    argv = tiny_run(**{**EPOCHS, **own, "save_steps": "1", "output_dir": "whole"})
    launch(ROOT / "train_grpo.py", *argv)
    whole = Path("whole")
    last = checkpoints.newest(whole)[0]
    assert (whole / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    interrupted("whole", 1)
    launch(ROOT / "train_grpo.py", *argv, "--output_dir", "again", "--resume_from_checkpoint", "auto")
    assert_same(state_of(Path("again")), state_of(whole))


def test_models_load_whole_whatever_a_launcher_says():
    from transformers.integrations import deepspeed

    class Config:
        def is_zero3(self):
            return True

    zero = Config()
    deepspeed.set_hf_deepspeed_config(zero)
    try:
        with sharding.loaded_whole():
            assert not deepspeed.is_deepspeed_zero3_enabled()
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_the_launchers_file_is_one_that_accelerate_can_read():
    """And leave the number format to the script, whose bf16 would otherwise have two owners."""
    from accelerate.commands.config import load_config_from_file

    found = load_config_from_file(str(ROOT / "launch" / "fsdp2.yaml"))
    assert found.mixed_precision == "no" and found.use_cpu is False and found.fsdp_config["fsdp_version"] == 2
