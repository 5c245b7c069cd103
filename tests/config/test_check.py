"""grpo/config/check.py: rows, the budget of minutes, cases that fail, the recipe, and a toy run."""

import itertools
import json
import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers_runs import DEMO

import train_grpo
from grpo.config import check, check_cases
from grpo.config.resolve import resolve

GIB = 2**30
TINY = {"model": str(DEMO / "model"), "group": 2, "batch_size": 4, "accumulation": 1, "median_length": 5.0}
TINY |= {"max_completion_length": 8, "prompt_words": (2, 4), "optim": "sgd"}


def machine(*rows, **own):
    """What the worker says of an imagined GPU of 80 GiB, and these rows."""
    found = {
        "date": "2026-11-22", "toy": False, "versions": {},
        "attention": [("sdpa", "sdpa with a mask"), ("flex_attention", "flex")],
        "device": {"name": "Imagined GPU", "type": "cuda", "memory": 80 * GIB},
        "model": {"given": "1.5B", "name": "a model", "parameters": 10**9}, "rows": list(rows), "not_run": [],
    }  # fmt: skip
    return found | own


def training(speed=1000.0, peak=20 * GIB, **own):
    row = {"kind": "training", "name": "a row", "trainer": "lean", "dtype": "bfloat16", "attention": "sdpa"}
    row |= {
        "checkpointing": False,
        "cudnn": False,
        "pack_tokens": 4096,
        "tokens_per_second": speed,
        "peak_bytes": peak,
    }
    return row | {"error": None} | own


def generation(engine, speed):
    found = {"kind": "generation", "name": engine, "engine": engine, "rows": 64, "tokens_per_second": speed}
    return found | {"seconds": 1e4 / speed, "peak_bytes": GIB, "error": None}


# --- The worker


def test_a_case_that_fails_costs_one_row_and_one_process(tmp_path):
    worker = check.Worker(tmp_path / "log")

    def process():
        assert worker.ask("builtins:dict", {"seconds": 1}, 60) == {"seconds": 1}
        (child,) = multiprocessing.active_children()
        return child.pid

    try:
        first = process()
        assert process() == first
        assert "its process ended" in worker.ask("os:abort", {}, 60)["error"]
        assert "Fatal Python error: Aborted" in worker.log.read_text()
        assert process() != first
        hanging = worker.ask("subprocess:run", {"args": ["sleep", "600"]}, 1)
        assert hanging == {"error": "not done after 1 s"} and not multiprocessing.active_children()
    finally:
        worker.stop()


