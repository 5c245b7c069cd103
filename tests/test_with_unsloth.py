"""examples/with_unsloth.py: all but Unsloth itself, which needs a GPU and an environment of its own."""

import ast
import sys
from types import SimpleNamespace

import pytest
from datasets import load_dataset
from helpers_runs import DEMO, ROOT
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

import train_grpo
from exact_answers import exact_reward
from examples import with_unsloth

ON_A_CPU = dict(use_cpu=True, bf16=False, use_vllm=False, optim="adamw_torch")
SMALL = dict(max_steps=1, max_completion_length=32, per_device_train_batch_size=8, gradient_accumulation_steps=1)


class FastLanguageModel:
    """Unsloth's two functions on Transformers and PEFT, with the arguments that the example passes."""

    @staticmethod
    def from_pretrained(
        model_name, max_seq_length, load_in_4bit, fast_inference, gpu_memory_utilization, max_lora_rank
    ):
        assert (model_name, max_seq_length, load_in_4bit, max_lora_rank) == ("unsloth/gemma-3-1b-it", 1024, True, 32)
        return AutoModelForCausalLM.from_pretrained(DEMO / "model"), AutoTokenizer.from_pretrained(DEMO / "model")

    @staticmethod
    def get_peft_model(model, use_gradient_checkpointing, random_state, **settings):
        return get_peft_model(model, LoraConfig(**settings))


def test_it_has_the_settings_of_the_script_and_the_deep_guide():
    settings, script = with_unsloth.SETTINGS, train_grpo.HYPERPARAMETERS
    own = {"output_dir", "learning_rate", "optim", "max_completion_length", "use_vllm", "reward_weights", "report_to"}
    own |= {"per_device_eval_batch_size"}
    assert {key for key in settings.keys() & script.keys() if settings[key] != script[key]} == own
    assert script["reward_funcs"] == with_unsloth.REWARDS and with_unsloth.SYSTEM_PROMPT == train_grpo.SYSTEM_PROMPT
    config = GRPOConfig(**settings | {"use_cpu": True, "bf16": False})  # the names and values that TRL accepts
    assert config.generation_batch_size == 64 and config.max_completion_length == 768


@pytest.mark.slow
def test_it_trains_an_adapter_and_judges_held_out_answers(monkeypatch, capsys):
    files = {"train": str(DEMO / "train.jsonl"), "test": str(DEMO / "test.jsonl")}
    rows = load_dataset("json", data_files=files)
    rows["train"] = rows["train"].select(range(8))
    given = []

    def judged(completions, answer, **kwargs):
        given.extend(zip([each[0]["content"] for each in completions], answer, strict=True))
        return exact_reward(completions, answer)

    judged.__name__ = "exact_reward"
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=FastLanguageModel))
    for name, value in {"load_dataset": lambda *_: rows, "HELD_OUT": 50, "exact_reward": judged}.items():
        monkeypatch.setattr(with_unsloth, name, value)
    monkeypatch.setattr(with_unsloth, "SETTINGS", with_unsloth.SETTINGS | ON_A_CPU | SMALL | {"num_generations": 8})
    before, after = with_unsloth.main()
    texts, answers = zip(*given[:50], strict=True)
    assert before == pytest.approx(sum(exact_reward(texts, answers)) / 50) and 0 < before < 1 and 0 < after < 1
    assert set(answers) <= {with_unsloth.to_prompt(row)["answer"] for row in rows["test"]}
    assert f"{before:.1%} before training" in capsys.readouterr().out
    adapter = LoraConfig.from_pretrained(with_unsloth.SETTINGS["output_dir"])
    assert (adapter.r, adapter.lora_alpha, len(adapter.target_modules)) == (32, 32, 7)


def test_its_imports_are_in_its_requirements():
    lines = (ROOT / "requirements-unsloth.txt").read_text().splitlines()
    packages = {line.partition(">")[0] for line in lines if not line.startswith("#")}
    tree = ast.parse((ROOT / "examples" / "with_unsloth.py").read_text())
    imported = {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert (
        {"unsloth", "trl", "datasets"} <= imported - {*sys.stdlib_module_names, "exact_answers", "rewards"} <= packages
    )
    assert "mpmath" in packages  # of exact_answers
