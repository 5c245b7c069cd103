"""benchmarks/gpu_check.py: limits, rows, the budget of minutes, cases that fail, and the recipe."""

import importlib
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from helpers_runs import DEMO, ROOT

from benchmarks import gpu_check, gpu_machine, gpu_recipe, gpu_rows, measured_run
from benchmarks.worker import Worker, respond

GIB = 2**30


def training(trainer="lean", speed=1000.0, peak=20 * GIB, error=None, **own):
    row = {"name": trainer, "trainer": trainer, "dtype": "bfloat16", "autocast": True, "attention": "sdpa"}
    row |= {"checkpointing": False, "pack_tokens": 4096 if trainer == "lean" else None, "seconds": 1.0}
    return row | {"tokens_per_second": speed, "peak_bytes": peak, "error": error} | own


def generation(engine, speed, rows=64, error=None, seconds=None):
    row = {"name": engine, "engine": engine, "rows": rows, "tokens_per_second": speed, "error": error}
    return row | {"seconds": 1e4 / speed if seconds is None else seconds}


def measured(**own):
    """What a check of an imagined GPU of 80 GiB has found."""
    found = {
        "date": "2026-11-22",
        "toy": False,
        "device": {"name": "Imagined GPU", "type": "cuda", "memory": 80 * GIB, "tf32": True, "attention": []},
        "versions": {"vllm": None, "torch-optimi": "0.3.3"},
        "model": {"name": "a model", "parameters": 10**9, "layers": 10, "key_value": 256},
        "limits": {"copy_bytes_per_second": 2e12, "matrix_flops_per_second": {"bfloat16": 6e14, "float32": 6e13}},
        "training": [],
        "generation": [],
        "largest_pack": {},
        "agreement": {"rows": []},
        "not_run": [],
    }
    return found | own


def settings(found):
    return yaml.safe_load(gpu_recipe.recipe(found))


# --- Limits and rows


def test_the_limits_are_the_products_of_the_weights_and_the_bytes_of_a_decoding_step():
    assert gpu_rows.training_limit(10**9, 6e14, False) == 100_000
    assert gpu_rows.training_limit(10**9, 6e14, True) == 75_000
    assert gpu_rows.decode_limit(2e9, 0, 64, 2e12) == 64_000
    assert gpu_rows.decode_limit(2e9, 1e9, 2, 2e12) == 1000


RUN = {"side": "lean", "dtype": "bfloat16", "autocast": True, "attention": "sdpa", "checkpointing": False}


def test_a_training_row_leaves_the_first_step_out():
    found = {"seconds": [9.0, 1.0, 3.0], "optimizer_seconds": [5.0, 0.1, 0.3], "tokens": [7, 10_000, 30_000]}
    found |= {"memory": 5, "backend": "packs", "pack_tokens": 4096}
    row = gpu_rows.training_row({"name": "x", "run": RUN}, {"found": found}, measured())
    assert row["tokens_per_second"] == 10_000 and row["seconds"] == 2 and row["share_of_limit"] == 0.1
    assert row["optimizer_seconds"] == pytest.approx(0.2) and row["pack_tokens"] == 4096 and row["error"] is None


def test_float32_without_autocast_is_held_against_the_float32_rate():
    run = RUN | {"dtype": "float32", "autocast": False}
    row = gpu_rows.training_row({"name": "x", "run": run}, {"error": "no"}, measured())
    assert row["limit_tokens_per_second"] == 10_000


def test_a_generation_row_counts_the_cache_at_its_mean_length():
    case = {"name": "hf", "engine": "hf", "rows": 64, "prompt": 150}
    found = {"tokens": 6400, "steps": 256, "rows": 64, "seconds": 2.0, "memory": 7}
    row = gpu_rows.generation_row(case, {"found": found}, measured())
    cache = 200 * 2 * 10 * 256 * 2  # 150 of the prompt and half of 100; keys and values; layers; width; bytes
    assert row["limit_tokens_per_second"] == pytest.approx(64 * 2e12 / (2e9 + 64 * cache))
    assert row["tokens_per_second"] == 3200 and row["mean_length"] == 100


@pytest.mark.parametrize(("lean", "passes"), [(0.014, True), (0.016, False), (float("nan"), False)])
def test_lean_may_be_half_as_far_again_from_float32_as_stock(lean, passes):
    row = gpu_rows.agreement_row({"name": "sdpa"}, {"found": {"stock": 0.01, "lean": lean, "between": 0.02}})
    assert row["passes"] is passes


