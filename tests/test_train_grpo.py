"""train_grpo.py as a user runs it: real commands, real (tiny) training, and every mistake in one line."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from helpers_runs import DEMO, LEARNS, ROOT, ROWS
from safetensors.torch import load_file
from transformers import pipeline

import rewards
import train_grpo
from grpo.__main__ import main as tool
from grpo.config.resolve import resolve
from grpo.data import prompts
from grpo.policy import loading

ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def command(argv, launcher=(sys.executable,), **environment):
    return subprocess.run(
        [*launcher, str(ROOT / "train_grpo.py"), *argv],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **environment},
        timeout=280,
    )


def torchrun(script, argv):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    return subprocess.run(
        [*launcher, str(script), *argv],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )


def words(capfd):
    """What was printed, whatever the width of the tables."""
    return " ".join(capfd.readouterr().out.split())


# --- Mistakes


LATE = """
import os, sys, time
sys.path.insert(0, {root!r})
import train_grpo
from grpo.__main__ import main as tool
from grpo.config import resolve as module
real = module.resolve
def resolve(*arguments):
    try:
        return real(*arguments)
    finally:
        time.sleep(3 if os.environ["RANK"] == "0" else 0)
module.resolve = resolve
sys.exit(train_grpo.main())
"""


@pytest.mark.slow
def test_a_first_process_that_is_late_names_a_mistake_once():
    Path("late.py").write_text(LATE.format(root=str(ROOT)))
    done = torchrun("late.py", ["--use_cpu", "true", "--num_generations", "5"])
    assert done.returncode != 0 and done.stderr.count("error: num_generations: 5") == 1
    assert "2 device(s)" in done.stderr


def test_help_names_our_settings_and_trls():
    done = command(["--help"])
    assert done.returncode == 0
    for flag in ("--dataset_name", "--num_generations", "--lora_r", "--config RECIPE.yaml"):
        assert flag in done.stdout
    assert "Qwen/Qwen2.5-1.5B-Instruct" in done.stdout  # the inline value is the default shown


# --- Training


def test_a_run_trains_saves_and_records(learned):
    shown, run = learned.shown, learned.path
    assert "2 prompts × 8 generations = 16 completions per optimizer step" in shown
    assert "36 training rows, 18 optimizer steps per epoch; 4 held-out questions" in shown
    assert "accuracy, strict" in shown and "a sample of step 1" in shown

    names = {path.name for path in run.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "run.json"} <= names
    assert {"eval_before.json", "eval_after.json", "completions_before.jsonl", "completions_after.jsonl"} <= names
    moved = load_file(run / "model.safetensors")
    start = load_file(DEMO / "model" / "model.safetensors")
    assert all(not torch.equal(moved[name], start[name].float()) for name in start)

    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics[:2]] == [1, 2]
    for name in ("loss", "grad_norm", "reward", "entropy", "rewards/correctness_reward_func/mean"):
        assert all(math.isfinite(line[name]) for line in metrics[:2])
    evaluation = json.loads((run / "eval_after.json").read_text())
    assert evaluation["n"] == 4 and 0 <= evaluation["accuracy_strict"] <= 1 and evaluation["mean_length"] > 4
    settings = json.loads((run / "run.json").read_text())["settings"]
    assert settings["learning_rate"] == 1e-3 and settings["model_name_or_path"] == str(DEMO / "model")

    generate = pipeline("text-generation", model=str(run))
    (reply,) = generate([{"role": "user", "content": "What is 2 + 2?"}], max_new_tokens=4)
    assert reply["generated_text"][-1]["role"] == "assistant"


@pytest.mark.slow
def test_the_seed_decides_the_weights(tiny_run):
    weights = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert train_grpo.main(tiny_run(**LEARNS, output_dir=name, seed=seed, eval_samples="2")) == 0
        weights.append(load_file(Path(name) / "model.safetensors")["model.embed_tokens.weight"])
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_lora_trains_the_adapter_alone_and_loads_again(learned_adapter):
    run = learned_adapter.path
    adapter = load_file(run / "adapter_model.safetensors")
    assert len(adapter) == 4 * 7 * 2 and all(tensor.abs().sum() > 0 for tensor in adapter.values())
    saved = json.loads((run / "adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"], saved["lora_dropout"]) == (4, 64, 0.05)
    reply = pipeline("text-generation", model=str(run))("What is 2 + 2?", max_new_tokens=2)
    assert reply[0]["generated_text"].startswith("What is 2 + 2?")


@pytest.mark.parametrize(
    "geometry",
    [
        {"gradient_accumulation_steps": "2", "steps_per_generation": "4", "num_iterations": "2"},
        {"gradient_accumulation_steps": "4", "steps_per_generation": "2"},
    ],
)
def test_an_epoch_has_as_many_steps_as_was_said(geometry, tiny_run, capfd):
    flags = {"max_samples": "21", "max_steps": None, "max_completion_length": "2", "log_completions": "false"}
    assert train_grpo.main(tiny_run(**flags, **geometry)) == 0
    said = re.search(r"19 training rows, (\d+) optimizer steps per epoch", words(capfd))
    last = json.loads((Path("run") / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == int(said[1]) and "train_runtime" in last


def test_a_data_set_with_a_test_split_is_evaluated_on_it(tiny_run, capfd):
    DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:5])).save_to_disk("splits")
    assert train_grpo.main(tiny_run(dataset_name="splits", eval_samples="3", max_steps="1")) == 0
    shown = words(capfd)
    assert "3 held-out questions" in shown and "3 training rows that ask a held-out question were dropped" in shown


def test_an_evaluation_file_of_its_own_and_shots(tiny_run, write_jsonl, capfd):
    held_out = write_jsonl([{"question": "What is 50 + 1?", "answer": "#### 51"}] * 2, "held_out.jsonl")
    assert train_grpo.main(tiny_run(eval_dataset_name=held_out, num_shots="1", max_steps="1")) == 0
    shown = words(capfd)
    assert "40 training rows" in shown and "2 held-out questions" in shown


@pytest.mark.slow
@pytest.mark.parametrize("chat", ["true", "no template"])
def test_the_think_format_trains_as_chat_and_as_plain_text(chat, tiny_run, tmp_path, capfd):
    model = shutil.copytree(DEMO / "model", tmp_path / "model")
    if chat == "no template":
        (model / "chat_template.jinja").unlink()
    flags = {**LEARNS, "model_name_or_path": str(model), "prompt_format": "think", "reward_funcs": "int_reward_func"}
    chosen = {} if chat == "no template" else {"use_chat_template": chat}
    assert train_grpo.main(tiny_run(**flags, **chosen)) == 0
    shown, record = words(capfd), json.loads(Path("run/run.json").read_text())
    assert record["prompt"]["chat"] is (chat == "true")
    assert ("has no chat template" in shown) is (chat == "no template")
    rows = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert any(row["format_soft"] and row["completion"].startswith("<think>") for row in rows)
    assert not Path("run/alarms.jsonl").exists()
    asked = pipeline("text-generation", model="run")
    prompt = prompts.choose(train_grpo.PROMPT_FORMATS, resolve_script(**flags, **chosen)).prompt("What is 2 + 2?")
    if chat == "no template":
        prompt = "<problem>\nWhat is 2 + 2?\n</problem>\n"
    (reply,) = asked(prompt, max_new_tokens=24, return_full_text=False)
    assert "</think>" in reply["generated_text"] or "The answer is" in reply["generated_text"]


def resolve_script(**flags):
    argv = [word for key, value in flags.items() for word in (f"--{key}", value)]
    return resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", *argv]).script


@pytest.mark.parametrize(
    ("kind", "form"),
    [("csv", float), ("parquet", int), ("DataFrame", "${}".format), ("Dataset", "so\n#### {}".format)],
)
def test_every_source_gives_rewards_the_same_gold(form, kind, tiny_run, monkeypatch):
    frame = pd.DataFrame([{"problem": f"What is {n - 1} + 1?", "result": form(n)} for n in range(3, 33)])
    if kind in ("csv", "parquet"):
        getattr(frame, f"to_{kind}")(f"rows.{kind}", index=False)
    memory = {"DataFrame": frame, "Dataset": Dataset.from_pandas(frame)}.get(kind)
    golds = []

    def note(completions, answer, **kwargs):
        golds.extend(answer)
        return [float(len(golds) + place) for place in range(len(completions))]

    monkeypatch.setitem(rewards.REWARD_FUNCS, "int_reward_func", note)
    flags = {"dataset_name": f"rows.{kind}" if memory is None else None, "dry_run": "true"}
    flags |= {"question_column": "problem", "answer_column": "result", "reward_funcs": "int_reward_func"}
    assert train_grpo.main(tiny_run(**flags, dataset_split="train[:20]", seed="3"), dataset=memory) == 0
    assert golds and golds == [golds[0]] * 5 and golds[0].isdigit()


def test_rows_in_memory_train(tiny_run):
    frame = pd.DataFrame({"question": [f"What is {n} + 1?" for n in range(30)], "answer": range(1, 31)})
    assert train_grpo.main(tiny_run(dataset_name=None, max_steps="1"), dataset=frame) == 0
    record = json.loads(Path("run/run.json").read_text())
    assert record["settings"]["dataset_name"] == "rows in memory" and record["data"]["train"] == 27
    assert record["settings"]["run_name"].endswith("-rows-in-memory")
    assert "datasets:" not in Path("run/README.md").read_text()


def test_what_is_no_table_in_memory_is_one_line(tiny_run, capfd):
    assert train_grpo.main(tiny_run(dataset_name=None), dataset=[{"question": "2 + 2?"}]) == 2
    assert "give a DataFrame or a Dataset" in capfd.readouterr().err


OWN_REWARD = """
def shorter(completions, *, target: int = 20, **kwargs):
    return [-abs(len(completion[0]["content"]) - target) / target for completion in completions]
