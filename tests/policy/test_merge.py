"""grpo/policy/merge.py: a merged adapter answers as the adapter does, and nothing half-written looks like a model."""

from pathlib import Path

import pytest
import torch
from helpers_runs import DEMO
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast, pipeline

import train_grpo
from grpo.__main__ import main
from grpo.policy.merge import merge

QUESTION = "Ada has 12 pens. Ben gives Ada 7 more. How many pens does Ada have now?"


@pytest.fixture
def adapter_run(learned_adapter):
    """A LoRA run whose adapter matters, in `run`."""
    return learned_adapter.copy()


def greedy(directory):
    generate = pipeline("text-generation", model=str(directory), dtype=torch.float32)
    prompt = train_grpo.PROMPT_FORMATS["xml"].prompt(QUESTION)
    return generate(prompt, max_new_tokens=24, do_sample=False, return_full_text=False)[0]["generated_text"]


def test_a_merged_adapter_answers_as_the_adapter_does(adapter_run, capfd):
    assert main(["merge", "run"]) == 0
    assert "Saved in run/merged" in capfd.readouterr().out
    merged = adapter_run / "merged"
    assert not (merged / "adapter_config.json").exists() and (adapter_run / "adapter_model.safetensors").exists()
    assert greedy(merged) == greedy(adapter_run) != greedy(DEMO / "model")
    weights, start = load_file(merged / "model.safetensors"), load_file(DEMO / "model" / "model.safetensors")
    changed = {name for name in start if not torch.equal(weights[name], start[name])}
    assert len(changed) == 4 * 7 and all("_proj" in name for name in changed)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}  # the base model's


def test_nothing_is_written_over(adapter_run, capfd):
    assert main(["merge", "run", "--output", "first"]) == 0
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["first", "run"]
    assert main(["merge", "run", "--output", "first"]) == 2 and "'first' exists" in capfd.readouterr().err
    assert main(["merge", str(DEMO / "model")]) == 2 and "is not an adapter" in capfd.readouterr().err


def test_an_interrupted_merge_leaves_nothing_like_a_model(adapter_run, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
        with pytest.raises(OSError, match="No space"):
            merge(adapter_run, adapter_run / "merged")
    assert not (adapter_run / "merged").exists()
    merge(adapter_run, adapter_run / "merged")
    assert (adapter_run / "merged").is_dir() and not (adapter_run / "merged.partial").exists()
