"""grpo/loading.py: what is wrong with a model's files is one line, before weights are read."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import DEMO
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import train_grpo
from grpo import UserError, loading
from grpo.config import resolve
from grpo.prompts import choose

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
