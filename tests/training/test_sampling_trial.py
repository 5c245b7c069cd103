"""grpo/training/sampling_trial.py: settings of `generate` that fail are one line before training."""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_trainer import make_trainer

import train_grpo
from grpo.core.errors import UserError
from grpo.training import sampling_trial
from grpo.training.run_trainer import RunTrainer

FAIL = {
    '{"stop_strings":"</answer>"}': "tokenizer",
    '{"return_dict_in_generate":true}': "tuple indices",
    '{"no_repeat_ngram_size":"two"}': "'>' not supported",
    '{"min_new_tokens":"two"}': "'>' not supported",
    '{"bad_words_ids":5}': "bad_words_ids",
    '{"prompt_lookup_num_tokens":3}': "batch_size = 1",
    '{"top_h":7}': "top_h",
    '{"length_penalty":2.0}': "they have no effect",
    '{"output_scores":true}': "they have no effect",
}


@pytest.mark.parametrize("given", FAIL)
def test_arguments_that_fail_are_one_line_before_training(given, tiny_run, capsys):
    assert train_grpo.main(tiny_run(generation_kwargs=given)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: generation_kwargs: ") and FAIL[given] in line
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stop_strings": ["</answer>"]}, "tokenizer"),
        ({"return_dict_in_generate": True}, "tuple indices"),
        ({"prompt_lookup_num_tokens": 3, "min_new_tokens": 2}, "batch_size = 1"),
        ({"bad_words_ids": 5}, "bad_words_ids"),
        ({"no_repeat_ngram_size": 2, "suppress_tokens": [7]}, None),
    ],
    ids=str,
)
def test_fields_of_the_models_own_configuration_are_tried(fields, reason, tiny_model, tiny_run, tmp_path, capsys):
    """Before anything is measured or written."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    path = model / "generation_config.json"
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))
    status = train_grpo.main(tiny_run(model_name_or_path=model, max_steps=1))
    if reason is None:
        assert status == 0
        return
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and line.startswith("error: the model's generation_config.json: sampling fails (")
    assert reason in line and line.endswith(f"change or drop {', '.join(sorted(fields))}")
    assert not Path("run").exists()


def test_what_works_trains_as_if_it_had_not_been_tried(tiny_model, tmp_path, monkeypatch):
    def completions():
        seen = []

        def reward(completion_ids, **kwargs):
            seen.extend(completion_ids)
            return [0.0] * len(completion_ids)

        kwargs = {"no_repeat_ngram_size": 2, "min_new_tokens": 10, "suppress_tokens": [7]}
        make_trainer(
            RunTrainer, tiny_model, tmp_path, reward=reward, lengths="sampled", generation_kwargs=kwargs
        ).train()
        return seen

    tried = completions()
    monkeypatch.setattr(sampling_trial, "run", lambda trainer: None)
    assert tried == completions() and all(10 <= len(ids) <= 24 for ids in tried)


@pytest.mark.skipif(find_spec("optimum") is not None, reason="the cache's package is installed")
def test_a_cache_that_is_not_installed_is_one_line_before_training(tiny_run, capsys):
    assert train_grpo.main(tiny_run(cache_implementation="quantized")) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: cache_implementation: sampling fails (") and "quanto" in line
    assert not Path("run").exists()


@pytest.fixture
def vllm(monkeypatch):
    """Stands for the package: what is read by its SamplingParams."""

    class SamplingParams:
        def __init__(self, max_tokens=16, min_tokens=0, stop=None):
            if min_tokens > max_tokens:
                raise ValueError(f"min_tokens must be at most max_tokens={max_tokens}, got {min_tokens}.")

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SamplingParams))


@pytest.mark.parametrize(
    ("given", "reason"), [({"stopp": "."}, "stopp"), ({"min_tokens": 99}, "min_tokens must be"), ({"stop": "."}, "")]
)
def test_vllm_reads_its_arguments_before_training(given, reason, vllm):
    args = SimpleNamespace(generation_kwargs=given, cache_implementation=None)
    trainer = SimpleNamespace(args=args, use_vllm=True, max_completion_length=24)
    if not reason:
        return sampling_trial.run(trainer)
    with pytest.raises(UserError, match=f"^generation_kwargs: vLLM refuses them .*{reason}"):
        sampling_trial.run(trainer)


def test_a_trial_keeps_the_random_states(tiny_model, tmp_path):
    trainer = make_trainer(RunTrainer, tiny_model, tmp_path, lengths="sampled", generation_kwargs={"typical_p": 0.9})
    state = torch.get_rng_state()
    sampling_trial.run(trainer)
    assert torch.equal(state, torch.get_rng_state()) and trainer.generation_config.max_new_tokens == 24
