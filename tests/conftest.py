"""Fixtures: everything runs offline, on the CPU, on models and data that the project makes itself."""

import json
import os
import shutil
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may wait for a hub
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DEMO = ROOT / "assets" / "demo"
ROWS = [
    {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
    for a in range(2, 10)
    for b in range(2, 7)
]
# Flags for `tiny_run` of a model that earns something: without rewards that differ no weight moves
LEARNS = {
    "model_name_or_path": str(DEMO / "model"),
    "dataset_name": str(DEMO / "train.jsonl"),
    "max_samples": "40",
    "max_completion_length": "40",
    "num_generations": "8",
    "per_device_train_batch_size": "16",
}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    """Whatever a test writes by a relative path is seen, and gone afterwards."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write_jsonl(tmp_path):
    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def rows_file(write_jsonl):
    """40 sums in GSM8K's schema."""
    return write_jsonl(ROWS)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A directory with a randomly initialised two-layer Qwen2 of 60 thousand weights and the demo's tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("tiny") / "Tiny-60K"
    shutil.copytree(DEMO / "model", directory, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return str(directory)


@pytest.fixture
def tiny_run(tiny_model, rows_file):
    """Flags of a training run of seconds."""
    flags = {
        "use_cpu": "true",
        "model_name_or_path": tiny_model,
        "dataset_name": rows_file,
        "max_prompt_length": "400",
        "max_completion_length": "8",
        "num_generations": "2",
        "per_device_train_batch_size": "4",
        "gradient_accumulation_steps": "1",
        "max_steps": "2",
        "warmup_steps": "0",
        "learning_rate": "1e-3",
        "report_to": "none",
        "output_dir": "run",
    }

    def argv(**overrides):
        merged = {**flags, **overrides}
        return [word for key, value in merged.items() if value is not None for word in (f"--{key}", str(value))]

    return argv
