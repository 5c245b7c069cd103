"""grpo/config.py: inline < recipe < command line, and one readable line for every mistake."""

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
        (["--learning_rat", "1"], ["--learning_rat", "did you mean learning_rate"]),
        (["--learning_rate", "abc"], ["learning_rate", "'abc'"]),
        (["--learning_rate", "nan"], ["learning_rate: nan", "at least 0"]),
        (["--learning_rate", "-1e-6"], ["learning_rate: -1e-06", "at least 0"]),
        (["--learning_rate", "inf"], ["learning_rate: inf"]),
        (["--beta", "nan"], ["beta: nan"]),
        (["--temperature", "0"], ["temperature: 0", "above 0"]),
        (["--num_generations", "1"], ["num_generations: 1", "at least 2"]),
        (["--max_samples", "0"], ["max_samples: 0", "at least 1"]),
        (["--eval_samples", "-3"], ["eval_samples: -3"]),
        (["--max_completion_length", "-5"], ["max_completion_length: -5", "at least 1"]),
        (["--max_steps", "0"], ["max_steps: 0"]),
        (["--num_train_epochs", "0"], ["num_train_epochs: 0"]),
        (["--adam_beta2", "1"], ["adam_beta2: 1", "below 1"]),
        (["--reward_weights", "1", "inf"], ["reward_weights: inf"]),
        (["--epsilon_high", "nan"], ["epsilon_high: nan"]),
        (["--num_generations", "5"], ["num_generations: 5", "does not divide"]),
        (["--loss_type"], ["loss_type: no value follows it"]),
        (["--lr_scheduler_type", "zigzag"], ["zigzag"]),
        (["--loss_type", "grop"], ["loss_type: 'grop'", "dr_grpo"]),
        (["--importance_sampling_level", "word"], ["importance_sampling_level: 'word'", "token or sequence"]),
        (["--vllm_gpu_memory_utilization", "1.5"], ["vllm_gpu_memory_utilization: 1.5", "at most 1"]),
        (["--optim", "sgdd"], ["sgdd"]),
        (["--config", "missing.yaml"], ["missing.yaml", "recipes/"]),
        (["--config", "a.yaml", "--config", "b.yaml"], ["config: given 2 times"]),
        (["--config=a.yaml", "--config", "b.yaml"], ["config: given 2 times"]),
        (["--config"], ["config: no recipe is named", "recipes/"]),
        (["stray"], ["stray"]),
        (["--bf16", "true"], ["bf16: True contradicts use_cpu"]),
        (["--tf32", "true"], ["tf32: True contradicts use_cpu"]),
        (["--dtype", "bfloat16"], ["dtype: bfloat16 contradicts use_cpu"]),
        (["--attn_implementation", "flash_attention_2"], ["contradicts use_cpu"]),
        (["--use_vllm", "true"], ["use_vllm", "--use_vllm false"]),
        (["--attn_implementation", "flash"], ["attn_implementation: 'flash'"]),
        (["--optim", "adamw_8bit"], ["optim: adamw_8bit needs CUDA"]),
        (["--report_to", "clipboard"], ["report_to: 'clipboard'", "tensorboard"]),
        (["--steps_per_generation", "4", "--generation_batch_size", "64"], ["say the same thing twice"]),
        (["--load_in_4bit", "true"], ["load_in_4bit: True contradicts use_cpu"]),
        (["--auto_find_batch_size", "true"], ["auto_find_batch_size"]),
        (["--resume_from_checkpoint", "nowhere"], ["resume_from_checkpoint: ", "'nowhere'"]),
        (["--resume_from_checkpoint", "auto"], ["resume_from_checkpoint", "holds no checkpoint"]),
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
        ("learning_rat: 1", ["learning_rat", "did you mean learning_rate"]),
        ("learning_rate: [1, 2]", ["learning_rate", "2"]),
        ("learning_rate: abc", ["learning_rate", "'abc'"]),
        ("num_generations: 8.5", ["num_generations", "8.5"]),
        ("num_generations: true", ["num_generations", "True"]),
        ("learning_rate:", ["learning_rate: a value is needed"]),
        ("per_device_train_batch_size:", ["per_device_train_batch_size: a value is needed"]),
        ("optim:", ["optim: a value is needed"]),
        ("save_steps:", ["save_steps: a value is needed"]),
        ("optim: galore_adamw", ["optim: galore_adamw cannot be used"]),
        ("optim: grokadamw", ["optim: grokadamw cannot be used"]),
        ("chat_template_kwargs: abc", ["chat_template_kwargs: 'abc' is no dictionary"]),
        ("max_completion_length: null", ["max_completion_length: a value is needed"]),
        ("dataset_name: null", ["dataset_name"]),
        ("bf16: perhaps", ["bf16", "perhaps"]),
        ("a: b: c", ["not valid YAML"]),
        ("- a\n- b", ["key: value", "list"]),
        ("", ["key: value"]),
        ("env: {WANDB_API_KEY: x}", ["env", "may not set environment variables"]),
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
