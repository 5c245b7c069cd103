"""grpo/config/plan.py: a run on paper."""

import os
import re
import sys

import pytest
from helpers_runs import ROOT

from grpo.__main__ import main as tool
from grpo.config import plan
from grpo.policy import memory


def planned(*flags):
    return plan.read(["--gpu", "H100", *map(str, flags)])[1]


def seconds(*flags):
    """Of generation, training and evaluation on a H100, the best case."""
    return planned(*flags).seconds(0)


def shown(*flags):
    """The four lines of the answer, by their first words."""
    answer = plan.answer(planned(*flags), price=2.5)
    assert [line.split()[0] for line in answer] == ["memory", "time", "cost", "limit"]
    return {line.split()[0]: line for line in answer}


def test_known_models_have_the_published_number_of_parameters():
    published = {"Qwen2.5-1.5B": 1_543_714_304, "Qwen2.5-7B": 7_615_616_512}
    published |= {"SmolLM2-135M": 134_515_008, "Llama-3.2-1B": 1_235_814_400}
    sizes = {name: memory.shape(plan.model_config(f"somebody/{name}-Instruct")).parameters for name in published}
    assert sizes == published and len(sizes) == len(plan.MODELS)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("4090", "RTX 4090"), ("rtx3060", "RTX 3060"), ("T4", "T4"), ("A100 40GB", "A100-40"), ("A10G", "A10G"),
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_any_of_its_names(name, known):
    assert plan.find_gpu(name).name == known


def test_the_arithmetic_of_the_default_run():
    run = planned()
    assert run.steps == 1868 and run.training_tokens() == 4 * 104 + 64 * 200
    assert run.training_operations() == 6 * run.shape.parameters + 4 * 28 * 1536 * 205 * 3
    operations = 1868 * 13216 * run.training_operations()
    assert run.seconds(0)["training"] == pytest.approx(operations / (798e12 * 0.45))
    assert run.seconds(1)["training"] == pytest.approx(operations / (798e12 * 0.30))


def test_more_work_takes_longer():
    training = {
        flags: seconds(*flags.split())["training"]
        for flags in (
            "", "--mean_completion_length 300", "--packed false", "--num_iterations 2",
            "--gradient_checkpointing true", "--use_peft true", "--attn_implementation flash_attention_2",
        )
    }  # fmt: skip
    more = [flags for flags, found in training.items() if found > training[""]]
    assert more == [*list(training)[1:5]]
    assert seconds("--eval_num_samples", 4)["evaluation"] > 2.5 * seconds()["evaluation"]
    assert seconds("--num_iterations", 2)["generation"] == pytest.approx(seconds()["generation"])


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").iterdir()), ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    flags = []
    if path.stem in ("notebook_gpt2", "unsloth"):  # these are read from the Hub
        flags += ["--model_name_or_path", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    if "use_cpu" in path.read_text():
        flags += ["--use_cpu", "false", "--bf16", "true"]
    if "dtype: float32" in path.read_text() and "use_cpu" not in path.read_text():
        flags += ["--gpu", "H100", "--tflops", "60"]  # the table has 16-bit rates
    assert plan.main(["--config", str(path), *flags]) == 0
    assert re.search("^time .* (hours|minutes) for .*: generation ", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--gpu", "B9"], "gpu"),
        (["--config", "demo"], "use_cpu"),
        (["--bf16", "false", "--dtype", "float32"], "tflops"),
        (["--model_name_or_path", "nobody/nothing"], "model_name_or_path"),
        (["--learning_rat", "1"], "--learning_rat"),
        (["--price", "x"], "price"),
        (["--devices", "0"], "devices"),
        (["--memory", "24"], "memory"),
        (["--tflops", "100", "--bandwidth", "1.5"], "bandwidth"),
        (["--sharding", "all"], "sharding"),
        (["--num_generations", "7"], "num_generations"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line_and_status_2(flags, key, capsys):
    assert plan.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {key}: ") and error.count("\n") == 1


def test_a_gpu_of_ones_own_is_planned_by_its_three_numbers():
    own = ["--tflops", "100", "--bandwidth", "1.5", "--memory", "24"]
    assert plan.read(own)[1].device == ("a GPU", 24, 1.5, 100)
    assert plan.read(["--gpu", "4090", *own[-2:]])[1].device == ("RTX 4090", 24, 1.01, 165)


def test_local_data_are_counted(rows_file):
    assert planned("--dataset_name", rows_file).steps == 40 // 4
    assert planned("--dataset_name", rows_file, "--max_samples", 8).steps == 8 // 4


def test_what_limits_a_run_is_named():
    assert "generation" in shown()["limit"] and "--generation vllm" in shown()["limit"]
    padded = ["--generation", "vllm", "--mean_completion_length", 20, "--beta", 0.1, "--packed", "false"]
    assert "training" in shown(*padded)["limit"]
    large = shown("--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct")
    assert "memory" in large["limit"] and "does not fit" in large["memory"]


def test_layers_are_computed_again_where_the_memory_is_short():
    chosen = {gpu: planned("--gpu", gpu).settings.gradient_checkpointing for gpu in ("4090", "A40", "A100", "B200")}
    assert chosen == {"4090": True, "A40": True, "A100": False, "B200": False}
    assert planned("--gradient_checkpointing", "true").settings.gradient_checkpointing is True
    assert planned("--gpu", "4090", "--gradient_checkpointing", "false").settings.gradient_checkpointing is False


def test_several_devices_divide_what_they_share():
    flags = ["--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct", "--devices", 8]
    divided = planned(*flags, "--sharding", "fsdp2").memory()
    assert sum(divided.values()) < sum(planned(*flags).memory().values())


def test_the_table_on_paper_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (inline|fast_80gb|low_memory_24gb) \| (H\d+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for name, gpu, cells in rows:
        flags = [] if name == "inline" else ["--config", f"recipes/{name}.yaml"]
        lines = shown("--gpu", gpu, *flags, *(["--generation", "vllm"] if name == "fast_80gb" else []))
        steps, generation, training, evaluation, hours, cost, size = cells.split(" | ")
        phases = f"generation {generation}, training {training}, evaluation {evaluation}"
        assert lines["time"] == f"time    {hours} hours for {steps} optimizer steps: {phases}"
        assert f" {cost} dollars at 2.5" in lines["cost"]
        used, device, fits = re.fullmatch(r"(.*) of (.*), (.*)", size).groups()
        assert lines["memory"] == f"memory  about {used} GB of {device} GB on {gpu}: {fits}"


@pytest.mark.parametrize("words", [[], ["--why"]])
def test_the_answer_is_four_lines_unless_asked_why(words, capsys):
    assert tool(["plan", "--gpu", "H100", *words]) == 0
    assert (len(capsys.readouterr().out.splitlines()) == 4) is (not words)


def test_a_reader_that_closes_the_pipe_is_no_error(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert tool(["plan", "--gpu", "H100", "--why"]) == 0
    assert capsys.readouterr().err == ""
