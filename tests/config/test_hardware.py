"""grpo/config/hardware.py: settings against the machine."""

import contextlib
import importlib.util
import os
import re

import pytest
import torch
from helpers_runs import DEMO
from helpers_tables import each
from transformers.training_args import OptimizerNames

import train_grpo
from grpo.config import hardware
from grpo.config.configure import configure, merge
from grpo.core.errors import UserError
from grpo.core.settings import Settings

OPTIONAL = {*hardware.NEEDS.values(), *hardware.OPTIMIZERS}
BY_CHANCE = {"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=true"}


def settings(flags=(), **overrides):
    """The default settings as merged, for a GPU, without a tracker; these are flags, no other is."""
    values = Settings({**merge(train_grpo.HYPERPARAMETERS, ["--report_to", "none"]).settings, **overrides})
    for key in flags:
        values.set(key, values[key], "flag")
    return values


def fitted(values):
    """The notes about these settings, fitted to the machine."""
    hardware.fit_to_machine(values)
    return values.notes


@pytest.fixture
def gpus(monkeypatch):
    def visible(count, flash=True, packages=True, bf16=True, vllm=False):
        def is_available():
            # starting CUDA fixes what is visible, so one GPU must have been chosen by now
            assert count < 2 or "LOCAL_RANK" in os.environ or "," not in os.environ["CUDA_VISIBLE_DEVICES"]
            return count > 0

        monkeypatch.setattr(torch.cuda, "is_available", is_available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "Tesla T4")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (8, 0) if bf16 else (7, 5))
        # what torch says of a T4, too, is true unless emulation is excluded
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16 or including_emulation
        )
        monkeypatch.setattr(hardware, "is_flash_attn_2_available", lambda: flash)
        monkeypatch.setattr(hardware, "is_vllm_available", lambda: vllm)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name not in OPTIONAL or packages or None)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    return visible


def test_without_a_gpu_the_default_run_points_to_the_demo():
    with pytest.raises(UserError) as caught:
        configure(train_grpo.HYPERPARAMETERS, [])
    assert "no CUDA GPU" in str(caught.value) and "--config recipes/demo.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "reason", ["Found no NVIDIA driver on your system", "The NVIDIA driver on your system is too old (found 12080)"]
)
def test_torchs_reason_against_a_gpu_is_told(reason, monkeypatch):
    def init():
        raise RuntimeError(f"{reason}. Please update it.\nMore.")

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(UserError, match=re.escape(f"no CUDA GPU can be used ({reason}), and")):
        configure(train_grpo.HYPERPARAMETERS, [])


