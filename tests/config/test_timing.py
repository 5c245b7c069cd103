"""grpo/config/timing.py: how long a run takes on a CPU, from what a moment of it takes."""

import re
from types import SimpleNamespace

import pytest
import torch
from helpers_runs import DEMO
from transformers import AutoConfig, GPT2Config, LlamaConfig

import train_grpo
from grpo.config import hardware, timing
from grpo.config.resolve import resolve
from grpo.policy import memory

RATES = timing.Rates(step=0.01, row=0.001, training=0.0002)


def configured(**overrides):
    flags = {"use_cpu": "true", "report_to": "none", "model_name_or_path": str(DEMO / "model"), **overrides}
    return resolve(train_grpo.HYPERPARAMETERS, [f"--{key}={value}" for key, value in flags.items()])


def seconds(steps=10, mean=30, held_out=50, **overrides):
    data = SimpleNamespace(train=range(400), held_out=range(held_out))
    return timing.seconds(configured(**overrides), data, RATES, steps, mean, prompt=80)


def test_more_work_takes_longer():
    usual = seconds()
    assert seconds(steps=20) > 1.5 * usual and seconds(mean=60) > 1.5 * usual
    assert seconds(gradient_accumulation_steps=8) > 1.5 * usual
    assert seconds(held_out=100) > usual and seconds(eval_num_samples=4) > usual
    assert seconds(eval_every=5) > usual == seconds(eval_every=10)  # the last step is the evaluation after
    assert seconds(curriculum="true") > usual and seconds(packed="false") > usual > seconds(num_iterations=2)


def test_a_batch_takes_as_long_as_its_longest_row():
    assert RATES.decoding(1, 1, 20, 20) == pytest.approx(20 * 0.011)
    assert RATES.decoding(64, 64, 20, 20) == pytest.approx(20 * 0.01 + 64 * 20 * 0.001)
    assert RATES.decoding(64, 64, 20, 40) == pytest.approx(40 * 0.01 + 64 * 20 * 0.001)


def described(monkeypatch, solutions, max_completion_length=100, steps=60, in_bf16=RATES, **overrides):
    monkeypatch.setattr(timing, "measure", lambda *_, bf16: in_bf16 if bf16 else RATES)
    monkeypatch.setattr(hardware, "cpu_has_bf16", lambda: in_bf16 is not RATES)
    data = SimpleNamespace(train=range(400), held_out=range(50), lengths=[80])
    config = configured(max_completion_length=max_completion_length, **overrides)
    return timing.describe(config, None, None, None, data, solutions, None, steps)


def test_gold_solutions_say_how_long_completions_get(monkeypatch):
    found = described(monkeypatch, [20, 30, 90])
    assert re.fullmatch(r"about [\d.]+ minutes if completions average 30 tokens, as the gold solutions do", found)
    cut = described(monkeypatch, [200, 300])
    assert cut.endswith("average 100 tokens, as the gold solutions do (cut at the limit)")
    assert "average 20 to 100 tokens" in described(monkeypatch, []) and " to " in described(monkeypatch, [])
    units = [described(monkeypatch, [30], steps=steps).split()[2] for steps in (1, 60, 6000)]
    assert units == ["seconds", "minutes", "hours"]


def test_the_faster_number_format_is_named(monkeypatch):
    faster = timing.Rates(step=0.005, row=0.0005, training=0.0001)
    found = described(monkeypatch, [30], in_bf16=faster)
    assert re.search(r"about 3.5 minutes if .* do; with --bf16 true 1.7 minutes$", found), found
    slower = timing.Rates(step=0.02, row=0.002, training=0.0004)
    assert "bf16" not in described(monkeypatch, [30], in_bf16=slower)
    assert "; with --bf16 false " in described(monkeypatch, [30], in_bf16=slower, bf16="true")
    assert "bf16" not in described(monkeypatch, [30], in_bf16=faster, steps=6)  # seconds: not worth measuring


def test_weights_have_the_runs_number_format():
    small = GPT2Config(vocab_size=90, n_embd=8, n_layer=1, n_head=1)
    for dtype in ("float32", "bfloat16"):
        assert timing.build(configured(dtype=dtype), small, None).dtype is getattr(torch, dtype)


@pytest.mark.parametrize(("kind", "peft"), [("demo", False), ("demo", True), ("gpt2", False)])
def test_rates_are_positive_and_leave_random_numbers_alone(kind, peft, tokenizer):
    from peft import LoraConfig

    model = GPT2Config(vocab_size=9000, n_embd=32, n_layer=6, n_head=2)
    model = AutoConfig.from_pretrained(DEMO / "model") if kind == "demo" else model
    before = torch.get_rng_state()
    config = configured(gradient_checkpointing=str(peft).lower())
    adapter = LoraConfig(target_modules="all-linear") if peft else None
    rates = timing.measure(config, model, adapter, tokenizer, memory.shape(model), 40, bf16=peft)
    assert rates.training > 0 and rates.step >= 0 and rates.row >= 0 and rates.step + rates.row > 0
    assert torch.equal(before, torch.get_rng_state())


def test_a_large_model_is_measured_in_part_or_not_at_all(tokenizer):
    large = LlamaConfig(num_hidden_layers=30, vocab_size=49152, pad_token_id=49000)
    part = timing.shorten(large)
    assert part.num_hidden_layers == 4 and part.vocab_size == 8192 and large.num_hidden_layers == 30
    assert timing.measure(configured(), large, None, tokenizer, memory.shape(large), 40, bf16=False) is None
