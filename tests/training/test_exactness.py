"""LeanGRPOTrainer's gradients are stock TRL's: a sample of benchmarks/bench_exactness.py, and architectures."""

import sys

import pytest
import torch
from helpers_runs import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(ROOT / "benchmarks"))
import bench_exactness

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
ARCHITECTURES = {  # a model type: its sizes, and how its training step is computed
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4}, "packed"),  # learned positions
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, "fell back"),  # ALiBi, which counts from the mask
    "gemma3_text": (  # sliding windows
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "sliding_window": 8, **HEADS},
        "fell back",
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_have_stock_gradients(name):
    sizes, outcome = ARCHITECTURES[name]

    def build():
        config = AutoConfig.for_model(name, vocab_size=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        bench_exactness.noise(model)
        return model

    found = bench_exactness.compared(build, disable_dropout=True)
    assert found["outcome"] == outcome and found["difference"] < 1e-3, found


@pytest.mark.parametrize("number", ["0", "1"])
def test_random_settings_have_stock_gradients(number):
    assert bench_exactness.setting(number)["outcome"] == "packed", bench_exactness.drawn(int(number))


@pytest.mark.parametrize("name", ["LORA dora", "LORA modules_to_save", "IA3"])
def test_adapters_have_stock_gradients(name):
    assert bench_exactness.adapter(name)["outcome"] == "packed"
