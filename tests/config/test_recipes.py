"""Every shipped recipe resolves to a GRPOConfig; where it needs a GPU, through the CPU override."""

import json
import re
from pathlib import Path

import pytest
import yaml
from helpers_runs import COUNTDOWN, DEMO, ROOT

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from rewards import extract_answer

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


def test_a_recipe_and_its_files_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = configure(train_grpo.HYPERPARAMETERS, ["--config", "demo"]).settings()
    assert settings["model_name_or_path"] == str(DEMO / "model")
    assert settings["dataset_name"] == str(DEMO / "train.jsonl")
    with pytest.raises(UserError, match=r"config: 'nope' cannot be read.* demo"):
        configure(train_grpo.HYPERPARAMETERS, ["--config", "nope"])


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("demo", "demo-GRPO"), ("demo_think", "demo-GRPO"), ("countdown", "countdown-GRPO"),
        ("smollm2_sums", "SmolLM-135M-GRPO"), ("smollm2", "SmolLM-135M-GRPO"), ("math", "Qwen-1.5B-GRPO"),
        ("gist_2025", "Qwen-1.5B-GRPO"),
    ],
)  # fmt: skip
def test_a_recipe_s_directory_names_its_model_and_data_that_replace_its_own(name, directory):
    argv = ["--config", name, "--use_cpu", "true", "--report_to", "none"]
    assert configure(train_grpo.HYPERPARAMETERS, argv).output == Path("outputs") / directory
    replaced = configure(train_grpo.HYPERPARAMETERS, [*argv, "--dataset_name", "data/conversions.csv"])
    assert replaced.output == Path("outputs") / f"{directory}-conversions"


NEEDS = {"unsloth": "Unsloth"}
DEMO_FLAGS = ["--use_cpu", "true", "--model_name_or_path", str(DEMO / "model")]
DEMO_FLAGS += ["--dataset_name", str(DEMO / "train.jsonl")]
OF_THE_TASK = {  # a task's own columns
    "countdown": ["--dataset_name", str(COUNTDOWN / "train.jsonl")],
    "math": ["--question_column", "question", "--answer_column", "answer"],
}
CPU_CAPABLE = [path for path in RECIPES if path.stem not in NEEDS]


@pytest.mark.parametrize("path", CPU_CAPABLE, ids=lambda path: path.stem)
def test_every_recipe_runs_dry_on_another_model_and_data(path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)  # where a user is
    there = set((ROOT / "outputs").iterdir())
    assert (
        train_grpo.main(["--config", str(path), "--dry_run", "true", *DEMO_FLAGS, *OF_THE_TASK.get(path.stem, [])])
        == 0
    )
    assert re.search("Dry run: .* no error; nothing was trained", capfd.readouterr().out)
    assert set((ROOT / "outputs").iterdir()) == there


@pytest.mark.parametrize("name", ["demo", "demo_think", "countdown"])
def test_a_recipe_with_its_own_model_and_data_has_no_warnings(name, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
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

MATH = [  # our own problems: (problem, solution), and below their answers
    (r"Simplify $\sqrt{18}$.", r"$18 = 9 \cdot 2$, so it is $\boxed{3\sqrt{2}}$."),
    (r"At which point does $y = 2x - 4$ cross the $x$-axis?", r"$0 = 2x - 4$ gives $x = 2$: $\fbox{(2, 0)}$."),
    (r"Factor $x^2 - 5x + 6$.", r"We need $\boxed{2}$ and $\boxed{3}$, so $\boxed{(x - 2)(x - 3)}$."),
    (r"How many subsets has a set of 5 elements?", r"$2^5 = \boxed{32}$."),
]
BOXED = [r"3\sqrt{2}", "(2, 0)", "(x - 2)(x - 3)", "32"]


@pytest.fixture
def math_file(tmp_path):
    rows = [
        {"problem": f"{problem} ({copy})", "level": "Level 1", "type": "Algebra", "solution": solution}
        for copy in range(12)
        for problem, solution in MATH
    ]
    path = tmp_path / "my_math.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_math_reads_the_answers_of_its_solutions():
    assert [extract_answer(solution, "boxed") for _, solution in MATH] == BOXED


@pytest.mark.slow
def test_math_trains_on_a_local_file_in_its_format(math_file, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    argv = ["--config", "math", "--dataset_name", str(math_file), "--model_name_or_path", str(DEMO / "model")]
    argv += ["--use_cpu", "true", "--report_to", "none", "--eval_samples", "6", "--save_strategy", "no"]
    assert train_grpo.main([*argv, "--dry_run", "true"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert r"\boxed{}" in said
    flags = "--max_steps 2 --max_completion_length 24 --num_generations 4 --per_device_train_batch_size 8"
    flags += " --gradient_accumulation_steps 1 --per_device_eval_batch_size 6 --output_dir run"
    assert train_grpo.main([*argv, *flags.split()]) == 0
    rows, metrics = (
        [json.loads(line) for line in Path(f"run/{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("completions_after", "metrics")
    )
    assert len(rows) == 6 and {row["answer"] for row in rows} <= set(BOXED)
    assert "rewards/judge_reward_func/mean" in metrics[0]
