"""grpo/config/check.py: rows, the budget of minutes, cases that fail, the recipe, and a toy run."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers_runs import DEMO, ROOT

import train_grpo
from grpo.config import check, check_cases
from grpo.config.resolve import resolve

GIB = 2**30
TINY = dict(model=str(DEMO / "model"), group=2, batch_size=4, accumulation=1, median_length=5.0)
TINY |= dict(max_completion_length=8, prompt_words=(2, 4), optim="sgd")
OPTIONS = {"trainer": "lean", "dtype": "bfloat16", "autocast": True, "attention": "sdpa"}


def machine(**own):
    """What the worker says of an imagined GPU of 80 GiB, with nothing measured yet."""
    found = {
        "date": "2026-11-22", "toy": False, "versions": {}, "attention": ["sdpa", "flex_attention"],
        "device": {"name": "Imagined GPU", "type": "cuda", "memory": 80 * GIB},
        "model": {"name": "a model", "parameters": 10**9, "layers": 10, "key_value": 256},
        "limits": {"copy_bytes_per_second": 2e12, "matrix_flops_per_second": {"bfloat16": 6e14, "float32": 6e13}},
        "training": [], "generation": [], "largest_pack": {}, "not_run": [],
    }  # fmt: skip
    return found | own


def training(speed=1000.0, peak=20 * GIB, **own):
    row = OPTIONS | {"name": "a row", "checkpointing": False, "pack_tokens": 4096, "seconds": 1.0, "error": None}
    return row | {"tokens_per_second": speed, "peak_bytes": peak} | own


def generation(engine, seconds, rows=64):
    found = {"name": engine, "engine": engine, "rows": rows, "tokens_per_second": 1e4 / seconds}
    return found | {"seconds": seconds, "peak_bytes": GIB, "error": None}


# --- Rows


def test_training_row_leaves_the_first_step_out():
    answer = {"seconds": [9.0, 1.0, 3.0], "tokens": [7, 10_000, 30_000], "peak_bytes": 5, "distance": 0.01}
    row = check.training_row({"name": "x", "options": OPTIONS}, answer, machine())
    assert (row["tokens_per_second"], row["seconds"], row["share_of_limit"]) == (10_000, 2, 0.1)


def test_generation_row_counts_the_cache_at_its_mean_length():
    case = {"name": "hf", "options": {"engine": "hf", "rows": 64, "prompt": 150, "dtype": "bfloat16"}}
    row = check.generation_row(case, {"tokens": 6400, "seconds": 2.0, "steps": 256, "peak_bytes": 7}, machine())
    cache = 200 * 2 * 10 * 256 * 2  # 150 of the prompt and half of 100; keys and values; layers; width; bytes
    assert row["tokens_per_second"] == 3200
    assert row["share_of_limit"] == pytest.approx(3200 * (2e9 + 64 * cache) / (64 * 2e12))


@pytest.mark.parametrize(("distance", "agrees"), [(0.014, True), (0.016, False), (float("nan"), False)])
def test_lean_may_be_half_as_far_again_as_stock(distance, agrees):
    rows = [training(distance=distance), training(trainer="stock", distance=0.01)]
    check.judge_gradients(rows)
    assert rows[0]["agrees"] is agrees and "agrees" not in rows[1]


# --- The worker

CHILD = """
import json, os, signal, sys, time
for line in sys.stdin:
    what = json.loads(line)["kind"]
    if what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "leave":
        sys.exit("CUDA error: an illegal memory access was encountered")
    if what == "hang":
        time.sleep(600)
    print(json.dumps({"found": os.getpid()} | ({"lost": True} if what == "lose" else {})), flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "log").write_bytes(b"")
    worker = check.Worker(tmp_path / "log", [sys.executable, "-c", CHILD])
    yield worker
    worker.stop()


def ask(worker, kind="go", group="main", seconds=60):
    return worker.ask({"kind": kind, "group": group}, seconds)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("die", "its process was killed by SIGSEGV"),
        ("leave", "its process ended with status 1: CUDA error: an illegal memory access was encountered"),
        ("hang", "not done after 1 s"),
    ],
)
def test_a_case_that_kills_its_process_costs_one_row(worker, kind, line):
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


# --- The budget


def run(monkeypatch, minutes, seconds=1.0, **own):
    """A check in a world where every case takes as long, and packs above 16,384 tokens do not fit."""
    now, asked = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def ask(case, limit):
        asked.append(case)
        now[0] += min(seconds, limit)
        if case["kind"] == "generation":
            return {"tokens": 6400, "seconds": 2.0, "steps": 90, "peak_bytes": GIB}
        size = case["options"].get("pack_tokens") or 4096
        if size > 16384:
            return {"error": "out of memory"}
        figures = {"seconds": [1, 1], "tokens": [1, 10_000], "peak_bytes": size * 10**6, "distance": 0.01}
        return figures | {"pack_tokens": size}

    found = machine(**own)
    check.run(found, "1.5B", SimpleNamespace(ask=ask), 60 * minutes, show=lambda line: None)
    return found