def test_a_failed_case_is_a_row_with_one_line():
    for row in (
        gpu_rows.training_row({"name": "x", "run": RUN}, {"error": "out of memory"}, measured()),
        gpu_rows.generation_row({"name": "x", "engine": "hf", "rows": 64}, {"error": "out of memory"}, measured()),
        gpu_rows.agreement_row({"name": "sdpa"}, {"error": "out of memory"}),
    ):
        assert row["error"] == "out of memory"
        assert row.get("tokens_per_second") is None and row.get("passes") is None


# --- What is measured

TINY = dict(model=str(DEMO / "model"), group=2, batch_size=4, accumulation=1, steps=1, median_length=5.0)
TINY |= dict(max_completion_length=8, prompt_words=(2, 4))


@pytest.mark.parametrize("side", ["stock", "lean"])
def test_a_cpu_is_measured_where_triton_is_installed(side, monkeypatch):
    """As it is with torch from PyPI; optimi would take its kernel for GPUs, which has none to run on."""
    module = importlib.import_module("optimi.stableadamw")  # optimi's own name of that is the function
    monkeypatch.setattr(module, "_default_to_triton", lambda params: True)
    found = measured_run.train(measured_run.Run(side=side, optim="stable_adamw", **TINY))
    assert len(found["optimizer_seconds"]) == 1


def test_float32_products_are_as_each_run_asks_and_afterwards_as_before():
    """Also where another run has asked before: transformers sets TF32 once in a process for each answer."""
    import torch

    before, seen = torch.backends.fp32_precision, []
    for tf32 in (True, False, True, None):
        run = measured_run.Run(side="stock", tf32=tf32, optim="sgd", **TINY)
        measured_run.train(run, on_gradients=lambda gradients: seen.append(torch.backends.fp32_precision))
        assert torch.backends.fp32_precision == before
    assert seen == ["tf32", "ieee", "tf32", before]


def test_a_kernel_that_fails_costs_no_other_kernel():
    errors = {"sdpa/cudnn": "AcceleratorError: CUDA error", "flex_attention": "not done after 90 s"}
    worker = SimpleNamespace(
        ask=lambda case, seconds: (
            {"error": errors[case["name"]]} if case["name"] in errors else respond(gpu_check.KINDS, case)
        )
    )
    found = gpu_check.kernels(worker, "cpu")
    assert {"sdpa/math", "sdpa/flash"} <= set(found["attention"]) and errors.items() <= found["missing"].items()
    assert found["missing"]["flash_attention_2"].startswith("ImportError: flash-attn is not installed")
    assert {*found["attention"], *found["missing"]} == set(gpu_machine.KERNELS)


def test_vllm_is_given_lengths_of_the_distribution_that_ends_the_other_engines():
    import torch

    from benchmarks import generation

    asked = []
    llm = SimpleNamespace(generate=lambda prompts, sampling_params, **kwargs: asked.append((sampling_params, kwargs)))
    head = torch.nn.Linear(2, 5)
    model = SimpleNamespace(get_output_embeddings=lambda: head)
    generation.end_by_chance(model, [1], 100.0)
    generation.end_vllm_by_chance(SimpleNamespace(model=model, vllm_generation=SimpleNamespace(llm=llm)))
    torch.manual_seed(0)
    given = SimpleNamespace(max_tokens=10**6, ignore_eos=False, temperature=0.5)
    llm.generate([{}] * 4000, sampling_params=given, use_tqdm=False)
    generation.set_mean_length(model, 2.0)
    given.max_tokens = 3
    llm.generate([{}] * 4000, sampling_params=given, use_tqdm=False)
    (first, kwargs), (second, _) = asked
    lengths, cut = ([one.max_tokens for one in each] for each in (first, second))
    assert sum(lengths) / 4000 == pytest.approx(100, rel=0.05) and min(lengths) == 1
    assert set(cut) == {1, 2, 3} and cut.count(1) / 4000 == pytest.approx(0.5, rel=0.05)
    assert all(one.ignore_eos and one.temperature == 0.5 for one in first) and kwargs == {"use_tqdm": False}
    assert given.max_tokens == 3 and not given.ignore_eos


# --- The worker


def test_a_full_gpu_is_an_answer_of_one_line():
    import torch

    def full(case):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total capacity …")

    assert respond({"training": full}, {"kind": "training"}) == {
        "error": "out of memory in this case (it asked for 20.00 GiB more)"
    }


