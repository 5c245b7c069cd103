"""Fixtures: everything runs offline, on the CPU, on models and data that the project makes itself."""

import functools
import gc
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers_runs import DEMO, LONG, ROOT, ROWS, SECRETS, TINY, finish, flags
from hypothesis import HealthCheck, settings

# Whatever is set where the tests run, they and their subprocesses see none of it
OTHERS = (
    "WANDB_", "HF_", "HUGGING", "TRANSFORMERS_", "DATASETS_", "ACCELERATE_", "TOKENIZERS_", "OMP_", "GOMP_", "MKL_",
    "TORCHELASTIC_", "FSDP_", "GRPO_", "DS_",
)  # fmt: skip
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
LAUNCHER = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
for name in list(os.environ):
    if name.startswith(OTHERS) or name in (*TERMINAL, *LAUNCHER, "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
# One thread: models this small gain nothing from more, and pytest-xdist has given each core a process (pyproject.toml)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may wait for a hub
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"  # otherwise DeepSpeed says on stdout that it found no GPU
os.environ["COLUMNS"] = "100"  # of a terminal that is none

collect_ignore = ["helpers", "programs"]  # which --doctest-modules would import

# By default the same examples every time; see README.md here for `long`
settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile(
    "long", deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("long" if LONG else "default")


def pytest_configure(config):
    """Hide the GPU, except from `python -m pytest tests/gpu`."""
    if not any("gpu" in word for word in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="module", autouse=True)
def _without_collecting_what_was_imported():
    """Accelerate collects garbage at the start of each training: half of a toy run's time, for torch's own objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _without_reading_again_what_is_installed():
    """Accelerate parses the metadata of packages dozens of times at the start of each training."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importlib.metadata, "metadata", functools.cache(importlib.metadata.metadata))
        yield


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    """Start each test in an empty directory, and restore the variables that a run sets."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _without_charts(request, monkeypatch):
    """Drawing is half of a toy run's time; tests of what is drawn, and the runs made once, draw."""
    from grpo.report import charts

    if request.node.path.stem not in ("test_report", "test_security"):
        monkeypatch.setattr(charts, "image", lambda *_, **__: "")
        monkeypatch.setattr(charts, "draw_curves", lambda *_: None)


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


@pytest.fixture(scope="session")
def tokenizer():
    """The demo's, which is the tiny model's too."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO / "model", padding_side="left")


@pytest.fixture(scope="session")
def demo(tokenizer):
    """The demo's model in float32 and its tokenizer, which nobody may change."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32), tokenizer


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Both wheels by their packages' names, as `.ci/build` makes them for a release."""
    dist = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / ".ci" / "build", dist], env={**os.environ, "PYTHON": sys.executable}, check=True)
    return {path.name.partition("-")[0]: path for path in dist.iterdir()}


@pytest.fixture
def tiny_run(tiny_model, rows_file):
    """The command line of a training run of seconds."""

    def argv(**overrides):
        return flags(**{**TINY, "model_name_or_path": tiny_model, "dataset_name": rows_file, **overrides})

    return argv


# --- Runs that several tests look at, made once


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """All weights of the demo's model trained for two steps, with a checkpoint of each."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in SECRETS.items():
            patched.setenv(name, value)
        return finish(tmp_path_factory.mktemp("learned"), save_steps="1", stop_on_alarm="true")


@pytest.fixture(scope="session")
def learned_adapter(tmp_path_factory):
    """A LoRA adapter of the demo's model that matters, for its high learning rate."""
    lora = {"use_peft": "true", "lora_r": "4", "learning_rate": "3e-2", "save_steps": "2"}
    return finish(tmp_path_factory.mktemp("adapter"), **lora)
