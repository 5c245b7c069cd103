"""benchmarks/on_a_gpu.py: parts that the program takes, their time, and the table of what they found."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_runs import DEMO, ROOT

from grpo.config import compare
from grpo.core.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
import bench_runs
import on_a_gpu

MODEL = DEMO / "model"
SMALL = {
    "--use_cpu": "true",
    "--max_steps": "2",
    "--eval_samples": "4",
    "--max_completion_length": "12",
    "--per_device_train_batch_size": "4",
    "--gradient_accumulation_steps": "1",
    "--num_generations": "4",
    "--bf16": "false",
}


@pytest.fixture
def gsm8k():
    for name in ("train.jsonl", "test_dev.jsonl"):
        Path(name).write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    return Path().resolve()


@pytest.fixture
def with_vllm(monkeypatch):
    monkeypatch.setattr(on_a_gpu.importlib.util, "find_spec", lambda name: name)


def test_the_program_takes_every_parts_flags(gsm8k, with_vllm, monkeypatch):
    found = on_a_gpu.parts(MODEL, gsm8k, gsm8k / "gpu")
    monkeypatch.chdir(ROOT)
    settings = {}
    for name, part in found.items():
        if name != "check":
            if "random" in name:  # as a GPU would have made it
                part.flags[part.flags.index("--model_name_or_path") + 1] = str(MODEL)
            here = ["--use_cpu", "true"] + ["--generation", "auto"] * name.endswith("vllm")
            flags = [*part.flags, *on_a_gpu.EVERY, *here]
            settings[name] = compare._resolve(flags)
    assert list(settings) == [
        *(f"{model}-{engine}" for model in ("random", "smollm2") for engine in ("stock", "graphs", "vllm")),
        "sums", "sums-float32", "gsm8k",
    ]  # fmt: skip
    assert settings["random-stock"]["packed"] is False and settings["random-graphs"]["packed"] is True
    assert settings["random-graphs"]["per_device_train_batch_size"] == 16  # the inline run's
    assert (settings["sums"]["dtype"], settings["sums-float32"]["dtype"]) == ("bfloat16", "float32")
    assert settings["gsm8k"]["eval_dataset_name"] == str(gsm8k / "test_dev.jsonl")


def test_only_the_engine_differs_between_parts_that_are_compared(with_vllm):
    found = on_a_gpu.parts(MODEL, None, Path("gpu"))
    for model in ("random", "smollm2"):
        rest = [
            " ".join(found[f"{model}-{name}"].flags).removesuffix(" ".join(own))
            for name, own in on_a_gpu.ENGINES.items()
        ]
        assert len(set(rest)) == 1


def test_a_directory_without_gsm8k_is_refused():
    with pytest.raises(UserError, match=r"gsm8k: '.*' lacks train.jsonl"):
        on_a_gpu.parts(MODEL, Path().resolve(), Path("gpu"))


def test_a_part_that_is_too_slow_ends_with_its_time():
    log, start = Path("log.txt"), time.monotonic()
    sleeper = "print('here', flush=True); import time; time.sleep(60)"
    assert on_a_gpu.carry_out(["-c", sleeper], log, 3, 30) == "out of time"
    assert time.monotonic() - start < 30 and log.read_text() == "here\n"
    assert on_a_gpu.carry_out(["-c", "raise SystemExit(3)"], log, 30, 0) == "failed (3), see log.txt"


def test_a_part_that_fails_does_not_end_the_others(monkeypatch, capsys):
    def fail():
        raise OSError("no room")

    found = {"first": on_a_gpu.Part([], 1, fail), "second": on_a_gpu.Part([], 1), "third": on_a_gpu.Part([], 20)}
    monkeypatch.setattr(on_a_gpu, "parts", lambda *_: found)
    monkeypatch.setattr(on_a_gpu, "train", lambda *_: "finished")
    monkeypatch.setattr(sys, "argv", ["on_a_gpu.py", str(MODEL), "--output", ".", "--minutes", "5"])
    assert bench_runs.start(on_a_gpu.parser(), on_a_gpu.run, default=[]) == 0
    ended = {name: part["ended"] for name, part in json.loads(Path("results.json").read_text()).items()}
    assert ended == {"first": "failed (OSError: no room)", "second": "finished"}
    assert "no time left" in capsys.readouterr().out  # for half of the third one's minutes


def test_a_step_and_its_peak_are_those_after_the_first():
    fixed = {"completions/mean_length": 10.0, "time/rewards": 1.0}
    rows = [(60, 9, 30.0), (5, 2, 7.0), (7, 3, 8.0), (9, 4, 7.5)]
    lines = [
        {"step": i, "step_time": s, "time/generation": g, "memory/peak_gb": gb, **fixed}
        for i, (s, g, gb) in enumerate(rows, 1)
    ]
    Path("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"train_runtime": 9.0}]))
    geometry = {"per_device_train_batch_size": 7, "gradient_accumulation_steps": 2}
    Path("run.json").write_text(json.dumps({"status": "interrupted", "geometry": geometry}))
    found = on_a_gpu.of_run(Path(), [])
    medians = {"step": 7, "generation": 3, "training": 3, "tokens": 10, "tokens_per_second": 20}
    assert found == {"steps": 4, "gb": 30} | medians


def test_a_plan_has_the_runs_own_lengths():
    flags = [*on_a_gpu.SUMS, "--model_name_or_path", str(MODEL), "--gpu", "H200"]
    flags[1] = str(ROOT / flags[1])
    short, long = on_a_gpu.planned(flags, 10), on_a_gpu.planned(flags, 50)
    assert short["planned_step"][0] < long["planned_step"][0] < long["planned_step"][1]
    assert short["planned_gb"] == long["planned_gb"] > 0
    assert "--use_cpu false" in on_a_gpu.planned([*flags, "--use_cpu", "true"], 10)["plan"]


@pytest.mark.slow
def test_parts_end_in_a_table_and_are_not_repeated():
    words = [sys.executable, str(ROOT / "benchmarks" / "on_a_gpu.py"), str(MODEL), "--minutes", "9"]
    words += ["--output", "gpu", "--parts", "random-stock", "sums", "--"]
    words += [word for pair in SMALL.items() for word in pair]
    first = subprocess.run(words, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    found = json.loads(Path("gpu/results.json").read_text())
    assert [part["ended"] for part in found.values()] == ["finished"] * 2
    assert found["random-stock"]["steps"] == 2 and "before" not in found["random-stock"]
    assert found["sums"]["before"] == 0.0 and "planned_gb" not in found["sums"]  # no GPU: no plan of it
    assert first.stdout.count("\n  finished\n") == 2 and "sums" in first.stdout.splitlines()[-3]
    ends = json.loads(Path("gpu/random/generation_config.json").read_text())["eos_token_id"]
    vocabulary = json.loads(Path("gpu/random/config.json").read_text())["vocab_size"]
    assert vocabulary / len(ends) == pytest.approx(on_a_gpu.MEAN, rel=0.5)
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 0 and "at most" not in again.stdout and "sums" in again.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([str(MODEL), "--minutes", "-3"], "error: minutes: -3 is not a time"),
        ([str(MODEL), "--minutes", "nan"], "error: minutes: nan is not a time"),
        (["nowhere"], "error: model: 'nowhere' holds no config.json"),
        ([str(MODEL), "--parts", "sum"], "error: parts: there is no 'sum'; choose from check"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["on_a_gpu.py", *words, "--output", "."])
    assert bench_runs.start(on_a_gpu.parser(), on_a_gpu.run, default=[]) == 2
    error = capsys.readouterr().err
    assert error.startswith(says) and error.count("\n") == 1
