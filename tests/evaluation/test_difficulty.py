"""grpo/evaluation/difficulty.py: questions are measured once, with the policy's own samples."""

import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
from helpers_commands import command
from helpers_runs import DEMO, LEARNS
from transformers import AutoModelForCausalLM

import rewards
import train_grpo
from grpo.config.resolve import resolve
from grpo.core.errors import UserError
from grpo.data import dataset
from grpo.data.prompts import choose, tokenize
from grpo.evaluation import difficulty
from grpo.policy.generation import Sampling, generate
from grpo.rewarding.judge import Judge
from rewards import is_right


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "grpo_pass_rates"


def prepared(tokenizer, rows=24, **flags):
    argv = ["--use_cpu", "true", "--report_to", "none", "--dataset_name", str(DEMO / "train.jsonl")]
    argv += ["--max_samples", str(rows), "--eval_samples", "2", "--max_completion_length", "40"]
    argv += ["--num_generations", "8", "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "1"]
    argv += [word for key, value in flags.items() for word in (f"--{key}", *value)]
    config = resolve({**train_grpo.HYPERPARAMETERS, "filter_num_samples": 4}, argv)
    style = choose(train_grpo.PROMPT_FORMATS, config.script)
    return config, dataset.build(config, tokenizer, style, train_grpo.EXEMPLARS)


def test_a_pass_rate_is_the_share_of_right_samples_drawn_once(demo, cache, monkeypatch):
    model, tokenizer = demo
    config, data = prepared(tokenizer, 14, filter_pass_rate=["0", "1"])
    rates = difficulty.pass_rates(config, model, tokenizer, data, Judge())
    prompts = [ids for ids in tokenize(data.train["prompt"], tokenizer) for _ in range(4)]
    drawn = generate(model, tokenizer, prompts, 40, 64, Sampling.like(config.training))
    for place, gold in enumerate(data.train["answer"]):
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in drawn[4 * place : 4 * place + 4]]
        assert rates[place] == sum(is_right(text, gold) for text in texts) / 4
    assert len(set(rates)) > 2  # some are harder than others
    (file,) = cache.iterdir()
    assert json.loads(file.read_text()) == rates
    monkeypatch.setattr(difficulty, "generate", None)
    assert difficulty.pass_rates(config, model, tokenizer, data, Judge()) == rates


def test_what_pass_rates_depend_on_is_measured_anew(demo, cache, monkeypatch):
    model, tokenizer = demo
    monkeypatch.setattr(difficulty, "generate", lambda _, __, prompts, *rest, **more: [([5], False)] * len(prompts))
    changes = [{}, {"temperature": ["0.7"]}, {"filter_num_samples": ["2"]}, {"num_shots": ["1"]}]
    for count, flags in enumerate([*changes, {"max_completion_length": ["30"]}], start=1):
        config, data = prepared(tokenizer, 10, filter_pass_rate=["0", "1"], **flags)
        difficulty.pass_rates(config, model, tokenizer, data, Judge())
        assert len(list(cache.iterdir())) == count, flags
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    model.model.layers[1].mlp.up_proj.weight.data *= 1.001
    difficulty.pass_rates(config, model, tokenizer, data, Judge())
    assert len(list(cache.iterdir())) == count + 1


def test_bounds_are_inclusive_and_what_leaves_is_counted(demo):
    _, data = prepared(demo[1], 7)
    asked = data.train["question"][:]
    rates = [0.0, 0.1, 0.5, 0.9, 1.0, 0.25]
    kept = difficulty.select(data, rates, (0.1, 0.9), easy_first=False)
    assert kept.train["question"][:] == [asked[1], asked[2], asked[3], asked[5]]
    assert (kept.too_hard, kept.too_easy) == (1, 1) and kept.facts()["data"]["too_hard"] == 1
    ordered = difficulty.select(data, rates, None, easy_first=True)
    assert ordered.train["question"][:] == [asked[place] for place in (4, 3, 2, 5, 1, 0)]
    assert kept.held_out is data.held_out


def test_too_few_questions_left_is_one_line(demo, monkeypatch):
    model, tokenizer = demo
    config, data = prepared(tokenizer, filter_pass_rate=["0.4", "0.6"])
    monkeypatch.setattr(difficulty, "pass_rates", lambda *_: [0.5] + [0.0] * (len(data.train) - 1))
    with pytest.raises(
        UserError, match=r"filter_pass_rate: of 22 .* 21 are never right .* 1 are kept, fewer than the 2"
    ):
        difficulty.apply(config, model, tokenizer, data, Judge())


def test_without_either_setting_nothing_is_drawn():
    config, data = SimpleNamespace(script=SimpleNamespace(filter_pass_rate=None, curriculum=False)), object()
    assert difficulty.apply(config, None, None, data, Judge()) is data


@pytest.mark.parametrize("value", [["0.5"], ["0.9", "0.1"], ["-0.1", "0.5"], ["0.5", "1.5"]])
def test_impossible_ranges_are_refused(value):
    with pytest.raises(UserError, match="filter_pass_rate"):
        resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--filter_pass_rate", *value])


def test_a_curriculum_is_trained_in_its_order(tiny_run, monkeypatch, capfd):
    trained = []

    def note(prompts, completions, **kwargs):
        trained.extend(prompt[-1]["content"] for prompt in prompts)
        return [float(len(completion[0]["content"])) for completion in completions]

    monkeypatch.setitem(rewards.REWARD_FUNCS, "int_reward_func", note)
    seen = {}

    def rates(config, model, tokenizer, data, judge):
        seen.update({asked: 0.25 + (7 * place % 10) / 20 for place, asked in enumerate(data.train["question"])})
        return list(seen.values())

    monkeypatch.setattr(difficulty, "pass_rates", rates)
    flags = {"reward_funcs": "int_reward_func", "max_steps": "5", "max_completion_length": "2", "curriculum": "true"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    asked = list(dict.fromkeys(trained[5:]))  # the first five are preflight's
    assert [seen[question] for question in asked] == sorted(seen.values(), reverse=True)[: len(asked)]
    assert "the easiest first" in capfd.readouterr().out


@pytest.mark.slow
def test_two_processes_keep_the_same_questions(tiny_run, tmp_path):
    flags = {
        **LEARNS,
        "max_samples": "60",
        "per_device_train_batch_size": "8",
        "curriculum": "true",
    }
    argv = [*tiny_run(**flags), "--filter_pass_rate", "0.1", "0.9"]
    script = tmp_path / "script.py"  # the processes of a command have imported datasets, so its variable has no effect
    cache = f"datasets.config.HF_DATASETS_CACHE = {str(tmp_path / 'shared')!r}"
    script.write_text(f"import sys, datasets, train_grpo\n{cache}\nsys.exit(train_grpo.main())")
    done = command(script, argv, processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("are kept, the easiest first") == 1
    assert len(list((tmp_path / "shared" / "grpo_pass_rates").iterdir())) == 1
    counts = json.loads(Path("run/run.json").read_text())["data"]
    assert counts["train"] + counts["too_hard"] + counts["too_easy"] == 54 and counts["too_hard"] > 0
