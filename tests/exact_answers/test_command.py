"""python -m exact_answers grades a file, and the reward has TRL's signature."""

import json
import subprocess
import sys

import pytest
from helpers_runs import ROOT
from helpers_tables import each

from exact_answers import __main__, exact_reward
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


def test_arithmetic_is_wrong_unless_it_is_accepted(tmp_path, capsys):
    path = write(tmp_path / "rows.jsonl", {"text": r"\boxed{48 + 24}", "gold": "72"}, {"text": "72", "gold": "72"})
    assert main([path]) == 0 and "wrong, not computed: 1 (50.0%)" in capsys.readouterr().out
    assert main([path, "--accept-uncomputed"]) == 0 and "right: 2 of 2" in capsys.readouterr().out
    assert exact_reward(["48 + 24"], ["72"]) == [0.0] and exact_reward(["48 + 24"], ["72"], computed=False) == [1.0]


SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"  # line ends for str.splitlines, but not for JSON


def test_a_line_ends_where_json_has_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(__main__, "math_verify", lambda: None)
    rows = [{"text": f"It is{sign}7.{sign}", "gold": "7"} for sign in SEPARATORS]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    lines += ['{"text": "7",\r "gold": "7"}\r', " \r", ""]
    lines += [line.replace("\\u001c", "\x1c") for line in lines if "\\u001c" in line]
    for ending, first in (("\n", ""), ("\r\n", "\ufeff"), ("\n\n", "")):
        (tmp_path / "rows.jsonl").write_bytes((first + ending.join(lines)).encode())
        assert main([str(tmp_path / "rows.jsonl"), "--pattern", "text"]) == 0
        assert f"of {len(rows) + 2} (" in capsys.readouterr().out


def test_rows_on_which_math_verify_differs_are_listed(tmp_path, capsys):
    pytest.importorskip("math_verify")
    main([write(tmp_path / "rows.jsonl", {"text": "It is not 72.", "gold": "72"})])
    assert "differs on 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *(("{", "line 1 is not JSON"), ("[" * 200_000, "line 1 is not JSON")),
        *(('{"text": "7"}', "line 1 needs text or completion"), ("[7]", "line 1 needs")),
        *(('{"text": "7", "gold": []}', "line 1 needs"), ('{"text": [1], "gold": "7"}', "line 1 needs")),
    ],
    ids=range(6),
)
def test_a_file_that_cannot_be_graded_is_one_line(tmp_path, capsys, content, words):
    (tmp_path / "rows.jsonl").write_text(content)
    assert main([str(tmp_path / "rows.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert words in err and err.count("\n") == 1 and not out


OTHERS = (None, True, -1, 1.5, float("inf"), "x", [], {}, [1], [[]], {"a": 1}, [{"content": [1]}], "long " * 20_000)


@pytest.mark.parametrize("key", ["text", "completion", "gold", "answer"])
def test_any_other_value_is_graded_or_one_line(key, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(__main__, "math_verify", lambda: None)  # which takes minutes for the long text
    row = {"completion": "7", "answer": "7"} if key in ("completion", "answer") else {"text": "7", "gold": "7"}
    for other in OTHERS:
        status = main([write(tmp_path / "rows.jsonl", row | {key: other}), "--wrong"])
        assert (status, capsys.readouterr().err.count("\n")) in ((0, 0), (2, 1)), other


HOSTILE = "\x1b]0;title\x07\x1b[31m\x9b31m\u202e\r"


def test_no_text_or_name_reaches_the_terminal_raw(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(__main__, "math_verify", lambda: lambda text, gold: True)  # it differs on all rows
    rows = [{"text": f"It is {text}", "gold": [f"8{HOSTILE}", HOSTILE]} for text in ("7", HOSTILE)]
    for name in ("rows.jsonl", f"rows{HOSTILE}.jsonl"):
        assert main([write(tmp_path / name, *rows), "--wrong"]) == 0
    (tmp_path / name).write_text("{")
    assert main([str(tmp_path / name)]) == main([str(tmp_path / f"no{name}")]) == 2
    with pytest.raises(SystemExit):
        main([name, name])
    out, err = capsys.readouterr()
    assert "\\x1b]0;title" in out and all(sign.isprintable() or sign == "\n" for sign in out + err)


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


@each(
    [
        [{"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "7"}}]}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": "7"}, {"role": "assistant", "content": ""}],
        [{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": "7"}],
        [{"role": "assistant", "content": [{"type": "image", "url": "7"}]}],
        *([], ""),
    ]
)
def test_a_completion_without_content_earns_nothing(completion):
    assert exact_reward([completion], ["7"]) == [0.0] and exact_reward([completion], [None]) == [None]


@each(
    ["7", [{"content": "7"}], (({"role": "assistant", "content": "7"},),), [{"content": [{"text": "It is "}, "7."]}]]
)
def test_a_text_or_the_last_message_counts(completion):
    assert exact_reward([completion], ["7"]) == [1.0]


WRONG = {  # completions by the type that the error names
    "int": (7, [7], [{"content": 7}], [{"content": [7]}], [{"content": [{"text": 7}]}]),
    "dict": ({"answer": "7"}, {"content": "7"}, [{"answer": "7"}]),
    "str": (["7"],),
    "list": ([[{"content": "7"}]],),
    "NoneType": (None, [None]),
    "bytes": (b"7", [{"content": b"7"}]),
}


@each([(name, completion) for name, completions in WRONG.items() for completion in completions])
def test_any_other_completion_is_a_clear_error(name, completion):
    with pytest.raises(TypeError, match=rf"^(a|the content of a) completion.* an? {name}; it must [^.]*$"):
        exact_reward([completion], ["7"])


@each([((1, 2), "(1,2)", "1"), (("a", "b"), "(a, b)", "a"), ((1, (2, 3)), "(1,(2,3))", "(1,2,3)"),
    ([1, 2], "2", "(1,2)"), ([(1, 2), 5], "(1, 2)", "1"), (0.5, "1/2", "5"), ([None, "7"], "7", "8")])  # fmt: skip
def test_a_tuple_is_one_answer_and_a_list_is_alternatives(gold, right, wrong):
    assert exact_reward([right, wrong], [gold] * 2) == [1.0, 0.0]