def test_any_other_error_is_one_line_too():
    answer = respond({"training": lambda case: 1 / 0}, {"kind": "training"})
    assert answer == {"error": "ZeroDivisionError: division by zero"}


CHILD = """
import json, os, signal, sys, time
for line in sys.stdin:
    what = json.loads(line)["do"]
    if what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "leave":
        print("CUDA error: an illegal memory access was encountered", file=sys.stderr)
        sys.exit(1)
    if what == "hang":
        time.sleep(600)
    print(json.dumps({"found": os.getpid()}), flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"")
    worker = Worker(log, [sys.executable, "-c", CHILD])
    yield worker
    worker.stop()


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("die", "its process was killed by SIGSEGV"),
        ("leave", "its process ended with status 1: CUDA error: an illegal memory access was encountered"),
        ("hang", "not done after 1 s"),
    ],
    ids=["die", "leave", "hang"],
)
def test_a_case_that_kills_its_process_costs_one_row(worker, what, line):
    first = worker.ask({"do": "answer"}, 60)["found"]
    assert worker.ask({"do": what}, 1 if what == "hang" else 60) == {"error": line}
    assert worker.ask({"do": "answer"}, 60)["found"] != first


SERVING = """
import os, sys
from benchmarks.worker import serve
lost = []
def answer(case):
    if case["do"] == "lose":
        lost.append(case)
    if case["do"] == "fail":
        raise ValueError("this one does not work")
    return os.getpid()
sys.exit(serve({"any": answer}, lambda: not lost))
"""


def test_a_lost_device_does_not_cost_the_next_case(tmp_path, monkeypatch):
    """The case that loses it has an answer; then the worker leaves, and the next case finds another one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    log = tmp_path / "log"
    log.write_bytes(b"")
    worker = Worker(log, [sys.executable, "-c", SERVING])
    try:
        asked = [worker.ask({"kind": "any", "do": what}, 60) for what in ("go", "fail", "lose", "go", "go")]
    finally:
        worker.stop()
    assert asked[1] == {"error": "ValueError: this one does not work"}
    first, lose, *others = (answer["found"] for answer in (asked[0], *asked[2:]))
    assert first == lose and others[0] == others[1] != first
    assert all(list(answer) == ["found"] for answer in asked if "error" not in answer)


def test_a_group_has_a_process_to_itself(worker):
    asked = [worker.ask({"do": "answer", "group": group}, 60)["found"] for group in ("main", "main", "vllm 64")]
    assert asked[0] == asked[1] != asked[2]


# --- The budget


