"""The X-ray shows rewards as in training and suspicious rows, names bad lines, and runs no code unasked."""

import json
from pathlib import Path

import pytest
from helpers_texts import GOOD

from grpo.__main__ import main as tool
from grpo.tools import xray
from rewards import THINK_FORMAT, XML_COT_FORMAT

THINK = THINK_FORMAT.format(reasoning="3 + 4 = 7", answer="7")


def shown(capsys, *words, rows=None, status=0):
    """The tool's output for these rows: texts with the gold answer 7, or pairs of text and gold answer."""
    if rows is not None:
        pairs = [row if isinstance(row, tuple) else (row, "7") for row in rows]
        lines = [json.dumps({"completion": text, "answer": gold, "question": "3 + 4 = ?"}) for text, gold in pairs]
        Path("rows.jsonl").write_text("\n\n".join(lines))
    assert tool(["xray", "rows.jsonl", *words]) == status
    return capsys.readouterr().out


def write_run(template=XML_COT_FORMAT, pattern="xml", question="{question}", chat=False, **settings):
    prompt = {"system": "", "question": question, "completion": template, "pattern": pattern, "chat": chat}
    record = {"settings": settings, "prompt": prompt, "shots": [], "status": "finished", "step": 6}
    Path("run.json").write_text(json.dumps(record))


def write_evaluation(when, *records, step=6):
    grade = {"read": "7", "strict": True, "lenient": True, "format_strict": True, "format_soft": True, "row": {}}
    Path(f"completions_{when}.jsonl").write_text("".join(json.dumps(grade | record) + "\n" for record in records))
    Path(f"eval_{when}.json").write_text(json.dumps({"n": len(records), "step": step}))


def means(out):
    """The table of rewards: name → mean."""
    rows = [line.split() for line in out.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 3 and row[2].endswith("%")}


def test_the_summary_comes_first_then_five_flagged_rows(capsys):
    out = shown(capsys, rows=[GOOD, GOOD.replace("7", "7 apples")] * 8)
    assert out.startswith("16 of 16 right (lenient), 16 in the format, 8 flagged\n") and out.count("  line ") == 5
    assert (
        "line 3: gold: 7, answer read: 7 apples, right: value, xmlcount 0.5, soft_format 0.5, strict_format 0.5, int 0"
        in out
    )


def test_labels_are_read_whole_and_one_for_everything_is_said(capsys):
    write_run("{answer}", "text")
    out = shown(capsys, rows=[("billing", gold) for gold in ("billing", "account", "delivery", "broken") * 5])
    assert out.startswith(
        '5 of 20 right (lenient), 0 flagged\n100 % of the answers are "billing", the gold answer of 25 %'
    )
    out = shown(capsys, rows=[(text, text) for text in ("billing", "account", "delivery", "broken") * 5])
    assert out.startswith("20 of 20 right (lenient), 0 flagged\nreward")
    out = shown(capsys, rows=[("Billing.", "billing")])
    assert "line 1: gold: billing, answer read: Billing., " in out


def test_what_the_model_said_is_shown_where_nothing_marks_the_answer(capsys):
    out = shown(capsys, rows=[("Seven.", "7")])
    assert "answer read: Seven. (the whole completion, as nothing marks the answer)" in out


# --- Which rewards


def test_rewards_by_name(capsys):
    out = shown(capsys, "--reward_funcs", "step_verified_reward_func", "int_reward_func", rows=[THINK])
    assert set(means(out)) == {"step_verified", "int", "total"}
    for name, named in {"length_reward_func": "tokens", "mine.own": "--allow_custom_rewards true"}.items():
        assert tool(["xray", "rows.jsonl", "--reward_funcs", name]) == 2
        err = capsys.readouterr().err
        assert name in err and named in err


def test_rewards_follow_the_format_of_the_files_run(capsys):
    write_run(THINK_FORMAT)
    out = shown(capsys, rows=[THINK, THINK_FORMAT.format(reasoning="3 + 4", answer="")])
    assert means(out)["strict_format"] == 0.5 and "format right, answer empty (1 of 2)" in out
    write_run("{reasoning}\n\\boxed{{answer}}\n", "boxed")
    out = shown(capsys, rows=["so \\boxed{7}", "so \\boxed{7.0}"])
    assert out.startswith("2 of 2 right (lenient), 2 in the format, 1 flagged\n")
    assert (means(out)["int"], means(out)["correctness"]) == (0.25, 1.0)


def test_rows_without_gold_answers_have_no_rewards_that_need_them(capsys):
    assert not means(shown(capsys, rows=[(GOOD, None), (GOOD, "7")]))
    assert means(shown(capsys, "--reward_funcs", "xmlcount_reward_func"))["xmlcount"] == 0.5
    for name in ("correctness_reward_func", "judge_reward_func"):
        assert tool(["xray", "rows.jsonl", "--reward_funcs", name]) == 2
        assert f"{name!r} needs an answer, which not every row has" in capsys.readouterr().err


