"""grpo/config/plan.py: a run on paper."""

import os
import re
import sys

import pytest
from helpers_runs import ROOT

from grpo.__main__ import main as tool
from grpo.config import gpus, plan
from grpo.policy import memory


def planned(*flags):
    return plan.read(["--gpu", "H100", *map(str, flags)])[1]


def seconds(*flags):
    """Of generation, training and evaluation on a H100, the best case."""
    return planned(*flags).seconds(0)


def shown(*flags):
    """The lines of the answer, by their first words, and its notes."""
    argv = ["--gpu", "H100", *map(str, flags)]
    answer = plan.answer(plan.read(argv)[1], 2.5, argv)
    notes = [line for line in answer if line.startswith("note    ")]
    lines = {line.split()[0]: line for line in answer if line not in notes}
    fits = lines["memory"].endswith(": fits")  # what does not fit takes neither time nor money
    assert list(lines) == (["memory", "time", "cost", "limit"] if fits else ["memory", "limit"])
    return lines | {"notes": notes}


def test_known_models_have_the_published_number_of_parameters():
    published = {"Qwen2.5-1.5B": 1_543_714_304, "Qwen2.5-7B": 7_615_616_512}
    published |= {"SmolLM2-135M": 134_515_008, "Llama-3.2-1B": 1_235_814_400}
    sizes = {name: memory.shape(plan.model_config(f"somebody/{name}-Instruct")).parameters for name in published}
    assert sizes == published and len(sizes) == len(plan.MODELS)


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
    often = seconds("--max_steps", 100, "--eval_every", 10)["evaluation"]  # 11 times, or 2
    assert often == pytest.approx(5.5 * seconds("--max_steps", 100)["evaluation"])
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
    assert re.search("^time .* (hours|minutes|seconds) for .*: generation ", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--gpu", "B9"], "gpu"),
        (["--config", "demo", "--gpu", "T4"], "gpu"),
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


def test_local_data_are_counted(rows_file):
    assert planned("--dataset_name", rows_file).steps == 40 // 4
    assert planned("--dataset_name", rows_file, "--max_samples", 8).steps == 8 // 4


def test_what_limits_a_run_is_named():
    assert "generation" in shown()["limit"] and "--generation vllm" in shown()["limit"]
    padded = ["--generation", "vllm", "--mean_completion_length", 20, "--beta", 0.1, "--packed", "false"]
    assert "training" in shown(*padded)["limit"]
    large = shown("--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct")
    assert "memory" in large["limit"] and "does not fit" in large["memory"]


def test_a_plan_on_a_cpu_has_memory_and_steps(capsys):
    assert plan.main(["--config", "demo", "--why"]) == 0
    memory, time, model, _, steps = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"memory  about 0\.\d+ GB of .* GB on this machine's CPU: fits", memory)
    assert time.startswith("time    30 optimizer steps; ") and "--dry_run true" in time
    assert "1.7 million trained" in model and "30 × 64 = 1,920 completions" in steps


def test_cost_is_in_dollars_and_each_time_in_its_own_unit():
    lines = shown("--config", str(ROOT / "recipes" / "smollm2.yaml"))
    assert re.fullmatch(r"cost    \$[\d.]+ to \$[\d.]+ at \$2\.50 per GPU-hour \(--price\)", lines["cost"])
    assert re.search(r"evaluation [\d.]+ to [\d.]+ seconds$", lines["time"])


def test_what_makes_a_run_fit_is_tried():
    assert "memory; --use_peft true takes" in shown("--gpu", "T4")["limit"]
    fits = shown("--gpu", "T4", "--use_peft", "true")
    assert fits["memory"].endswith("fits") and "does not" not in fits["memory"]
    taken = re.search("true takes (.*) GB", shown("--gpu", "T4")["limit"])[1]
    assert f"about {taken} GB of 16" in fits["memory"]
    assert "--vllm_enable_sleep_mode true takes" in shown("--gpu", "4090", "--generation", "vllm")["limit"]
    assert "a smaller --model_name_or_path" in shown("--gpu", "3080", "--beta", "0.1", "--use_peft", "true",
        "--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct")["limit"]  # fmt: skip


def test_a_t4_computes_in_fp16_under_a_block_mask():
    t4 = planned("--gpu", "T4", "--use_peft", "true")
    assert [t4.settings.dtype, t4.settings.fp16, t4.settings.bf16] == ["float32", True, False]
    assert t4.dense and t4.pack_tokens == 2048
    notes = shown("--gpu", "T4")["notes"]
    assert len(notes) == 2 and "no bfloat16" in notes[0] and "Ampere" in notes[1]
    assert shown("--gpu", "A10")["notes"] == [] and not planned("--gpu", "A10").dense


