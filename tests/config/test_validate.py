"""grpo/config/validate.py: a flag that was typed has an effect, or is named with what it needs."""

import re

import pytest
from helpers_runs import ROOT

import train_grpo
from grpo.config.resolve import merge
from grpo.config.validate import NEEDS
from grpo.core.errors import UserError

CPU = ["--use_cpu", "true", "--report_to", "none"]


def merged(*words):
    return merge(train_grpo.HYPERPARAMETERS, [*CPU, *words], world_size=1)


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("--config recipes/demo.yaml --save_steps 3", "save_strategy is no"),
        ("--config recipes/demo.yaml --num_train_epochs 2", "max_steps is 30"),
        ("--eval_steps 5", "eval_strategy is no"),
        ("--save_strategy no --load_best_model_at_end true", "save_strategy is no"),
        ("--lr_scheduler_type constant --warmup_steps 3", "lr_scheduler_type is constant"),
        ("--optim sgd --adam_beta2 0.9", "optim is sgd"),
        ("--lora_r 8", "use_peft is false"),
        ("--sync_ref_model true", "beta is 0.0"),
        ("--vllm_gpu_memory_utilization 0.5", "use_vllm is false"),
        ("--use_vllm true --vllm_server_port 8001", "vllm_mode is colocate"),
        ("--use_vllm true --vllm_mode server --vllm_max_model_length 512", "vllm_mode is server"),
        ("--num_generations_eval 4", "eval_strategy is no"),
        ("--metric_for_best_model eval_reward", "save_strategy is steps"),
        ("--entropy_target 0.3", "use_adaptive_entropy is false"),
        ("--dataloader_prefetch_factor 2", "dataloader_num_workers is 0"),
        ("--filter_num_samples 4", "filter_pass_rate is unset"),
        ("--adaptive_bounds 0.5 2", "adaptive_rewards is unset"),
        ("--sapo_temperature_neg 2", "loss_type is dapo"),
        ("--packed false --pack_tokens 512", "packed is false"),
        ('--gradient_checkpointing false --gradient_checkpointing_kwargs {"use_reentrant":true}', "gradient_checkpo"),
    ],
)
def test_a_typed_flag_without_effect_is_refused(words, needs, monkeypatch):
    monkeypatch.chdir(ROOT)
    key = words.rpartition("--")[2].split()[0]
    with pytest.raises(UserError, match=f"{key}: it has no effect while {re.escape(needs)}.*drop it, or add --"):
        merged(*words.split())


@pytest.mark.parametrize("words", ["--dataset_config foo", "--eval_split nope"])
def test_local_data_have_no_configurations_and_files_no_splits(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=words[2:].split()[0]):
        merged("--config", "demo", *words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--config recipes/low_memory_24gb.yaml --use_peft false --optim adamw_torch",  # lora_* in the recipe
        "--save_strategy no",  # save_steps in the inline block
        "--use_peft true --lora_r 8",
        "--optim adafactor --lr_scheduler_type constant --warmup_steps 0",
        "--config demo --eval_split test[:5]",
        "--curriculum true --filter_num_samples 4",
    ],
)
def test_flags_with_an_effect_and_settings_of_recipes_pass(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    merged(*words.split())


def test_every_setting_that_a_flag_needs_exists():
    settings = merged().settings
    assert all(name in settings for _, names, _ in NEEDS for name in names)
    assert all(any(re.fullmatch(flags, key) for key in settings) for flags, _, _ in NEEDS)


def test_rows_in_memory_and_a_data_set_by_name_are_refused(capsys):
    assert train_grpo.main(["--dataset_name", "foo.csv"], dataset=[]) == 2
    assert "error: dataset_name:" in capsys.readouterr().err
