"""Every shipped recipe resolves to a GRPOConfig; where it needs a GPU, through the CPU override."""

import json
from pathlib import Path

import pytest
import yaml
from helpers_runs import COUNTDOWN, DEMO, ROOT
from helpers_runs import flags as command_line

import train_grpo
from grpo.config.configure import configure, read

RECIPES = sorted((ROOT / "recipes").iterdir())


# What use_cpu replaces, or this test
ON_CPU = {
    "use_vllm", "use_unsloth", "load_in_4bit", "report_to", "use_cpu", "tf32", "dtype", "attn_implementation", "optim",
    "bf16", "output_dir",
}  # fmt: skip


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_resolves_and_lists_its_differences(path, monkeypatch):
    monkeypatch.chdir(ROOT)  # elsewhere its files have longer names
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8").startswith("# ")
    argv = ["--config", str(path), "--use_cpu", "true", "--report_to", "none"]
    argv += ["--use_vllm", "false", "--use_unsloth", "false"] if recipe.get("use_unsloth") else []  # a CPU has none
    settings = configure(train_grpo.HYPERPARAMETERS, argv).settings()
    for key in recipe.keys() - ON_CPU:
        assert settings[key] == recipe[key], key
        assert train_grpo.HYPERPARAMETERS.get(key, "unset") != recipe[key], f"{key} repeats the inline value"


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
    "unsloth": {"use_unsloth": True, "load_in_4bit": True, "lora_r": 32, "use_vllm": True},
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


DEMO_FLAGS = ["--use_cpu", "true", "--model_name_or_path", str(DEMO / "model")]
DEMO_FLAGS += ["--dataset_name", str(DEMO / "train.jsonl")]
OF_THE_TASK = {  # a task's own columns
    "countdown": ["--dataset_name", str(COUNTDOWN / "train.jsonl")],
    "math": ["--question_column", "question", "--answer_column", "answer"],
}


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem != "unsloth"], ids=lambda path: path.stem)
def test_every_recipe_runs_dry_on_another_model_and_data(path):
    argv = ["--config", str(path), "--dry_run", "true", *DEMO_FLAGS, *OF_THE_TASK.get(path.stem, [])]
    assert train_grpo.main(argv) == 0
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("name", ["demo", "demo_think", "countdown"])
def test_a_recipe_and_its_files_are_found_from_any_directory_and_have_no_warnings(name, capfd):
    assert train_grpo.main(["--config", name, "--dry_run", "true"]) == 0
    assert "Dry run: no warnings, no error" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gist_2025", "low_memory_24gb"])
def test_recipes_that_differ_most_train_a_tiny_model(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = tmp_path / "run"
    flags = (
        "--max_steps 2 --max_completion_length 16 --num_generations 4 --per_device_train_batch_size 8 "
        "--gradient_accumulation_steps 1 --max_prompt_length 600 --max_samples 40 --eval_samples 4 --logging_steps 1 "
        f"--report_to none --output_dir {run}"
    )
    assert train_grpo.main(["--config", f"recipes/{name}.yaml", *DEMO_FLAGS, *flags.split()]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 2] and lines[1]["reward"] is not None
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


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
