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
from grpo.runs.directory import default_names

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


def test_config_with_an_equals_sign(tmp_path):
    assert resolve(INLINE, [f"--config={recipe(tmp_path, 'beta: 0.5')}", *CPU]).training.beta == 0.5


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
    ("model", "data", "names"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", "openai/gsm8k", ("outputs/Qwen-1.5B-GRPO", "Qwen-1.5B-GRPO-gsm8k")),
        ("meta-llama/Llama-3.2-1B-Instruct", "openai/gsm8k", ("outputs/Llama-1B-GRPO", "Llama-1B-GRPO-gsm8k")),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "a/b.jsonl", ("outputs/SmolLM-135M-GRPO", "SmolLM-135M-GRPO-b")),
        ("unsloth/gemma-3-1b-it", "my/data-v1.5", ("outputs/gemma-1B-GRPO", "gemma-1B-GRPO-data-v1.5")),
        ("openai-community/gpt2", "gsm8k/", ("outputs/gpt2-GRPO", "gpt2-GRPO-gsm8k")),
        ("assets/demo/model", "assets/demo/train.jsonl", ("outputs/demo-GRPO", "demo-GRPO-train")),
        ("/models/Qwen3-0.6B/", "gsm8k", ("outputs/Qwen-0.6B-GRPO", "Qwen-0.6B-GRPO-gsm8k")),
    ],
)
def test_names_follow_the_model(model, data, names):
    assert default_names(model, data) == names


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--eval_samples", "-3"], ["eval_samples: -3"]),
        (["--vllm_gpu_memory_utilization", "1.5"], ["vllm_gpu_memory_utilization: 1.5", "at most 1"]),
        (["stray"], ["stray"]),
        (["--tf32", "true"], ["tf32: True contradicts use_cpu"]),
        (["--dtype", "bfloat16"], ["dtype: bfloat16 contradicts use_cpu"]),
        (["--auto_find_batch_size", "true"], ["auto_find_batch_size"]),
    ],
)
def test_bad_flags_are_one_line_that_names_key_and_value(argv, expected):
    last = [] if any(word.startswith("--report_to") for word in argv) else ["--report_to", "none"]
    with pytest.raises(UserError) as caught:
        resolve(INLINE, ["--use_cpu", "true", *last, *argv])
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_generations: 8.5", ["num_generations", "8.5"]),
        ("per_device_train_batch_size:", ["per_device_train_batch_size: a value is needed"]),
        ("optim:", ["optim: a value is needed"]),
        ("save_steps:", ["save_steps: a value is needed"]),
        ("chat_template_kwargs: abc", ["chat_template_kwargs: 'abc' is no dictionary"]),
        ("max_completion_length: null", ["max_completion_length: a value is needed"]),
        ("dataset_name: null", ["dataset_name"]),
        ("config: other.yaml", ["config: no such setting"]),
        ("1: 2", ["1: no such setting"]),
    ],
)
def test_bad_recipes_are_one_line(tmp_path, text, expected):
    with pytest.raises(UserError) as caught:
        resolve(INLINE, ["--config", recipe(tmp_path, text), *CPU])
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


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


def test_a_directory_or_binary_file_is_no_recipe(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "binary.yaml"):
        with pytest.raises(UserError, match="config: "):
            resolve(INLINE, ["--config", str(path), *CPU])


def test_settings_are_flat():
    settings = resolve(INLINE, CPU).settings()
    assert settings["learning_rate"] == 5e-6 and settings["dataset_name"] == "openai/gsm8k"
    assert settings["lora_r"] == 16


@pytest.mark.parametrize(
    "flag",
    [["--hub_token", "hf_planted"], ['--model_init_kwargs={"token": "hf_planted"}'], ["--hub_token=hf_planted"]],
)
def test_secrets_are_no_settings(flag):
    with pytest.raises(UserError, match="from the environment only") as caught:
        resolve(INLINE, [*CPU, *flag])
    assert "token: secrets" in str(caught.value) and "hf_planted" not in str(caught.value)


def test_what_differs_from_the_inline_block_is_known(tmp_path):
    config = resolve(INLINE, ["--config", recipe(tmp_path, "beta: 0.5\nlearning_rate: 5.0e-6\n"), *CPU])
    assert config.changed["beta"] == {"inline": 0.0, "run": 0.5}
    assert config.changed["dtype"] == {"inline": "bfloat16", "run": "float32"}  # what use_cpu implies
    assert config.changed["report_to"] == {"inline": ["wandb"], "run": ["none"]}
    assert {"learning_rate", "output_dir", "weight_decay"}.isdisjoint(config.changed)


def test_a_setting_of_newer_transformers_may_be_missing():
    """activation_checkpointing_kwargs, which 5.17 does not have."""
    settings = {"model_init_kwargs": '{"device_map": null}'}
    validate.read_dictionaries(settings)
    assert settings == {"model_init_kwargs": {"device_map": None}}
