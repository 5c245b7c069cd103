"""grpo/evaluation/evaluate.py: the numbers, and that batching changes no answer."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import scipy
import torch
from helpers_runs import DEMO
from transformers import AutoModelForCausalLM

from grpo.config.configure import configure
from grpo.data import dataset, sources
from grpo.evaluation import evaluate
from grpo.evaluation.evaluate import wilson
from grpo.rewarding.judge import Judge
from train_grpo import HYPERPARAMETERS, PROMPT_FORMATS

make_prompt = PROMPT_FORMATS["xml"].prompt


@pytest.fixture(scope="module")
def questions():
    rows = sources.load_source(str(DEMO / "test.jsonl"))["train"].select(range(24))
    return dataset.make_prompts(rows, make_prompt)[0]


@pytest.mark.parametrize("n", [1, 7, 200, 1319])
def test_wilson_intervals_equal_scipys(n):
    for successes in {0, 1, n // 3, n - 1, n}:
        reference = scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")
        assert wilson(successes, n) == pytest.approx((reference.low, reference.high), abs=1e-9)
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("texts", "winner"),
    [
        (["<answer>3</answer>", "<answer>4</answer>", "4"], 1),
        (["5", "6", "6", "5"], 0),  # of equals the first
        (["0", "0", "1"], 0),  # zero is an answer
        (["", "<answer></answer>", "7"], 2),  # no answer, no vote
        (["yes", "no", "no"], 1),  # words vote as they are
        (["", ""], None),
    ],
)
def test_the_majority_is_the_first_of_the_most_frequent_answer(texts, winner):
    assert evaluate.majority(texts, Judge()) == (None if winner is None else texts[winner])


def record(strict, lenient, format_strict, truncated=False, length=10, **more):
    flags = {"strict": strict, "lenient": lenient, "format_strict": format_strict, "format_soft": format_strict}
    return {**flags, "truncated": truncated, "length": length, **more}


def test_the_summary_has_the_contracts_keys_and_their_shares():
    summary = evaluate.summarize(
        [record(True, True, True), record(False, True, True), record(False, False, False, True, 40)]
    )
    shares = ("accuracy_strict", "accuracy_lenient", "format_strict", "format_soft", "truncated")
    bounds = {f"{share}_{bound}" for share in shares for bound in ("low", "high")}
    assert set(summary) == {"n", "mean_length", *shares, *bounds}
    assert [summary[share] for share in shares] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert summary["mean_length"] == 20
    assert all(summary[f"{share}_low"] < summary[share] < summary[f"{share}_high"] for share in shares)


def test_saved_files_are_json_and_keep_every_completion(tmp_path):
    records = [record(True, True, True, completion="‹é›\n\u2028")]
    evaluate.save(tmp_path, "before", evaluate.summarize(records), records)
    assert json.loads((tmp_path / "eval_before.json").read_text(encoding="utf-8"))["n"] == 1
    lines = (tmp_path / "completions_before.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines if line] == records


def measure(model, tokenizer, questions, bf16=False, **script):
    config = configure(HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", "--max_completion_length", "40"])
    config.training.bf16, config.script = bf16, dataclasses.replace(config.script, **script)
    data = SimpleNamespace(held_out=questions, prompt_format=PROMPT_FORMATS["xml"], sources=[])
    return evaluate.measure(config, model, tokenizer, data, Judge(), {})


def test_before_and_after_are_measured_in_the_same_arithmetic(demo, questions):
    """Accelerate casts in the forward of a model that it has prepared: the same weights must answer the same."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32), demo[1]
    full = measure(model, tokenizer, questions)[1]
    before = measure(model, tokenizer, questions, bf16=True)[1]
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    assert before == measure(model, tokenizer, questions, bf16=True)[1] != full


def test_k_samples_give_majority_and_pass_at_k():
    right, wrong = "<answer>4</answer>", "<answer>5</answer>"
    mixes = [[right] * 4, [wrong] * 4, [right, wrong, wrong, wrong], [wrong, right, right, right]]
    summary = evaluate.summarize(
        [record(True, True, True, **evaluate.judge_samples(mix, Judge(), {"answer": "4"})) for mix in mixes]
    )
    assert (summary["k"], summary["maj_k"], summary["pass_k"]) == (4, 0.5, 0.75)
    assert summary["pass_1"] == pytest.approx((4 + 0 + 1 + 3) / 16) and summary["maj_k_low"] < 0.5


def test_samples_are_drawn_for_each_question_and_kept(demo, questions):
    few = questions.select(range(4))
    (summary, records) = measure(*demo, few, eval_num_samples=3)
    assert summary["k"] == 3 and 0 <= summary["maj_k"] <= summary["pass_k"] <= 1
    assert all(len(row["samples"]) == 3 for row in records)
    assert records == measure(*demo, few, eval_num_samples=3)[1]


def test_one_evaluation_alone_with_samples(capsys):
    samples = evaluate.judge_samples(["4", "4", "5"], Judge(), {"answer": "4"})
    summary = evaluate.summarize([record(True, True, True, **samples)] * 4)
    evaluate.print_evaluations({"some/model": summary})
    shown = capsys.readouterr().out
    assert "some/model" in shown and "maj@3" in shown and "pass@3" in shown and "change" not in shown


def earned(reward, **more):
    flags = {"format_strict": True, "format_soft": True, "truncated": False, "length": 10, "question": "a"}
    return {**flags, "rewards": {"brevity": reward, "late_low": 1.0}, "reward": reward, **more}


def test_without_verdicts_there_are_rewards_and_no_accuracy():
    summary = evaluate.summarize([earned(value) for value in (1.0, 2.0, 3.0, 4.0, 5.0)])
    assert not any(key.startswith("accuracy") for key in summary) and summary["format_strict"] == 1.0
    assert (summary["reward"], summary["rewards/brevity"], summary["rewards/late_low"]) == (3.0, 3.0, 1.0)
    assert summary["reward_low"] < 3.0 < summary["reward_high"]
