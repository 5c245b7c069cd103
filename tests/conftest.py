"""Fixtures: everything runs offline, on the CPU, on models and data that the project makes itself."""

import contextlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# One thread: models this small gain nothing from more, and pytest-xdist has given each core a process (pyproject.toml)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may wait for a hub
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# By default the same examples every time; see README.md here for `long`
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile(
    "long", deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("long" if LONG else "default")

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


def examples(count):
    """Hypothesis' settings for so many examples by default, and for twenty times as many in the long profile."""
    return settings(max_examples=count * (20 if LONG else 1))


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


# Flags of a training run of seconds
TINY = {
    "use_cpu": "true",
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


def flags(**settings):
    return [word for key, value in settings.items() if value is not None for word in (f"--{key}", str(value))]


@pytest.fixture
def tiny_run(tiny_model, rows_file):
    """The command line of a training run of seconds."""

    def argv(**overrides):
        return flags(**{**TINY, "model_name_or_path": tiny_model, "dataset_name": rows_file, **overrides})

    return argv


# --- Runs that several tests look at, made once


@dataclass(frozen=True)
class Finished:
    """A finished run: its directory, which nobody may write to, and what it printed (spaces as one)."""

    path: Path
    shown: str

    def copy(self, name="run"):
        """The run, in the test's own directory."""
        return Path(shutil.copytree(self.path, name))


# In the environment of `learned`: none of them may stand in any file that it wrote
SECRETS = {
    name: f"planted-{index}-0123456789abcdef"
    for index, name in enumerate(("HF_TOKEN", "WANDB_API_KEY", "MY_SECRET", "SMTP_PASSWORD", "AWS_SECRET_ACCESS_KEY"))
}


def finish(directory, **overrides):
    """Train in this directory, with LEARNS."""
    import train_grpo

    shown = io.StringIO()
    with contextlib.chdir(directory), contextlib.redirect_stdout(shown):
        assert train_grpo.main(flags(**{**TINY, **LEARNS, **overrides})) == 0
    return Finished(directory / "run", " ".join(shown.getvalue().split()))


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """All weights of the demo's model trained for two steps, with a checkpoint of each."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in SECRETS.items():
            patched.setenv(name, value)
        return finish(tmp_path_factory.mktemp("learned"), save_steps="1", stop_on_alarm="true")


@pytest.fixture(scope="session")
def learned_adapter(tmp_path_factory):
    """A LoRA adapter of the demo's model that matters, for its high learning rate; merged besides."""
    lora = {"use_peft": "true", "lora_r": "4", "learning_rate": "3e-2", "merge_lora": "true", "save_steps": "2"}
    return finish(tmp_path_factory.mktemp("adapter"), **lora)
