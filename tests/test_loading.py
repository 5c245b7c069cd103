"""grpo/loading.py: what is wrong with a model's files is one line, before weights are read."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import DEMO
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import train_grpo
from grpo import UserError, loading
from grpo.config import resolve

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


def test_a_tokenizer_that_cannot_prompt_a_chat_is_refused():
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    loading.check_tokenizer(tokenizer, "name", chat, None)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(UserError, match="no system role"):
        loading.check_tokenizer(tokenizer, "name", chat, None)
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        loading.check_tokenizer(tokenizer, "name", chat, None)
