"""grpo/config/check.py: rows, the budget of minutes, cases that fail, the recipe, and a toy run."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from child_on_demand import child
from helpers_runs import DEMO, ROOT

import train_grpo
from grpo.config import check, check_cases
from grpo.config.resolve import resolve

GIB = 2**30
TINY = dict(model=str(DEMO / "model"), group=2, batch_size=4, accumulation=1, median_length=5.0)
TINY |= dict(max_completion_length=8, prompt_words=(2, 4), optim="sgd")


def machine(**own):
    """What the worker says of an imagined GPU of 80 GiB, with nothing measured yet."""
    found = {
        "date": "2026-11-22", "toy": False, "versions": {}, "attention": ["sdpa", "flex_attention"],
        "device": {"name": "Imagined GPU", "type": "cuda", "memory": 80 * GIB},
        "model": {"given": "1.5B", "name": "a model", "parameters": 10**9},
        "training": [], "generation": [], "largest_pack": {}, "not_run": [],
    }  # fmt: skip
    return found | own


def training(speed=1000.0, peak=20 * GIB, **own):
    row = {"name": "a row", "trainer": "lean", "dtype": "bfloat16", "attention": "sdpa", "checkpointing": False}
    row |= {"pack_tokens": 4096, "tokens_per_second": speed, "peak_bytes": peak, "error": None}
    return row | own


def generation(engine, speed):
    found = {"name": engine, "engine": engine, "rows": 64, "tokens_per_second": speed}
    return found | {"seconds": 1e4 / speed, "peak_bytes": GIB, "error": None}


# --- The worker


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "log").write_bytes(b"")
    worker = check.Worker(tmp_path / "log", child)
    yield worker
    worker.stop()


def ask(worker, kind="go", group="main", seconds=60):
    return worker.ask({"kind": kind, "group": group}, seconds)


def test_a_case_that_kills_its_process_costs_one_row(worker):
    lines = {
        "die": "its process was killed by SIGSEGV",
        "leave": "its process ended with status 1: CUDA error: an illegal memory access was encountered",
        "hang": "not done after 1 s",
    }
    for kind, line in lines.items():
        first = ask(worker)["found"]
        assert ask(worker, kind, seconds=1 if kind == "hang" else 60) == {"error": line}
        assert ask(worker)["found"] != first


def test_a_lost_device_and_another_group_get_a_new_process(worker):
    asked = [ask(worker, kind)["found"] for kind in ("go", "lose", "go")] + [ask(worker, group="vllm")["found"]]
    assert asked[0] == asked[1] and len(set(asked)) == 3


def test_full_device_and_other_errors_are_one_line(monkeypatch):
    def full(**options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a capacity of …")

    monkeypatch.setitem(check.KINDS, "full", full)
    monkeypatch.setitem(check.KINDS, "wrong", lambda: 1 / 0)
    line = "out of memory in this case (it asked for 20.00 GiB more)"
    assert check.respond({"kind": "full", "options": {}}) == {"error": line}
    assert check.respond({"kind": "wrong", "options": {}}) == {"error": "ZeroDivisionError: division by zero"}


# --- The cases, in a budget


def run(monkeypatch, minutes, seconds=1.0, **own):
    """A check in a world where every case takes as long, and packs above 16,384 tokens do not fit."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def ask(case, limit):
        now[0] += min(seconds, limit)
        size = case["options"].get("pack_tokens") or 4096
        if size > 16384:
            return {"error": "out of memory"}
        figures = {"seconds": [9.0, 1.0, 3.0], "tokens": [7, 10_000, 30_000], "pack_tokens": size}
        return figures | {"peak_bytes": size * 10**6, "distance": 0.01}

    found = machine(**own)
    check.run(found, SimpleNamespace(ask=ask), 60 * minutes, show=lambda line: None)
    return found


def test_with_time_enough_everything_is_run(monkeypatch):
    found = run(monkeypatch, 30, versions={"vllm": "0.31.0"})
    assert found["not_run"] == [] and all(row.get("agrees", True) for row in found["training"])
    assert {row["attention"] for row in found["training"]} == {"sdpa", "flex_attention"}
    assert {row["engine"] for row in found["generation"]} == {"hf", "lean", "continuous", "vllm", "compiled"}
    packs = found["largest_pack"]
    assert (packs["pack_tokens"], packs["ended_by"]) == (16384, "32,768: out of memory")
    row = found["training"][0]  # without its first step
    assert (row["tokens_per_second"], row["seconds"]) == (10_000, 2)


