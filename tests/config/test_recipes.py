"""Every shipped recipe resolves to a GRPOConfig; where it needs a GPU, through the CPU override."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers_resume import assert_same, state_of
from helpers_runs import COUNTDOWN, DEMO, ROOT
from helpers_runs import flags as command_line
from helpers_tables import each

import train_grpo
from grpo.config.configure import configure, merge
from grpo.config.parsing import Parser
from grpo.scoring.registry import make_task
from grpo.task.prompts import XML

RECIPES = sorted((ROOT / "recipes").iterdir())
CPU = ["--use_cpu", "true", "--report_to", "none", "--use_vllm", "false"]


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
    if exemplars := recipe.pop("exemplars", None):
        assert settings["exemplars"] == [tuple(shot.values()) for shot in exemplars]
    for key in recipe.keys() - ON_CPU - {"standalone"}:
        assert settings[key] == recipe[key], key
        repeats = train_grpo.HYPERPARAMETERS.get(key, "unset") == recipe[key]
        assert path in ALONE or not repeats or recipe[key] is None, f"{key} repeats the inline value"


def test_gist_2025_has_the_defaults_of_january_2025():
    settings = configure(train_grpo.HYPERPARAMETERS, ["--config", "gist_2025", *CPU]).settings()
    then = {"beta": 0.04, "loss_type": "grpo", "temperature": 0.9, "top_k": 50, "gradient_checkpointing": False}
    assert {key: settings[key] for key in then} == then
    assert settings["use_bias_correction_kl"] is False and settings["save_total_limit"] is None


# --- Recipes that stand alone

ALONE = [path for path in (*RECIPES, *(ROOT / "examples").glob("*.yaml")) if "\nstandalone: true" in path.read_text()]
EDITS: dict[str, Any] = dict.fromkeys([*train_grpo.HYPERPARAMETERS, *Parser().settings], "edited")


def other_reward(completions, **kwargs):
    return [0.0] * len(completions)


def other_judge(text, row):
    return False


def resolved(recipe, **edits):
    """The configuration and the task of a recipe, with these edits of HYPERPARAMETERS."""
    config = configure(train_grpo.HYPERPARAMETERS | edits, ["--config", str(recipe), *CPU])
    task = make_task(config)
    apart = {key: value for key, value in vars(config).items() if key not in ("training", "model", "notes", "started")}
    return config.settings(), apart, task, [note.finding for note in (*config.notes, *task.notes)]


def test_the_recipes_without_a_gpu_stand_alone():
    names = {path.stem for path in ALONE}
    assert names == {"demo", "demo_think", "countdown", "smollm2_sums", "labels", "json_fields"}


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_no_edit_of_the_script_reaches_a_recipe_that_stands_alone(path):
    *own, notes = resolved(path)
    functions = {"reward_funcs": [other_reward], "judge": other_judge, "prepare": other_judge}
    prompt = {"prompt_format": dataclasses.replace(XML, system="My words."), "exemplars": [("mine?", "mine", "1")]}
    *edited, said = resolved(path, **EDITS | functions | prompt)
    assert edited == own
    whats = ["other_reward", "other_judge", "edited", "My words.", *["mine?"] * bool(own[2].shots)]
    assert set(notes) <= set(said) and {f"{path} replaces the script's own: {what}" for what in whats} <= set(said)


def test_edited_exemplars_that_a_recipe_without_any_replaces_are_named():
    *_, said = resolved(ROOT / "recipes/demo.yaml", exemplars=[("mine?", "mine", "1")], num_shots=1)
    assert any("replaces the script's own: mine?" in line for line in said)


@pytest.mark.parametrize("edit", [{}, {"exemplars": [("mine?", "mine", "1")]}])
def test_a_flag_shows_the_scripts_exemplars_beside_a_recipe_that_has_none(edit):
    config = configure(train_grpo.HYPERPARAMETERS | edit, ["--config", "demo", "--num_shots", "1", *CPU])
    first = (train_grpo.HYPERPARAMETERS | edit)["exemplars"][0]
    assert make_task(config).shots == [first] and config.origin["exemplars"] == "script"


@each(train_grpo.HYPERPARAMETERS)
def test_no_line_of_the_block_reaches_the_demo(key):
    demo = merge(train_grpo.HYPERPARAMETERS, ["--config", "demo"])
    edited = merge(train_grpo.HYPERPARAMETERS | {key: EDITS[key]}, ["--config", "demo"])
    for given in (edited, demo):
        given.settings.notes.clear()
    assert edited == demo and edited.settings.origin == demo.settings.origin


@pytest.mark.slow
def test_the_demo_is_the_same_bit_by_bit_whatever_is_edited(monkeypatch):
    short = {"config": "demo", "max_steps": 2, "eval_samples": 8, "max_samples": 64, "eval_every": 0, "save_steps": 2}
    short |= {"save_strategy": "steps", "logging_steps": 1}
    assert train_grpo.main(command_line(**short, output_dir="own")) == 0
    monkeypatch.setattr(train_grpo, "HYPERPARAMETERS", EDITS)
    assert train_grpo.main(command_line(**short, output_dir="edited")) == 0
    assert_same(state_of(Path("edited")), state_of(Path("own")))


def test_standalone_is_true_or_false(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    for text, said in (("standalone: perhaps", "standalone is 'perhaps'"), ("standalone: 1", "standalone is 1")):
        path.write_text(text)
        assert train_grpo.main(["--config", str(path)]) == 2
        assert said in capsys.readouterr().err
    path.write_text("standalone: false\n")
    block = train_grpo.HYPERPARAMETERS | {"seed": 7}
    assert configure(block, ["--config", str(path), *CPU]).training.seed == 7


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
    settings = merge(train_grpo.HYPERPARAMETERS, ["--config", name]).settings
    assert OF_WRITE_UPS[name].items() <= settings.items()


def test_a_smoke_test_keeps_the_scripts_rewards():
    own = {"reward_funcs": [other_reward], "reward_weights": [0.5], "judge": other_judge}
    found = merge(train_grpo.HYPERPARAMETERS | own, ["--config", "smoke_20"])
    assert found.settings["reward_funcs"] == ["other_reward"] and found.settings["reward_weights"] == [0.5]
    assert found.settings["judge"] == "other_judge" and found.settings["log_completions"] and not found.settings.notes


DEMO_FLAGS = ["--use_cpu", "true", "--model_name_or_path", str(DEMO / "model")]
DEMO_FLAGS += ["--dataset_name", str(DEMO / "train.jsonl"), "--max_samples", "100"]
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


@pytest.mark.parametrize("inline", [False, True])
def test_shipped_models_and_data_are_found_from_any_directory(inline):
    named = {"model_name_or_path": "assets/short_answers/model", "dataset_name": "assets/demo/train.jsonl"}
    flags = [word for key, value in named.items() for word in (f"--{key}", value)]
    found = merge(train_grpo.HYPERPARAMETERS | (named if inline else {}), [] if inline else flags).settings
    assert {key: found[key] for key in named} == {key: str(ROOT / name) for key, name in named.items()}
    Path("assets/demo").mkdir(parents=True)
    Path("assets/demo/train.jsonl").touch()  # one's own comes first
    found = merge(train_grpo.HYPERPARAMETERS | (named if inline else {}), [] if inline else flags).settings
    assert found["dataset_name"] == named["dataset_name"]


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
