"""`prepare`: rows of any shape, and the mistakes of a function of one's own."""

import datetime
import json
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset
from helpers_runs import LEARNS

import examples.rows
import train_grpo
from grpo.core.errors import UserError
from grpo.data.dataset import make_prompts, prepared
from grpo.data.sources import load_source, take_split
from grpo.task.prompts import XML
from grpo.task.task import Task

BOXED = "So $n = \\boxed{6}$."
# Three made-up rows in the shape of each data set, and what the first and the last become
SHAPES = {
    "from_mmlu": (
        [
            {"question": f"Which is {n}?", "subject": "numbers", "choices": ["0", "1", "2", "3"], "answer": n}
            for n in (1, 2, 3)
        ],
        [("Which is 1?\nA. 0\nB. 1\nC. 2\nD. 3", "B"), ("Which is 3?\nA. 0\nB. 1\nC. 2\nD. 3", "D")],
    ),
    "from_mmlu of ARC": (
        [
            {"question": "Which is 1?", "choices": {"text": ["0", "1"], "label": labels}, "answerKey": labels[1]}
            for labels in (["A", "B"], ["1", "2"])
        ],
        [("Which is 1?\nA. 0\nB. 1", "B")] * 2,
    ),
    "from_alpaca": (
        [
            {"instruction": "Name the capital.", "input": "France", "output": "Paris"},
            {"instruction": "Say hello.", "input": "", "output": "hello"},
            {"instruction": "Add.", "input": "2 and 3", "output": "5"},
        ],
        [("Name the capital.\nFrance", "Paris"), ("Add.\n2 and 3", "5")],
    ),
    "from_verl": (
        [
            {
                "data_source": "made-up", "ability": "math", "extra_info": {"index": number},
                "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
                "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
            }
            for number in (1, 2, 3)
        ],
        [("What is 1 + 1?", "2"), ("What is 3 + 1?", "4")],
    ),
    "from_sharegpt": (
        [
            {"conversations": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]},
            {"conversations": [
                {"from": "system", "value": "Be short."}, {"from": "human", "value": "1 + 2?"},
                {"from": "gpt", "value": "3"},
            ]},
            {"conversations": [
                {"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"},
                {"from": "human", "value": "And 1 more?"}, {"from": "gpt", "value": "3"},
            ]},
        ],
        [("1 + 1?", "2"), ("And 1 more?", "3")],
    ),
    "from_prompt_completion": (
        [
            {"prompt": [{"role": "user", "content": f"{n} + 1?"}], "completion": [{"role": "assistant", "content": n}]}
            for n in ("1", "2", "3")
        ],
        [("1 + 1?", "1"), ("3 + 1?", "3")],
    ),
    "from_numina": (
        [
            {"source": "made-up", "problem": "Find n.", "solution": BOXED},
            {"source": "made-up", "problem": "Prove it.", "solution": "It holds by definition."},
            {"source": "made-up", "problem": "Find m.", "solution": "So $m = \\boxed{\\frac{1}{2}}$."},
        ],
        [("Find n.", "6"), ("Find m.", "\\frac{1}{2}")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_the_examples_read_the_rows_of_well_known_data_sets(name, tmp_path):
    rows, (first, last) = SHAPES[name]
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")  # as files of these sets come
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in ("rows.parquet", "rows.jsonl"):
        table = prepared(
            take_split(load_source(str(tmp_path / file)), "train"), getattr(examples.rows, name.split()[0]), file
        )
        made, reading = make_prompts(table, Task(XML), ["a reward"])
        assert len(made) == len(rows) - (name == "from_numina") and reading.dropped == 0
        assert [(made[index]["question"], made[index]["answer"]) for index in (0, -1)] == [first, last]
        assert made[0]["prompt"][-1] == {"role": "user", "content": first[0]}


SYSTEM = {"role": "system", "content": "Be brief."}
BEFORE = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "Yes."}]
LAST = {"role": "user", "content": "1 + 1?"}
KEPT = {  # columns beside those of `SHAPES`, and the messages before the last one
    "system": ({"system": "Be brief."}, [SYSTEM]),
    "system_prompt": ({"system_prompt": "Be brief."}, [SYSTEM]),
    "history": ({"history": [["1?", "Yes."]]}, BEFORE),
    "history of messages": (
        {"history": [{"from": "human", "value": "1?"}, {"role": "assistant", "content": "Yes."}]},
        BEFORE,
    ),
    "both": ({"system": "Be brief.", "history": [["1?", "Yes."]]}, [SYSTEM, *BEFORE]),
    "as text": ({"system": "Be brief.", "history": json.dumps([["1?", "Yes."]])}, [SYSTEM, *BEFORE]),
    "empty": ({"system": "", "history": []}, []),
    "none": ({"system": None, "history": None}, []),
}
TALKS = {
    "from_sharegpt": {"conversations": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]},
    "from_alpaca": {"instruction": "1 + 1?", "input": "", "output": "2"},
    "from_prompt_completion": {"prompt": "1 + 1?", "completion": "2"},
}


@pytest.mark.parametrize("reader", TALKS)
@pytest.mark.parametrize("name", KEPT)
def test_a_rows_system_text_and_history_are_kept(name, reader):
    columns, before = KEPT[name]
    row = getattr(examples.rows, reader)(TALKS[reader] | columns)
    asked = [LAST] if before or reader == "from_sharegpt" else "1 + 1?"
    assert row == {"question": [*before, *asked] if before else asked, "answer": "2"}