@pytest.mark.parametrize(("own", "runs"), [((7, 0), False), ((7, 5), True), ((9, 0), True), ((12, 1), True)])
def test_a_gpu_older_than_torchs_build_is_one_line(own, runs, gpus, monkeypatch):
    gpus(1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90a", "sm_120"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: own)
    if runs:
        hardware.fit_to_machine(settings())
        return
    with pytest.raises(UserError, match=r"Tesla T4 \(sm_70\) is older than .* \(sm_75, sm_80, sm_90a, sm_120\)"):
        hardware.fit_to_machine(settings())


def test_without_a_gpu_a_resume_points_to_the_runs_own_command():
    with pytest.raises(UserError, match="its report shows the command"):
        configure(train_grpo.HYPERPARAMETERS, ["--resume_from_checkpoint", "auto"])


def test_use_cpu_overrides_the_inline_block_and_recipes():
    values = settings(["use_cpu"], use_cpu=True, tf32=True, load_in_4bit=True, optim="adamw_8bit")
    (note,) = fitted(values)
    assert values["optim"] == "adamw_torch" and "adamw_8bit" in note.finding
    assert not values["bf16"] and values["tf32"] is None and not values["load_in_4bit"]
    assert values["dtype"] == "float32" and values["attn_implementation"] == "sdpa"
    (note,) = fitted(values := settings(["use_cpu"], use_cpu=True, **BY_CHANCE))
    assert values["optim"] == "adamw_torch" and "adamw_torch_8bit is for GPUs" in note.finding
    values = settings(["use_cpu", "attn_implementation"], use_cpu=True, attn_implementation="eager")
    hardware.fit_to_machine(values)
    assert values["attn_implementation"] == "eager"


def test_a_recipe_and_a_flag_turn_bf16_on_on_a_cpu(tmp_path):
    """HYPERPARAMETERS' is for a GPU."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("use_cpu: true\nbf16: true\nreport_to: none\n", encoding="utf-8")
    demo = ["--model_name_or_path", str(DEMO / "model"), "--output_dir", str(tmp_path / "run")]
    for flags, expected in (
        (["--use_cpu", "true", "--report_to", "none"], False),
        (["--use_cpu", "true", "--report_to", "none", "--bf16", "true"], True),
        (["--config", str(recipe)], True),
        (["--config", str(recipe), "--bf16", "false"], False),
    ):
        assert configure(train_grpo.HYPERPARAMETERS, [*flags, *demo]).training.bf16 is expected, flags


def test_flash_attention_2_is_for_packs_and_needs_no_package(gpus):
    gpus(1, flash=False)
    assert settings()["attn_implementation"] == "flash_attention_2"
    for overrides, found in (({}, "flash_attention_2"), ({"packed": False}, "sdpa")):
        values = settings(dtype="float32", **overrides)
        notes = fitted(values)
        assert values["attn_implementation"] == found
        assert [note.name for note in notes if note.name != "optimizer"] == ["attention"] * (found == "sdpa")
    values = settings(["attn_implementation"], packed=False)
    hardware.fit_to_machine(values)
    assert values["attn_implementation"] == "flash_attention_2"  # transformers says what it lacks


def test_vllm_samples_where_it_is_installed(gpus):
    for vllm, asked, expected in [(True, None, True), (True, False, False), (False, None, False)]:
        gpus(1, vllm=vllm)
        values = settings(use_vllm=asked, dtype="float32")
        notes = fitted(values)
        assert values["use_vllm"] is expected and values["vllm_enable_sleep_mode"]
        assert any("vLLM samples" in note.finding for note in notes) == expected
        # its cache holds this run's longest sequence, not the longest that the model can take
        assert values["vllm_max_model_length"] == (256 + 786 if expected else None)
    gpus(1, vllm=True)
    values = settings(eval_only=True)
    hardware.fit_to_machine(values)
    assert not values["use_vllm"]  # there are no rollouts


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize(
    ("asked", "flags", "refused"),
    [
        (True, (), True),
        (None, ("vllm_mode",), True),
        (None, (), False),
        (False, ("vllm_mode",), False),  # as the error advises
    ],
)
def test_vllm_that_is_not_installed_is_an_error_on_any_device(asked, flags, refused, on_cpu, gpus):
    """Before anything else, so in a dry run, too."""
    gpus(1, vllm=False)
    values = settings(flags, use_vllm=asked, use_cpu=on_cpu, vllm_mode="server")
    with pytest.raises(UserError, match=r"requirements-cuda\.txt") if refused else contextlib.nullcontext():
        hardware.fit_to_machine(values)
    hardware.fit_to_machine(settings(use_vllm=asked, use_cpu=on_cpu, eval_only=True))  # no rollouts


@pytest.mark.parametrize("key", ["load_in_4bit", "generation_kwargs", "ACCELERATE_USE_FSDP"])
def test_vllm_is_not_taken_by_itself_where_it_cannot_work(gpus, key, monkeypatch):
    gpus(1, vllm=True)
    values = settings(use_peft=True, **({} if key.isupper() else {key: True}))
    if key.isupper():
        monkeypatch.setenv(key, "true")
    notes = fitted(values)
    assert values["use_vllm"] is False
    assert any(key in note.finding for note in notes)


def test_deepspeed_does_not_look_for_a_gpu_on_a_cpu(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR")
    hardware.fit_to_machine(settings(use_cpu=True))
    assert os.environ["DS_ACCELERATOR"] == "cpu"


def test_settings_decide_whatever_a_launchers_file_says(monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")  # as TRL's file for ZeRO-1
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    hardware.fit_to_machine(settings(use_cpu=True))
    assert not {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_MIXED_PRECISION"} & os.environ.keys()


HALF = {"bf16": False, "fp16": True}
T4 = "bf16: Tesla T4 has no bfloat16; use --bf16 false --fp16 true --dtype float32"


@pytest.mark.parametrize(
    ("overrides", "flags", "bf16", "said"),
    [
        ({}, set(), True, None),
        ({}, set(), False, T4),
        ({}, {"bf16"}, False, None),  # emulated, as asked for
        ({"bf16": False}, {"bf16"}, False, T4),  # the weights still are
        ({**HALF, "dtype": "float32"}, set(HALF), False, None),
        ({**HALF}, set(HALF), True, "dtype: bfloat16 weights cannot be trained with fp16"),
        ({**HALF, "use_peft": True}, set(HALF), True, None),  # its adapter is float32
    ],
)
def test_number_formats_that_cannot_train_here_are_one_line(gpus, overrides, flags, bf16, said):
    gpus(1, bf16=bf16)
    values = settings(flags, **overrides)
    before = {key: values[key] for key in ("bf16", "fp16", "dtype")}
    if said:
        with pytest.raises(UserError, match=said):
            hardware.fit_to_machine(values)
    else:
        hardware.fit_to_machine(values)
    assert {key: values[key] for key in before} == before  # nothing is changed by itself


def test_several_gpus_and_no_launcher_use_the_first_one(gpus, monkeypatch, capsys):
    gpus(2)
    hardware.choose_gpu(settings(), ["--beta", "0.1"])
    (note,) = capsys.readouterr().out.splitlines()
    assert "torchrun --nproc_per_node=2 train_grpo.py --beta 0.1" in note
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    gpus(2)
    monkeypatch.setenv("LOCAL_RANK", "0")  # a launcher's
    hardware.choose_gpu(settings(), [])
    assert capsys.readouterr().out == "" and os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


@pytest.mark.parametrize(
    ("overrides", "noted"),
    [
        ({}, 1),
        ({"use_peft": True}, 0),
        ({"use_peft": True, "load_in_4bit": True}, 1),
        ({"dtype": "float32"}, 0),
        ({"fsdp": "full_shard"}, 0),
        (BY_CHANCE, 0),
        (BY_CHANCE | {"optim_args": "block_size=128, bf16_stochastic_round=Yes"}, 0),
        (BY_CHANCE | {"optim_args": None}, 1),
        (BY_CHANCE | {"optim_args": "bf16_stochastic_round=false"}, 1),
        (BY_CHANCE | {"optim": "adamw_torch"}, 1),  # which does not read them
    ],
)
def test_what_bf16_weights_lose_to_rounding_is_noted(gpus, overrides, noted):
    gpus(1)
    notes = [note for note in fitted(settings(**overrides)) if note.name != "optimizer"]
    assert len(notes) == noted and all(note.name == "optim" for note in notes)
    assert all(hardware.KEEPS_UPDATES in note.finding for note in notes)


def test_the_remedy_against_rounding_removes_the_note(gpus):
    gpus(1)
    given = merge(train_grpo.HYPERPARAMETERS, ["--report_to", "none", *hardware.KEEPS_UPDATES.split()]).settings
    assert {key: given[key] for key in BY_CHANCE} == BY_CHANCE and not fitted(Settings(given))


@pytest.mark.parametrize(
    ("asked", "launcher", "computed"),
    [
        ({}, {}, "adamw_torch_fused"),
        ({}, {"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "adamw_torch_fused"),  # DDP: each GPU has all weights
        ({}, {"ACCELERATE_USE_FSDP": "true"}, "adamw_torch"),
        ({}, {"ACCELERATE_USE_DEEPSPEED": "true"}, "adamw_torch"),
        ({"fsdp": "full_shard"}, {}, "adamw_torch"),
        ({"deepspeed": "zero2.json"}, {}, "adamw_torch"),
        ({"optim": "adamw_8bit"}, {}, "adamw_8bit"),
        ({"eval_only": True}, {}, "adamw_torch"),
        ({"use_cpu": True}, {}, "adamw_torch"),
    ],
    ids=str,
)
def test_adamw_is_fused_where_a_gpu_has_all_weights(asked, launcher, computed, gpus, monkeypatch):
    gpus(1)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    values = settings(**asked)
    notes = {note.name: note for note in fitted(values)}
    assert values["optim"] == computed
    assert ("optimizer" in notes) == (computed == "adamw_torch_fused")
    assert "optimizer" not in notes or "the same update" in notes["optimizer"].finding


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"use_vllm": True}, r"use_vllm: .*requirements-cuda\.txt"),
        ({"use_peft": True, "load_in_4bit": True}, r"load_in_4bit: .*pip install bitsandbytes"),
        ({"use_liger_kernel": True}, r"use_liger_kernel: .*pip install liger-kernel"),
        ({"optim": "adamw_8bit"}, r"^optim: .*pip install bitsandbytes, or use --optim adamw_torch"),
        (BY_CHANCE, r"^optim: torchao is not installed; pip install torchao, or use --optim adamw_torch"),
        (BY_CHANCE | {"use_cpu": True}, "^optim: torchao is not installed"),
    ],
)
def test_what_is_missing_is_one_line(asked, says, gpus):
    gpus(1, packages=False)
    with pytest.raises(UserError, match=says):
        hardware.fit_to_machine(settings(asked, **asked))


@each(kind.value for kind in OptimizerNames)
def test_optimizers_of_other_packages_are_known_by_their_names(kind):
    known = importlib.import_module("transformers.trainer_optimizer")
    of_both = "galore_adamw_8bit" in kind  # needs bitsandbytes, too
    assert bool(hardware.OF_BITSANDBYTES.match(kind)) is (kind in known._BITSANDBYTES_OPTIMIZERS or of_both)
    assert bool(hardware.OF_TORCHAO.match(kind)) is (kind in known._TORCHAO_OPTIMIZERS)


def test_workers_are_refused_where_no_lock_can_be_shared(monkeypatch):
    class NoLock:
        def Lock(self):
            raise OSError(30, "Read-only file system")

    monkeypatch.setattr(hardware.multiprocessing, "get_context", NoLock)
    with pytest.raises(UserError, match=r"dataloader_num_workers: .*Read-only .* /dev/shm\); use --data\w+ 0"):
        hardware.fit_to_machine(settings(use_cpu=True, dataloader_num_workers=2))
    hardware.fit_to_machine(settings(use_cpu=True, dataloader_num_workers=0))
