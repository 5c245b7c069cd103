"""Every shipped recipe resolves to a GRPOConfig; where it needs a GPU, through the CPU override."""

import pytest
import yaml
from conftest import ROOT

import train_grpo
from grpo import UserError
from grpo.config import resolve
from grpo.geometry import Geometry

RECIPES = sorted((ROOT / "recipes").iterdir())


def test_the_folder_holds_recipes_only_and_the_ones_that_are_promised():
    assert all(path.suffix == ".yaml" for path in RECIPES)
    promised = (
        "demo demo_think smollm2_cpu smollm2 llama_1b gist_2025 low_memory_24gb fast_80gb notebook_gpt2 a100_x2 "
        "smoke_20 two_stage unsloth"
    )
    assert set(promised.split()) <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_a_configuration_that_says_what_it_differs_in(path):
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8").startswith("# ")
    argv = ["--config", str(path), "--use_cpu", "true"]
    # a CPU has neither; the tracker of a recipe may not be installed
    argv += ["--use_vllm", "false"] if recipe.get("use_vllm") else []
    argv += ["--use_unsloth", "false"] if recipe.get("use_unsloth") else []
    argv += ["--report_to", "none"]
    config = resolve(train_grpo.HYPERPARAMETERS, argv)
    settings = config.settings()
    on_cpu = {
        "use_vllm",
        "use_unsloth",
        "load_in_4bit",
        "report_to",
        "use_cpu",
        "tf32",
        "dtype",
        "attn_implementation",
        "optim",
        "bf16",
        "output_dir",
    }
    for key, value in recipe.items():
        if key not in on_cpu:
            assert settings[key] == value, key
            assert train_grpo.HYPERPARAMETERS.get(key, "unset") != value, f"{key} repeats the inline value"
    assert config.geometry.rollout_prompts >= 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "low_memory_24gb",
            dict(num_generations=8, max_completion_length=512, lora_r=16, lora_alpha=32, use_peft=True),
        ),
        ("fast_80gb", dict(num_generations=16, max_prompt_length=512, max_completion_length=1024, logging_steps=10)),
        ("a100_x2", dict(per_device_train_batch_size=32, generation_batch_size=64, dataloader_num_workers=8)),
        ("gist_2025", dict(beta=0.04, loss_type="grpo", temperature=0.9, top_k=50, learning_rate=5e-6)),
    ],
)
def test_recipes_have_the_values_of_what_they_are_named_after(name, values):
    argv = ["--config", str(ROOT / f"recipes/{name}.yaml"), "--use_cpu", "true", "--use_vllm", "false"]
    settings = resolve(train_grpo.HYPERPARAMETERS, [*argv, "--report_to", "none"]).settings()
    assert {key: settings[key] for key in values} == values


def test_vllm_on_a_cpu_says_what_to_do():
    with pytest.raises(UserError, match="--use_vllm false"):
        resolve(train_grpo.HYPERPARAMETERS, ["--config", str(ROOT / "recipes/fast_80gb.yaml"), "--use_cpu", "true"])


def test_a100_x2_is_one_step_per_rollout_on_two_devices():
    recipe = yaml.safe_load((ROOT / "recipes/a100_x2.yaml").read_text(encoding="utf-8"))
    settings = {"steps_per_generation": None, "num_iterations": 1, **train_grpo.HYPERPARAMETERS, **recipe}
    geometry = Geometry.solve(settings, world_size=2)
    assert geometry.rollout == geometry.per_step == 64 and geometry.steps_per_generation == 1
