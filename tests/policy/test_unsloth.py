"""grpo/policy/unsloth.py, with a stand-in for Unsloth: the real one needs a GPU, and no test here runs it."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from helpers_runs import DEMO, ROOT
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

import train_grpo
from grpo.config import hardware
from grpo.config import resolve as config
from grpo.core.errors import UserError
from grpo.policy import unsloth as unsloth_backend

RECIPE = str(ROOT / "recipes" / "unsloth.yaml")


@pytest.fixture
def unsloth(monkeypatch):
    """A module with Unsloth's two calls, which records them, on a machine that seems to have one GPU."""
    calls = []

    class FastLanguageModel:
        @staticmethod
        def from_pretrained(**options):
            calls.append(options)
            return AutoModelForCausalLM.from_pretrained(options["model_name"], dtype=torch.float32), "its tokenizer"

        @staticmethod
        def get_peft_model(model, **options):
            calls.append(options)
            names = ("r", "lora_alpha", "lora_dropout", "target_modules")
            return get_peft_model(model, LoraConfig(**{name: options[name] for name in names}))

    module = types.ModuleType("unsloth")
    module.FastLanguageModel = FastLanguageModel
    module.__spec__ = importlib.util.spec_from_loader("unsloth", loader=None)
    monkeypatch.setitem(sys.modules, "unsloth", module)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return calls


@pytest.mark.parametrize(
    ("argv", "inline", "asked"),
    [
        ([], False, False),
        ([], True, True),
        (["--use_unsloth", "false"], True, False),
        (["--use_unsloth", "--seed", "3"], False, True),
        ([f"--config={RECIPE}"], False, True),
        (["--config", RECIPE, "--use_unsloth=false"], False, False),
        (["--config", "missing.yaml"], False, False),
        (["--config", "broken.yaml"], False, False),
        (["--config"], False, False),
    ],
)
def test_it_is_imported_where_the_settings_ask_for_it(argv, inline, asked, monkeypatch):
    Path("broken.yaml").write_text("a: [")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    inline = {"use_unsloth": inline}
    if asked:
        with pytest.raises(UserError, match=r"Unsloth is not installed; pip install -r requirements-unsloth\.txt"):
            unsloth_backend.import_if_asked(inline, argv)
    else:
        unsloth_backend.import_if_asked(inline, argv)


def test_without_it_the_recipe_is_one_line(capfd):
    assert importlib.util.find_spec("unsloth") is None
    assert train_grpo.main(["--config", RECIPE]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: use_unsloth: Unsloth is not installed") and list(Path.cwd().iterdir()) == []


def test_it_needs_one_gpu_and_takes_the_first(unsloth, monkeypatch):
    unsloth_backend.import_if_asked({"use_unsloth": True}, [])
    assert unsloth_backend.os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="without torchrun"):
        unsloth_backend.import_if_asked({"use_unsloth": True}, [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="none is visible"):
        unsloth_backend.import_if_asked({"use_unsloth": True}, [])


@pytest.fixture
def resolved(monkeypatch):
    """The recipe's configuration, on a machine without the GPU that it asks for."""

    def resolve(**flags):
        monkeypatch.setattr(
            hardware, "_use_gpu", lambda settings, given: settings.update(bf16=False, report_to="none") or []
        )
        monkeypatch.setattr(hardware, "check_optimizer", lambda training: None)
        words = [word for key, value in flags.items() for word in (f"--{key}", value)]
        return config.resolve(train_grpo.HYPERPARAMETERS, ["--config", RECIPE, "--report_to", "none", *words])

    return resolve


def test_it_is_told_the_settings(unsloth, resolved):
    model = unsloth_backend.load(resolved(model_name_or_path=str(DEMO / "model")))
    assert isinstance(model, PeftModel)
    loaded, adapter = unsloth
    told = {"max_seq_length": 1024, "dtype": torch.bfloat16, "load_in_4bit": True, "fast_inference": True}
    assert loaded | told | {"max_lora_rank": 32, "random_state": 42} == loaded
    assert adapter | {"r": 32, "lora_alpha": 32, "use_gradient_checkpointing": "unsloth"} == adapter


def test_an_evaluation_alone_gets_no_adapter(unsloth, resolved):
    flags = {"model_name_or_path": str(DEMO / "model"), "eval_only": "true"}
    assert not isinstance(unsloth_backend.load(resolved(**flags)), PeftModel) and len(unsloth) == 1


@pytest.mark.slow
def test_the_trainer_trains_what_it_made(unsloth, tiny_run, monkeypatch):
    """All of a run with the stand-in, on the CPU: only what would start CUDA is taken out of the way."""
    monkeypatch.setattr(hardware, "_check_unsloth", lambda settings: None)
    monkeypatch.setattr(unsloth_backend, "import_if_asked", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    flags = {"use_unsloth": "true", "use_peft": "true", "lora_r": "4", "learning_rate": "1e-3", "eval_samples": "2"}
    demo = {"model_name_or_path": str(DEMO / "model"), "dataset_name": str(DEMO / "train.jsonl"), "max_samples": "40"}
    sizes = {"max_completion_length": "40", "num_generations": "8", "per_device_train_batch_size": "16"}
    assert train_grpo.main(tiny_run(**flags, **demo, **sizes)) == 0
    assert len(unsloth) == 2 and unsloth[0]["max_seq_length"] == 440
    assert json.loads(Path("run/adapter_config.json").read_text())["r"] == 4
    assert not Path("run/alarms.jsonl").exists()  # weights_unchanged among them
