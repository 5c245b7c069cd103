"""grpo/config/validate.py: a flag that would be ignored in silence is refused, and one that belongs is not."""

import re
from pathlib import Path

import pytest
from helpers_runs import DEMO

import train_grpo
from grpo.config.resolve import resolve
from grpo.core.errors import UserError

CPU = ["--use_cpu", "true", "--report_to", "none", "--model_name_or_path", str(DEMO / "model")]


@pytest.mark.parametrize(
    ("flags", "switch"),
    [
        ("--lora_r 8", "use_peft"),
        ("--bnb_4bit_quant_type fp4", "load_in_4bit"),
        ("--vllm_gpu_memory_utilization 0.5", "use_vllm"),
    ],
)
def test_a_typed_flag_without_its_switch_is_refused(flags, switch):
    key = flags.split()[0].removeprefix("--")
    with pytest.raises(UserError, match=re.escape(f"{key}: it has no effect without {switch}; drop it, or add --")):
        resolve(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])


def test_an_adapters_size_belongs_to_an_adapter():
    assert resolve(train_grpo.HYPERPARAMETERS, [*CPU, "--use_peft", "true", "--lora_r", "8"]).model.lora_r == 8


ADAPTER = ["--use_peft", "true"]


@pytest.mark.parametrize(
    ("flags", "noted"),
    [
        (ADAPTER, True),
        ([*ADAPTER, "--learning_rate", "5e-5"], False),
        ([*ADAPTER, "--eval_only", "true"], False),
        (["--model_name_or_path", "saved"], True),  # an adapter that is trained further
        ([], False),
    ],
)
def test_the_rate_of_all_weights_is_noted_where_an_adapter_is_trained(flags, noted):
    """It is not changed: a learning rate is what is written."""
    Path("saved").mkdir()
    Path("saved/adapter_config.json").write_text("{}")
    config = resolve(train_grpo.HYPERPARAMETERS, [*CPU, *flags])
    assert config.training.learning_rate == (5e-5 if "5e-5" in flags else 5e-6)
    assert any("teaches an adapter next to nothing; try 5e-05" in note for note in config.notes) is noted


def test_rows_in_memory_and_a_data_set_by_name_are_refused(capsys):
    assert train_grpo.main(["--dataset_name", "foo.csv"], dataset=[]) == 2
    assert "error: dataset_name:" in capsys.readouterr().err