def test_under_a_block_mask_a_position_costs_the_whole_pack():
    dense, run = planned("--attn_implementation", "eager"), planned("--pack_tokens", 2048)
    passes = 3 + dense.settings.gradient_checkpointing
    assert dense.dense and dense.pack_tokens == 2048 and not run.dense
    weights = 2 * dense.shape.parameters * passes
    assert dense.training_operations() == weights + 4 * 28 * 1536 * 2048 * passes


@pytest.mark.parametrize(
    ("flags", "engine"),
    [
        ("", "continuous"), ("--generation lean", "lean"), ("--generation vllm", "vllm"), ("--use_vllm true", "vllm"),
        ("--use_unsloth true --use_peft true", "hf"), ("--devices 2 --sharding fsdp2", "hf"),
        ("--devices 2 --sharding zero2", "continuous"),
    ],
)  # fmt: skip
def test_auto_is_what_samples_without_vllm(flags, engine):
    assert planned(*flags.split()).engine == engine


def test_a_decoding_step_is_launches_or_the_memory():
    steps = {
        engine: planned("--generation", engine).decoding(engine, 64, 0) for engine in ("vllm", "continuous", "hf")
    }
    assert steps["hf"] == 0.020 > steps["continuous"] == 0.003 > steps["vllm"] > 0.001
    slow = planned("--gpu", "T4", "--use_peft", "true")  # it reads 16-bit copies of its float32 weights
    read = 2 * (slow.shape.parameters + 64 * 205 * 28 * 512)
    assert slow.decoding("continuous", 64, 0) == pytest.approx(read / (0.32e12 * 0.8)) and read < 2**32


def test_measured_rates_replace_the_table_of_that_gpu_alone(check_json):
    run = planned()
    assert run.device[1:4] == (85.0, 2.5, 600.0) and "measured" in shown()["notes"][0]
    assert run.decoding("continuous", 64, 0) == run.decoding("continuous", 64, 1) == pytest.approx(0.004)
    assert [run.decoding("hf", 64, case) for case in (0, 1)] == [0.020, 0.035]  # it failed there
    operations = 1868 * 13216 * run.training_operations()
    assert run.seconds(0)["training"] == pytest.approx(operations / (600e12 * 0.45))
    other = shown("--gpu", "H200")
    assert other["notes"] == [] and planned("--gpu", "H200").device.tflops == 769
    half = planned("--model_name_or_path", "meta-llama/Llama-3.2-1B-Instruct")
    assert half.decoding("continuous", 64, 0) == pytest.approx(0.004 * 16 / 28)  # by its layers
    check_json.unlink()
    assert planned().device.tflops == 798


def test_layers_are_computed_again_where_the_memory_is_short():
    chosen = {gpu: planned("--gpu", gpu).settings.gradient_checkpointing for gpu in ("4090", "A40", "A100", "B200")}
    assert chosen == {"4090": True, "A40": True, "A100": False, "B200": False}
    assert planned("--gradient_checkpointing", "true").settings.gradient_checkpointing is True
    assert planned("--gpu", "4090", "--gradient_checkpointing", "false").settings.gradient_checkpointing is False


def test_several_devices_divide_what_they_share():
    flags = ["--model_name_or_path", "Qwen/Qwen2.5-7B-Instruct", "--devices", 8]
    divided = planned(*flags, "--sharding", "fsdp2").memory()
    assert sum(divided.values()) < sum(planned(*flags).memory().values())


def test_the_table_of_hours_is_what_the_commands_print(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(gpus, "CHECK", ROOT / "outputs" / "of-no-machine.json")
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--gpu (\S+) ?(.*?)` \| (.*) \|$", text, re.MULTILINE)
    assert {gpu for gpu, *_ in rows} == {"H100", "4090", "T4"} and len(rows) == 8
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for gpu, flags, cells in rows:
        lines = shown("--gpu", gpu, *flags.split())
        size, steps, generation, training, hours = cells.split(" | ")
        phases = f"generation {generation}, training {training}, evaluation"
        assert lines["time"].startswith(f"time    {hours} for {steps} optimizer steps: {phases}")
        if flags == ("--use_peft true" if gpu == "T4" else ""):
            assert f"{size.split()[0]} GB and {hours} on a" in readme
        used, device, fits = re.fullmatch(r"(.*) of (.*), (.*)", size).groups()
        assert re.fullmatch(rf"memory  about {used} GB of {device} GB on .*{gpu}: {fits}", lines["memory"])


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