"""


def test_a_reward_of_ones_own_is_trained_on_with_its_parameters(tiny_run, capfd):
    Path("my_length_rewards.py").write_text(OWN_REWARD)
    Path("own.yaml").write_text("reward_args: {my_length_rewards.shorter: {target: 30}}")
    flags = {**LEARNS, "config": "own.yaml", "report_to": "none"}
    words = [*tiny_run(**flags), "--reward_funcs", "correctness_reward_func", "my_length_rewards.shorter"]
    assert train_grpo.main(words) == 2
    assert "--allow_custom_rewards true" in capfd.readouterr().err and not Path("run").exists()
    assert train_grpo.main([*words, "--allow_custom_rewards", "true"]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert lines[0]["rewards/shorter/mean"] < 0 and "rewards/correctness_reward_func/mean" in lines[0]


def test_a_reference_model_is_used_when_beta_is_set(tiny_run):
    flags = {**LEARNS, "per_device_train_batch_size": "32", "reward_funcs": "correctness_reward_func"}
    assert train_grpo.main(tiny_run(**flags, beta="0.1")) == 0
    lines = [json.loads(line) for line in (Path("run") / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["kl"] > 0 and "rewards/correctness_reward_func/mean" in lines[1]
    assert "rewards/int_reward_func/mean" not in lines[1]


# --- Preflight alone, evaluation alone, and the proof


def test_a_dry_run_checks_and_neither_loads_nor_writes(tiny_run, capfd, monkeypatch):
    monkeypatch.setattr(loading, "load", None)
    before = sorted(Path.cwd().rglob("*"))
    assert train_grpo.main(tiny_run(**LEARNS, dry_run="true")) == 0
    shown = words(capfd)
    for part in ("geometry", "prompt length", "reward correctness", "trained", "disk", "<|im_start|>user"):
        assert part in shown
    assert "Dry run" in shown and sorted(Path.cwd().rglob("*")) == before


def test_a_dry_run_that_finds_an_error_is_status_2(tiny_run, capfd):
    assert train_grpo.main(tiny_run(max_samples="2", dry_run="true")) == 2
    assert "error: dataset: 1 training rows are fewer" in capfd.readouterr().err


def test_a_run_compares_before_and_after_and_reports_it(learned):
    shown, run = learned.shown, learned.path
    compared = json.loads((run / "comparison.json").read_text())
    assert compared["n"] == 4 and compared["sentence"] in shown and "too small to tell" in compared["sentence"]
    assert sum(compared["lenient"][key] for key in ("both", "fixed", "broken", "neither")) == 4
    page, card = (run / "report.html").read_text(), (run / "README.md").read_text()
    assert "not a progress measure" in page and str(DEMO / "train.jsonl") in page
    assert "library_name: transformers" in card and "too small to tell" in card
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished" and record["seconds"] > 1
    assert record["prompt"]["system"] == train_grpo.SYSTEM_PROMPT and record["shots"] == []
    assert record["changed"]["learning_rate"] == {"inline": 5e-6, "run": 1e-3}


def test_held_out_questions_are_never_trained_on(tiny_run, monkeypatch):
    trained = []

    def note(prompts, completions, answer, **kwargs):
        trained.extend(prompt[-1]["content"] for prompt in prompts)
        return [float(len(completion[0]["content"])) for completion in completions]

    monkeypatch.setitem(rewards.REWARD_FUNCS, "int_reward_func", note)
    assert train_grpo.main(tiny_run(reward_funcs="int_reward_func", max_steps="19", max_completion_length="2")) == 0
    asked = [json.loads(line)["question"] for line in Path("run/completions_before.jsonl").read_text().splitlines()]
    assert len(asked) == 4 and len(set(trained)) == 36 and not set(asked) & set(trained)


def test_evaluation_alone_gives_the_numbers_of_its_run(learned, tiny_run, capfd):
    learned.copy()
    flags = {**LEARNS, "model_name_or_path": "run", "output_dir": None, "eval_only": "true", "eval_num_samples": "2"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    alone, after = (
        json.loads(Path(name).read_text()) for name in ("outputs/run-eval/eval_only.json", "run/eval_after.json")
    )
    assert alone["k"] == 2 and {key: alone[key] for key in after if key != "seconds"} == {
        key: value for key, value in after.items() if key != "seconds"
    }
    names = {path.name for path in Path("outputs/run-eval").iterdir()}
    assert names - {"run.lock"} == {"run.json", "eval_only.json", "completions_only.jsonl", "report.html"}
    assert "maj@2" in words(capfd)
    assert train_grpo.main(tiny_run(**flags)) == 0 and Path("outputs/run-eval-2/eval_only.json").exists()


@pytest.mark.slow
def test_an_adapter_can_be_evaluated_alone(learned_adapter, tiny_run):
    learned_adapter.copy()
    flags = {**LEARNS, "model_name_or_path": "run", "output_dir": "eval", "eval_only": "true"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    alone, after = (json.loads(Path(f"{name}.json").read_text()) for name in ("eval/eval_only", "run/eval_after"))
    assert alone["accuracy_strict"] == after["accuracy_strict"] and alone["mean_length"] == after["mean_length"]


@pytest.mark.parametrize("use_peft", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_training_goes_on_from_a_saved_adapter(use_peft, learned_adapter, tiny_run):
    learned_adapter.copy()
    flags = {**LEARNS, "model_name_or_path": "run", "output_dir": "more", "use_peft": use_peft}
    assert train_grpo.main(tiny_run(**flags)) == 0
    start, end = (load_file(f"{name}/adapter_model.safetensors") for name in ("run", "more"))
    assert start.keys() == end.keys() and all(not torch.equal(start[key], end[key]) for key in start)
    ended, began = (json.loads(Path(f"{name}.json").read_text()) for name in ("run/eval_after", "more/eval_before"))
    for key in ("accuracy_strict", "format_soft", "mean_length"):
        assert ended[key] == began[key]
    assert not Path("more/alarms.jsonl").exists()


def test_an_evaluation_alone_needs_its_questions_only(tiny_run, write_jsonl):
    held_out = write_jsonl(
        [{"question": f"What is {n} + 1? {'Think. ' * 90}", "answer": f"#### {n + 1}"} for n in range(5)], "test.jsonl"
    )
    flags = {
        "eval_dataset_name": held_out,
        "dataset_name": "not/there",
        "eval_only": "true",
        "max_prompt_length": "99",
    }
    assert train_grpo.main(tiny_run(**flags)) == 0
    assert json.loads(Path("run/eval_only.json").read_text())["n"] == 5  # none is dropped for its length
    flags = {"eval_dataset_name": held_out, "dataset_name": held_out, "eval_only": "true", "output_dir": "other"}
    assert train_grpo.main(tiny_run(**flags)) == 0


def test_samples_are_part_of_the_proof_when_asked_for(tiny_run):
    assert train_grpo.main(tiny_run(**LEARNS, eval_num_samples="3")) == 0
    for when in ("before", "after"):
        summary = json.loads(Path(f"run/eval_{when}.json").read_text())
        assert summary["k"] == 3 and summary["maj_k_low"] <= summary["maj_k"] <= summary["pass_k"]
        rows = [json.loads(line) for line in Path(f"run/completions_{when}.jsonl").read_text().splitlines()]
        assert all(len(row["samples"]) == 3 for row in rows)


def test_a_run_that_was_killed_half_way_can_be_reported(learned):
    run = learned.copy()
    for name in ("eval_after.json", "completions_after.jsonl", "comparison.json", "report.html", "README.md"):
        (run / name).unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:40])
    assert tool(["report", "run"]) == 0 and (run / "report.html").exists()


# --- Several processes, as commands

RANKS = """
import hashlib, json, os, sys
sys.path.insert(0, {root!r})
import trl
save_model = trl.GRPOTrainer.save_model
def save_and_tell(self, *args, **kwargs):
    weights = {{n: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for n, p in self.model.named_parameters()}}
    with open(f"rank{{os.environ['RANK']}}.json", "w") as file:
        json.dump(weights, file)
    return save_model(self, *args, **kwargs)
