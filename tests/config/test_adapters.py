"""A saved adapter keeps its own settings when it is trained further, and nothing says otherwise."""

import json
from pathlib import Path

import pytest
from helpers_runs import LEARNS

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.policy.loading import load_model

CPU = ["--use_cpu", "true", "--report_to", "none"]


def configured(run, *flags):
    return configure(train_grpo.HYPERPARAMETERS, [*CPU, "--model_name_or_path", str(run), *flags])


@pytest.mark.slow
def test_a_saved_adapter_decides_its_settings(learned_adapter):
    config = configured(learned_adapter.path)
    assert (config.model.lora_r, config.model.lora_alpha) == (4, 64) and config.origin["lora_r"] == "machine"
    (note,) = [note for note in config.notes if note.name == "adapter"]
    assert "lora_r 16 → 4" in note.finding and "lora_alpha" not in note.finding
    policy, new = load_model(config)
    assert new is None and policy.peft_config["default"].r == config.settings()["lora_r"]


def test_how_the_adapter_was_made_may_be_repeated(learned_adapter):
    """A pattern of modules, which the saved adapter has as names; and a run that is resumed."""
    config = configured(learned_adapter.path, "--use_peft", "true", "--lora_target_modules", "all-linear")
    assert "q_proj" in config.model.lora_target_modules and config.model.use_peft
    assert configured(learned_adapter.path).model.use_peft
    with pytest.raises(UserError, match="use_peft: False has no effect"):
        configured(learned_adapter.path, "--use_peft", "false")


@pytest.mark.slow
def test_a_run_of_an_earlier_version_that_recorded_other_settings_is_resumed(learned_adapter, tiny_run, capsys):
    own = {**LEARNS, "model_name_or_path": str(learned_adapter.path), "max_steps": "1", "eval_samples": "4"}
    assert train_grpo.main(tiny_run(**own, save_steps="1")) == 0
    for name in ("run/run.json", "run/checkpoint-1/complete.json"):
        record = json.loads(Path(name).read_text())
        record["settings"] |= {"lora_r": 32, "use_peft": False}
        Path(name).write_text(json.dumps(record))
    more = {"max_steps": "2", "resume_from_checkpoint": "auto", "lr_scheduler_type": "constant"}
    assert train_grpo.main(tiny_run(**own | more)) == 0, capsys.readouterr()


OTHERS = {"lora_r": "32", "lora_alpha": "7", "lora_dropout": "0.3", "use_dora": "true", "use_rslora": "true"}
OTHERS |= {"lora_target_modules": "q_proj", "lora_modules_to_save": "lm_head"}


@pytest.mark.parametrize("key", OTHERS)
def test_another_setting_than_the_saved_adapters_is_refused(learned_adapter, key):
    with pytest.raises(UserError, match=f"^{key}: .* is a saved adapter with {key} .*grpo merge"):
        configured(learned_adapter.path, "--use_peft", "true", f"--{key}", OTHERS[key])
    assert configured(learned_adapter.path, "--use_peft", "true", "--lora_r", "4").model.lora_r == 4
