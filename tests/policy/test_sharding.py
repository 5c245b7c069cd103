"""lean_grpo/sharding.py and launch/fsdp2.yaml: sharded runs are resumed bit by bit and save whole weights.

Its gradients: tests/lean_grpo/test_two_processes.py.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config import load_config_from_file
from helpers_pickles import RAN, plant
from helpers_programs import FSDP2, ZERO2, ZERO3, run_sharded_on_two, sharded_on_two
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import ROOT
from safetensors.torch import load_file
from transformers.integrations import deepspeed

import train_grpo
from grpo.policy import loading
from grpo.runs import checkpoints
from lean_grpo import sharding


def in_parts():
    """launch/fsdp2.yaml with the other type of checkpoint that it mentions, which has no whole weights."""
    text = FSDP2.read_text().replace("state_dict_type: FULL_STATE_DICT", "state_dict_type: SHARDED_STATE_DICT")
    Path("in_parts.yaml").write_text(text)
    return Path("in_parts.yaml").absolute()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "adapter"),
    [(FSDP2, "false"), (FSDP2, "true"), (None, "false"), (ZERO2, "true"), (ZERO3, "false")],
    ids=["FSDP2", "FSDP2-LoRA", "FSDP2-in-parts", "ZeRO-2-LoRA", "ZeRO-3"],
)
def test_sharded_run_is_resumed_and_saves_all_weights(tiny_run, capfd, file, adapter):
    if file in (ZERO2, ZERO3):
        pytest.importorskip("deepspeed")
    whole_weights, file = file is not None, file or in_parts()
    own = {"per_device_train_batch_size": "8", "num_train_epochs": None, "max_steps": "2", "use_peft": adapter}
    own |= {"gradient_checkpointing": adapter}
    argv = tiny_run(**{**EPOCHS, **own, "save_steps": "1", "output_dir": "whole"})
    run_sharded_on_two(ROOT / "train_grpo.py", *argv, file=file)
    whole = Path("whole")
    last = checkpoints.newest(whole)[0]
    weights = "adapter_model.safetensors" if adapter == "true" else "model.safetensors"
    assert not whole_weights or (whole / weights).read_bytes() == (last / weights).read_bytes()
    interrupted("whole", 1)
    resumed = ["--output_dir", "again", "--resume_from_checkpoint", "auto"]
    run_sharded_on_two(ROOT / "train_grpo.py", *argv, *resumed, file=file)
    assert_same(state_of(Path("again")), state_of(whole))
    refused_without_a_launcher(last, argv, capfd)
    if file is ZERO3:
        a_damaged_one_is_one_line(argv)
    if adapter == "true" and file is FSDP2:  # trained further, with a copy of it as the reference model
        more = ["--model_name_or_path", "whole", "--beta", "0.1", "--max_steps", "1", "--output_dir", "more"]
        run_sharded_on_two(ROOT / "train_grpo.py", *argv, *more, file=file)
        before, after = (load_file(run / weights) for run in (whole, Path("more")))
        assert before.keys() == after.keys() and any(not torch.equal(before[key], after[key]) for key in before)


def refused_without_a_launcher(checkpoint, argv, capfd):
    """It would continue with a new optimizer, or count as damaged."""
    found = checkpoints.read_seal(checkpoint)["sharding"]
    (checkpoint / checkpoints.SEAL).rename("seal")
    assert found in checkpoints.shardings(checkpoint)  # as an older seal would leave it to the files
    Path("seal").rename(checkpoint / checkpoints.SEAL)
    resumed = ["--output_dir", str(checkpoint.parent), "--resume_from_checkpoint", "auto", "--max_steps", "3"]
    assert train_grpo.main([*argv, *resumed]) == 2
    errors = capfd.readouterr().err
    assert f"was written with {found}, and this run has no sharding" in errors and "delete" not in errors


def a_damaged_one_is_one_line(argv):
    checkpoint = interrupted("whole", 1, "damaged") / "checkpoint-1"
    damaged = min(checkpoint.glob("global_step1/*_optim_states.pt"))
    damaged.write_bytes(damaged.read_bytes()[:1000])
    resumed = ["--output_dir", "damaged", "--resume_from_checkpoint", "auto"]
    errors = sharded_on_two(ROOT / "train_grpo.py", *argv, *resumed, file=ZERO3).stderr
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: resume_from_checkpoint: {checkpoint} does not load") and "[rank" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "planted"),
    [
        (None, "optimizer_0/.metadata"),
        (ZERO3, "global_step1/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ],
    ids=["FSDP2-in-parts", "ZeRO-3"],
)
def test_code_in_a_sharded_checkpoint_is_not_run(tiny_run, file, planted):
    if file is ZERO3:
        pytest.importorskip("deepspeed")
    file = file or in_parts()
    own = {"per_device_train_batch_size": "8", "num_train_epochs": None, "max_steps": "1"}
    argv = tiny_run(**{**EPOCHS, **own, "save_steps": "1"})
    run_sharded_on_two(ROOT / "train_grpo.py", *argv, file=file)
    path = Path("run/checkpoint-1", planted)
    assert path.exists()
    plant(path, raw=path.name == ".metadata")
    more = ["--max_steps", "2", "--resume_from_checkpoint", "auto"]
    done = sharded_on_two(ROOT / "train_grpo.py", *argv, *more, file=file)
    assert done.returncode != 0 and not RAN.exists()
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{path} names io.open" in line


@pytest.mark.parametrize(
    ("fsdp", "mismatches", "refused"),
    [
        (dict(fsdp_version=1), [], "fsdp_version: 1"),
        (dict(fsdp_version=2, activation_checkpointing=True), [], "fsdp_activation_checkpointing"),
        (None, ["- ds gradient_clipping=1 vs hf max_grad_norm=0.1"], "gradient_clipping=1"),
    ],
)
def test_what_cannot_be_is_refused_before_training(fsdp, mismatches, refused):
    zero = SimpleNamespace(hf_ds_config=SimpleNamespace(mismatches=mismatches))
    state = SimpleNamespace(fsdp_plugin=fsdp and SimpleNamespace(**fsdp), deepspeed_plugin=zero)
    with pytest.raises(ValueError, match=refused):  # which the script makes one line of
        sharding.prepare(SimpleNamespace(state=state))


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
    found = load_config_from_file(str(FSDP2))
    assert found.mixed_precision == "no" and found.use_cpu is False and found.fsdp_config["fsdp_version"] == 2
