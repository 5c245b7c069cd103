"""grpo/evaluation.py: the numbers, and that batching changes no answer."""

import json

import pytest
import torch
from conftest import DEMO, ROWS
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo import evaluation, prompts
from grpo.evaluation import wilson
from train_grpo import make_prompt


@pytest.fixture(scope="module")
def demo():
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(DEMO / "model", padding_side="left")


@pytest.fixture(scope="module")
def questions():
    rows = prompts.load_source(str(DEMO / "test.jsonl"))["train"].select(range(24))
    return prompts.make_prompts(rows, make_prompt)[0]


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.49016, 0.94331),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (500, 1000, 0.46907, 0.53093),
        (0, 0, 0, 1),
    ],
)
def test_wilson_intervals_equal_published_values(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=1e-5)


def test_batch_size_does_not_change_an_answer(demo, questions):
    model, tokenizer = demo
    records = {}
    for batch_size in (1, 5, 64):
        summary, records[batch_size] = evaluation.evaluate(
            model, tokenizer, questions, max_new_tokens=40, batch_size=batch_size
        )
        assert summary["n"] == 24
    assert records[1] == records[5] == records[64]
    assert [record["question"] for record in records[1]] == questions["question"]


def test_completions_end_at_the_first_end_token_and_cut_ones_are_counted(demo, questions):
    model, tokenizer = demo
    ids = prompts.tokenize(questions["prompt"], tokenizer)
    for tokens, cut in evaluation.generate_greedy(model, tokenizer, ids, max_new_tokens=40, batch_size=7):
        assert tokenizer.eos_token_id not in tokens and not cut
    for tokens, cut in evaluation.generate_greedy(model, tokenizer, ids, max_new_tokens=4, batch_size=7):
        assert cut and len(tokens) == 4


def test_the_models_own_sampling_defaults_do_not_reach_the_evaluation(demo, questions):
    model, tokenizer = demo
    plain = evaluation.evaluate(model, tokenizer, questions, max_new_tokens=40)[1]
    defaults = model.generation_config
    model.generation_config = type(defaults)(**{**defaults.to_dict(), "repetition_penalty": 9.0, "do_sample": True})
    try:
        assert evaluation.evaluate(model, tokenizer, questions, max_new_tokens=40)[1] == plain
    finally:
        model.generation_config = defaults


def test_evaluation_leaves_the_models_mode_and_the_random_state_alone(demo, questions):
    model, tokenizer = demo
    model.train()
    state = torch.get_rng_state()
    evaluation.evaluate(model, tokenizer, questions.select([0]), max_new_tokens=4)
    assert model.training and torch.equal(state, torch.get_rng_state())
    model.eval()


def record(strict, lenient, format_strict, truncated=False, length=10):
    flags = {"strict": strict, "lenient": lenient, "format_strict": format_strict, "format_soft": format_strict}
    return {**flags, "truncated": truncated, "length": length}


def test_the_summary_has_the_contracts_keys_and_their_shares():
    summary = evaluation.summarize(
        [record(True, True, True), record(False, True, True), record(False, False, False, True, 40)]
    )
    shares = ("accuracy_strict", "accuracy_lenient", "format_strict", "format_soft", "truncated")
    bounds = {f"{share}_{bound}" for share in shares for bound in ("low", "high")}
    assert set(summary) == {"n", "mean_length", *shares, *bounds}
    assert [summary[share] for share in shares] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert summary["mean_length"] == 20
    assert all(summary[f"{share}_low"] < summary[share] < summary[f"{share}_high"] for share in shares)


def test_saved_files_are_json_and_keep_every_completion(tmp_path):
    records = [{**record(True, True, True), "completion": "‹é›\n\u2028"}]
    evaluation.save(tmp_path, "before", evaluation.summarize(records), records)
    assert json.loads((tmp_path / "eval_before.json").read_text(encoding="utf-8"))["n"] == 1
    lines = (tmp_path / "completions_before.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines if line] == records


def test_the_side_by_side_table_fits_80_columns_and_shows_the_change(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before = evaluation.summarize([record(False, True, False)] * 4)
    after = evaluation.summarize([record(True, True, True)] * 4)
    evaluation.print_side_by_side(before, after)
    shown = capsys.readouterr().out
    assert "accuracy, strict" in shown and "+100.0" in shown and "4 held-out questions" in shown
    assert "100.0 (51-100)" in shown and all(len(line) <= 80 for line in shown.splitlines())


def test_rows_of_any_question_column(demo):
    rows = prompts.make_prompts(
        Dataset.from_list([{"q": r["question"], "answer": r["answer"]} for r in ROWS[:2]]), make_prompt, "q"
    )
    (_, records) = evaluation.evaluate(*demo, rows[0], max_new_tokens=4)
    assert records[0]["question"] == "What is 2 + 2?"
