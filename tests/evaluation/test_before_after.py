"""grpo/evaluation/before_after.py: what a resumed run takes over, and when an evaluation replaces a run."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import train_grpo
from grpo.evaluation import before_after
from grpo.policy import loading


def test_an_evaluation_that_fails_leaves_the_earlier_run(tiny_run, tiny_model, monkeypatch, capsys):
    earlier = {name: Path("run") / name for name in ("run.json", "model.safetensors", "checkpoint-1/optimizer.pt")}
    for path in earlier.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")

    def fails(config):
        raise MemoryError("while loading")

    monkeypatch.setattr(loading, "load", fails)
    words = tiny_run(eval_only="true", eval_samples="2", overwrite_run="true", max_steps=None)
    with pytest.raises(MemoryError):
        train_grpo.main(words)
    assert all(path.read_text() == "{}" for path in earlier.values())


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
    Path("own_style.py").write_text("def brevity(completions, level): return [each / 10 for each in level]\n")
    asked = [[{"role": "user", "content": f"Write {number} words."}] for number in range(40)]
    data = write_jsonl([{"prompt": messages, "level": number} for number, messages in enumerate(asked)], "m.jsonl")
    words = ["--reward_funcs", "own_style.brevity", "soft_format_reward_func", "--allow_custom_rewards", "true"]
    assert train_grpo.main([*tiny_run(dataset_name=data, max_steps="1", eval_every="1"), *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no gold answers: evaluation reports rewards and format" in shown and "evaluate more" not in shown
    summary, compared = read("eval_after.json"), read("comparison.json")
    lines = Path("run/completions_after.jsonl").read_text().splitlines()
    levels = [json.loads(line)["rewards"]["brevity"] for line in lines]
    assert summary["rewards/brevity"] == pytest.approx(sum(levels) / 4) and summary["reward_low"] is not None
    assert not any("accuracy" in key for key in summary) and summary["n"] == compared["n"] == 4
    assert compared["rewards/brevity"]["difference"] == 0 and "lenient" not in compared
    card = Path("run/README.md").read_text()
    assert "Without a gold answer to every question" in card and "| Reward, weighted sum |" in card
    page = Path("run/report.html").read_text()
    assert "Reward, weighted sum" in page and "Accuracy, lenient" not in page and "Gold answer" not in page


def test_a_run_on_two_data_sets_reports_each(tiny_run, write_jsonl, capsys):
    sums = [{"question": f"What is {a} + 1?", "answer": a + 1} for a in range(30)]
    Path("other.json").write_text(
        json.dumps([{"prompt": f"What is {a} - 1?", "answer": f"#### {a - 1}"} for a in range(20)])
    )
    words = ["--dataset_name", write_jsonl(sums, "sums.jsonl"), "other.json"]
    assert train_grpo.main([*tiny_run(dataset_name=None, max_steps="1"), *words]) == 0
    assert {name: part["n"] for name, part in read("eval_after.json")["by_source"].items()} == {"sums": 3, "other": 2}
    assert read("comparison.json")["by_source"]["other"]["lenient"]["neither"] <= 2
    assert read("run.json")["data"]["sources"] == {"sums": 27, "other": 18}
    assert read("run.json")["settings"]["run_name"] == "Tiny-60K-GRPO-sums+other"
    shown = " ".join(capsys.readouterr().out.split())
    assert "By data set (questions)" in shown and "other (2), lenient" in shown
    assert "By data set" in Path("run/report.html").read_text()
    assert "| other (2 questions), strict |" in Path("run/README.md").read_text()
