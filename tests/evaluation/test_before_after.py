"""grpo/evaluation/before_after.py: what a resumed run takes over, and what is measured."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_commands import command
from helpers_runs import ROOT

import train_grpo
from grpo.__main__ import main as tool
from grpo.evaluation import before_after
from grpo.evaluation.evaluate import Evaluation


def test_only_a_whole_evaluation_of_the_same_questions_is_reused(tmp_path):
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "eval_before.json").write_text('{"n": 2}')

    def saved(text, answers=("2", "3"), samples=1):
        (tmp_path / "completions_before.jsonl").write_text(text)
        data = SimpleNamespace(held_out={"question": ["1 + 1?", "1 + 2?"], "answer": list(answers)})
        return before_after._saved(tmp_path, data, samples)

    assert saved("".join(lines)) == Evaluation({"n": 2}, rows)
    assert saved(lines[0]) is None and saved("".join(lines)[:-9]) is None  # killed while it was written
    assert saved("".join(lines), answers=("2", "4")) is None and saved("".join(lines), samples=4) is None


def read(name):
    return json.loads((Path("run") / name).read_text())


def test_a_run_without_gold_answers_reports_rewards(tiny_run, write_jsonl, capsys):
    Path("own_style.py").write_text("def brevity(completions, level, **_): return [each / 10 for each in level]\n")
    asked = [[{"role": "user", "content": f"Write {number} words."}] for number in range(40)]
    data = write_jsonl(
        [{"prompt": messages, "level": number, "length": 900} for number, messages in enumerate(asked)], "m.jsonl"
    )
    words = ["--reward_funcs", "own_style.brevity", "soft_format_reward_func", "--allow_custom_rewards", "true"]
    assert train_grpo.main([*tiny_run(dataset_name=data, max_steps="1", eval_every="1"), *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no gold answers: evaluation reports rewards and format" in shown
    summary, compared = read("eval_after.json"), read("comparison.json")
    lines = Path("run/completions_after.jsonl").read_text().splitlines()
    levels = [json.loads(line)["rewards"]["brevity"] for line in lines]
    assert [json.loads(line)["level"] / 10 for line in lines] == levels  # the row's column
    # one that is called like a figure of the evaluation
    assert all(json.loads(line)["row"] == {"length": 900} and json.loads(line)["length"] < 900 for line in lines)
    assert summary["rewards/brevity"] == pytest.approx(sum(levels) / 10) and summary["reward"] > 0
    assert not any("accuracy" in key for key in summary) and summary["n"] == compared["n"] == 10
    assert compared["reward"]["difference"] == pytest.approx(summary["reward"] - read("eval_before.json")["reward"])
    assert "mean reward" in compared["sentence"] and "lenient" not in compared
    card = Path("run/README.md").read_text()
    assert "| Reward, weighted sum |" in card and "Accuracy" not in card
    page = Path("run/report.html").read_text()
    assert "Reward, weighted sum" in page and "Accuracy, lenient" not in page and "Gold answer" not in page
    assert tool(["xray", "run", "--allow_custom_rewards", "true"]) == 0
    shown = capsys.readouterr().out
    assert "completions_after.jsonl: 10 rows, " in shown and f"brevity{summary['rewards/brevity']:33.3f}" in shown


def test_a_run_on_two_data_sets_keeps_where_each_row_is_from(tiny_run, write_jsonl):
    sums = [{"question": f"What is {a} + 1?", "answer": a + 1} for a in range(30)]
    Path("other.json").write_text(
        json.dumps([{"prompt": f"What is {a} - 1?", "answer": f"#### {a - 1}"} for a in range(20)])
    )
    words = ["--dataset_name", write_jsonl(sums, "sums.jsonl"), "other.json"]
    assert train_grpo.main([*tiny_run(dataset_name=None, max_steps="1"), *words]) == 0
    held_out = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert {record["source"] for record in held_out} <= {"sums", "other"}
    assert all(("+" in record["question"]) == (record["source"] == "sums") for record in held_out)
    assert read("run.json")["data"]["train"] == 50 - len(held_out) == 38
    assert read("run.json")["settings"]["run_name"] == "Tiny-60K-GRPO-sums+other"


def test_a_judge_that_raises_gives_no_accuracy_but_the_reason(tiny_run, write_jsonl, capsys):
    """Which costs nobody the training; 0 % would be a result."""
    Path("my_judge.py").write_text("def reads_hint(text, row): return row['hint'] in text\n")
    rows = [{"question": f"{n} + 1?", "hint": str(n + 1)} for n in range(40)]
    words = tiny_run(
        dataset_name=write_jsonl(rows[:30]),
        eval_dataset_name=write_jsonl([{"question": row["question"]} for row in rows[30:]], "held_out.jsonl"),
        max_steps="2", eval_every="1", judge="my_judge.reads_hint", allow_custom_rewards="true",
    )  # fmt: skip
    assert train_grpo.main([*words, "--reward_funcs", "xmlcount_reward_func"]) == 0
    reason = "judge my_judge.reads_hint raises KeyError: 'hint'"
    for name in ("eval_before", "eval_after"):
        summary = read(f"{name}.json")
        assert summary["judge_error"] == reason and not any("accuracy" in key for key in summary)
    compared = read("comparison.json")
    assert (compared["verdict"], compared["sentence"]) == ("no_accuracy", f"No accuracy: {reason}.")
    assert read("run.json")["status"] == "finished" and Path("run/model.safetensors").exists()
    shown = " ".join(capsys.readouterr().out.split())
    assert f"note: {reason}; this evaluation has no accuracy" in shown and f"No accuracy: {reason}." in shown
    for name in ("report.html", "README.md"):
        assert "No accuracy:" in Path("run", name).read_text()


def test_two_processes_ask_a_judge_once_a_completion(tiny_run, write_jsonl):
    """It may be a paid model."""
    Path("my_judge.py").write_text("def f(text, row): return not print(row['question'], file=open('asked', 'a'))\n")
    rows = [{"question": f"{n} + 1?"} for n in range(10)]
    words = tiny_run(
        dataset_name=write_jsonl([{"question": "2 + 2?"}] * 9), eval_dataset_name=write_jsonl(rows, "held_out.jsonl"),
        eval_only="true", judge="my_judge.f", allow_custom_rewards="true",
    )  # fmt: skip
    done = command(ROOT / "train_grpo.py", [*words, "--reward_funcs", "xmlcount_reward_func"], processes=2)
    assert done.returncode == 0 and read("eval_only.json")["accuracy_lenient"] == 1, done.stderr
    asked = Path("asked").read_text().splitlines()
    assert [asked.count(row["question"]) for row in rows[1:]] == [1] * 9  # preflight tries the first row
