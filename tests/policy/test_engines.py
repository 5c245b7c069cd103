"""grpo/policy/engines.py: the setting `generation` and TRL's switches say the same."""

import pytest

import train_grpo
from grpo.config.resolve import resolve
from grpo.core.errors import UserError
from grpo.policy import engines


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
        ({"use_transformers_continuous_batching": True}, "for good.*use --generation continuous"),
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
        (["--generation", "vllm"], "generation: vLLM needs a CUDA GPU; use --generation auto"),
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
    monkeypatch.setattr(engines, "check_installed", lambda: None)
    for overrides, expected in [
        ({}, 1042),
        ({"vllm_max_model_length": 4096}, 4096),
        ({"eval_strategy": "steps"}, None),
    ]:
        engines.fit_to_gpu(found := on_gpu(generation="vllm", **overrides), set())
        assert found["vllm_max_model_length"] == expected


def test_an_evaluation_alone_needs_no_engine():
    assert engines.fit_to_gpu(on_gpu(generation="vllm", eval_only=True), set()) == []
