"""grpo/evaluation/before_after.py: what a resumed run takes over, and what is measured."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import train_grpo
from grpo.evaluation import before_after


def test_only_a_whole_evaluation_of_the_same_questions_is_reused(tmp_path):
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "eval_before.json").write_text('{"n": 2}')

    def saved(text, answers=("2", "3"), samples=1):
        (tmp_path / "completions_before.jsonl").write_text(text)
        data = SimpleNamespace(held_out={"question": ["1 + 1?", "1 + 2?"], "answer": list(answers)})
        return before_after._saved(tmp_path, data, samples)

    assert saved("".join(lines)) == ({"n": 2}, rows)
    assert saved(lines[0]) is None and saved("".join(lines)[:-9]) is None  # killed while it was written
    assert saved("".join(lines), answers=("2", "4")) is None and saved("".join(lines), samples=4) is None


def read(name):
    return json.loads((Path("run") / name).read_text())


def test_a_run_without_gold_answers_reports_rewards(tiny_run, write_jsonl, capsys):
    Path("own_style.py").write_text("def brevity(completions, level, **_): return [each / 10 for each in level]\n")
    asked = [[{"role": "user", "content": f"Write {number} words."}] for number in range(40)]
    data = write_jsonl([{"prompt": messages, "level": number} for number, messages in enumerate(asked)], "m.jsonl")
    words = ["--reward_funcs", "own_style.brevity", "soft_format_reward_func", "--allow_custom_rewards", "true"]
    assert train_grpo.main([*tiny_run(dataset_name=data, max_steps="1", eval_every="1"), *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no gold answers: evaluation reports rewards and format" in shown
    summary, compared = read("eval_after.json"), read("comparison.json")
    lines = Path("run/completions_after.jsonl").read_text().splitlines()
    levels = [json.loads(line)["rewards"]["brevity"] for line in lines]
    assert summary["rewards/brevity"] == pytest.approx(sum(levels) / 4) and summary["reward_low"] is not None
    assert not any("accuracy" in key for key in summary) and summary["n"] == compared["n"] == 4
    assert compared["rewards/brevity"]["difference"] == 0 and "lenient" not in compared
    card = Path("run/README.md").read_text()
    assert "| Reward, weighted sum |" in card and "Accuracy" not in card
    page = Path("run/report.html").read_text()
    assert "Reward, weighted sum" in page and "Accuracy, lenient" not in page and "Gold answer" not in page


def test_a_run_on_two_data_sets_keeps_where_each_row_is_from(tiny_run, write_jsonl):
    sums = [{"question": f"What is {a} + 1?", "answer": a + 1} for a in range(30)]
    Path("other.json").write_text(
        json.dumps([{"prompt": f"What is {a} - 1?", "answer": f"#### {a - 1}"} for a in range(20)])
    )
    words = ["--dataset_name", write_jsonl(sums, "sums.jsonl"), "other.json"]
    assert train_grpo.main([*tiny_run(dataset_name=None, max_steps="1"), *words]) == 0
    lines = Path("run/completions_after.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["source"] for line in lines) == {"sums": 3, "other": 2}
    assert read("run.json")["data"]["train"] == 27 + 18
    assert read("run.json")["settings"]["run_name"] == "Tiny-60K-GRPO-sums+other"
