"""grpo/config/resolve.py: inline < recipe < command line, and one readable line for every mistake."""

import pytest

import train_grpo
from grpo.config.resolve import resolve
from grpo.core.errors import UserError

INLINE = train_grpo.HYPERPARAMETERS
CPU = ["--use_cpu", "true", "--report_to", "none"]


def recipe(tmp_path, text, name="recipe.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_inline_values_reach_trl():
    config = resolve(INLINE, CPU)
    for key in ("learning_rate", "adam_beta2", "weight_decay", "warmup_steps", "max_grad_norm", "num_generations"):
        assert getattr(config.training, key) == INLINE[key]
    assert config.script.max_prompt_length == 256 and len(config.model.lora_target_modules) == 7
    assert config.model.lora_task_type == "CAUSAL_LM"


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


OTHER_DATA = [  # flags: eval_dataset_name, dataset_config, whether the note about the recipe's questions is there
    ("", "held_out.csv", None, False),
    ("--dataset_name mine.csv", None, None, True),
    ("--dataset_name recipe.csv", "held_out.csv", None, False),
    ("--dataset_name mine.csv --eval_dataset_name own.csv", "own.csv", None, False),
    ("--eval_dataset_name none", None, None, False),
    ("--eval_dataset_name a.csv b.csv", ["a.csv", "b.csv"], None, False),
    ("--eval_dataset_name=None --dataset_name me/hub --dataset_config small", None, "small", False),
]


@pytest.mark.parametrize(("flags", "held_out", "configuration", "noted"), OTHER_DATA)
def test_own_data_never_meets_the_recipes_evaluation(flags, held_out, configuration, noted, tmp_path):
    path = recipe(tmp_path, "dataset_name: recipe.csv\neval_dataset_name: held_out.csv\n")
    config = resolve(INLINE, ["--config", path, *flags.split(), *CPU])
    assert (config.script.eval_dataset_name, config.script.dataset_config) == (held_out, configuration)
    assert any("the recipe's eval_dataset_name (held_out.csv) is" in note for note in config.notes) == noted


@pytest.mark.parametrize("key", ["dataset_config", "eval_samples", "max_prompt_length", "save_total_limit"])
def test_none_on_the_command_line_unsets(key):
    assert resolve(INLINE, [f"--{key}", "None", *CPU]).settings()[key] is None


def test_the_inline_data_keeps_its_configuration():
    assert resolve(INLINE, ["--dataset_name", INLINE["dataset_name"], *CPU]).script.dataset_config == "main"
    assert resolve(INLINE, ["--dataset_name", "openai/other", *CPU]).script.dataset_config is None
    back = ["--config", "demo", "--dataset_name", INLINE["dataset_name"]]
    assert resolve(INLINE, [*back, *CPU]).script.dataset_config == "main"
    both = resolve(INLINE, ["--dataset_name", "own.csv", INLINE["dataset_name"], *CPU])
    assert both.script.dataset_name == ["own.csv", "openai/gsm8k:main"] and both.script.dataset_config is None


def test_several_data_sets_are_a_list_and_one_is_a_text(tmp_path):
    path = recipe(tmp_path, "dataset_name: [a.jsonl, b.csv]\neval_dataset_name: [c.json]\n")
    config = resolve(INLINE, ["--config", path, *CPU])
    assert (config.script.dataset_name, config.script.eval_dataset_name) == (["a.jsonl", "b.csv"], "c.json")
    assert config.training.run_name.endswith("-a+b") and config.script.dataset_config is None
    assert resolve(INLINE, ["--config", path, "--dataset_name", "b.csv", *CPU]).script.dataset_name == "b.csv"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [({"learning_rate": "abc"}, "learning_rate"), ({"lerning_rate": 1}, "did you mean learning_rate")],
)
def test_inline_edits_are_checked_like_flags(edit, expected):
    with pytest.raises(UserError, match=expected):
        resolve({**INLINE, **edit}, CPU)


def test_what_differs_from_the_inline_block_is_known(tmp_path):
    path = recipe(tmp_path, "beta: 0.5\nlearning_rate: 5.0e-6\n")
    config = resolve(INLINE, [f"--config={path}", *CPU])
    assert config.changed["beta"] == {"inline": 0.0, "run": 0.5}
    assert config.changed["dtype"] == {"inline": "bfloat16", "run": "float32"}  # what use_cpu implies
    assert config.changed["report_to"] == {"inline": ["wandb"], "run": ["none"]}
    assert {"learning_rate", "output_dir", "weight_decay"}.isdisjoint(config.changed)
