"""Every shipped recipe resolves to a GRPOConfig; where it needs a GPU, through the CPU override."""

import json
from pathlib import Path

import pytest
import yaml
from helpers_runs import COUNTDOWN, DEMO, ROOT
from helpers_runs import flags as command_line

import train_grpo
from grpo.config.configure import configure, read
from grpo.rewarding.registry import make_task
from rewards import REWARD_FUNCS

FIVE = list(REWARD_FUNCS)[:5]
RECIPES = sorted((ROOT / "recipes").iterdir())
CPU = ["--use_cpu", "true", "--report_to", "none", "--use_vllm", "false"]
WITH_DATA = [path.stem for path in RECIPES if "\ndataset_name:" in path.read_text(encoding="utf-8")]


# What use_cpu replaces, or this test
ON_CPU = {
    "use_vllm", "load_in_4bit", "report_to", "use_cpu", "tf32", "dtype", "attn_implementation", "optim",
    "bf16", "output_dir",
}  # fmt: skip


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_resolves_and_lists_its_differences(path, monkeypatch):
    monkeypatch.chdir(ROOT)  # elsewhere its files have longer names
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8").startswith("# ")
    argv = ["--config", str(path), "--use_cpu", "true", "--report_to", "none"]
    settings = configure(train_grpo.HYPERPARAMETERS, argv).settings()
    left_open = {"generation_batch_size"} if recipe.get("generation_batch_size", "") is None else set()  # TRL fills it
    for key in recipe.keys() - ON_CPU - left_open:
        assert settings[key] == recipe[key], key
        repeats = train_grpo.HYPERPARAMETERS.get(key, "unset") == recipe[key]
        assert path.stem in WITH_DATA or not repeats, f"{key} repeats the inline value"


# --- Recipes with a data set of their own hold all of their task


def other_reward(completions, **kwargs):
    return [0.0] * len(completions)


def other_judge(text, row):
    return False


def other_prepare(row):
    return row


# For each setting of the block, and for others that people add to it, another value than any recipe's
EDITED = dict(
    model_name_or_path="mine/model", dataset_name="mine.csv", dataset_config="mine", dataset_split="validation[:9]",
    reward_funcs=[other_reward], output_dir="outputs/mine", run_name="mine", learning_rate=1e-7, adam_beta1=0.8,
    adam_beta2=0.9, weight_decay=0.3, warmup_steps=900, lr_scheduler_type="constant", logging_steps=77, bf16=False,
    per_device_train_batch_size=12, gradient_accumulation_steps=3, num_generations=4, max_prompt_length=2,
    max_completion_length=3, num_train_epochs=7, save_steps=9, max_grad_norm=2.0, report_to="mlflow",
    log_on_each_node=True, use_peft=True, lora_r=2, lora_alpha=3, lora_target_modules=["q_proj"], lora_dropout=0.5,
    dtype="float16", attn_implementation="eager", optim="sgd", num_shots=1, seed=7, beta=3.0, temperature=0.1,
    use_vllm=True, vllm_enable_sleep_mode=False, gradient_checkpointing="true", eval_samples=0, eval_every=99,
    prompt_format="mine", answer_pattern="hash", judge=other_judge, prepare=other_prepare, max_samples=1,
    stop_on_alarm=True,
    question_column="mine", answer_column="mine", eval_dataset_name="mine.csv", eval_split="mine[:9]",
    eval_num_samples=3, per_device_eval_batch_size=5, reward_weights=[0.5], packed=False,
    ddp_find_unused_parameters=True, save_total_limit=8, log_completions=False, num_completions_to_print=1,
    # of settings outside the block
    generation_batch_size=96,
    system_prompt="Mine.",
    reward_args={"other_reward": {"low": 1}},
)  # fmt: skip
# Which a recipe with data may leave to the script: how much is kept and shown, and how it is computed
LEFT = {
    "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm", "seed", "bf16", "num_train_epochs", "logging_steps",
    "save_steps", "save_total_limit", "log_on_each_node", "log_completions", "num_completions_to_print", "eval_every",
    "eval_num_samples", "per_device_eval_batch_size", "stop_on_alarm", "packed", "attn_implementation", "lora_r",
    "lora_alpha", "lora_target_modules", "lora_dropout", "vllm_enable_sleep_mode", "ddp_find_unused_parameters",
}  # fmt: skip
LEFT_TOO = {key: {"dtype"} for key in ("demo", "demo_think", "countdown")}  # which use_cpu settles
LEFT_TOO["smollm2_sums"] = {"use_vllm"}
LEFT_TOO["math"] = {  # a task for any model on any machine
    "model_name_or_path", "run_name", "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations",
    "report_to", "use_peft", "optim", "beta", "temperature", "gradient_checkpointing", "use_vllm", "warmup_steps",
    "lr_scheduler_type", "generation_batch_size",
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_DATA)
def test_a_recipe_with_data_keeps_its_task_whatever_the_script_says(name):
    assert train_grpo.HYPERPARAMETERS.keys() <= EDITED.keys()
    assert not {key for key, value in train_grpo.HYPERPARAMETERS.items() if value == EDITED[key]}
    given = ["--config", name]
    own, edited = (read(block, given).settings for block in (train_grpo.HYPERPARAMETERS, EDITED))
    assert {key for key in own if own[key] != edited[key]} <= LEFT | LEFT_TOO[name]


