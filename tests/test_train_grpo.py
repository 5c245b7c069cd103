"""train_grpo.py from end to end: it trains, saves, evaluates before and after, and several processes are one run."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from filelock import FileLock
from helpers_commands import command
from helpers_runs import DEMO, LEARNS, ROOT
from safetensors.torch import load_file
from transformers import pipeline

import rewards
import train_grpo
from grpo.core.commands import tool
from grpo.runs import directory


def shown(text):
    """The printed text, whatever the width of its tables."""
    return " ".join(text.split())


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def json_lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


# --- Training


def test_a_run_trains_saves_and_records(learned):
    run = learned.path
    assert "2 prompts × 8 generations = 16 completions per optimizer step" in learned.shown
    assert "30 training rows, 15 optimizer steps per epoch" in learned.shown and "10 held-out" in learned.shown
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "run.json"} <= names
    assert {"eval_before.json", "eval_after.json", "completions_before.jsonl", "completions_after.jsonl"} <= names
    moved = load_file(run / "model.safetensors")
    start = load_file(DEMO / "model" / "model.safetensors")
    assert all(not torch.equal(moved[name], start[name].float()) for name in start)
    metrics = json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics[:2]] == [1, 2]
    for name in ("loss", "grad_norm", "reward", "entropy", "rewards/correctness_reward_func/mean"):
        assert all(math.isfinite(line[name]) for line in metrics[:2])
    evaluation = read(run / "eval_after.json")
    assert evaluation["n"] == 10 and 0 <= evaluation["accuracy_strict"] <= 1 and evaluation["mean_length"] > 4
    record = read(run / "run.json")
    assert record["status"] == "finished" and record["seconds"] > 0
    assert record["settings"]["model_name_or_path"] == str(DEMO / "model")
    assert (record["origin"]["learning_rate"], record["settings"]["learning_rate"]) == ("flag", 1e-3)
    assert record["prompt"]["system"] == train_grpo.SYSTEM_PROMPT and record["shots"] == []
    assert record["perfect"] == dict.fromkeys(list(rewards.REWARD_FUNCS), 0.5) | {"correctness_reward_func": 2.0}
    generate = pipeline("text-generation", model=str(run))
    (reply,) = generate([{"role": "user", "content": "What is 2 + 2?"}], max_new_tokens=4)
    assert reply["generated_text"][-1]["role"] == "assistant"


def test_a_run_compares_before_and_after_and_reports_it(learned):
    compared = read(learned.path / "comparison.json")
    assert compared["n"] == 10 and "too small to tell" in compared["sentence"]
    assert sum(compared["lenient"][key] for key in ("both", "fixed", "broken", "neither")) == 10
    assert compared["diagnosis"] and all(f"Likely cause: {cause}." in learned.shown for cause in compared["diagnosis"])
    page, card = (learned.path / "report.html").read_text(), (learned.path / "README.md").read_text()
    assert str(DEMO / "train.jsonl") in page and '"refresh"' not in page  # it is over, and loads itself no more
    assert all("too small to tell" in text for text in (learned.shown, page, card))


def test_lora_trains_the_adapter_alone_and_loads_again(learned_adapter):
    run = learned_adapter.path
    adapter = load_file(run / "adapter_model.safetensors")
    assert len(adapter) == 4 * 7 * 2 and all(tensor.abs().sum() > 0 for tensor in adapter.values())
    saved = read(run / "adapter_config.json")
    assert (saved["r"], saved["lora_alpha"], saved["lora_dropout"]) == (4, 64, 0.05)
    reply = pipeline("text-generation", model=str(run))("What is 2 + 2?", max_new_tokens=2)
    assert reply[0]["generated_text"].startswith("What is 2 + 2?")


def test_rows_in_memory_train(tiny_run):
    frame = pd.DataFrame({"question": [f"What is {n} + 1?" for n in range(30)], "answer": range(1, 31)})
    assert train_grpo.main(tiny_run(dataset_name=None, max_steps="1"), dataset=frame) == 0
    record = read("run/run.json")
    assert record["settings"]["dataset_name"] == "rows in memory" and record["data"]["train"] == 23
    assert record["settings"]["run_name"].endswith("-rows-in-memory")


def test_the_recipes_settings_come_first_with_its_values():
    recipe = {
        "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct", "dataset_name": "openai/gsm8k", "dataset_config": "main",
        "reward_funcs": list(rewards.REWARD_FUNCS.values()), "output_dir": None,
        "run_name": None, "learning_rate": 5e-6, "adam_beta1": 0.9, "adam_beta2": 0.99, "weight_decay": 0.1,
        "warmup_steps": 0.1, "lr_scheduler_type": "cosine", "logging_steps": 1, "bf16": True,
        "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 16,
        "max_prompt_length": 256, "max_completion_length": 786, "num_train_epochs": 1, "save_steps": 100,
        "max_grad_norm": 0.1, "report_to": "wandb", "log_on_each_node": False, "lora_r": 16, "lora_alpha": 64,
        "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        "lora_dropout": 0.05, "dtype": "bfloat16", "attn_implementation": "flash_attention_2",
    }  # fmt: skip
    assert [(name, value) for name, value in train_grpo.HYPERPARAMETERS.items() if name in recipe] == [*recipe.items()]
    names = list(train_grpo.HYPERPARAMETERS)
    assert max(map(names.index, recipe)) < names.index("temperature")
    five = ["xmlcount", "soft_format", "strict_format", "int", "correctness"]
    assert [f"{name}_reward_func" for name in five] == list(rewards.REWARD_FUNCS)
    assert train_grpo.EXEMPLARS[0][1:] == ("9 is divisible by 3 and 8 is divisible by 2, but 7 is prime.", "7")


# --- Preflight alone, evaluation alone, and the proof


def test_a_dry_run_checks_and_neither_loads_nor_writes(tiny_run, capfd, monkeypatch):
    monkeypatch.setattr(train_grpo, "load_model", None)
    before = sorted(Path.cwd().rglob("*"))
    assert train_grpo.main(tiny_run(**LEARNS, dry_run="true")) == 0
    assert "Dry run" in capfd.readouterr().out and sorted(Path.cwd().rglob("*")) == before


def test_without_an_evaluation_a_run_only_trains(tiny_run):
    assert train_grpo.main(tiny_run(eval_samples="0")) == 0
    names = {path.name for path in Path("run").iterdir()}
    assert {"model.safetensors", "report.html", "metrics.jsonl"} <= names and "eval_before.json" not in names
    assert read("run/run.json")["data"]["train"] == 40  # none is held out


def test_evaluation_alone_gives_the_numbers_of_its_run(learned, tiny_run, capfd):
    learned.copy()
    flags = {**LEARNS, "model_name_or_path": "run", "output_dir": None, "eval_only": "true", "eval_num_samples": "2"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    alone, after = (read(name) for name in ("outputs/run-eval/eval_only.json", "run/eval_after.json"))
    measured = [key for key in after if key not in ("seconds", "step", "measure")]  # which knows of the samples
    assert alone["k"] == 2 and {key: alone[key] for key in measured} == {key: after[key] for key in measured}
    names = {path.name for path in Path("outputs/run-eval").iterdir()}
    assert names - {"run.lock", "source"} == {"run.json", "eval_only.json", "completions_only.jsonl", "report.html"}
    assert "maj@2" in shown(capfd.readouterr().out)
    assert train_grpo.main(tiny_run(**flags)) == 0 and Path("outputs/run-eval-2/eval_only.json").exists()


def test_training_goes_on_from_a_saved_adapter(learned_adapter, tiny_run, capfd):
    learned_adapter.copy()
    flags = {**LEARNS, "model_name_or_path": "run", "output_dir": "more", "use_peft": "true"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    assert f"{tool('merge', 'more')}\n" in capfd.readouterr().out
    start, end = (load_file(f"{name}/adapter_model.safetensors") for name in ("run", "more"))
    assert start.keys() == end.keys() and all(not torch.equal(start[key], end[key]) for key in start)
    ended, began = (read(f"{name}.json") for name in ("run/eval_after", "more/eval_before"))
    for key in ("accuracy_strict", "format_soft", "mean_length"):
        assert ended[key] == began[key]
    assert not Path("more/alarms.jsonl").exists()


# --- Several processes, as commands


@pytest.mark.slow
def test_two_processes_end_with_the_same_adapter_and_it_moved(tiny_run):
    flags = tiny_run(**LEARNS, use_peft="true", save_strategy="no")
    done = command(ROOT / "tests/programs/ranks.py", flags, processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "32 completions per optimizer step (16 on each of 2 devices" in shown(done.stdout)
    ranks = [read(f"rank{rank}.json") for rank in (0, 1)]
    assert ranks[0] == ranks[1] and len(ranks[0]) > 20
    adapter = load_file("run/adapter_model.safetensors")
    assert all(tensor.abs().sum() > 0 for tensor in adapter.values())  # B starts at zero
    asked = [row["question"] for row in json_lines("run/completions_after.jsonl")]
    assert len(set(asked)) == len(asked) == read("run/eval_after.json")["n"] == 10
    assert done.stdout.count("a training prompt, as the model gets it") == 1 and Path("run/report.html").exists()


@pytest.mark.slow
def test_two_processes_evaluate_as_one_does(tiny_run):
    flags = {**LEARNS, "eval_samples": "9", "max_samples": "90", "eval_only": "true"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    done = command(ROOT / "train_grpo.py", tiny_run(**flags, output_dir="two"), processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path("two/completions_only.jsonl").read_text() == Path("run/completions_only.jsonl").read_text()


@pytest.mark.slow
def test_four_processes_with_odd_sizes_train_evaluate_and_save(tiny_run):
    """7 questions, 3 groups of 8 for the 4 of them."""
    asked = {**LEARNS, "eval_samples": "7", "max_steps": "1", "save_steps": "1"}
    assert train_grpo.main(tiny_run(**asked, eval_only="true")) == 0
    sizes = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "3"}
    done = command(ROOT / "train_grpo.py", tiny_run(**asked | sizes, output_dir="four"), processes=4)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3 prompts × 8 generations = 24 completions per optimizer step (6 on each of 4" in shown(done.stdout)
    assert Path("four/completions_before.jsonl").read_text() == Path("run/completions_only.jsonl").read_text()
    assert read("four/eval_after.json")["n"] == read("four/comparison.json")["n"] == 7
    assert len(list(Path("four/checkpoint-1").glob("rng_state_*.pth"))) == 4
    saved = [Path("four", name, "model.safetensors").read_bytes() for name in ("", "checkpoint-1")]
    assert saved[0] == saved[1] != (DEMO / "model/model.safetensors").read_bytes()


def test_a_run_that_another_one_overtakes_takes_the_next_name(tiny_run, monkeypatch):
    """Its tracker shows it under that name, too."""
    monkeypatch.setattr(directory, "is_locked", lambda _: False)  # when the directory was chosen, nobody had it
    first, second = Path("outputs/Tiny-60K-GRPO-rows"), Path("outputs/Tiny-60K-GRPO-rows-2")
    first.mkdir(parents=True)
    with FileLock(first / "run.lock"):
        assert train_grpo.main(tiny_run(output_dir=None, max_steps="1", eval_samples="0", save_steps="1")) == 0
    assert [path.name for path in first.iterdir()] == ["run.lock"]
    settings = read(second / "run.json")["settings"]
    assert settings["output_dir"] == str(second) and settings["run_name"] == second.name
    assert (second / "checkpoint-1/complete.json").exists()
