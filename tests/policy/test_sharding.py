"""lean_grpo/sharding.py and launch/fsdp2.yaml: a run under FSDP2 is resumed bit by bit and saves whole weights.

Its gradients: tests/lean_grpo/test_two_processes.py.
"""

from pathlib import Path

import pytest
from accelerate.commands.config import load_config_from_file
from helpers_programs import run_sharded_on_two
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import ROOT
from transformers.integrations import deepspeed

from grpo.policy import loading
from grpo.runs import checkpoints


@pytest.mark.slow
def test_sharded_run_is_resumed_and_saves_all_weights(tiny_run):
    own = {"per_device_train_batch_size": "8", "num_train_epochs": None, "max_steps": "2"}
    argv = tiny_run(**{**EPOCHS, **own, "save_steps": "1", "output_dir": "whole"})
    run_sharded_on_two(ROOT / "train_grpo.py", *argv)
    whole = Path("whole")
    last = checkpoints.newest(whole)[0]
    assert (whole / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    interrupted("whole", 1)
    run_sharded_on_two(ROOT / "train_grpo.py", *argv, "--output_dir", "again", "--resume_from_checkpoint", "auto")
    assert_same(state_of(Path("again")), state_of(whole))


def test_models_load_whole_whatever_a_launcher_says():
    class Config:
        def is_zero3(self):
            return True

    zero = Config()
    deepspeed.set_hf_deepspeed_config(zero)
    try:
        with loading.loaded_whole():
            assert not deepspeed.is_deepspeed_zero3_enabled()
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_the_launchers_file_is_one_that_accelerate_can_read():
    """And leave the number format to the script, whose bf16 would otherwise have two owners."""
    found = load_config_from_file(str(ROOT / "launch" / "fsdp2.yaml"))
    assert found.mixed_precision == "no" and found.use_cpu is False and found.fsdp_config["fsdp_version"] == 2