OWN = """
ran = print("my code runs")
async def near(prompts, completions, answer, question, level, length, *, far=10, **_):
    assert question == ["kept out"]
    assert prompts[0][-1]["content"] == "Ask: kept out" and completions[0][-1]["role"] == "assistant"
    return [far * each + length[0] for each in level]
def fails(completions, nothing): pass
"""


def test_code_of_ones_own_is_run_only_if_it_is_needed_and_allowed(capsys):
    """It sees the row's columns, also one that is called like a figure of the evaluation."""
    Path("mine.py").write_text(OWN)
    write_run(judge="mine.is_right", question="Ask: {question}", chat=True)
    row = {"completion": GOOD, "answer": "8", "question": "kept out", "lenient": True}
    write_evaluation("before", row | {"row": {"level": 3, "length": 20}}, step=0)
    assert tool(["xray", "."]) == 0
    out = capsys.readouterr().out
    assert "my code runs" not in out and means(out)["total"] == 2.0
    assert out.startswith("completions_before.jsonl: 1 of 1 right (by mine.is_right), 1 in the format, 0 flagged\n")
    assert tool(["xray", ".", "--reward_funcs", "judge_reward_func"]) == 2
    assert "'judge_reward_func' needs the run's judge mine.is_right" in capsys.readouterr().err
    names = ["mine.near", "xmlcount_reward_func"]
    assert tool(["xray", ".", "--allow_custom_rewards", "true", "--reward_funcs", *names]) == 0
    out = capsys.readouterr().out
    assert out.count("my code runs") == 1
    assert means(out) == {"near": 50.0, "xmlcount": 0.5, "total": 50.5}
    write_run(judge="a_function_of_the_script")  # which no reward here asks
    assert tool(["xray", ".", "--allow_custom_rewards", "true", "--reward_funcs", "mine.fails"]) == 0
    assert "first: fails: TypeError: " in capsys.readouterr().out


def test_a_runs_recorded_rewards_are_shown_also_those_of_its_script(capsys):
    """Without any code: what they gave is in the run's records."""
    write_run(reward_funcs=["near", "int_reward_func"])
    lines = [
        {"completion": GOOD, "answer": "7", "row": {"level": 3}, "rewards": {"near": value, "int_reward_func": 0.5}}
        | {"reward": weighted}  # twice near
        for value, weighted in ((0.25, 1.0), (0.75, 2.0), (None, None))
    ]
    write_evaluation("after", *lines)
    assert tool(["xray", "."]) == 0
    # as the report has them: a row that a reward failed on is in no mean
    assert means(capsys.readouterr().out) == {"near": 0.5, "int": 0.5, "total": 1.5}
    assert tool(["xray", ".", "--reward_funcs", "int_reward_func"]) == 0
    assert means(capsys.readouterr().out) == {"int": 0.5, "total": 0.5}


def test_with_a_judge_of_ones_own_the_lenient_rule_flags_nothing(capsys):
    write_run(judge="mine.is_right")
    assert "lenient rule" not in shown(capsys, rows=["<answer>7 apples</answer>"])


def test_a_run_is_read_after_training_if_it_has_that(capsys):
    """But not by the answers of an earlier end than the run's last step."""
    write_run()
    write_evaluation("before", {"completion": "8", "answer": "7", "lenient": False}, step=0)
    for step, line in (
        (6, "completions_after.jsonl: 1 of 1 right (lenient), 1 in the format"),
        (4, "completions_before.jsonl: 0 of 1 right"),
    ):
        write_evaluation("after", {"completion": "7", "answer": "7"}, step=step)
        assert tool(["xray", "."]) == 0
        assert capsys.readouterr().out.startswith(line)


