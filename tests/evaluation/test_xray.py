"""The X-ray: the golden values come out, each suspicious kind is recognised, and no line can break it."""

import json
import time
from pathlib import Path

import pytest
from helpers_runs import SHARED
from helpers_texts import GOOD

from grpo.__main__ import main as tool
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


def test_golden_values_come_out():
    path = SHARED / "golden" / "rewards.jsonl"
    if not path.exists():
        pytest.skip("the golden vectors are not beside this checkout")
    golden = [json.loads(row) for row in path.read_text(encoding="utf-8").split("\n") if row]
    rows, bad = xray.read(path.read_bytes().split(b"\n"))
    rows = xray.score(rows, xray.select(None, {}, xray.USUAL))
    assert len(rows) == len(golden) >= 400 and not bad
    for number, (row, expected) in enumerate(zip(rows, golden, strict=True), start=1):
        values = {name: expected[name.removesuffix("_reward_func")] for name in GIST_REWARDS}
        assert row["rewards"] == pytest.approx(values, abs=1e-12)
        assert row["total"] == pytest.approx(sum(values.values()), abs=1e-12)
        assert (row["line"], row["answer"], row["extracted"]) == (number, expected["answer"], expected["extracted"])


def test_the_summary_comes_first_then_five_flagged_rows(write_jsonl, capsys):
    path = write_jsonl(
        [{"completion": GOOD, "answer": "7"}, {"completion": GOOD.replace("7", "7 apples"), "answer": "7"}] * 8
    )
    assert tool(["xray", path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("16 rows, 8 of them flagged\n") and out.count("  line ") == 5
    assert "line 2: gold '7', extracted '7 apples', total 1.500 (0.5 0.5 0.5 0 0)" in out


def test_values_that_are_not_finite_have_no_part_in_the_sums(monkeypatch):
    monkeypatch.setitem(REWARD_FUNCS, "odd", lambda completions, **_: [None, float("nan"), float("inf"), 1])
    rows, _ = xray.read([line(GOOD)] * 4)
    rows = xray.score(rows, xray.select(["odd"], {}, xray.USUAL))
    assert [row["rewards"]["odd"] for row in rows] == [None, None, None, 1.0]
    assert [row["total"] for row in rows] == [0, 0, 0, 1]
    assert xray.totals(rows)["odd"] == {"mean": 1.0, "positive": 1.0}
    assert xray.totals(rows[:3])["odd"] == {"mean": None, "positive": None}


# --- Which rewards

THINK = THINK_FORMAT.format(reasoning="3 + 4 = 7", answer="7")


def in_a_run(tmp_path, completion, names=None, template=XML_COT_FORMAT, pattern="xml", **settings):
    """A completion in the directory of a run with these settings, as it is scored."""
    record = {"settings": settings, "prompt": {"completion": template, "pattern": pattern}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    own, form = xray.run_settings(tmp_path / "completions_after.jsonl")
    rows, _ = xray.read([line(completion)])
    return xray.score(rows, xray.select(names, own, form), form)[0]


def test_rewards_by_name(write_jsonl, capsys):
    path = write_jsonl([{"completion": THINK, "answer": "7"}])
    assert tool(["xray", path, "--reward_funcs", "step_verified_reward_func", "int_reward_func"]) == 0
    out = capsys.readouterr().out
    assert "step_verified" in out and "xmlcount" not in out
    for name in ("length_reward_func", "my_rewards.own"):
        assert tool(["xray", path, "--reward_funcs", name]) == 2
        assert f"{name!r} cannot be scored here; use one or more of xmlcount" in capsys.readouterr().err


def test_a_runs_own_rewards_and_parameters_are_used(tmp_path, capsys):
    names = ["strict_format_reward_func", "step_verified_reward_func", "length_reward_func", "mine.own"]
    args = {"step_verified_reward_func": {"line_value": 3}, "length_reward_func": {"low": 1}, "own": {"x": 1}}
    found = in_a_run(tmp_path, THINK, template=THINK_FORMAT, reward_funcs=names, reward_args=args)
    assert found["rewards"] == pytest.approx({"strict_format_reward_func": 0.5, "step_verified_reward_func": 3.4})
    assert found["suspicious"] == []
    assert "length_reward_func, mine.own" in capsys.readouterr().err
    assert in_a_run(tmp_path, THINK, ["int_reward_func"], reward_funcs=names)["rewards"] == {"int_reward_func": 0.5}
    found = in_a_run(tmp_path, GOOD, reward_funcs=["get_soft_overlong_punishment"])
    assert list(found["rewards"]) == GIST_REWARDS  # where none of the run's can be scored


def test_suspicions_follow_the_format_of_the_run(tmp_path):
    empty = THINK_FORMAT.format(reasoning="3 + 4", answer="")
    assert in_a_run(tmp_path, empty)["suspicious"] == []
    assert in_a_run(tmp_path, empty, template=THINK_FORMAT)["suspicious"] == ["empty_answer"]


def test_answers_are_read_by_the_runs_pattern(tmp_path):
    boxed = {"template": "{reasoning}\n\\boxed{{answer}}\n", "pattern": "boxed", "reward_funcs": GIST_REWARDS[3:]}
    first, second = (in_a_run(tmp_path, text, **boxed) for text in ("so \\boxed{7}", "so \\boxed{7.0}"))
    assert (first["extracted"], first["total"], second["extracted"]) == ("7", 2.5, "7.0")
    assert second["suspicious"] == ["unpaid"] and first["suspicious"] == []


def test_a_run_without_gold_answers_has_its_other_rewards(tmp_path, capsys):
    settings = {"reward_funcs": ["judge_reward_func", "xmlcount_reward_func"], "judge": "examples.countdown.is_right"}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings, "prompt": {"completion": XML_COT_FORMAT}}))
    file = tmp_path / "completions_after.jsonl"
    file.write_text(json.dumps({"completion": GOOD, "answer": None, "lenient": True}) + "\n")
    assert tool(["xray", str(file)]) == 0
    out, err = capsys.readouterr()
    assert "judge_reward_func" in err and "judge" not in out and "xmlcount" in out
    file.write_text(json.dumps({"completion": GOOD, "answer": None}) + "\n" + line(GOOD).decode())
    assert tool(["xray", str(file)]) == 1
    assert "line 1: `answer` is not a gold answer" in capsys.readouterr().err


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
    (b'{"completion": "\xff", "answer": "7"}', "utf-8"),
    (b'{"answer": "7"}', "fields `completion` and `answer`"),
    (line(["7"]), "`completion` is neither"),
    (line("7", float("nan")), "`answer` is not a gold answer"),
]


