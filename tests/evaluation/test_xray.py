"""The X-ray: the golden values come out, each suspicious kind is recognised, and no line can break it."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_runs import ROOT, SHARED
from helpers_texts import GOOD

from grpo.data.gold import gold_answers
from grpo.evaluation import xray
from rewards import GIST_REWARDS, REWARD_FUNCS, THINK_FORMAT, XML_COT_FORMAT


def line(completion, answer="7", **others):
    return json.dumps({"completion": completion, "answer": answer, **others}).encode()


def scored(completion, answer="7"):
    rows, bad = xray.read([line(completion, answer)])
    assert not bad
    return xray.score(rows, xray.select(None, {}, xray.USUAL))[0]


# --- Values


def test_golden_values_come_out_of_the_command(capsys):
    path = SHARED / "golden" / "rewards.jsonl"
    if not path.exists():
        pytest.skip("the golden vectors are not beside this checkout")
    golden = [json.loads(row) for row in path.read_text(encoding="utf-8").split("\n") if row]
    assert xray.main([str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["rows"]) == len(golden) >= 400 and result["bad_lines"] == []
    for number, (row, expected) in enumerate(zip(result["rows"], golden, strict=True), start=1):
        values = {name: expected[name.removesuffix("_reward_func")] for name in GIST_REWARDS}
        assert row["rewards"] == pytest.approx(values, abs=1e-12)
        assert row["total"] == pytest.approx(sum(values.values()), abs=1e-12)
        assert (row["line"], row["answer"], row["extracted"]) == (number, expected["answer"], expected["extracted"])


def test_the_summary_comes_first_then_five_flagged_rows(write_jsonl, capsys):
    path = write_jsonl([{"completion": GOOD, "answer": "7"}, {"completion": GOOD[:-1], "answer": "8"}] * 8)
    assert xray.main([path]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "16 rows, 8 of them flagged"
    assert [line.split() for line in out[1:4]] == [["reward", "mean", ">", "0"], ["xmlcount", "0.473", "100%"],
        ["soft_format", "0.500", "100%"]]  # fmt: skip
    assert out[7].split() == ["total", "2.723", "100%"] and out[9].endswith("penalizes all its text (8 of 16)")
    row = "gold '8', extracted '7', total 1.446 (0.446 0.5 0 0.5 0)"
    assert out[10:] == [*(f"  line {number}: {row}" for number in range(2, 12, 2)), "  and 3 more (--all)"]
    assert xray.main([path, "--all"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out.count(f"  line 16: {row}") == 2 and "  line 15: gold '7', extracted '7', total 4.000" in out[-2]


def test_a_completion_without_the_tag_has_nothing_extracted(write_jsonl, capsys):
    assert xray.main([write_jsonl([{"completion": "7", "answer": "7"}])]) == 0
    assert "  line 1: gold '7', nothing marks it: '7', total " in capsys.readouterr().out


def test_values_that_are_not_finite_have_no_part_in_the_sums(write_jsonl, monkeypatch, capsys):
    monkeypatch.setitem(REWARD_FUNCS, "odd", lambda completions, **_: [None, float("nan"), float("inf"), 1])
    path = write_jsonl([{"completion": GOOD, "answer": "7"}] * 4)
    assert xray.main([path, "--json", "--reward_funcs", "odd"]) == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [row["rewards"]["odd"] for row in result["rows"]] == [None, None, None, 1.0]
    assert [row["total"] for row in result["rows"]] == [0, 0, 0, 1]
    assert result["totals"]["odd"] == {"mean": 1.0, "positive": 1.0}
    monkeypatch.setitem(REWARD_FUNCS, "odd", lambda completions, **_: [None] * len(completions))
    assert xray.main([path, "--reward_funcs", "odd"]) == 0 == xray.main([path, "--json", "--reward_funcs", "odd"])


# --- Which rewards

THINK = THINK_FORMAT.format(reasoning="3 + 4 = 7", answer="7")


def in_a_run(tmp_path, capsys, completion, *words, template=XML_COT_FORMAT, **settings):
    """What --json prints of a completion in the directory of a run with these settings, and stderr."""
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings, "prompt": {"completion": template}}))
    (tmp_path / "completions_after.jsonl").write_bytes(line(completion))
    assert xray.main([str(tmp_path / "completions_after.jsonl"), "--json", *words]) == 0
    out, err = capsys.readouterr()
    row = json.loads(out)["rows"][0]
    return row["rewards"], row["suspicious"], err


def test_rewards_by_name(write_jsonl, capsys):
    path = write_jsonl([{"completion": THINK, "answer": "7"}])
    assert xray.main([path, "--reward_funcs", "step_verified_reward_func", "int_reward_func", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"][0]["rewards"] == pytest.approx({"step_verified_reward_func": 0.6, "int_reward_func": 0.5})
    assert list(result["totals"]) == ["step_verified_reward_func", "int_reward_func", "total"]
    for name in ("length_reward_func", "my_rewards.own", "zzz"):
        assert xray.main([path, "--reward_funcs", name]) == 2
        message = capsys.readouterr().err
        assert f"{name!r} cannot be scored here; use one or more of xmlcount_reward_func" in message


def test_a_runs_own_rewards_and_parameters_are_used(tmp_path, capsys):
    names = ["strict_format_reward_func", "step_verified_reward_func", "length_reward_func", "mine.own"]
    args = {"step_verified_reward_func": {"line_value": 3}, "length_reward_func": {"low": 1}, "own": {"x": 1}}
    found, suspicious, err = in_a_run(
        tmp_path, capsys, THINK, reward_funcs=names, reward_args=args, template=THINK_FORMAT
    )
    assert found == pytest.approx({"strict_format_reward_func": 0.5, "step_verified_reward_func": 3.4})
    assert suspicious == []
    assert err == "not scored, because they need more than completions and answers: length_reward_func, mine.own\n"
    found, _, err = in_a_run(tmp_path, capsys, THINK, "--reward_funcs", "int_reward_func", reward_funcs=names)
    assert (found, err) == ({"int_reward_func": 0.5}, "")


def test_suspicions_follow_the_format_of_the_run(tmp_path, capsys):
    empty = THINK_FORMAT.format(reasoning="3 + 4", answer="")
    assert in_a_run(tmp_path, capsys, empty)[1] == []
    assert in_a_run(tmp_path, capsys, empty, template=THINK_FORMAT)[1] == ["empty_answer"]
    assert in_a_run(tmp_path, capsys, THINK[:-1], template=THINK_FORMAT)[1] == ["no_newline"]
    assert in_a_run(tmp_path, capsys, GOOD[:-1])[1] == ["no_newline"]


def test_where_no_reward_of_the_run_can_be_scored_the_five_are(tmp_path, capsys):
    found, _, err = in_a_run(tmp_path, capsys, GOOD, reward_funcs=["get_soft_overlong_punishment"])
    assert list(found) == GIST_REWARDS and err.endswith(": get_soft_overlong_punishment\n")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "is not a run's record (JSONDecodeError)"),
        ("[]", "is not a run's record (TypeError)"),
        ('{"settings": {}, "prompt": {}}', "is not a run's record (KeyError)"),
        ('{"settings": {}, "prompt": {"completion": "no places"}}', "template 'no places'"),
    ],
)
def test_a_broken_record_is_one_line(record, message, tmp_path, capsys):
    (tmp_path / "run.json").write_text(record)
    (tmp_path / "rows.jsonl").write_bytes(line(GOOD))
    assert xray.main([str(tmp_path / "rows.jsonl")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


# --- Reading


def test_chat_completions_count_like_their_text():
    chat = scored([{"role": "assistant", "content": GOOD}])
    assert chat == scored(GOOD) and chat["total"] == pytest.approx(4)


@pytest.mark.parametrize(("answer", "gold"), [(72.0, "72"), ("2 + 2\n#### 4", "4"), ("$1,000", "1000")])
def test_gold_answers_are_those_of_training(answer, gold):
    assert xray.read([line("x", answer)]) == ([{"line": 1, "completion": "x", "answer": gold}], {})
    assert gold_answers([answer]) == [gold]


BAD = [
    (b"hello", "not valid JSON (Expecting value"),
    (b"[" * 100_000, "not valid JSON"),
    (b'{"completion": "x", "answer": ' + b"9" * 5000 + b"}", "not valid JSON"),
    (b'{"completion": "\xff", "answer": "7"}', "utf-8"),
    (b"[1]", "not a JSON object"),
    (b'{"answer": "7"}', "fields `completion` and `answer`"),
    (line(["7"]), "`completion` is neither"),
    (line([{"role": "assistant", "content": [{"type": "text", "text": "7"}]}]), "`completion` is neither"),
    (line("7", float("nan")), "`answer` is not a gold answer"),
    (line("7", ""), "`answer` is not a gold answer"),
]


def test_bad_lines_are_named_by_number_and_the_rest_is_scored(tmp_path, capsys):
    lines = [b"", *(bad for bad, _ in BAD), b"  \r", line(GOOD, question="kept out")]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    assert xray.main(["rows.jsonl", "--json"]) == 1
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert [row["line"] for row in result["rows"]] == [len(BAD) + 3]
    assert [bad["line"] for bad in result["bad_lines"]] == list(range(2, len(BAD) + 2))
    for bad, (_, reason), message in zip(result["bad_lines"], BAD, err.splitlines(), strict=True):
        assert reason in bad["reason"] and message == f"line {bad['line']}: {bad['reason']}"


def test_lines_end_at_newlines_only_after_a_byte_order_mark(tmp_path, capsys):
    text = json.dumps({"completion": "a\u2028b\x85c <answer>7</answer>", "answer": "7"}, ensure_ascii=False)
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\r\n{text}".encode())
    assert xray.main(["rows.jsonl", "--json"]) == 0
    assert [row["line"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 3]


# --- Suspicions

R = "<reasoning>\nr\n</reasoning>\n"
CASES = [  # kind, a completion that is one, a completion that is none; gold is 7
    ("unpaid", "<answer>7 apples</answer>", "<answer>7</answer>"),
    ("unpaid", "3 + 4 = 7.0", "3 + 4 = 8"),
    ("unpaid", "<answer>8</answer> or rather 7", "<answer>8</answer> or rather 9"),
    ("empty_answer", R + "<answer>\n\n</answer>\n", R + "<answer>\n7\n</answer>\n"),
    ("untagged", " 7\n", "<answer>7"),
    ("several_answers", "<answer>6</answer><answer>7</answer>", "<answer>7</answer></answer>"),
    ("empty_reasoning", "<reasoning>\n\n</reasoning>\n<answer>\n7\n</answer>\n", GOOD),
    ("empty_reasoning", "<reasoning>\n...\n</reasoning>", "<reasoning>..7</reasoning>"),
    ("cut_off", "<reasoning>\n3 + 4", "3 + 4"),
    ("cut_off", R + "<answer>\n7", R + "<answer>\n7\n</answer>"),
    ("other_digits", "<answer>²</answer>", "<answer>2</answer>"),
    ("costly_tail", R + "<answer>\n7\n</answer>\n" + "!" * 260, R + "<answer>\n7\n</answer>\n" + "!" * 240),
    ("no_newline", GOOD[:-1], GOOD),
    ("no_newline", GOOD[:-1], GOOD[:-1] + " done"),
]


@pytest.mark.parametrize(("kind", "one", "none"), CASES)
def test_each_kind_knows_a_row_of_it_from_a_row_that_is_not(kind, one, none):
    assert kind in scored(one)["suspicious"]
    assert kind not in scored(none)["suspicious"]


def test_every_kind_has_a_case_and_perfection_has_none():
    assert {kind for kind, *_ in CASES} == set(xray.KINDS)
    assert scored(GOOD)["suspicious"] == []


def test_json_lists_each_kinds_lines(write_jsonl, capsys):
    texts = [GOOD, "<answer>7 apples</answer>", R + "<answer></answer>"]
    path = write_jsonl([{"completion": text, "answer": "7"} for text in texts])
    assert xray.main([path, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["suspicious"] == {kind: {"unpaid": [2], "empty_answer": [3]}.get(kind, []) for kind in xray.KINDS}
    assert [row["suspicious"] for row in result["rows"]] == [[], ["unpaid"], ["empty_answer"]]


# --- Hostile text


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("[bold]7[/bold] [/nope]", "[bold]7[/bold] [/nope]"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\r\nb\u2028c", r"a\r\nb\u2028c"),
        ("half \ud800 \u202e", r"half \ud800 \u202e"),
    ],
)
def test_model_text_is_shown_and_not_obeyed(text, visible, write_jsonl, capsys):
    row = {"completion": f"<answer>{text} 7</answer>", "answer": "7"}
    assert xray.main([write_jsonl([row])]) == 0
    out = capsys.readouterr().out
    assert f"extracted '{visible} 7'" in out
    assert all(character.isprintable() or character == "\n" for character in out)
    assert xray.main([write_jsonl([{**row, "answer": text}]), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii() and json.loads(out)["rows"][0]["answer"] == text


def test_long_texts_are_cut_in_the_middle():
    assert xray.shown("x" * 30 + "7", 31) == "x" * 30 + "7"
    assert xray.shown("1" + "x" * 90 + "7", 12) == "1xxxxx…xxxx7"


@pytest.mark.parametrize("unit", ["<reasoning> ", "</answer>\n<answer>\n...\n", "1,"])
def test_a_line_of_a_million_characters_is_quick(unit, capsys):
    Path("rows.jsonl").write_bytes(line("<reasoning>" + unit * (1_000_000 // len(unit))))
    start = time.process_time()
    assert xray.main(["rows.jsonl"]) == 0
    assert time.process_time() - start < 5  # quadratic code takes minutes
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 160


# --- The command


def test_standard_input_and_a_terminal_that_is_not_utf8():
    done = subprocess.run(
        [sys.executable, "-m", "grpo", "xray", "-"],
        cwd=ROOT,
        input=line("é 中 7") + b"\n{\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 1 and err.startswith("line 2: not valid JSON") and err.count("\n") == 1
    assert out.isascii() and r"\xe9 \u4e2d 7" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["."], "directory"),
        ([], "FILE.jsonl is missing"),
        (["a", "b"], "b is one word too many"),
        (["a", "--js"], "--js: no such flag"),
        (["-"], "'-' holds no row that can be scored (line 2: not valid JSON"),
    ],
)
def test_exit_status_2_is_one_line(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\nquestion,answer\n1,2\n")))
    assert xray.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from grpo.evaluation import xray\n"
        "try: xray.main(['--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print([m for m in ('torch', 'numpy', 'rich', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--all" in done.stdout and done.stdout.endswith("[]\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGPIPE there")
def test_a_reader_that_goes_away_leaves_no_traceback(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes((line(GOOD) + b"\n") * 3000)
    words = [sys.executable, "-m", "grpo", "xray", str(tmp_path / "rows.jsonl"), "--all"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_file_that_is_not_there_is_a_readable_line(capsys):
    assert xray.main(["/nope"]) == 2
    assert "'/nope' cannot be read" in capsys.readouterr().err


# --- Other answers than those in tags


def test_answers_are_read_by_the_runs_pattern(tmp_path, capsys):
    (tmp_path / "run.json").write_text(
        json.dumps({"settings": {"reward_funcs": ["correctness_reward_func", "int_reward_func"]},
                    "prompt": {"completion": "{reasoning}\n\\boxed{{answer}}\n", "pattern": "boxed"}})
    )  # fmt: skip
    file = tmp_path / "completions_after.jsonl"
    file.write_bytes(b"\n".join(map(line, ["so \\boxed{7}", "so \\boxed{7.0}"])))
    assert xray.main([str(file), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert (first["extracted"], first["total"], second["extracted"]) == ("7", 2.5, "7.0")
    assert second["suspicious"] == ["unpaid"] and first["suspicious"] == []


def test_a_run_without_gold_answers_has_its_other_rewards(tmp_path, capsys):
    settings = {"reward_funcs": ["judge_reward_func", "xmlcount_reward_func"], "judge": "examples.countdown.is_right"}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings, "prompt": {"completion": XML_COT_FORMAT}}))
    file = tmp_path / "completions_after.jsonl"
    file.write_text(json.dumps({"completion": GOOD, "answer": None, "lenient": True}) + "\n")
    assert xray.main([str(file)]) == 0
    out, err = capsys.readouterr()
    assert "judge_reward_func" in err and "judge" not in out and "xmlcount" in out
    file.write_text(json.dumps({"completion": GOOD, "answer": None}) + "\n" + line(GOOD).decode())
    assert xray.main([str(file)]) == 1
    assert "line 1: `answer` is not a gold answer" in capsys.readouterr().err