def test_full_device_and_other_errors_are_one_line(monkeypatch):
    def full(**options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a capacity of …")

    monkeypatch.setattr(check_cases, "sample", full)
    line = "out of memory in this case (it asked for 20.00 GiB more)"
    assert check.attempt(f"{check.CASES}:sample", {"rows": 3}) == {"error": line}
    assert check.attempt("builtins:divmod", {}) == {"error": "TypeError: divmod expected 2 arguments, got 0"}


# --- The cases, in a budget


def run(monkeypatch, minutes, seconds=1.0, **own):
    """A check in a world where every case takes as long, and packs above 16,384 tokens do not fit."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def ask(function, options, limit):
        now[0] += min(seconds, limit)
        size = options.get("pack_tokens") or 4096
        if size > 16384:
            return {"error": "out of memory"}
        if "backend" in options:
            return {"seconds": 0.1, "tokens_per_second": len(options["backend"]), "off": 0.01, "peak_bytes": GIB}
        figures = {"seconds": [9.0, 1.0, 3.0], "tokens": [7, 10_000, 30_000], "pack_tokens": size}
        return figures | {"peak_bytes": size * 10**6, "distance": 0.01}

    found = machine(**own)
    worker = SimpleNamespace(ask=ask, stop=lambda: None)
    check.run(found, worker, 60 * minutes, show=lambda line: None)
    return found


def test_with_time_enough_everything_is_run(monkeypatch):
    found = run(monkeypatch, 30, versions={"vllm": "0.31.0"})
    names = {kind: [row["name"] for row in found["rows"] if row["kind"] == kind] for kind in ("packs", "generation")}
    assert names["generation"] == ["continuous", "hf", "lean", "vllm"]
    assert names["packs"] == ["4,096 tokens", "8,192 tokens", "16,384 tokens", "32,768 tokens"]
    assert found["not_run"] == [] and all(row.get("agrees", True) for row in found["rows"])
    first = next(row for row in found["rows"] if row["kind"] == "training")  # without its first step
    assert (first["tokens_per_second"], first["seconds"]) == (10_000, 2)


def test_what_was_not_reached_is_listed_and_worth_least(monkeypatch):
    found = run(monkeypatch, 1, seconds=15.0)
    names = ["sdpa with a mask", "flex_attention, flex", "continuous"]
    assert [row["name"] for row in found["rows"]] == names
    assert len(found["not_run"]) == 7 and found["not_run"][0] == "training, lean, bfloat16, sdpa"
    assert run(monkeypatch, 0.1)["rows"] == []


def test_steps_are_tried_with_the_fastest_right_attention():
    wrong = training(9000.0, kind="attention", attention="eager", error="its gradient holds NaN or infinity")
    rows = [wrong, training(20.0, kind="attention", attention="flex_attention"), training(10.0, kind="attention")]
    cases = list(check.cases(machine(*rows, toy=True)))
    lean = [case for case in cases if case.kind in ("training", "packs") and case.options["trainer"] == "lean"]
    assert len(lean) == 3 and {case.options["attention"] for case in lean} == {"flex_attention"}


@pytest.mark.parametrize(("distance", "agrees"), [(0.014, True), (0.016, False), (float("nan"), False)])
def test_lean_may_be_half_as_far_again_as_stock(distance, agrees):
    rows = [training(distance=distance), training(trainer="stock", distance=0.01)]
    check.judge_gradients(rows)
    assert rows[0]["agrees"] is agrees and "agrees" not in rows[1]


def test_distance_from_stock_in_float32_is_rounding():
    found = check_cases.train_and_compare(trainer="lean", steps=2, **TINY)
    assert found["distance"] < 1e-5 and len(found["seconds"]) == len(found["tokens"]) == 2


def test_lengths_for_vllm_are_those_of_the_other_engines():
    asked = []
    llm = SimpleNamespace(generate=lambda prompts, sampling_params, **kwargs: asked.extend(sampling_params))
    head = torch.nn.Linear(2, 5)
    model = SimpleNamespace(get_output_embeddings=lambda: head)
    check_cases.end_by_chance(model, [1], 100.0)
    check_cases.end_vllm_by_chance(SimpleNamespace(model=model, vllm_generation=SimpleNamespace(llm=llm)))
    torch.manual_seed(0)
    llm.generate([{}] * 4000, sampling_params=SimpleNamespace(max_tokens=10**6, ignore_eos=False))
    lengths = [params.max_tokens for params in asked]
    assert sum(lengths) / 4000 == pytest.approx(100, rel=0.05) and all(params.ignore_eos for params in asked)


# --- The recipe


def settings(*rows):
    return yaml.safe_load(check.recipe(machine(*rows)))


def test_the_fastest_rows_that_fit_are_chosen():
    rows = [
        training(1500.0, attention="flex_attention"),
        training(1600.0, attention="flex_attention", kind="packs", pack_tokens=8192),
        training(9000.0, peak=79 * GIB, attention="flash_attention_2"),
        training(9500.0, agrees=False),
        training(9999.0, error="out of memory"),
    ]
    assert settings(*rows, generation("hf", 3.0), generation("lean", 4.0)) == {
        "dtype": "bfloat16", "attn_implementation": "flex_attention", "gradient_checkpointing": False,
        "pack_tokens": 8192, "per_device_train_batch_size": 64, "gradient_accumulation_steps": 1,
        "generation": "lean",
    }  # fmt: skip
    assert settings(*rows[2:]) is None


@pytest.mark.parametrize(("engine", "peak", "attention"), [("vllm", 60, "sdpa")])
def test_an_engine_gets_a_step_that_goes_with_it_or_is_left(engine, peak, attention):
    rows = [generation(engine, 9.0), generation("hf", 1.0), training(peak=peak * GIB, attention=attention)]
    assert settings(*rows)["generation"] == "hf"
    chosen = settings(*rows, training(700.0, checkpointing=True))
    assert (chosen["generation"], chosen["gradient_checkpointing"]) == (engine, True)


# --- The command


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--model", "nowhere"], "model"),
        (["--minutes", "0"], "minutes"),
        (["--output", "x.yaml"], "output"),
        (["--output", "file/x.json"], "output"),
    ],
)
def test_a_mistake_is_one_line(argv, key, capsys):
    Path("file").write_text("a file where a directory should be")
    assert check.main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {key}: ") and said.count("\n") == 1


@pytest.mark.slow
def test_without_a_gpu_it_runs_at_toy_size(monkeypatch, capsys):
    """In this process, its first five cases: the others are the same functions with other options."""
    every = check.cases
    monkeypatch.setattr(check, "cases", lambda found: itertools.islice(every(found), 5))
    monkeypatch.setattr(check.Worker, "ask", lambda self, function, options, seconds: check.attempt(function, options))
    monkeypatch.setattr(check.signal, "signal", lambda *handler: None)
    assert check.main(["--output", "found/check.json"]) == 0
    assert "No GPU: this is a toy-size run on a CPU, and says nothing of a GPU." in capsys.readouterr().out
    found = json.loads(Path("found/check.json").read_text(encoding="utf-8"))
    kinds = ["attention", "generation", "training", "training", "generation"]
    assert [row["kind"] for row in found["rows"]] == kinds
    assert all(row["tokens_per_second"] > 0 and row["error"] is None for row in found["rows"])
    assert found["recipe"] == Path("found/check.yaml").read_text()
    argv = ["--config", "found/check.yaml", "--report_to", "none", "--model_name_or_path", str(DEMO / "model")]
    config = resolve(train_grpo.HYPERPARAMETERS, argv)
    assert config.geometry.per_step == 64 and config.script.pack_tokens == 2048