def test_a_conversations_own_system_text_comes_before_the_columns():
    talk = [{"from": "system", "value": "Be short."}, *TALKS["from_sharegpt"]["conversations"]]
    row = examples.rows.from_sharegpt({"conversations": talk, "system": "Be brief.", "history": [["1?", "Yes."]]})
    assert row["question"] == [SYSTEM | {"content": "Be short."}, *BEFORE, LAST]


@pytest.mark.parametrize("name", ["from_mmlu", "from_sharegpt", "from_prompt_completion"])
def test_the_examples_read_lists_that_a_csv_file_has_as_text(name):
    rows, (first, last) = SHAPES[name]
    for write in (json.dumps, str):
        texts = [{key: write(cell) if isinstance(cell, list) else cell for key, cell in row.items()} for row in rows]
        pd.DataFrame(texts).to_csv("rows.csv", index=False)
        table = prepared(take_split(load_source("rows.csv"), "train"), getattr(examples.rows, name), "rows.csv")
        made, _ = make_prompts(table, Task(XML), ["a reward"])
        assert [(made[index]["question"], made[index]["answer"]) for index in (0, -1)] == [first, last]


def test_choices_that_numpy_wrote_are_refused():
    row = {"question": "?", "choices": "['1' '2']", "answer": 1}
    with pytest.raises(UserError, match=r"row 1 of data: ValueError: .*1' '2'.* is not a list or an object in JSON"):
        prepared([row], examples.rows.from_mmlu, "data")


def test_messages_keep_their_own_system_prompt_and_other_columns_stay():
    conversation = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 2?"}]
    rows = Dataset.from_list([{"turns": conversation, "level": 3}])
    table = prepared(rows, lambda row: {"question": row["turns"], "answer": 3, "level": row["level"]}, "data")
    made, _ = make_prompts(table, Task(XML), ["a reward"])
    assert made[0]["prompt"] == conversation and made[0]["level"] == 3


def broken(row):
    return {"question": row["question"], "answer": row["gold"]}


@pytest.mark.parametrize(
    "prepare, words",
    [
        (broken, r"row 1 of data: KeyError: 'gold' \(test_prepare.py:\d+\); the row has question, answer"),
        (lambda row: row["question"], r"row 1 of data: it returned '2 \+ 2\?'; return a dictionary with `question`"),
        (lambda row: {"text": "2"}, "row 1 of data: .*; return a dictionary with `question`"),
        (lambda row: None, "it drops all 1 rows of data"),
    ],
)
def test_a_mistake_in_it_names_the_row_and_the_users_line(prepare, words):
    with pytest.raises(UserError, match=f"prepare: {words}"):
        prepared(Dataset.from_list([{"question": "2 + 2?", "answer": 4}]), prepare, "data")


def test_it_is_a_function_in_the_script_or_of_a_file(tiny_run, write_jsonl, monkeypatch, capfd):
    rows = [{"problem": {"text": f"What is {a} + {b}?"}, "sum": a + b} for a in range(6) for b in range(6)]
    Path("my_rows.py").write_text(
        "def nested(row):\n    return {'question': row['problem']['text'], 'answer': row['sum']}\n"
    )
    argv = tiny_run(**LEARNS | {"dataset_name": write_jsonl(rows), "eval_samples": "4"}, dry_run="true")
    by_flag = [*argv, "--prepare", "my_rows.nested"]
    assert train_grpo.main([*by_flag, "--allow_custom_rewards", "true"]) == 0
    assert "32 training rows" in capfd.readouterr().out
    assert train_grpo.main(by_flag) == 2
    assert "prepare: 'my_rows.nested' runs the code of my_rows.py; if you trust it" in capfd.readouterr().err

    def nested(row):
        return {"question": row["problem"]["text"], "answer": row["sum"]}

    monkeypatch.setitem(train_grpo.HYPERPARAMETERS, "prepare", nested)
    assert train_grpo.main(argv) == 0
    assert "32 training rows" in capfd.readouterr().out
    assert train_grpo.main([*argv, "--question_column", "problem"]) == 2
    assert "question_column: `prepare` calls them question and answer" in capfd.readouterr().err


def test_each_row_has_all_columns():
    rows = [{"text": "a"}, {"text": "b", "hint": "c"}]
    table = prepared(rows, lambda row: {"question": row["text"], "hint": row["hint"]}, "data")
    assert [row["hint"] for row in table] == [None, "c"]


def leaves(row):
    raise SystemExit(3)


class Odd:
    """Of no kind that a table can hold."""


@pytest.mark.parametrize(
    "prepare, words",
    [
        (leaves, r"row 1 of data: SystemExit: 3 \(test_prepare.py:\d+\)"),
        (lambda row: {"question": "?", "answer": Odd()}, "row 1 of data: .*Odd"),
        (lambda row: {"question": "?", "answer": 1j}, "row 1 of data: .*complex"),
        (lambda row: {"question": "?", 1: "2"}, "row 1 of data: 1 is not a column's name"),
    ],
)
def test_what_no_table_holds_is_named_with_its_row(prepare, words):
    with pytest.raises(UserError, match=f"prepare: {words}"):
        prepared(Dataset.from_list([{"question": "2 + 2?", "answer": 4}]), prepare, "data")


def test_cells_of_several_kinds_are_kept_apart():
    cells = iter([1, {"on": datetime.date(2026, 1, 2)}, "text"])
    rows = Dataset.from_list([{"question": "?"}] * 3)
    table = prepared(rows, lambda row: {"question": "?", "mixed": next(cells)}, "data")
    made, _ = make_prompts(table, Task(XML), [])
    assert made["mixed"][:] == [1, {"on": "2026-01-02"}, "text"]
