"""grpo/loading.py: what is wrong with a model's files is one line, before weights are read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from helpers_runs import DEMO
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer, get_peft_config

import train_grpo
from grpo.config.resolve import resolve
from grpo.core.errors import UserError
from grpo.data.prompts import choose
from grpo.policy import loading

SOURCE = {"revision": "main", "trust_remote_code": False}


def test_the_configuration_is_read_without_weights(monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    assert loading.read_config(str(DEMO / "model"), **SOURCE).vocab_size == 512


def test_an_adapters_configuration_is_its_base_models(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    model.name_or_path = str(DEMO / "model")
    get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    config = resolve(
        train_grpo.HYPERPARAMETERS,
        ["--use_cpu", "true", "--report_to", "none", "--model_name_or_path", str(tmp_path / "adapter")],
    )
    model_config, peft_config = loading.read_configs(config)
    assert model_config.vocab_size == 512 and peft_config.r == 3


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: (path / "config.json").unlink(), "does not load"),
        (lambda path: (path / "model.safetensors").unlink(), "no weights"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\0" * 100), "does not load"),
        (lambda path: (path / "config.json").write_text(json.dumps({"model_type": "nonsense"})), "does not load"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_broken_files_are_one_line(spoil, reason, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(DEMO / "model", path)
    spoil(path)
    with pytest.raises(UserError, match=reason) as caught:
        loading.read_config(str(path), **SOURCE)
    assert "model_name_or_path" in str(caught.value) and "\n" not in str(caught.value)


def test_training_arguments_are_no_weights(tmp_path):
    shutil.copytree(DEMO / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "training_args.bin")
    with pytest.raises(UserError, match="no weights"):
        loading.read_config(str(tmp_path / "model"), **SOURCE)


def test_weights_that_were_cut_off_are_found_by_their_header(tmp_path):
    shutil.copytree(DEMO / "model", tmp_path / "model")
    file = Path(tmp_path / "model" / "model.safetensors")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match="does not load"):
        loading.read_config(str(tmp_path / "model"), **SOURCE)


@pytest.fixture
def load_tokenizer(tmp_path):
    """Of a copy of the demo's model with this chat template (None: with none), under these settings."""

    def load(template, *argv):
        shutil.copytree(DEMO / "model", tmp_path / "model")
        (tmp_path / "model" / "chat_template.jinja").unlink()
        if template is not None:
            (tmp_path / "model" / "chat_template.jinja").write_text(template)
        argv = ["--use_cpu", "true", "--report_to", "none", "--model_name_or_path", str(tmp_path / "model"), *argv]
        config = resolve(train_grpo.HYPERPARAMETERS, argv)
        return loading.load_tokenizer(config, choose(train_grpo.PROMPT_FORMATS, config.script))

    return load


def test_prompts_are_chats_where_there_is_a_template_and_text_where_there_is_none(load_tokenizer):
    tokenizer, style = load_tokenizer("{{ messages[-1].content }}")
    assert style.chat and tokenizer.padding_side == "left"


def test_without_a_chat_template_prompts_are_text(load_tokenizer):
    assert not load_tokenizer(None)[1].chat


def test_a_chat_template_can_be_left_alone(load_tokenizer):
    assert not load_tokenizer("{{ messages[-1].content }}", "--use_chat_template", "false")[1].chat


def test_a_chat_template_that_is_asked_for_and_missing_is_named(load_tokenizer):
    with pytest.raises(UserError, match=r"use_chat_template: .* no chat template"):
        load_tokenizer(None, "--use_chat_template", "true")


def test_a_chat_template_that_refuses_the_prompt_is_named(load_tokenizer):
    with pytest.raises(UserError, match="no system role"):
        load_tokenizer("{{ raise_exception('no system role') }}")


# --- Quantized weights


def quantized(**overrides):
    """A configuration with 4-bit weights, which no CPU can have."""
    flags = {"use_cpu": "true", "report_to": "none", "model_name_or_path": str(DEMO / "model"), **overrides}
    config = resolve(
        train_grpo.HYPERPARAMETERS, [word for key, value in flags.items() for word in (f"--{key}", value)]
    )
    config.model.load_in_4bit = True
    return config


def test_quantized_weights_cannot_be_trained_without_an_adapter(tmp_path):
    with pytest.raises(UserError, match=r"use_peft: quantized weights .* --use_peft true"):
        loading.read_configs(quantized())
    assert loading.read_configs(quantized(use_peft="true"))[1].r == 16
    assert loading.read_configs(quantized(eval_only="true"))[1] is None  # nothing is trained
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    model.name_or_path = str(DEMO / "model")
    get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    assert loading.read_configs(quantized(model_name_or_path=str(tmp_path / "adapter")))[1].r == 3  # a saved adapter


@pytest.mark.parametrize("saved", [False, True])
def test_what_is_loaded_to_be_trained_on_quantized_weights_is_what_trl_prepares(saved, tmp_path, monkeypatch):
    """TRL freezes nothing and upcasts nothing itself: PEFT must have frozen the base, and the adapter must learn."""
    base = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    base.name_or_path = str(DEMO / "model")
    get_peft_model(base, LoraConfig(r=3, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    config = quantized(use_peft="true", **({"model_name_or_path": str(tmp_path / "adapter")} if saved else {}))
    monkeypatch.setattr("trl.get_quantization_config", lambda model: None)
    model = loading.load(config)
    model.is_loaded_in_4bit = True
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[len],
        args=config.training,
        train_dataset=Dataset.from_list([{"prompt": "2 + 2?"}] * 99),
        processing_class=AutoTokenizer.from_pretrained(DEMO / "model"),
        peft_config=None if saved else get_peft_config(config.model),
    )
    trained = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert {weight.dtype for weight in trained.values()} == {torch.bfloat16}  # as the QLoRA paper, and our note, say
    embedded = trainer.model.get_input_embeddings()(torch.tensor([[1]]))
    assert embedded.requires_grad  # else a checkpointed layer would pass no gradient on to its adapter