def test_bad_lines_are_named_by_number_and_the_rest_is_scored(tmp_path, capsys):
    lines = [b"", *(bad for bad, _ in BAD), b"  \r", line(GOOD, question="kept out")]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    assert tool(["xray", "rows.jsonl"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("1 rows")
    for number, ((_, reason), message) in enumerate(zip(BAD, err.splitlines(), strict=True), start=2):
        assert message.startswith(f"line {number}: ") and reason in message


@pytest.mark.parametrize("words", [["nowhere.jsonl"], ["."], ["rows.jsonl"], ["rows.jsonl", "--js"], []])
def test_a_mistake_is_one_line_and_status_2(words, capsys):
    Path("rows.jsonl").write_text("question,answer\n1,2\n")
    assert tool(["xray", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


# --- Suspicions

R = "<reasoning>\nr\n</reasoning>\n"
CASES = [  # kind, a completion that is one, a completion that is none; gold is 7
    ("unpaid", "<answer>7 apples</answer>", "<answer>7</answer>"),
    ("unpaid", "3 + 4 = 7.0", "3 + 4 = 8"),
    ("unpaid", "<answer>8</answer> or rather 7", "<answer>8</answer> or rather 9"),
    ("empty_answer", R + "<answer>\n\n</answer>\n", R + "<answer>\n7\n</answer>\n"),
    ("several_answers", "<answer>6</answer><answer>7</answer>", "<answer>7</answer></answer>"),
    ("cut_off", "<reasoning>\n3 + 4", "3 + 4"),
    ("cut_off", R + "<answer>\n7", R + "<answer>\n7\n</answer>"),
    ("costly_tail", R + "<answer>\n7\n</answer>\n" + "!" * 260, R + "<answer>\n7\n</answer>\n" + "!" * 240),
]


@pytest.mark.parametrize(("kind", "one", "none"), CASES)
def test_each_kind_knows_a_row_of_it_from_a_row_that_is_not(kind, one, none):
    assert kind in scored(one)["suspicious"]
    assert kind not in scored(none)["suspicious"]


def test_every_kind_has_a_case_and_perfection_has_none():
    assert {kind for kind, *_ in CASES} == set(xray.KINDS)
    assert scored(GOOD)["suspicious"] == []


# --- Hostile text


def test_model_text_is_shown_and_not_obeyed(write_jsonl, capsys):
    row = {"completion": "<answer>[bold]\x1b[31mred\u202e 7</answer>", "answer": "7"}
    assert tool(["xray", write_jsonl([row])]) == 0
    out = capsys.readouterr().out
    assert r"extracted '[bold]\x1b[31mred\u202e 7'" in out
    assert all(character.isprintable() or character == "\n" for character in out)


def test_a_line_of_a_million_characters_is_quick(capsys):
    Path("rows.jsonl").write_bytes(line("<reasoning>" + "</answer>\n<answer>\n...\n" * 40_000))
    start = time.process_time()
    assert tool(["xray", "rows.jsonl"]) == 0
    assert time.process_time() - start < 5  # quadratic code takes minutes
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 160