trl.GRPOTrainer.save_model = save_and_tell
import train_grpo
sys.exit(train_grpo.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["false", "true"])
def test_two_processes_end_with_the_same_weights_and_they_moved(lora, tiny_run):
    Path("ranks.py").write_text(RANKS.format(root=str(ROOT)))
    done = torchrun("ranks.py", tiny_run(**LEARNS, use_peft=lora, save_strategy="no"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "4 prompts × 8 generations = 32 completions per optimizer step (16 on each of 2 device(s)" in " ".join(
        done.stdout.split()
    )
    ranks = [json.loads(Path(f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1] and len(ranks[0]) > 20
    if lora == "true":
        adapter = load_file("run/adapter_model.safetensors")
        assert all(tensor.abs().sum() > 0 for tensor in adapter.values())  # B starts at zero
    else:
        moved, start = load_file("run/model.safetensors"), load_file(DEMO / "model" / "model.safetensors")
        assert all(not torch.equal(moved[name], start[name].float()) for name in start)
    assert json.loads(Path("run/eval_after.json").read_text())["n"] == 4  # every question once
    asked = [json.loads(line)["question"] for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert len(set(asked)) == 4
    assert done.stdout.count("a prompt, as the model gets it") == 1 and Path("run/report.html").exists()


@pytest.mark.slow
def test_two_processes_evaluate_as_one_does_and_agree_on_alarms(tiny_run):
    flags = {**LEARNS, "eval_samples": "9", "max_samples": "90", "eval_only": "true"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    done = torchrun(ROOT / "train_grpo.py", tiny_run(**flags, output_dir="two"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path("two/completions_only.jsonl").read_text() == Path("run/completions_only.jsonl").read_text()
    flags = {**LEARNS, "max_completion_length": "3", "max_steps": "6", "stop_on_alarm": "true", "save_strategy": "no"}
    done = torchrun(ROOT / "train_grpo.py", tiny_run(**flags, output_dir="stopped"))
    assert done.returncode != 0 and "stopped by an alarm" in Path("stopped/run.json").read_text()
    lines = [json.loads(line) for line in Path("stopped/alarms.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines].count("all_truncated") == 1 and lines[0]["step"] == 3
    assert Path("stopped/checkpoint-3").is_dir() and done.stdout.count("alarm at step 3: all_truncated") == 1
