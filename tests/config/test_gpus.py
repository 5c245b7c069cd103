"""grpo/config/gpus.py: the GPU of a plan, by its name, by what was measured, or by flags."""

import json
from pathlib import Path

import pytest
import torch

from grpo.config import gpus
from grpo.core.errors import UserError


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("4090", "RTX 4090"), ("rtx3060", "RTX 3060"), ("T4", "T4"), ("A100 40GB", "A100-40"), ("A10G", "A10G"),
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070"), ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA RTX A5000", "A5000"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_any_of_its_names(name, known):
    assert gpus.find_gpu(name).name == known


def test_a_gpu_of_ones_own_is_described_by_its_three_numbers():
    own = {"tflops": 100, "bandwidth": 1.5}
    assert gpus.choose(None, memory=24, **own)[:4] == ("a GPU", 24, 1.5, 100)
    assert gpus.choose("4090", memory=24, bandwidth=1.5)[:4] == ("RTX 4090", 24, 1.5, 165)


def test_the_gpu_that_was_checked_is_planned_for(check_json, monkeypatch):
    assert gpus.choose(None).source == str(Path("outputs", "check.json"))
    assert gpus.choose("H100", Path("outputs/check.json"), tflops=50.0).tflops == 50
    with pytest.raises(UserError, match="measured on H100, and this plan is for T4"):
        gpus.choose("T4", Path("outputs/check.json"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    assert gpus.choose(None)[:4] == ("L4", *gpus.GPUS["L4"])  # this machine's has not been checked


def test_a_checked_gpu_need_not_be_in_the_table(check_json):
    found = json.loads(check_json.read_text())
    found["device"]["name"] = "NVIDIA RTX PRO 6000"
    check_json.write_text(json.dumps(found))
    assert gpus.choose("NVIDIA RTX PRO 6000", check_json)[:4] == ("NVIDIA RTX PRO 6000", 85.0, 2.5, 600.0)


def test_the_rate_of_emulated_bfloat16_is_not_used(check_json):
    check_json.write_text(check_json.read_text().replace("NVIDIA H100 80GB HBM3", "Tesla T4"))
    assert gpus.choose("T4", check_json)[:4] == ("T4", 85.0, 2.5, 65)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": {"type": "cuda"}}'])
def test_another_file_is_refused_in_a_line(tmp_path, text):
    (tmp_path / "check.json").write_text(text)
    with pytest.raises(UserError, match=r"check: .* is not what python -m grpo check writes"):
        gpus.measured(tmp_path / "check.json")
    with pytest.raises(UserError, match=r"check: .*FileNotFoundError"):
        gpus.measured(tmp_path / "missing.json")


def test_a_check_on_a_cpu_says_nothing_of_a_gpu(check_json):
    check_json.write_text(check_json.read_text().replace('"cuda"', '"cpu"'))
    assert gpus.choose("H100") == gpus.find_gpu("H100")
    with pytest.raises(UserError, match="measured on a CPU"):
        gpus.choose("H100", Path("outputs/check.json"))
