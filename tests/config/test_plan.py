"""grpo/plan.py, grpo/planning.py, grpo/measured.py, grpo/rates.py: a run on paper."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_runs import DEMO, ROOT

import train_grpo
from benchmarks import gpu_rows
from grpo.config import measured, plan, planning, rates
from grpo.core.errors import UserError
from grpo.policy import memory as estimates


def planned(*flags):
    return plan.read(["--plan", *map(str, flags)])


def said(*flags):
    return {line.split()[0]: line for line in plan.lines(*planned(*flags))}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("3B", 3_085_938_688), ("7B", 7_615_616_512),
        ("SmolLM2-135M", 134_515_008), ("SmolLM2-360M", 361_821_120), ("SmolLM2-1.7B", 1_711_376_384),
        ("Llama-3.2-1B", 1_235_814_400), ("Llama-3.2-3B", 3_212_749_824),
    ],
)  # fmt: skip
def test_shapes_have_the_published_number_of_parameters(name, parameters):
    assert estimates.shape(rates.model_config(name)).parameters == parameters


def test_the_inline_block_is_read_as_it_stands():
    assert plan.inline_block() == train_grpo.HYPERPARAMETERS


def test_the_arithmetic_of_the_default_run():
    _, work, gpu, _ = planned()
    assert planning.steps(work) == 1868 and planning.training_tokens(work) == 64 * (104 + 200)
    operations = 8 * work.shape.parameters + 4 * 28 * 1536 * 205 * 4
    assert planning.training_operations(work, 1) == operations
    assert planning.optimizer_bytes(work) == (5 * 2 + 2 * 6) * work.shape.parameters
    best, _ = planning.assumed("hf")
    seconds = planning.time(work, gpu, best)
    assert seconds.training == pytest.approx(1868 * 19456 * operations / (798e12 * 0.45))


def test_more_work_takes_longer_and_a_share_of_live_groups_less():
    def training(*flags):
        _, work, gpu, _ = planned(*flags)
        return planning.time(work, gpu, planning.assumed("hf")[0]).training

    assert training("--mean_completion_length", 300) > training() > training("--live_groups", 0.5)
    assert training("--packed", "false") > training() > training("--use_peft", "true")
    assert training("--gradient_checkpointing", "false") < training()
    assert training("--attn_implementation", "sdpa") < training()  # each prompt once


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").iterdir()), ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(path, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    known = path.stem not in ("notebook_gpt2", "unsloth")
    flags = [] if known else ["--model_size", "SmolLM2-135M"]  # neither is in the table
    if "use_cpu: true" in path.read_text():
        (tmp_path / "gpu_check.json").write_text(json.dumps(CHECK))
        flags += ["--measured", str(tmp_path / "gpu_check.json")]
    assert plan.main(["--plan", "--config", str(path), *flags]) == 0
    assert re.search("^time .* (hours|minutes): generation ", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "usage: python -m grpo.preflight --plan"),
        (["--plan", "--gpu", "B9"], "gpu: 'B9' is not in the table"),
        (["--plan", "--model_size", "9B"], "model_size: no shape of '9B'"),
        (["--plan", "--model_name_or_path", "gpt2"], "model_name_or_path: no shape of 'gpt2'"),
        (["--plan", "--learning_rat", "1"], "did you mean learning_rate"),
        (["--plan", "--price", "x"], "price: 'x' is no number"),
        (["--plan", "--devices", "0"], "devices: give at least 1"),
        (["--plan", "--live_groups", "2"], "live_groups: a share"),
        (["--plan", "--sharding", "all"], "sharding: invalid choice"),
        (["--plan", "--measured", "no.json"], "measured: 'no.json' is no gpu_check.json"),
        (["--plan", "--num_generations", "7"], "num_generations: 7 does not divide"),
    ],
)
def test_mistakes_are_one_line_and_status_2(flags, problem, capsys):
    assert plan.main(flags) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1


ROW = {"dtype": "bfloat16", "autocast": True, "checkpointing": True}
CHECK = {  # as much of a gpu_check.json as a plan reads
    "device": {"name": "A GPU", "memory": 5e10},
    "limits": {"copy_bytes_per_second": 1e12, "matrix_flops_per_second": {"bfloat16": 1e14, "float32": 1e13}},
    "training": [
        {**ROW, "name": "lean", "trainer": "lean", "share_of_limit": 0.5},
        {**ROW, "name": "stock", "trainer": "stock", "share_of_limit": 0.1},
        {**ROW, "name": "full", "trainer": "lean", "error": "out of memory"},
        {**ROW, "name": "float32", "trainer": "lean", "dtype": "float32", "autocast": False, "share_of_limit": 0.4},
    ],
    "generation": [
        {"engine": "hf", "rows": 64, "share_of_limit": 0.05, "seconds": 8.0, "steps": 256},
        {"engine": "hf", "rows": 256, "share_of_limit": 0.05, "seconds": 9.0, "steps": 256},
    ],
    "model": {"layers": 28},
}


def checked(**changes):
    Path("gpu_check.json").write_text(json.dumps({**CHECK, **changes}))
    return "--measured", "gpu_check.json"


def test_measured_rates_replace_assumed_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, work, gpu, found = planned(*checked())
    (best, worst), source = measured.paces(work, found)
    assert (gpu.name, gpu.rate, gpu.bandwidth, gpu.memory) == ("A GPU", 1e14, 1e12, 5e10)
    assert best.training == worst.training == 0.5
    assert source["training"] == "measured: lean (not with flash_attention_2)"
    # the rollout of 256 steps in 8 seconds: each rollout takes its longest completion's steps at that pace
    assert source["launch"] == "measured with hf on 64 rows" and 28 * best.launch == pytest.approx(8 / 256)
    assert source["launch_eager"] == "assumed"  # evaluations decode as lean does, which was not measured
    assert planning.decoding(work, gpu, 64, best.launch, best.reading) == pytest.approx(8 / 256)
    flash = [{**CHECK["training"][0], "attention": "flash_attention_2"}]
    assert measured.paces(work, planned(*checked(training=flash))[3])[1]["training"] == "measured: lean"
    with pytest.raises(UserError, match="gpu: measured is of another device than H100 may be; drop one"):
        planned(*checked(), "--gpu", "H100")
    Path("gpu_check.json").write_text("{}")
    with pytest.raises(UserError, match=r"is no gpu_check\.json"):
        planned("--measured", "gpu_check.json")


@pytest.mark.parametrize("side", ["lean", "stock"])
def test_a_step_is_planned_at_the_pace_that_was_measured(tmp_path, monkeypatch, side):
    """Of a row's own completions and prompts: with repeated prompts and padding, it was as fast as it was."""
    monkeypatch.chdir(tmp_path)
    parameters, rate, speed = 1_543_714_304, 1e14, 4_000.0  # of the row: counted tokens a second
    row = {
        **ROW,
        "name": side,
        "trainer": side,
        "share_of_limit": speed / gpu_rows.training_limit(parameters, rate, True),
    }
    _, work, gpu, found = planned(*checked(training=[row]), "--packed", str(side == "lean").lower())
    (pace, _), _ = measured.paces(work, found)
    tokens = 64 * (rates.PROMPT / 16 + 200)
    assert planning.time(work, gpu, pace).training / planning.steps(work) == pytest.approx(tokens / speed)


