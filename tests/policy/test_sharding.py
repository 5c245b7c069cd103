"""grpo/policy/sharding.py and accelerate/*.yaml: FSDP2 and ZeRO train as one process does on the same completions."""

import importlib.util
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import sharded_step
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from helpers_checkpoints import make_checkpoint
from helpers_commands import command
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import DEMO, ROOT
from helpers_trainer import no_group_lives
from trl import GRPOTrainer

from grpo.core.errors import UserError
from grpo.policy import sharding
from grpo.runs import checkpoints

HELPERS = ROOT / "tests" / "helpers"
MODEL = str(DEMO / "model")
# DeepSpeed is no part of requirements-dev.txt: it prints as soon as it is imported, and on CPUs it compiles a file
zero = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None or shutil.which("g++") is None,
    reason="pip install deepspeed, and have a C++ compiler, to test ZeRO",
)
LAUNCHERS = ["fsdp2", pytest.param("zero2", marks=zero), pytest.param("zero3", marks=zero)]


def launch(settings, script, *argv):
    """Run a script in two processes with what Accelerate's launcher tells them of one of our files."""
    words = ["--config_file", str(ROOT / "accelerate" / f"{settings}.yaml"), "--num_processes", "2", str(script)]
    given, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    told = prepare_deepspeed_cmd_env(given)[1] if given.use_deepspeed else prepare_multi_gpu_env(given)
    environment = {**told, "PYTHONPATH": str(ROOT)}
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
@pytest.mark.parametrize("settings", LAUNCHERS)
def test_two_processes_move_the_weights_as_one_does(one_process, settings):
    shown = launch(settings, HELPERS / "sharded_step.py", MODEL, str(one_process))
    kind = "FSDP" if settings == "fsdp2" else "DEEPSPEED"
    assert shown.count("all equal") == 2 and f"{kind} LeanGRPOTrainer adapter" in shown


@pytest.mark.slow
@pytest.mark.parametrize("settings", [LAUNCHERS[0], LAUNCHERS[2]])  # ZeRO-2 writes what ZeRO-3 writes
def test_sharded_run_is_resumed_and_saves_all_weights(tiny_run, settings):
    own = {"generation": "hf" if settings == "fsdp2" else "lean"}  # both need all weights
    own |= {"per_device_train_batch_size": "8", "optim": "adamw_torch", "num_train_epochs": None, "max_steps": "2"}
    argv = tiny_run(**{**EPOCHS, **own, "save_steps": "1", "output_dir": "whole"})
    launch(settings, ROOT / "train_grpo.py", *argv)
    whole = Path("whole")
    last = checkpoints.newest(whole)[0]
    assert (whole / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    interrupted("whole", 1)
    by = {"divided_by": "FSDP" if settings == "fsdp2" else "DeepSpeed's ZeRO-3"}
    assert by.items() <= checkpoints.read_seal(Path("again/checkpoint-1")).items()
    launch(settings, ROOT / "train_grpo.py", *argv, "--output_dir", "again", "--resume_from_checkpoint", "auto")
    assert_same(state_of(Path("again")), state_of(whole))


def test_a_state_that_is_sharded_otherwise_is_refused(tmp_path):
    one, fsdp = SimpleNamespace(distributed_type="NO"), SimpleNamespace(distributed_type="FSDP")
    directory = make_checkpoint(tmp_path / "run", 4, sealed=False)
    checkpoints.seal(directory, 1)  # of a version that did not say
    sharding.check_checkpoint(directory, fsdp)
    checkpoints.seal(directory, 1, divided_by=sharding.kind(fsdp))
    sharding.check_checkpoint(directory, fsdp)
    with pytest.raises(UserError, match="is sharded by FSDP, that of this run by nothing; start it as it began"):
        sharding.check_checkpoint(directory, one)


def under(kind, optim="adamw_torch", **plugin):
    state = SimpleNamespace(**{f"{kind}_plugin": SimpleNamespace(**plugin)})
    return SimpleNamespace(
        is_fsdp_enabled=kind == "fsdp", is_deepspeed_enabled=kind == "deepspeed", args=SimpleNamespace(optim=optim),
        accelerator=SimpleNamespace(state=state),
    )  # fmt: skip


def zero_of(stage, **settings):
    return {"zero_stage": stage, "deepspeed_config": {"zero_optimization": settings}}


def test_launchers_that_would_lose_weights_are_refused(capsys):
    with pytest.raises(UserError, match="fsdp_version: 1 cannot gather"):
        sharding.check(under("fsdp", fsdp_version=1))
    with pytest.raises(UserError, match="zero3_save_16bit_model: false would leave the run without a model"):
        sharding.check(under("deepspeed", **zero_of(3)))
    sharding.check(under("fsdp", fsdp_version=2))
    sharding.check(under("deepspeed", **zero_of(3, stage3_gather_16bit_weights_on_model_save=True)))
    assert capsys.readouterr().out == ""
    sharding.check(under("deepspeed", optim="stable_adamw", **zero_of(2)))
    assert "use --optim adamw_torch" in capsys.readouterr().out


def test_models_load_whole_whatever_a_launcher_says(monkeypatch):
    from transformers.integrations import deepspeed

    class Config:
        def is_zero3(self):
            return True

    zero = Config()
    deepspeed.set_hf_deepspeed_config(zero)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    try:
        with sharding.loaded_whole():
            assert not deepspeed.is_deepspeed_zero3_enabled()
            assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_a_launchers_files_are_ones_that_accelerate_can_read():
    """And leave the number format to the script, whose bf16 would otherwise have two owners."""
    from accelerate.commands.config import load_config_from_file

    for path in sorted((ROOT / "accelerate").iterdir()):
        found = load_config_from_file(str(path))
        assert found.mixed_precision == "no" and found.use_cpu is False, path
