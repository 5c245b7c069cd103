"""grpo/policy/loading.py: a model, an adapter and a tokenizer load, or one line names what is wrong."""

import dataclasses
import json
import shutil

import pytest
import torch
from helpers_runs import DEMO
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.policy import loading
from grpo.policy.templates import fit_to_template
from grpo.task import Task
from grpo.task.prompts import XML

CPU = ["--use_cpu", "true", "--report_to", "none"]


def configured(model, *argv):
    return configure(train_grpo.HYPERPARAMETERS, [*CPU, "--model_name_or_path", str(model), *argv])


@pytest.fixture
def adapter(tmp_path):
    """The directory of a LoRA adapter of the demo's model."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    model.name_or_path = str(DEMO / "model")
    get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_weights_in_a_harmless_pickle_are_read(tmp_path):
    """Pickles with code: tests/test_security.py."""
    shutil.copytree(DEMO / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model/model.safetensors")
    torch.save(weights, tmp_path / "model/pytorch_model.bin")
    (tmp_path / "model/model.safetensors").unlink()
    loaded = loading.load_model(configured(tmp_path / "model"))[0].state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: (path / "config.json").write_text(json.dumps({"model_type": "nonsense"})), "does not load"),
        (lambda path: (path / "config.json").write_text(json.dumps({"model_type": "bert"})), r"masked LM \(bert\)"),
    ],
    ids=["unknown", "BERT"],
)
def test_broken_files_are_one_line(spoil, reason, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(DEMO / "model", path)
    spoil(path)
    with pytest.raises(UserError, match=reason) as caught:
        loading.load_model(configured(path))
    assert "model_name_or_path" in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def load_tokenizer(tmp_path):
    """Of a copy of the demo's model with this chat template (None: with none), for prompts of this kind."""

    def load(template, chat=True):
        shutil.copytree(DEMO / "model", tmp_path / "model")
        (tmp_path / "model" / "chat_template.jinja").unlink()
        if template is not None:
            (tmp_path / "model" / "chat_template.jinja").write_text(template)
        task = Task(dataclasses.replace(XML, chat=chat))
        tokenizer = loading.load_tokenizer(configured(tmp_path / "model"))
        return fit_to_template(task, tokenizer, {})

    return load


@pytest.mark.parametrize(
    ("template", "wanted", "chat"),
    [("{{ messages[-1].content }}", True, True), ("{{ messages[-1].content }}", False, False), (None, True, False)],
    ids=["template", "not wanted", "none"],
)
def test_prompts_are_chats_where_there_is_a_template(template, wanted, chat, load_tokenizer):
    task, tokenizer = load_tokenizer(template, wanted)
    assert task.prompt.chat is chat and tokenizer.padding_side == "left" and tokenizer.pad_token


@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ raise_exception('no system role') }}", "no system role"), ("Hello!", "leaves the question out")],
    ids=["refuses", "without the question"],
)
def test_chat_template_that_cannot_be_used_is_named(template, message, load_tokenizer):
    with pytest.raises(UserError, match=f"{message}.*a prompt_format with chat: false"):
        load_tokenizer(template)
