"""LeanGRPOTrainer's gradients are stock TRL's: a sample of benchmarks/exactness.py."""

import sys

import pytest
from helpers_runs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import exactness


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("gpt2", "packed"),  # learned positions
        ("bloom", "fell back"),  # ALiBi, which counts from the mask
        ("gemma3_text", "fell back"),  # sliding windows
    ],
)
def test_architectures_have_stock_gradients(name, outcome):
    assert exactness.architecture(name)["outcome"] == outcome


@pytest.mark.parametrize("number", ["0", "1"])
def test_random_settings_have_stock_gradients(number):
    assert exactness.setting(number)["outcome"] == "packed", exactness.drawn(int(number))


@pytest.mark.parametrize("name", ["LORA dora", "LORA modules_to_save", "IA3"])
def test_adapters_have_stock_gradients(name):
    assert exactness.adapter(name)["outcome"] == "packed"
