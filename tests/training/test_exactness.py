"""A sample of benchmarks/bench_exactness.py, which compares all architectures, many settings and PEFT's methods."""

import sys

import pytest
from helpers_runs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import bench_exactness


@pytest.mark.parametrize(
    ("name", "outcome", "decoding"),
    [
        ("gpt2", "packed", "lean and continuous"),  # learned positions
        ("bloom", "fell back", "lean"),  # ALiBi, which counts from the mask
        ("doge", "packed", "lean and continuous"),  # learned attention biases
        ("gpt_neo", "fell back", "lean"),  # local attention
        ("roberta", "fell back", "lean and continuous"),  # positions that begin after the padding's
        ("gemma3_text", "fell back", "generate"),  # sliding windows
        ("openai-gpt", "fell back", "generate"),  # no cache; packs would be longer than its positions
    ],
)
def test_architectures_have_stock_gradients(name, outcome, decoding):
    found = bench_exactness.architecture(name)
    assert (found["outcome"], found["decoding"]) == (outcome, decoding), found


@pytest.mark.parametrize("number", ["0", "1"])
def test_random_settings_have_stock_gradients(number):
    assert bench_exactness.setting(number)["outcome"] == "packed", bench_exactness.drawn(int(number))


@pytest.mark.parametrize("name", ["LORA dora", "LORA modules_to_save", "IA3"])
def test_adapters_have_stock_gradients(name):
    assert bench_exactness.adapter(name)["outcome"] == "packed"
