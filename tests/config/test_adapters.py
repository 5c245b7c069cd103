"""A saved adapter keeps its own settings when it is trained further, and nothing says otherwise."""

import pytest

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.policy.loading import load_model

CPU = ["--use_cpu", "true", "--report_to", "none"]


def configured(run, *flags):
    return configure(train_grpo.HYPERPARAMETERS, [*CPU, "--model_name_or_path", str(run), *flags])


def test_a_saved_adapter_decides_its_settings(learned_adapter):
    config = configured(learned_adapter.path)
    assert (config.model.lora_r, config.model.lora_alpha) == (4, 64) and config.origin["lora_r"] == "machine"
    (note,) = [note for note in config.notes if note.name == "adapter"]
    assert "lora_r 16 → 4" in note.finding and "lora_alpha" not in note.finding
    policy, new = load_model(config)
    assert new is None and policy.peft_config["default"].r == config.settings()["lora_r"]


OTHERS = {"lora_r": "32", "lora_alpha": "7", "lora_dropout": "0.3", "use_dora": "true", "use_rslora": "true"}
OTHERS |= {"lora_target_modules": "q_proj", "lora_modules_to_save": "lm_head"}


@pytest.mark.parametrize("key", OTHERS)
def test_another_setting_than_the_saved_adapters_is_refused(learned_adapter, key):
    with pytest.raises(UserError, match=f"^{key}: .* is a saved adapter with {key} .*grpo merge"):
        configured(learned_adapter.path, "--use_peft", "true", f"--{key}", OTHERS[key])
    assert configured(learned_adapter.path, "--use_peft", "true", "--lora_r", "4").model.lora_r == 4