class Fake:
    """A worker of a world in which every case takes as long, and packs above 16,384 tokens do not fit."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.asked = 0.0, []
        self.seconds = seconds
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def ask(self, case, seconds):
        self.asked.append(case)
        self.now += min(self.seconds, seconds)
        if case["kind"] == "agreement":
            return {"found": {"stock": 0.01, "lean": 0.01, "between": 0.01}}
        if case["kind"] == "generation":
            return {"found": {"tokens": 6400, "steps": 90, "rows": case["rows"], "seconds": 2.0, "memory": GIB}}
        size = case["run"].get("pack_tokens") or 4096
        if size > 16384:
            return {"error": "out of memory"}
        found = {"seconds": [1, 1], "tokens": [1, 10_000], "optimizer_seconds": [1, 1], "memory": size * 10**6}
        return {"found": found | {"backend": "packs", "pack_tokens": size}}


def run_check(monkeypatch, minutes, seconds=1.0, **own):
    found, worker = measured(**own), Fake(monkeypatch, seconds)
    gpu_check.check(found, "1.5B", worker, 60 * minutes, show=lambda line: None)
    return found, worker


def test_with_time_enough_everything_is_run(monkeypatch):
    found, worker = run_check(monkeypatch, 20)
    assert found["not_run"] == [] and found["agreement"]["passes"] is True
    assert {row["engine"] for row in found["generation"]} == {"hf", "lean", "continuous", "compiled"}
    assert all(case["run"]["tf32"] is True for case in worker.asked if "run" in case)
    assert all(case["model"] == "1.5B" for case in worker.asked if case["kind"] == "generation")


def test_what_there_is_no_time_for_is_listed_and_is_the_least_valuable(monkeypatch):
    found, _ = run_check(monkeypatch, 1, seconds=15.0)
    assert [row["name"] for row in found["training"]] == ["lean, bfloat16, sdpa", "stock, bfloat16, sdpa"]
    assert [row["name"] for row in found["generation"]] == ["hf, 64 rows"]
    everything, _ = run_check(monkeypatch, 60)
    ran = sum(len(found[kind]) for kind in ("training", "generation"))
    cases = sum(len(everything[kind]) for kind in ("training", "generation"))
    assert len(found["not_run"]) == cases - ran + 2  # the packs and the gradient besides
    assert {one["reason"] for one in found["not_run"]} == {"no time left"}


def test_packs_are_doubled_until_the_device_is_full(monkeypatch):
    search = run_check(monkeypatch, 20)[0]["largest_pack"]
    assert [row["pack_tokens"] for row in search["tried"][:-1]] == [4096, 8192, 16384]
    assert search["pack_tokens"] == 16384 and search["ended_by"] == "32,768: out of memory"


def test_attention_that_works_is_measured_and_vllm_where_it_is_installed(monkeypatch):
    device = measured()["device"] | {"attention": ["sdpa/flash", "flex_attention", "flash_attention_2"]}
    found, _ = run_check(monkeypatch, 20, device=device, versions={"vllm": "0.30.0", "torch-optimi": None})
    assert {row["attention"] for row in found["training"]} == {"sdpa", "flex_attention", "flash_attention_2"}
    assert [row["attention"] for row in found["agreement"]["rows"]] == ["sdpa", "flex_attention", "flash_attention_2"]
    assert [row["rows"] for row in found["generation"] if row["engine"] == "vllm"] == [64, 256]


# --- The recipe


def test_the_fastest_rows_that_fit_are_chosen():
    rows = [
        training("stock", 500.0),
        training(speed=1000.0),
        training(speed=1500.0, attention="flex_attention"),
        training(speed=9000.0, peak=79 * GIB, attention="flash_attention_2"),
        training(speed=9999.0, error="out of memory"),
        training(speed=700.0, checkpointing=True),
    ]
    engines = [generation("hf", 1000.0), generation("lean", 2000.0), generation("hf", 9000.0, rows=256)]
    assert settings(measured(training=rows, generation=engines)) == {
        "dtype": "bfloat16",
        "attn_implementation": "flex_attention",
        "gradient_checkpointing": False,
        "pack_tokens": 4096,
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "generation": "lean",
    }


def test_every_value_has_its_reason():
    text = gpu_recipe.recipe(measured(training=[training(), training("stock")], generation=[generation("hf", 10.0)]))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == 7 and all("  # " in line for line in lines)


def test_checkpointing_where_nothing_fits_without():
    rows = [training(peak=70 * GIB), training(speed=700.0, checkpointing=True)]
    assert settings(measured(training=rows))["gradient_checkpointing"] is True


def test_a_gradient_that_is_off_keeps_trls_own_step():
    agreement = {"rows": [{"attention": "sdpa", "passes": False}]}
    chosen = settings(measured(training=[training(), training("stock", 500.0)], agreement=agreement))
    assert chosen["packed"] is False and "pack_tokens" not in chosen
    assert chosen["per_device_train_batch_size"] * chosen["gradient_accumulation_steps"] == 64


def test_the_smallest_pack_that_is_about_as_fast_as_the_fastest_that_fits():
    tried = [(4096, 900, 10, None), (8192, 980, 20, None), (16384, 1000, 40, None), (32768, 1200, 75, None)]
    tried += [(65536, None, None, "out of memory")]
    search = {"attention": "sdpa", "dtype": "bfloat16", "checkpointing": False, "pack_tokens": 32768}
    search["tried"] = [
        {"pack_tokens": size, "tokens_per_second": speed, "peak_bytes": peak and peak * GIB, "error": error}
        for size, speed, peak, error in tried
    ]
    assert settings(measured(training=[training()], largest_pack=search))["pack_tokens"] == 8192


@pytest.mark.parametrize(
    ("engine", "row"),
    [
        ("compiled", {"attention": "flex_attention"}),
        ("continuous", {"dtype": "float32"}),
    ],
    ids=["compiled", "continuous"],
)
def test_an_engine_that_does_not_go_with_the_training_is_passed_over(engine, row):
    engines = [generation(engine, 9000.0), generation("hf", 10.0)]
    assert settings(measured(training=[training(**row)], generation=engines))["generation"] == "hf"


def test_engines_are_ranked_by_the_seconds_that_training_waits_for_a_rollout():
    engines = [generation("hf", 9000.0, seconds=3.0), generation("lean", 5000.0, seconds=2.0)]
    text = gpu_recipe.recipe(measured(training=[training()], generation=engines))
    assert yaml.safe_load(text)["generation"] == "lean"
    assert "# 2.00 s for a rollout of 64 rows (5,000 tokens/s); hf 3.00" in text


def test_vllm_takes_its_share_of_the_memory():
    engines = [generation("vllm", 9000.0), generation("hf", 10.0)]
    rows = [training(peak=50 * GIB), training(speed=700.0, peak=30 * GIB, checkpointing=True)]
    chosen = settings(measured(training=rows, generation=engines))
    assert (chosen["generation"], chosen["vllm_mode"]) == ("vllm", "colocate")
    assert chosen["gradient_checkpointing"] is True


def test_a_recipe_of_nothing_says_so():
    assert "No training step that was measured succeeded" in gpu_recipe.recipe(measured())


# --- The command


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--model", "nowhere"], "--model: nowhere holds no config.json; give the directory of a model"),
        (["--minutes", "0"], "--minutes: 0 is out of range"),
        (["--output", "x/gpu.yaml"], "--output: x/gpu.yaml does not end in .json; the recipe (.yaml) and the log"),
        (["--output", "x/gpu.log"], "--output: x/gpu.log does not end in .json"),
        (["--output", "x/gpu"], "--output: x/gpu does not end in .json"),
    ],
    ids=["model", "minutes", "yaml", "log", "no suffix"],
)
def test_a_mistake_is_one_line(argv, line, capsys):
    assert gpu_check.main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(line) and said.count("\n") == 1


def test_a_run_that_is_killed_has_left_its_json_and_its_recipe(tmp_path):
    path = tmp_path / "gpu.json"
    gpu_check.save(measured(training=[training()]), path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["training"] and path.with_suffix(".yaml").read_text(encoding="utf-8") == found["recipe"]


@pytest.mark.slow
def test_without_a_gpu_it_runs_at_toy_size_and_its_recipe_is_valid(tmp_path, monkeypatch):
    output = tmp_path / "found" / "check.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--minutes", "1", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No GPU: this is a toy-size run on a CPU, and says nothing of a GPU.")
    assert max(map(len, done.stdout.splitlines())) <= 119
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["toy"] is True and found["device"]["type"] == "cpu" and "sdpa/math" in found["device"]["attention"]
    assert found["model"]["parameters"] == 1_674_176
    # how far it came depends on how busy the machine is; what is there is sound, and nothing is missing
    rows = found["training"] + found["generation"]
    assert all(row["share_of_limit"] > 0 for row in rows if row["error"] is None)
    assert all(row["error"].startswith("not done after") for row in rows if row["error"])
    checked = found["agreement"]["rows"]
    assert all(row["passes"] or row["error"].startswith("not done after") for row in checked)
    expected = gpu_check.cases(True, ["sdpa"], ["hf", "lean", "continuous", "compiled"], {"model": "", "device": ""})
    assert len(rows) + len(checked) + bool(found["largest_pack"]) + len(found["not_run"]) == len(expected)
    recipe = output.with_suffix(".yaml")
    assert recipe.read_text(encoding="utf-8") == found["recipe"] and "toy run on a CPU" in found["recipe"]

    import train_grpo

    monkeypatch.chdir(ROOT)
    flags = ["--use_cpu", "true", "--model_name_or_path", str(DEMO / "model"), "--report_to", "none"]
    flags += ["--dataset_name", str(DEMO / "train.jsonl"), "--dry_run", "true"]
    assert train_grpo.main(["--config", str(recipe), *flags]) == 0


def test_the_recipe_of_an_imagined_gpu_is_a_configuration(tmp_path):
    import train_grpo
    from grpo.config.resolve import resolve

    rows = [training(attention="flash_attention_2"), training("stock", 10.0)]
    path = tmp_path / "gpu.yaml"
    path.write_text(gpu_recipe.recipe(measured(training=rows, generation=[generation("lean", 5.0)])))
    argv = ["--config", str(path), "--use_cpu", "true", "--model_name_or_path", str(DEMO / "model")]
    config = resolve(train_grpo.HYPERPARAMETERS, [*argv, "--report_to", "none"])
    assert config.geometry.per_step == 64 and config.script.pack_tokens == 4096
