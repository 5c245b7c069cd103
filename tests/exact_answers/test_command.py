"""python -m exact_answers grades a file, and the reward has TRL's signature."""

import json
import subprocess
import sys

import pytest
from helpers_runs import ROOT

from exact_answers import exact_reward
from exact_answers.__main__ import main


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_a_file_is_graded_with_shares_and_reasons(tmp_path, capsys):
    rows = [
        {"text": "It is 72.", "gold": "72"},
        {"completion": [{"role": "assistant", "content": "It is 71."}], "answer": 71},
        {"completion": "It is 71.", "answer": ["70", "72"]},
        {"text": "It is 71 or 72.", "gold": "72"},
    ]
    assert main([write(tmp_path / "rows.jsonl", *rows), "--wrong"]) == 0
    printed = capsys.readouterr().out
    assert "right: 2 of 4 (50.0%)" in printed and "wrong, two answers: 1 (25.0%)" in printed
    assert "two answers: read '71 or 72', gold 72" in printed


def test_rows_on_which_math_verify_differs_are_listed(tmp_path, capsys):
    pytest.importorskip("math_verify")
    main([write(tmp_path / "rows.jsonl", {"text": "It is not 72.", "gold": "72"})])
    assert "differs on 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "line 1 is not JSON"), ('{"text": "7"}', "line 1 needs text or completion"), ("[7]", "line 1 needs")],
)
def test_a_file_that_cannot_be_graded_is_one_line(tmp_path, capsys, content, words):
    (tmp_path / "rows.jsonl").write_text(content)
    assert main([str(tmp_path / "rows.jsonl")]) == 2 and words in capsys.readouterr().err


def test_a_missing_file_or_pattern_is_one_line(tmp_path):
    for arguments in (["missing.jsonl"], ["missing.jsonl", "--pattern", "latex"]):
        done = subprocess.run(
            [sys.executable, "-m", "exact_answers", *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_the_reward_has_the_signature_of_trl():
    chat = [[{"role": "assistant", "content": r"So \boxed{7}"}], "I get 8.", "", "7"]
    assert exact_reward(completions=chat, answer=["7", ["7", "8"], "7", None], prompts=[""] * 4) == [
        1.0,
        1.0,
        0.0,
        None,
    ]
    assert exact_reward(["Final: 7"], [7], pattern="Final: {answer}") == [1.0]