def test_what_was_not_reached_is_listed_and_worth_least(monkeypatch):
    found = run(monkeypatch, 1, seconds=15.0)
    assert [row["trainer"] for row in found["training"]] == ["lean", "stock"]
    assert [row["name"] for row in found["generation"]] == ["hf"]
    assert len(found["not_run"]) == len(check.cases(found)) - 3 > 3


@pytest.mark.parametrize(("distance", "agrees"), [(0.014, True), (0.016, False), (float("nan"), False)])
def test_lean_may_be_half_as_far_again_as_stock(distance, agrees):
    rows = [training(distance=distance), training(trainer="stock", distance=0.01)]
    check.judge_gradients(rows)
    assert rows[0]["agrees"] is agrees and "agrees" not in rows[1]


@pytest.mark.parametrize("trainer", ["stock", "lean"])
def test_distance_from_stock_in_float32_is_rounding(trainer):
    found = check_cases.train_and_compare(check_cases.Run(trainer=trainer, steps=2, **TINY))
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


def settings(**found):
    return yaml.safe_load(check.recipe(machine(**found)))


def test_the_fastest_rows_that_fit_are_chosen():
    rows = [
        training(1500.0, attention="flex_attention"),
        training(9000.0, peak=79 * GIB, attention="flash_attention_2"),
        training(9500.0, agrees=False),
        training(9999.0, error="out of memory"),
    ]
    assert settings(training=rows, generation=[generation("hf", 3.0), generation("lean", 4.0)]) == {
        "dtype": "bfloat16", "attn_implementation": "flex_attention", "gradient_checkpointing": False,
        "pack_tokens": 4096, "per_device_train_batch_size": 64, "gradient_accumulation_steps": 1,
        "generation": "lean",
    }  # fmt: skip
    assert settings(training=rows[1:]) is None


@pytest.mark.parametrize(("engine", "peak", "attention"), [("vllm", 60, "sdpa"), ("compiled", 1, "flex_attention")])
def test_an_engine_gets_a_step_that_goes_with_it_or_is_left(engine, peak, attention):
    engines = [generation(engine, 9.0), generation("hf", 1.0)]
    unfit = training(peak=peak * GIB, attention=attention)
    assert settings(training=[unfit], generation=engines)["generation"] == "hf"
    chosen = settings(training=[unfit, training(700.0, checkpointing=True)], generation=engines)
    assert (chosen["generation"], chosen["gradient_checkpointing"]) == (engine, True)


def test_the_fastest_pack_that_fits_is_taken():
    tried = [training(size, peak=size * GIB // 512, pack_tokens=size) for size in (8192, 16384, 65536)]
    assert settings(training=[training()], largest_pack={"pack_tokens": 65536, "tried": tried})["pack_tokens"] == 16384


def test_the_recipe_is_a_configuration(tmp_path):
    path = tmp_path / "check.json"
    check.save(machine(training=[training()], generation=[generation("lean", 5.0)]), path)
    assert json.loads(path.read_text())["recipe"] == path.with_suffix(".yaml").read_text()
    argv = ["--config", str(path.with_suffix(".yaml")), "--use_cpu", "true", "--report_to", "none"]
    config = resolve(train_grpo.HYPERPARAMETERS, [*argv, "--model_name_or_path", str(DEMO / "model")])
    assert config.geometry.per_step == 64 and config.script.pack_tokens == 4096


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
def test_without_a_gpu_it_runs_at_toy_size(tmp_path, monkeypatch, capsys):
    output = tmp_path / "found" / "check.json"
    assert check.main(["--minutes", "0.6", "--output", str(output)]) == 0
    assert capsys.readouterr().out.startswith("No GPU: this is a toy-size run on a CPU, and says nothing of a GPU.")
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["toy"] is True and found["device"]["type"] == "cpu"
    # how far it came depends on how busy the machine is; what is there is sound, and nothing is missing
    rows = found["training"] + found["generation"]
    assert all(row["error"] is None or row["error"].startswith("not done after") for row in rows)
    assert all(row["tokens_per_second"] > 0 and row.get("agrees", True) for row in rows if row["error"] is None)
    assert len(rows) + bool(found["largest_pack"]) + len(found["not_run"]) == len(check.cases(found))
    monkeypatch.chdir(ROOT)
    flags = ["--model_name_or_path", str(DEMO / "model"), "--report_to", "none", "--dry_run", "true"]
    flags += ["--dataset_name", str(DEMO / "train.jsonl"), "--use_cpu", "true"]
    assert train_grpo.main(["--config", str(output.with_suffix(".yaml")), *flags]) == 0
