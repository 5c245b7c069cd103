"""Evaluations have exact shares with their intervals, in the same arithmetic before and after training."""

import dataclasses
import datetime
import json
import math
from types import SimpleNamespace

import pytest
import scipy
import torch
from helpers_runs import DEMO
from transformers import AutoModelForCausalLM

from grpo.config.configure import configure
from grpo.data import dataset, sources
from grpo.evaluation import evaluate
from grpo.evaluation.evaluate import Evaluation, wilson
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


def test_the_summary_has_the_contracts_keys_and_their_shares():
    def record(strict, lenient, length, **more):
        flags = dict.fromkeys(("format_strict", "format_soft"), lenient)
        return {"strict": strict, "lenient": lenient, "truncated": length == 40, "length": length, **flags, **more}

    records = [record(True, True, 10), record(False, True, 10), record(False, False, 40)]
    summary = evaluate.summarize(records)
    shares = ("accuracy_strict", "accuracy_lenient", "format_strict", "format_soft", "truncated")
    bounds = {f"{share}_{bound}" for share in shares for bound in ("low", "high")}
    assert set(summary) == {"n", "mean_length", *shares, *bounds} and summary["mean_length"] == 20
    assert [summary[share] for share in shares] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert all(summary[f"{share}_low"] < summary[share] < summary[f"{share}_high"] for share in shares)


def test_saved_files_are_json_and_keep_every_completion(tmp_path):
    records = [{"completion": "‹é›\n\u2028"}]
    columns = {"day": datetime.date(2026, 1, 2), "score": math.nan}  # of the data: JSON has no form for them
    evaluate.save(tmp_path, "before", Evaluation({"n": 1}, [records[0] | columns]))
    records = [records[0] | {"day": "2026-01-02", "score": None}]
    assert json.loads((tmp_path / "eval_before.json").read_text(encoding="utf-8")) == {"n": 1}
    lines = (tmp_path / "completions_before.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines if line] == records


@pytest.mark.parametrize(
    ("extracted", "strict", "lenient"),
    [("72", True, True), ("72.0", False, True), ("$72", False, True), ("71", False, False)],
)
def test_strict_compares_characters_and_lenient_numbers(extracted, strict, lenient):
    record = {"completion": f"<answer>{extracted}</answer>", "extracted": extracted, "answer": "72"}
    assert not evaluate.add_verdicts([record], [{"answer": "72"}], Judge())
    assert (record["strict"], record["lenient"]) == (strict, lenient)


def measure(model, tokenizer, questions, judge=None, bf16=False, **script):
    config = configure(HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", "--max_completion_length", "40"])
    config.training.bf16, config.script = bf16, dataclasses.replace(config.script, **script)
    data = SimpleNamespace(held_out=questions, prompt_format=PROMPT_FORMATS["xml"])
    return evaluate.measure(config, model, tokenizer, data, judge or Judge(), {})


def test_before_and_after_are_measured_in_the_same_arithmetic(demo, questions):
    """Accelerate casts in the forward of a model that it has prepared: the same weights must answer the same."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32), demo[1]
    full = measure(model, tokenizer, questions).records
    before = measure(model, tokenizer, questions, bf16=True).records
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    assert before == measure(model, tokenizer, questions, bf16=True).records != full


# --- Several samples of each question


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["3", "4", "it is 4.0"], 1),  # equal as numbers
        (["5", "6", "6", "5"], 0),  # of equals the first
        (["0", "0", "1"], 0),  # zero is an answer
        (["", "", "7"], 2),  # no answer, no vote
        (["yes", "no", "no"], 1),  # words vote as they are
        (["", ""], None),
    ],
)
def test_the_majority_is_the_first_of_the_most_frequent_answer(answers, winner):
    assert evaluate.majority(answers) == winner


def test_k_samples_give_majority_and_pass_at_k():
    right, wrong = "<answer>4</answer>", "<answer>5</answer>"
    mixes = [[right] * 4, [wrong] * 4, [right, wrong, wrong, wrong], [wrong, right, right, right]]
    records = [
        {"completion": right, "extracted": "4", "answer": "4", "length": 1, "format_strict": True, "samples": mix}
        for mix in mixes
    ]
    assert not evaluate.add_verdicts(records, [{"answer": "4"}] * 4, Judge())
    summary = evaluate.summarize(records)
    assert (summary["k"], summary["maj_k"], summary["pass_k"]) == (4, 0.5, 0.75) and summary["maj_k_low"] < 0.5


def test_samples_are_drawn_for_each_question_and_kept(demo, questions):
    found = measure(*demo, questions.select(range(4)), eval_num_samples=3)
    assert found.summary["k"] == 3 and 0 <= found.summary["maj_k"] <= found.summary["pass_k"] <= 1
    assert all(len(row["samples"]) == 3 for row in found.records)
    assert any(len(set(row["samples"])) > 1 for row in found.records)  # as in training, not greedily
    assert found.records == measure(*demo, questions.select(range(4)), eval_num_samples=3).records


# --- A judge of one's own


def test_a_judge_of_ones_own_is_asked_once_a_completion(demo, questions):
    asked = []

    def is_odd(text, row):
        asked.append(text)
        return len(asked) % 2

    records = measure(*demo, questions.select(range(4)), Judge("xml", is_odd, "mine"), eval_num_samples=3).records
    assert asked == [text for record in records for text in (record["completion"], *record["samples"])]
    assert [record["lenient"] for record in records] == [True] * 4  # 1st, 5th, ...
    assert [record["strict"] for record in records] == [record["format_strict"] for record in records]
    assert [record["samples_right"] for record in records] == [[False, True, False]] * 4
    for record in records:  # the built-in rule chooses the majority's answer, and the judge says if it is right
        answers = [Judge().extract(text) for text in record["samples"]]
        assert record["majority_right"] == (evaluate.majority(answers) == 1)


def test_the_built_in_judge_may_not_fail(monkeypatch):
    monkeypatch.setattr(Judge, "verdict", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate.add_verdicts([{"completion": "7"}], [{"answer": "7"}], Judge())