def test_a_reward_that_gives_none_for_a_row_has_no_value_there(capsys):
    Path("mine.py").write_text("def even(completions, level, **_): return [each % 2 or None for each in level]\n")
    rows = [{"completion": GOOD + str(level), "answer": "7", "level": level} for level in (1, 2, 3)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = shown(capsys, "--reward_funcs", "mine.even", "int_reward_func", "--allow_custom_rewards", "true")
    assert means(out) == {"even": 1.0, "int": 0.5, "total": 1.167}
    rows = [{"completion": "<answer>7 m</answer>", "answer": "7", "level": 2}]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = shown(capsys, "--reward_funcs", "mine.even", "int_reward_func", "--allow_custom_rewards", "true")
    assert "even –, int 0, total 0" in out and ["even", "–", "–"] in [line.split() for line in out.splitlines()]


# --- Reading


@pytest.mark.parametrize("gold", [7.0, "3 + 4\n#### 7", "$7", "7", ["seven", "7"], [7]])
def test_messages_and_gold_answers_are_read_as_in_training(gold, capsys):
    chat = [{"role": "assistant", "content": GOOD}]
    assert means(shown(capsys, rows=[(chat, gold)]))["total"] == 4


def test_decimals_are_read_as_they_are_written(capsys):
    Path("prices.jsonl").write_text('{"completion": "<answer>0.10</answer>", "answer": 0.10}\n')
    assert tool(["xray", "prices.jsonl", "--reward_funcs", "correctness_reward_func"]) == 0
    assert means(capsys.readouterr().out)["correctness"] == 2


@pytest.mark.parametrize(
    "line",
    [b"hello", b"[" * 100_000, b'{"completion": "\xff", "answer": "7"}', b'{"answer": "7"}',
     b'{"completion": ["7"], "answer": "7"}', b'{"completion": "7", "answer": NaN}'],
)  # fmt: skip
def test_a_bad_line_is_named_by_its_number(line, capsys):
    Path("rows.jsonl").write_bytes(b'{"completion": "7", "answer": "7"}\n\n' + line)
    assert tool(["xray", "rows.jsonl"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: rows.jsonl, line 3 ") and err.count("\n") == 1


@pytest.mark.parametrize("words", [["nowhere"], ["empty.jsonl"], ["empty.jsonl", "--js"], []])
def test_a_mistake_is_one_line_and_status_2(words, capsys):
    Path("empty.jsonl").write_text("\n")
    assert tool(["xray", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


# --- Suspicions

R = "<reasoning>\nr\n</reasoning>\n"
CASES = [  # words of the kind, a completion that is one, a completion that is none; gold is 7
    ("lenient rule", "<answer>7 apples</answer>", "<answer>7</answer>"),
    ("lenient rule", "3 + 4 = 7.0", "3 + 4 = 8"),
    ("lenient rule", "<answer>8</answer> or rather 7", "<answer>8</answer> or rather 9"),
    ("answer empty", R + "<answer>\n\n</answer>\n", R + "<answer>\n7\n</answer>\n"),
    ("several <answer>", "<answer>6</answer><answer>7</answer>", "<answer>7</answer></answer>"),
]


@pytest.mark.parametrize(("kind", "one", "none"), CASES)
def test_each_kind_knows_a_row_of_it_from_a_row_that_is_not(kind, one, none, capsys):
    assert kind in shown(capsys, rows=[one])
    assert kind not in shown(capsys, rows=[none, GOOD])


def test_model_text_is_shown_and_not_obeyed(capsys):
    out = shown(capsys, rows=["<answer>6</answer><answer>[bold]\x1b[31mred\u202e 7</answer>"])
    assert r"answer read: [bold]\x1b[31mred\u202e 7," in out
    assert all(character.isprintable() or character == "\n" for character in out)


def test_a_line_of_a_million_characters_comes_to_an_end(capsys):
    out = shown(capsys, rows=["<reasoning>" + "</answer>\n<answer>\n...\n" * 40_000])
    assert max(map(len, out.splitlines())) <= 160


def test_a_column_in_the_place_of_a_parameter_is_one_line(capsys):
    Path("rows.jsonl").write_text(json.dumps({"completion": GOOD, "answer": "7", "template": "x"}) + "\n")
    assert tool(["xray", "rows.jsonl"]) == 2
    assert "the data's column 'template' would replace the parameter 'template'" in capsys.readouterr().err


@pytest.mark.parametrize("fields", [{"row": 3}, {"rewards": {"a": 1.0}}, {"read": 5, "lenient": False}])
def test_grades_and_rewards_are_read_of_runs_alone(fields, capsys):
    """Another program's fields may have the same names."""
    Path("rows.jsonl").write_text(json.dumps({"completion": GOOD, "answer": "7", **fields}) + "\n")
    out = shown(capsys)
    assert means(out)["correctness"] == 2.0 and out.startswith("1 of 1 right")
    write_run(judge="mine.is_right")
    grade = {"read": "seven", "strict": True, "lenient": True, "format_strict": True, "format_soft": True}
    write_evaluation("after", {"completion": "7", "answer": "8", "question": "?"} | grade)
    assert tool(["xray", "completions_after.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 right (by mine.is_right), 1 in the format")
    (answer,) = xray.read_samples(Path("completions_after.jsonl"))
    assert grade.items() <= answer.to_json().items()


def test_a_file_of_ones_own_beside_a_run_is_graded(capsys):
    write_run()
    lines = [{"completion": [{"role": "assistant", "content": GOOD}], "answer": 7}, {"completion": "8", "answer": "7"}]
    Path("completions_mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert tool(["xray", "completions_mine.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("1 of 2 right (lenient), 1 in the format")
