"""benchmarks/sweep.py: its controls train on other answers, and its table has each arm's gain and advantage."""

import json
from pathlib import Path

import sweep
from helpers_report import write_learner
from helpers_runs import DEMO


def test_shuffled_rows_have_the_answers_of_others():
    sweep.write_shuffled(Path("shuffled.jsonl"))
    rows, original = (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in (Path("shuffled.jsonl"), DEMO / "train.jsonl")
    )
    assert [row["question"] for row in rows] == [row["question"] for row in original]
    assert sorted(row["answer"] for row in rows) == sorted(row["answer"] for row in original)
    assert sum(row["answer"] == old["answer"] for row, old in zip(rows, original, strict=True)) < len(rows) / 10


def cells(arm, shown):
    line = next(line for line in shown.splitlines() if line.split("│")[1:2] and line.split("│")[1].strip() == arm)
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_the_table_has_gains_and_advantages_of_finished_runs(capsys):
    output = Path("runs")
    output.mkdir()
    for seed, gains in {1: {"real": 4, "chance": 1}, 2: {"real": 5}, 3: {"real": 6, "chance": 1}}.items():
        for arm, gain in gains.items():
            write_learner(output / f"{arm}-seed{seed}", gain)
    words = ["controls", "--output", "runs", "--arms", "--seeds"]
    assert sweep.main([*words, "1"]) == 0
    shown = capsys.readouterr().out
    assert cells("real", shown)[1:3] == ["1", "25.0 → 75.0"] and cells("real", shown)[3].startswith("+50.0 (")
    assert cells("chance", shown)[4].startswith("-37.5 (")
    assert sweep.main([*words, "1", "2", "3"]) == 0
    shown = capsys.readouterr().out
    assert cells("real", shown)[1:4] == ["1 2 3", "25.0 → 87.5", "+62.5 (+31.4 to +93.6)"]
    assert cells("chance", shown)[1] == "1 3" and cells("chance", shown)[4] == "-50.0 (-208.9 to +108.9)"
    assert "shuffled" not in shown and sweep.main(["controls", "--arms", "nope"]) == 2