def test_with_time_enough_everything_is_run(monkeypatch):
    found = run(monkeypatch, 30, versions={"vllm": "0.31.0"})
    assert found["not_run"] == [] and all(row.get("agrees", True) for row in found["training"])
    assert {row["attention"] for row in found["training"]} == {"sdpa", "flex_attention"}
    assert {row["engine"] for row in found["generation"]} == {"hf", "lean", "continuous", "vllm", "compiled"}
    packs = found["largest_pack"]
    assert (packs["pack_tokens"], packs["ended_by"]) == (16384, "32,768: out of memory")


def test_what_was_not_reached_is_listed_and_worth_least(monkeypatch):
    found = run(monkeypatch, 1, seconds=15.0)
    assert [row["trainer"] for row in found["training"]] == ["lean", "stock"]
    assert [row["name"] for row in found["generation"]] == ["hf, 64 rows"]
    assert {one["reason"] for one in found["not_run"]} == {"no time left"} and len(found["not_run"]) > 5


# --- The recipe


def settings(**found):
    return yaml.safe_load(check.recipe(machine(**found)))


def test_the_fastest_rows_that_fit_are_chosen():
    rows = [
        training(500.0, trainer="stock"),
        training(1500.0, attention="flex_attention"),
        training(9000.0, peak=79 * GIB, attention="flash_attention_2"),
        training(9500.0, agrees=False),
        training(9999.0) | {"error": "out of memory"},
    ]
    engines = [generation("hf", 3.0), generation("lean", 2.0), generation("hf", 1.0, rows=256)]
    assert settings(training=rows, generation=engines) == {
        "dtype": "bfloat16", "attn_implementation": "flex_attention", "gradient_checkpointing": False,
        "pack_tokens": 4096, "per_device_train_batch_size": 64, "gradient_accumulation_steps": 1,
        "generation": "lean",
    }  # fmt: skip


def test_where_no_lean_row_is_sound_stocks_step_is_kept():
    chosen = settings(training=[training(agrees=False), training(500.0, trainer="stock")])
    assert chosen["packed"] is False and "pack_tokens" not in chosen
    assert "No training step that was measured" in check.recipe(machine())


def test_vllm_takes_its_share_of_the_memory():
    rows = [training(peak=50 * GIB), training(700.0, peak=30 * GIB, checkpointing=True)]
    chosen = settings(training=rows, generation=[generation("vllm", 1.0), generation("hf", 9.0)])
    assert (chosen["generation"], chosen["vllm_mode"], chosen["gradient_checkpointing"]) == ("vllm", "colocate", True)


@pytest.mark.parametrize(
    ("engine", "row"), [("compiled", {"attention": "flex_attention"}), ("continuous", {"dtype": "float32"})]
)
def test_an_engine_unfit_for_the_step_is_passed_over(engine, row):
    engines = [generation(engine, 1.0), generation("hf", 9.0)]
    assert settings(training=[training(**row)], generation=engines)["generation"] == "hf"


def test_the_smallest_pack_that_is_about_as_fast_is_taken():
    tried = [training(speed, peak=size * GIB // 512, pack_tokens=size) for size, speed in (
        (4096, 900), (8192, 980), (16384, 1000), (65536, 1200))]  # fmt: skip
    packs = {"attention": "sdpa", "dtype": "bfloat16", "pack_tokens": 65536, "tried": tried}
    assert settings(training=[training()], largest_pack=packs)["pack_tokens"] == 8192


def test_the_recipe_is_a_configuration(tmp_path):
    path = tmp_path / "check.json"
    check.save(machine(training=[training()], generation=[generation("lean", 5.0)]), path)
    assert json.loads(path.read_text())["recipe"] == path.with_suffix(".yaml").read_text()
    argv = ["--config", str(path.with_suffix(".yaml")), "--use_cpu", "true", "--report_to", "none"]
    config = resolve(train_grpo.HYPERPARAMETERS, [*argv, "--model_name_or_path", str(DEMO / "model")])
    assert config.geometry.per_step == 64 and config.script.pack_tokens == 4096


# --- The cases and the command


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


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--model", "nowhere"], "model"),
        (["--minutes", "0"], "minutes"),
        (["--minutes", "x"], "minutes"),
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
    assert found["toy"] is True and found["device"]["type"] == "cpu" and found["model"]["layers"] == 4
    # how far it came depends on how busy the machine is; what is there is sound, and nothing is missing
    rows = found["training"] + found["generation"]
    assert all(row["error"] is None or row["error"].startswith("not done after") for row in rows)
    assert all(row["share_of_limit"] > 0 and row.get("agrees", True) for row in rows if row["error"] is None)
    assert len(rows) + bool(found["largest_pack"]) + len(found["not_run"]) == len(check.cases(found, "2M"))
    monkeypatch.chdir(ROOT)
    flags = ["--model_name_or_path", str(DEMO / "model"), "--report_to", "none", "--dry_run", "true"]
    flags += ["--dataset_name", str(DEMO / "train.jsonl"), "--use_cpu", "true"]
    assert train_grpo.main(["--config", str(output.with_suffix(".yaml")), *flags]) == 0
