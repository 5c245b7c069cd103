"""grpo/config/resolve.py: inline < recipe < command line, and one readable line for every mistake."""

import inspect

import pytest
from torch._inductor import list_mode_options
from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS
from trl.trainer import grpo_trainer

import train_grpo
from grpo.config import validate
from grpo.config.resolve import resolve
from grpo.config.validate import CHOICES
from grpo.core.errors import UserError

INLINE = train_grpo.HYPERPARAMETERS
CPU = ["--use_cpu", "true", "--report_to", "none"]


def recipe(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_inline_values_reach_trl():
    config = resolve(INLINE, CPU)
    training = config.training
    assert (training.learning_rate, training.adam_beta1, training.adam_beta2) == (5e-6, 0.9, 0.99)
    assert (training.weight_decay, training.warmup_steps, training.max_grad_norm) == (0.1, 0.1, 0.1)
    assert training.lr_scheduler_type == "cosine" and training.logging_steps == 1 and training.save_steps == 100
    assert (training.num_generations, training.max_completion_length, config.script.max_prompt_length) == (
        16,
        786,
        256,
    )
    assert training.num_train_epochs == 1 and not training.log_on_each_node and training.log_completions
    lora = config.model
    assert (lora.lora_r, lora.lora_alpha, lora.lora_dropout, lora.lora_task_type) == (16, 64, 0.05, "CAUSAL_LM")
    assert len(lora.lora_target_modules) == 7 and not lora.use_peft
    assert INLINE["report_to"] == "wandb" and INLINE["bf16"] and INLINE["dtype"] == "bfloat16"
    assert INLINE["attn_implementation"] == "flash_attention_2"


def test_recipe_overrides_inline_and_flags_override_the_recipe(tmp_path):
    path = recipe(tmp_path, "learning_rate: 1e-3\nbeta: 0.5\nmax_samples: 7\n")
    config = resolve(INLINE, ["--config", path, "--beta", "0.25", "--max-samples=8", *CPU])
    # 1e-3 is a string in YAML 1.1, and still a number here
    assert (config.training.learning_rate, config.training.beta, config.script.max_samples) == (1e-3, 0.25, 8)
    assert config.training.weight_decay == 0.1


def test_null_unsets_and_lists_and_dictionaries_pass(tmp_path):
    path = recipe(
        tmp_path,
        "save_total_limit: null\nreward_funcs: [int_reward_func]\nreward_weights: [-1.0]\n"
        "lora_target_modules: [q_proj]\nchat_template_kwargs: {enable_thinking: false}\neval_strategy: no\n",
    )
    config = resolve(INLINE, ["--config", path, *CPU])
    assert config.training.save_total_limit is None and config.script.reward_funcs == ["int_reward_func"]
    assert config.training.reward_weights == [-1.0] and config.model.lora_target_modules == "q_proj"
    assert config.training.chat_template_kwargs == {"enable_thinking": False}
    assert config.training.eval_strategy == "no"  # a bare `no` is false in YAML


@pytest.mark.parametrize(
    ("edit", "expected"),
    [({"learning_rate": "abc"}, "learning_rate"), ({"lerning_rate": 1}, "did you mean learning_rate")],
)
def test_inline_edits_are_checked_like_flags(edit, expected):
    with pytest.raises(UserError, match=expected):
        resolve({**INLINE, **edit}, CPU)


def test_the_choices_are_trls():
    source = inspect.getsource(grpo_trainer)
    for key, choices in CHOICES.items():
        elsewhere = {"torch_compile_mode": list_mode_options(), "cache_implementation": ALL_CACHE_IMPLEMENTATIONS}
        if key in elsewhere:
            assert set(choices) <= set(elsewhere[key])
            continue
        for choice in choices if key != "generation" else ():  # which is ours
            assert choice in ("True", "False") or f'"{choice}"' in source, (key, choice)


def test_what_differs_from_the_inline_block_is_known(tmp_path):
    path = recipe(tmp_path, "beta: 0.5\nlearning_rate: 5.0e-6\n")
    config = resolve(INLINE, [f"--config={path}", *CPU])
    assert config.changed["beta"] == {"inline": 0.0, "run": 0.5}
    assert config.changed["dtype"] == {"inline": "bfloat16", "run": "float32"}  # what use_cpu implies
    assert config.changed["report_to"] == {"inline": ["wandb"], "run": ["none"]}
    assert {"learning_rate", "output_dir", "weight_decay"}.isdisjoint(config.changed)


def test_a_setting_of_newer_transformers_may_be_missing():
    """activation_checkpointing_kwargs, which 5.17 does not have."""
    settings = {"model_init_kwargs": '{"device_map": null}'}
    validate.read_dictionaries(settings)
    assert settings == {"model_init_kwargs": {"device_map": None}}
