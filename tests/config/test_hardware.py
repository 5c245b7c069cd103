"""grpo/config/hardware.py: settings against the machine."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
import transformers.utils

import train_grpo
from grpo.config import hardware
from grpo.config.resolve import merge, resolve
from grpo.core.errors import UserError


def settings(**overrides):
    """The default settings as merged, for a GPU, without a tracker."""
    return {**merge(train_grpo.HYPERPARAMETERS, ["--report_to", "none"], 1).settings, **overrides}


@pytest.fixture
def gpus(monkeypatch):
    def visible(count, flash=True, tf32=False, bitsandbytes=True):
        def is_available():
            # starting CUDA fixes what is visible, so one GPU must have been chosen by now
            assert count < 2 or "LOCAL_RANK" in os.environ or "," not in os.environ["CUDA_VISIBLE_DEVICES"]
            return count > 0

        monkeypatch.setattr(torch.cuda, "is_available", is_available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: flash)
        monkeypatch.setattr(transformers.utils, "is_torch_tf32_available", lambda: tf32)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "bitsandbytes" or bitsandbytes or None)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    return visible


def test_without_a_gpu_the_default_run_points_to_the_demo():
    with pytest.raises(UserError) as caught:
        resolve(train_grpo.HYPERPARAMETERS, [])
    message = str(caught.value)
    assert "no CUDA GPU" in message and "python train_grpo.py --config recipes/demo.yaml" in message
    assert "--use_cpu true" in message and "\n" not in message


def test_use_cpu_overrides_the_inline_block_and_recipes():
    values = settings(use_cpu=True, tf32=True, load_in_4bit=True, optim="adamw_8bit")
    (note,) = hardware.fit_to_machine(values, typed={"use_cpu"})
    assert values["optim"] == "adamw_torch" and "adamw_8bit" in note
    assert not values["bf16"] and values["tf32"] is None and not values["load_in_4bit"]
    assert values["dtype"] == "float32" and values["attn_implementation"] == "sdpa"
    values = settings(use_cpu=True, attn_implementation="eager")
    hardware.fit_to_machine(values, typed={"use_cpu", "attn_implementation"})
    assert values["attn_implementation"] == "eager"


@pytest.mark.parametrize(
    ("installed", "dtype", "used", "said"),
    [
        (True, "bfloat16", "flash_attention_2", None),
        (False, "bfloat16", "sdpa", "pip install wheel ninja packaging psutil && pip install flash-attn"),
        (True, "float32", "sdpa", "float32"),
    ],
)
def test_flash_attention_gives_way_to_sdpa_with_a_line(gpus, installed, dtype, used, said):
    gpus(1, flash=installed)
    values = settings(dtype=dtype)
    notes = hardware.fit_to_machine(values, typed=set())
    assert values["attn_implementation"] == used
    assert len(notes) == (said is not None) and all(said in note and "\n" not in note for note in notes)


def test_several_gpus_and_no_launcher_use_the_first_one(gpus, monkeypatch, capsys):
    gpus(2)
    hardware.claim_devices(settings(), ["--beta", "0.1"])
    (note,) = capsys.readouterr().out.splitlines()
    assert "torchrun --nproc_per_node=2 train_grpo.py --beta 0.1" in note
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    gpus(2)
    monkeypatch.setenv("LOCAL_RANK", "0")  # a launcher's
    hardware.claim_devices(settings(), [])
    assert capsys.readouterr().out == "" and os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_resolve_changes_nothing_in_this_process(capsys):
    before = dict(os.environ)
    resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none"])
    assert dict(os.environ) == before and capsys.readouterr() == ("", "") and not list(Path.cwd().iterdir())
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [({}, 1), ({"use_peft": True}, 0), ({"use_peft": True, "load_in_4bit": True}, 1), ({"dtype": "float16"}, 0)],
)
def test_plain_adamw_on_bf16_weights_is_warned_of(gpus, overrides, warned):
    gpus(1)
    notes = hardware.fit_to_machine(settings(optim="adamw_torch_fused", **overrides), typed=set())
    assert len(notes) == warned and all("rounding" in note for note in notes)


@pytest.mark.parametrize(
    ("asked", "available", "used", "notes"),
    [
        (None, True, True, 0),
        (None, False, None, 0),
        (True, False, None, 1),  # a recipe made for another GPU
        (False, True, False, 0),
    ],
)
def test_tf32_is_switched_on_where_it_exists(gpus, asked, available, used, notes):
    gpus(1, tf32=available)
    values = settings(tf32=asked)
    said = hardware.fit_to_machine(values, typed=set())
    assert values["tf32"] is used and len(said) == notes and all("TF32" in note for note in said)


@pytest.mark.parametrize("instead", ["ask", "merge_only"])
def test_what_needs_no_gpu_takes_what_there_is_and_no_tracker(instead, gpus):
    for count in (0, 1):
        gpus(count)
        fitted = settings(**{instead: "x", "report_to": "wandb"})
        hardware.fit_to_machine(fitted, typed=set())
        assert fitted["use_cpu"] is (count == 0) and fitted["report_to"] == ["none"]


def test_quantized_weights_need_bitsandbytes(gpus):
    gpus(1, bitsandbytes=False)
    with pytest.raises(UserError, match="load_in_4bit: bitsandbytes is not installed; pip install bitsandbytes"):
        hardware.fit_to_machine(settings(use_peft=True, load_in_4bit=True), typed=set())


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [
        ({"use_cpu": True}, "--use_unsloth false"),
        ({"use_peft": False}, "--use_peft true"),
        ({"max_prompt_length": None}, "set max_prompt_length"),
    ],
)
def test_what_unsloth_needs_is_one_line(overrides, remedy):
    with pytest.raises(UserError, match=f"use_unsloth: .*{remedy}"):
        hardware.fit_to_machine(settings(**{"use_unsloth": True, "use_peft": True, **overrides}), typed=set())


def test_unsloth_keeps_adapters_on_quantized_weights_in_float32(gpus):
    gpus(1)
    values = settings(use_unsloth=True, use_peft=True, load_in_4bit=True, optim="adamw_8bit")
    assert hardware.fit_to_machine(values, typed=set()) == []  # nothing about rounding