@pytest.mark.parametrize("name", ["demo", "countdown", "smollm2_sums"])
def test_the_prompt_in_a_recipe_is_the_scripts(name):
    config = configure(train_grpo.HYPERPARAMETERS, ["--config", name, *CPU])
    task = make_task(config, {}, [("1?", "1", "1")])
    assert task.prompt == train_grpo.PROMPT_FORMATS["xml"]
    assert list(task.shots) == train_grpo.EXEMPLARS[: config.script.num_shots]


OF_WRITE_UPS = {  # what docs/write-ups.md says of them
    "notebook_gpt2": {
        "beta": 0.02, "num_generations": 4, "per_device_train_batch_size": 64, "gradient_accumulation_steps": 4,
        "num_train_epochs": 3, "max_completion_length": 128, "max_prompt_length": 256,
    },
    "low_memory_24gb": {
        "optim": "adamw_8bit", "num_generations": 8, "per_device_train_batch_size": 8, "max_completion_length": 512,
        "lora_r": 16, "lora_alpha": 32,
    },
    "fast_80gb": {"learning_rate": 1e-5, "max_prompt_length": 512, "max_completion_length": 1024},
    "a100_x2": {
        "attn_implementation": "sdpa", "tf32": True, "optim": "adamw_torch_fused", "per_device_train_batch_size": 32,
        "generation_batch_size": 64, "dataloader_num_workers": 8, "save_steps": 500, "report_to": "swanlab",
    },
    "smoke_20": {"max_samples": 20},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_WRITE_UPS)
def test_recipes_of_the_write_ups_have_their_settings(name):
    settings = read(train_grpo.HYPERPARAMETERS, ["--config", name]).settings
    assert OF_WRITE_UPS[name].items() <= settings.items()


def test_a_smoke_test_keeps_the_scripts_rewards():
    own = {"reward_funcs": [other_reward], "reward_weights": [0.5], "judge": other_judge}
    found = read(train_grpo.HYPERPARAMETERS | own, ["--config", "smoke_20"])
    assert found.settings["reward_funcs"] == ["other_reward"] and found.settings["reward_weights"] == [0.5]
    assert found.settings["judge"] == "other_judge" and found.settings["log_completions"] and not found.notes


DEMO_FLAGS = ["--use_cpu", "true", "--model_name_or_path", str(DEMO / "model")]
DEMO_FLAGS += ["--dataset_name", str(DEMO / "train.jsonl")]
OF_THE_TASK = {  # a task's own columns
    "countdown": ["--dataset_name", str(COUNTDOWN / "train.jsonl")],
    "math": ["--question_column", "question", "--answer_column", "answer"],
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs_dry_on_another_model_and_data(path):
    argv = ["--config", str(path), "--dry_run", "true", *DEMO_FLAGS, *OF_THE_TASK.get(path.stem, [])]
    assert train_grpo.main(argv) == 0
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("name", ["demo", "demo_think", "countdown"])
def test_a_recipe_and_its_files_are_found_from_any_directory_and_have_no_warnings(name, capfd):
    assert train_grpo.main(["--config", name, "--dry_run", "true"]) == 0
    assert "Dry run: no warnings, no error" in capfd.readouterr().out


# --- MATH's format: problem, level, type, and a worked solution whose last \\boxed{} is the answer

MATH = {  # our own problems: their solutions and answers
    r"Simplify $\sqrt{18}$.": (r"$18 = 9 \cdot 2$, so it is $\boxed{3\sqrt{2}}$.", r"3\sqrt{2}"),
    r"Where does $y = 2x - 4$ cross the $x$-axis?": (r"$0 = 2x - 4$ gives $x = 2$: $\fbox{(2, 0)}$.", "(2, 0)"),
    r"Factor $x^2 - 5x + 6$.": (r"$\boxed{2}$ and $\boxed{3}$, so $\boxed{(x - 2)(x - 3)}$.", "(x - 2)(x - 3)"),
}


@pytest.mark.slow
def test_math_trains_on_a_local_file_in_its_format(write_jsonl):
    rows = [
        {"problem": f"{problem} ({copy})", "level": "Level 1", "type": "Algebra", "solution": solution}
        for copy in range(16)
        for problem, (solution, _) in MATH.items()
    ]
    flags = {
        "config": "math", "dataset_name": write_jsonl(rows), "model_name_or_path": DEMO / "model", "use_cpu": "true",
        "report_to": "none", "eval_samples": 6, "save_strategy": "no", "max_steps": 2, "max_completion_length": 24,
        "num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,
        "per_device_eval_batch_size": 6, "output_dir": "run",
    }  # fmt: skip
    assert train_grpo.main(command_line(**flags)) == 0
    answered, metrics = (
        [json.loads(line) for line in Path(f"run/{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("completions_after", "metrics")
    )
    assert len(answered) == 6 and {row["answer"] for row in answered} <= {answer for _, answer in MATH.values()}
    assert "rewards/judge_reward_func/mean" in metrics[0]