def test_a_cpu_is_planned_by_what_was_measured_on_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--plan", "--model_name_or_path", str(DEMO / "model")]
    for more in (["--use_cpu", "true"], ["--bf16", "false", "--dtype", "float32"]):
        assert plan.main([*flags, *more]) == 2
        assert "measure one (benchmarks/gpu_check.py) and give --measured" in capsys.readouterr().err
        assert plan.main([*flags, *more, *checked()]) == 0
        assert "matrix products 10.0 TFLOP/s: measured" in capsys.readouterr().out
    _, work, gpu, _ = planned(*flags[1:], "--use_cpu", "true", *checked())
    assert "CUDA context" not in planning.memory(work, gpu)


def test_what_is_sampled_and_computed_besides_is_in_the_plan():
    def seconds(*flags):
        _, work, gpu, _ = planned(*flags)
        return planning.time(work, gpu, planning.assumed("hf")[0])

    once, twice = seconds(), seconds("--num_iterations", 2)
    assert twice.generation == pytest.approx(once.generation)
    assert 2 < twice.training / once.training < 2.4  # and the policy as it sampled, once a rollout
    assert seconds("--eval_num_samples", 4).evaluation > 2.5 * once.evaluation
    assert seconds("--mean_prompt_length", 200).training > once.training
    assert "the samples of filter_pass_rate" in "".join(plan.lines(*planned("--filter_pass_rate", 0.1, 0.9)))
    assert "the samples of" not in "".join(plan.lines(*planned()))


def test_the_table_on_paper_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (inline|fast_80gb|low_memory_24gb) \| (H\d+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for name, gpu, cells in rows:
        flags = [] if name == "inline" else ["--config", f"recipes/{name}.yaml"]
        lines = said("--gpu", gpu, *flags)
        count, completions, tokens, generating, training, evaluating, hours, cost, memory = cells.split(" | ")
        assert f"{count} optimizer steps" in lines["steps"] and f" {completions} completions" in lines["steps"]
        assert f"{tokens} million" in lines["steps"] and f"{cost} at 2.5" in lines["cost"]
        for part in (
            f"{hours} hours",
            f"generation {generating},",
            f"training {training},",
            f"evaluation {evaluating}",
        ):
            assert part in lines["time"]
        size, device, fits = re.fullmatch(r"(.*) of (.*), (.*)", memory).groups()
        assert f"about {size} GB of {device} GB on each device: {fits} (" in lines["memory"]


@pytest.mark.slow
def test_the_command_as_a_user_gives_it():
    command = [sys.executable, "-m", "grpo.preflight", "--plan", "--model_name_or_path", str(DEMO / "model")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "memory      about" in done.stdout and "cost" in done.stdout
