"""grpo/config/plan.py: a run on paper."""

import re
import subprocess
import sys

import pytest
from helpers_runs import ROOT

from grpo.__main__ import main as tool
from grpo.config import plan
from grpo.policy import memory


def planned(*flags):
    return plan.read(list(map(str, flags)))


def seconds(*flags):
    """Of generation, training and evaluation on a H100, the best case."""
    _, work, device = planned("--gpu", "H100", *flags)
    return work.seconds(device)[0]


def shown(*flags):
    """The lines that the command prints, by their first words."""
    ours, work, device = planned("--gpu", "H100", *flags)
    answer, why = plan.answer(ours, work, device), plan.why(work, device)
    assert [line.split()[0] for line in answer] == ["memory", "time", "cost", "limit"]
    return {line.split()[0]: line for line in answer} | {f"why {line.split()[0]}": line for line in why}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-0.5B", 494_032_768), ("Qwen2.5-1.5B", 1_543_714_304), ("Qwen2.5-3B", 3_085_938_688),
        ("Qwen2.5-7B", 7_615_616_512), ("SmolLM2-135M", 134_515_008), ("Llama-3.2-1B", 1_235_814_400),
    ],
)  # fmt: skip
def test_shapes_have_the_published_number_of_parameters(name, parameters):
    assert memory.shape(plan.model_config(f"somebody/{name}-Instruct")).parameters == parameters


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("4090", "RTX 4090"), ("rtx3060", "RTX 3060"), ("T4", "T4"), ("A100 40GB", "A100-40"), ("A10G", "A10G"),
        ("NVIDIA H100 80GB HBM3", "H100"), ("Tesla T4", "T4"), ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_any_of_its_names(name, known):
    assert plan.find_gpu(name).name == known


def test_the_arithmetic_of_the_default_run():
    _, work, device = planned("--gpu", "H100")
    assert work.steps == 1868 and work.training_tokens() == 64 * (104 + 200)
    assert work.training_operations() == 8 * work.shape.parameters + 4 * 28 * 1536 * 205 * 4
    operations = 1868 * 19456 * work.training_operations()
    assert work.seconds(device)[0].training == pytest.approx(operations / (798e12 * 0.45))
    assert work.seconds(device)[1].training == pytest.approx(operations / (798e12 * 0.30))


def test_more_work_takes_longer():
    usual = seconds()
    assert seconds("--mean_completion_length", 300).training > usual.training
    assert seconds("--packed", "false").training > usual.training > seconds("--use_peft", "true").training
    assert seconds("--gradient_checkpointing", "false").training < usual.training
    assert seconds("--attn_implementation", "sdpa").training < usual.training  # each prompt once
    assert seconds("--eval_num_samples", 4).evaluation > 2.5 * usual.evaluation
    twice = seconds("--num_iterations", 2)
    assert twice.generation == pytest.approx(usual.generation)
    assert 2 < twice.training / usual.training < 2.4  # and the policy as it sampled, once a rollout


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").iterdir()), ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    flags = []
    if path.stem in ("notebook_gpt2", "unsloth"):  # these are read from the Hub
        flags += ["--model_name_or_path", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    if "use_cpu" in path.read_text():
        flags += ["--use_cpu", "false", "--bf16", "true"]
    if "dtype: float32" in path.read_text() and "use_cpu" not in path.read_text():
        flags += ["--tflops", "60"]  # the table has 16-bit rates
    assert plan.main(["--config", str(path), *flags]) == 0
    assert re.search("^time .* (hours|minutes) for .*: generation ", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--gpu", "B9"], "gpu"),
        (["--gpu", "H100", "--use_cpu", "true"], "use_cpu"),
        (["--bf16", "false", "--dtype", "float32"], "tflops"),
        (["--model_name_or_path", "nobody/nothing"], "model_name_or_path"),
        (["--learning_rat", "1"], "--learning_rat"),
        (["--price", "x"], "price"),
        (["--devices", "0"], "devices"),
        (["--sharding", "all"], "sharding"),
        (["--num_generations", "7"], "num_generations"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line_and_status_2(flags, key, capsys):
    assert plan.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {key}: ") and error.count("\n") == 1


def test_a_gpu_of_ones_own_is_planned_by_its_three_numbers():
    _, _, device = planned("--tflops", 100, "--bandwidth", 1.5, "--memory", 24)
    assert device[1:] == (24e9, 1.5e12, 100e12, "given")
    _, _, device = planned("--gpu", "4090", "--memory", 48)
    assert device[1:] == (48e9, 1.01e12, 165e12, "given")


def test_what_limits_a_run_is_named():
    assert "generation" in shown()["limit"] and "fast_80gb" in shown()["limit"]
    assert "training" in shown("--generation", "vllm", "--mean_completion_length", 20)["limit"]
    assert (
        "memory" in shown("--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct")["limit"]
        and "does not fit" in shown("--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct")["memory"]
    )


def test_several_devices_divide_what_they_share():
    flags = ["--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct", "--devices", 8]
    _, whole, device = planned("--gpu", "H100", *flags)
    _, divided, _ = planned("--gpu", "H100", *flags, "--sharding", "fsdp2")
    assert sum(divided.memory(device).values()) < sum(whole.memory(device).values())


def test_the_table_on_paper_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (inline|fast_80gb|low_memory_24gb) \| (H\d+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for name, gpu, cells in rows:
        lines = shown("--gpu", gpu, *([] if name == "inline" else ["--config", f"recipes/{name}.yaml"]))
        count, completions, tokens, generating, training, evaluating, hours, cost, size = cells.split(" | ")
        steps = lines["why steps"]
        assert f" {count} optimizer" in steps and f" {completions} compl" in steps and f" {tokens} million" in steps
        assert f" {cost} at 2.5" in lines["cost"] and f"time    {hours} hours for {count} " in lines["time"]
        phases = f"generation {generating}, training {training}, evaluation {evaluating}"
        assert lines["time"].endswith(phases)
        used, device, fits = re.fullmatch(r"(.*) of (.*), (.*)", size).groups()
        assert lines["memory"] == f"memory  about {used} GB of {device} GB on {gpu}: {fits}"


@pytest.mark.parametrize("words", [[], ["--why"]])
def test_the_answer_is_four_lines_unless_asked_why(words, capsys):
    assert tool(["plan", "--gpu", "H100", *words]) == 0
    assert (len(capsys.readouterr().out.splitlines()) == 4) is (not words)


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_is_no_error():
    command = f"{sys.executable} -m grpo plan --gpu H100 --why | head -n 1"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, shell=True)
    assert done.stdout.startswith("memory ") and "Error" not in done.stderr
