"""An error about rows names a remedy that works as it is typed; golds that are lists or conflict are said."""

import json
import re
import shlex
from pathlib import Path

import pytest
from helpers_runs import LEARNS

import train_grpo

PAIRS = [(a, b) for a in range(2, 8) for b in range(2, 8)]


def of(**columns):
    """Rows of sums: each column is a function of both numbers."""
    return [{name: cell(a, b) for name, cell in columns.items()} for a, b in PAIRS]


def asked(a, b):
    return f"What is {a} + {b}?"


def total(a, b):
    return str(a + b)


def said(role, content="content", ask="user", reply="assistant"):
    return lambda a, b: [{role: ask, content: asked(a, b)}, {role: reply, content: total(a, b)}]


def first(turns):
    return lambda a, b: turns(a, b)[:1]


def last(turns):
    return lambda a, b: turns(a, b)[1:]


NEED_A_REMEDY = {  # rows, and settings
    "alpaca": (of(instruction=lambda a, b: "Add.", input=lambda a, b: f"{a} and {b}", output=total), {}),
    "arc": (of(
        question=asked, answerKey=lambda a, b: "1",
        choices=lambda a, b: {"text": [total(a, b), "0"], "label": ["1", "2"]},
    ), {"reward_funcs": "judge_reward_func"}),
    "alpaca without input": (of(instruction=asked, output=total), {}),
    "sharegpt": (of(conversations=said("from", "value", "human", "gpt")), {}),
    "conversations of roles": (of(conversations=said("role", "content")), {}),
    "messages and answer": (
        of(messages=lambda a, b: [{"role": "user", "content": asked(a, b)}], answer=total), {},
    ),
    "messages": (of(messages=said("role", "content")), {}),
    "verl": (of(
        data_source=lambda a, b: "made-up", prompt=lambda a, b: [{"role": "user", "content": asked(a, b)}],
        reward_model=lambda a, b: {"style": "rule", "ground_truth": total(a, b)},
    ), {}),
    "verl without a source": (of(prompt=asked, reward_model=lambda a, b: {"ground_truth": total(a, b)}), {}),
    "problem": (of(problem=asked, answer=total), {}),
    "problem and solution": (of(problem=asked, solution=total), {}),
    "solution": (of(question=asked, solution=total), {}),
    "capitals": (of(Question=asked, ANSWER=total), {}),
    "names of blanks": (of(**{"Prompt ": asked, "Expected_Answer": total}), {}),
    "messages and solution": (
        of(messages=lambda a, b: [{"role": "user", "content": asked(a, b)}], solution=total), {},
    ),
    "prompt and completion": (of(prompt=asked, completion=total), {}),
    "prompt and completion as messages": (of(prompt=first(said("role")), completion=last(said("role"))), {}),
    "template": (of(question=asked, answer=total, template=lambda a, b: "t"), {}),
}  # fmt: skip


OBJECTS = {  # rows, settings
    "object": (of(question=asked, answer=lambda a, b: {"value": a + b}), {}),
    "object of several": (of(question=asked, answer=lambda a, b: {"start": [0], "text": [total(a, b)]}), {}),
    "deep object": (of(question=asked, answer=lambda a, b: [{"unit": "", "of": {"label": a + b}}]), {}),
    "object with columns": (
        of(q=asked, gold=lambda a, b: {"value": a + b}), {"question_column": "q", "answer_column": "gold"},
    ),
    "objects of both": (
        of(question=lambda a, b: {"id": 1, "text": asked(a, b)}, answer=lambda a, b: {"text": [total(a, b)]}), {},
    ),
    "object beside messages": (
        of(prompt=lambda a, b: [{"role": "user", "content": asked(a, b)}], answer=lambda a, b: {"value": a + b}), {},
    ),
    "completion of messages": (
        of(prompt=first(said("role")), completion=last(said("role"))), {"answer_column": "completion"},
    ),
}  # fmt: skip


@pytest.fixture
def dry_run(tiny_run, capfd, write_jsonl):
    """The exit status of a dry run on rows, and what it said."""

    def run(rows, *words, **settings):
        given = LEARNS | {"dataset_name": rows if isinstance(rows, str) else write_jsonl(rows), "max_samples": None}
        status = train_grpo.main([*tiny_run(**given | settings, dry_run="true"), *words])
        out, err = capfd.readouterr()
        return status, " ".join((out + err).split())

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", NEED_A_REMEDY)
def test_the_remedy_works_as_it_is_typed(name, dry_run):
    rows, settings = NEED_A_REMEDY[name]
    status, said = dry_run(rows, **settings)
    assert status == 2 and "error: " in said
    if name == "template":
        Path("my_rows.py").write_text('def prepare(row):\n    row["theirs"] = row.pop("template")\n    return row\n')
        said = "--prepare my_rows.prepare --allow_custom_rewards true"
    flags = re.findall(r"--[a-z_]+ (?:'[^']+'|[\w.]+)", said)
    status, said = dry_run(rows, *shlex.split(" ".join(flags)), **settings)
    assert status == 0 and "27 training rows" in said and re.search(r"gold answers \"(\d+|A)\"", said), said


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_where_text_belongs_are_shown(name, dry_run):
    rows, settings = OBJECTS[name]
    columns = [column for column, cell in rows[0].items() if not isinstance(cell, str) and column != "prompt"]
    status, said = dry_run(rows, **settings)
    assert status == 2 and f"the cells of {' and '.join(columns)} in" in said
    assert f"are objects, not text, such as {json.dumps(rows[0][columns[0]])[:70]}" in said
    assert "write a `prepare` that returns the text in them" in said


def test_a_prepare_takes_the_text_out_of_objects(dry_run):
    """The one of docs/your-own-task.md."""
    Path("my_rows.py").write_text('def prepare(row): return {**row, "answer": row["answer"]["value"]}\n')
    words = "--prepare", "my_rows.prepare", "--allow_custom_rewards", "true"
    status, said = dry_run(OBJECTS["object"][0], *words)
    assert status == 0 and re.search(r'gold answers "\d+', said)


def test_one_instruction_for_all_rows_is_named(dry_run):
    rows, _ = NEED_A_REMEDY["alpaca"]
    status, said = dry_run(rows, question_column="instruction", answer_column="output")
    assert status == 2 and "1 different question cannot be" in said and "`prepare`" in said


def letters(a, b):
    return "ABCD"[(a + b) % 4]


OPTIONS = {name: lambda a, b, name=name: f"{ord(name)}" for name in "ABCD"}
HIDDEN = {  # rows, the columns that the prompts do not show, and the function that reads them
    "choices": (of(choices=lambda a, b: ["red", "blue"], answer=lambda a, b: (a + b) % 2), "column choices", "mmlu"),
    "options as text": (
        of(options=lambda a, b: json.dumps(["red", "blue", "7", "8"]), answer=letters), "column options", "mmlu",
    ),
    "A to D": (of(**OPTIONS, answer=letters), "columns A, B, C, D", "mmlu"),
    "short ones": (of(**{name: lambda a, b: "1" for name in "AB"}, answer=letters), "columns A, B", "mmlu"),
    "alpaca": (
        of(instruction=lambda a, b: f"Add {a}.", input=lambda a, b: f"{a} to {b}", output=total),
        "column input", "alpaca",
    ),
    "option1": (of(option1=total, option2=asked, answer=letters), "columns option1, option2", ""),
    "Option A": (of(**{"Option A": total, "Option B": asked}, answer=letters), "columns Option A, Option B", ""),
    "answerA": (of(answerA=total, answerB=asked, answer=letters), "columns answerA, answerB", ""),
    "endings": (of(endings=lambda a, b: ["red", "blue"], answer=letters), "column endings", ""),
    "article and options": (
        of(article=lambda a, b: f"It is {a * b}.", options=lambda a, b: ["red", "blue"], answer=letters),
        "columns article, options", "",
    ),
    "renamed": (of(A=total, B=asked, gold=letters), "columns A, B", ""),
    "Context": (of(Context=lambda a, b: f"It is {a * b}.", answer=total), "column Context", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_a_part_of_questions_that_no_prompt_shows_is_warned_of(name, dry_run):
    rows, columns, reader = HIDDEN[name]
    rows = [{"question": row.get("instruction", asked(3, 4)), "answer": row.get("output"), **row} for row in rows]
    for number, row in enumerate(rows):
        row["question"] += f" ({number})"
    warning = f"neither prompts nor rewards use the text in the {columns} "
    column = {"answer_column": "gold"} if name == "renamed" else {}
    status, said = dry_run([*rows, {"question": "What is 1 + 1?", "answer": "1", "gold": "1"}], **column)
    assert (
        status == 0 and warning in said and ("write a `prepare` (docs/your-own-task.md)" in said) is not bool(reader)
    )
    if reader:
        words = f"--prepare examples.rows.from_{reader} --allow_custom_rewards true"
        assert words in said
        status, said = dry_run(rows, *words.split())
        assert status == 0 and warning not in said


@pytest.mark.parametrize("columns", [{"level_1": total, "level_2": total}, {"A": total}, {"x": total, "1": total}])
def test_columns_that_are_no_series_of_options_are_not_warned_of(columns, dry_run):
    status, said = dry_run(of(question=asked, answer=total, **{n: lambda a, b: f"{a}-{b}" for n in columns}))
    assert status == 0 and "neither prompts nor rewards" not in said


IMAGES = [  # the question, the column, and whether the rows are refused, warned of or taken
    ("<image>{}", {"images": ["a.jpg"]}, "error"),
    ("{} <image_1>", {"image": {"path": "a.jpg"}}, "error"),
    ("{} <|image_pad|>", {"videos": ["a.mp4"]}, "error"),
    ("<image>{}", {}, "warning"),
    ("{}", {"images": ["a.jpg"]}, "warning"),
    ("{}", {"images": []}, ""),
    ("{}", {"image": None}, ""),
]


@pytest.mark.parametrize(("question", "columns", "status"), IMAGES)
def test_images_are_said_not_to_reach_the_model(question, columns, status, dry_run):
    rows = [{"question": question.format(asked(a, b)), "answer": total(a, b), **columns} for a, b in PAIRS]
    code, said = dry_run(rows)
    assert code == (2 if status == "error" else 0), said
    assert ("the model gets text only" in said) is bool(status)
    assert "TRL uses these names" not in said or not status
    assert status != "error" or ("36 questions with <" in said and f"the column {next(iter(columns))}" in said)


def test_a_csv_file_without_names_is_told_to_add_them(dry_run):
    Path("bare.csv").write_text(
        "".join(f'"{asked(a, b)} Count them all, one after the other.",{a + b}\n' for a, b in PAIRS)
    )
    status, said = dry_run("bare.csv")
    assert status == 2 and "if that is a row, add a first line with the columns' names" in said
    assert "one after the other" not in said and len(said) < 400


def test_many_columns_are_cut_in_an_error(dry_run):
    status, said = dry_run(of(**{f"a column of a wide table, number {n}": total for n in range(200)}))
    assert status == 2 and "and 180 more" in said and len(said) < 1500


def test_only_the_column_that_lacks_something_is_blamed(dry_run):
    status, said = dry_run(of(question=asked, answer=lambda a, b: ""))
    assert status == 2 and "error: answer_column: none of the 36 rows" in said and "a question in" not in said
    status, said = dry_run(of(question=lambda a, b: " ", answer=total))
    assert status == 2 and "error: question_column: none" in said and "a gold answer in" not in said


def test_a_list_of_gold_answers_is_any_of_them(dry_run):
    rows = of(question=asked, answer=lambda a, b: [total(a, b), f"{a + b}.5"] if a > 2 else total(a, b))
    rows[0]["answer"], rows[1]["answer"] = ["4", "5", "four"], ["5"]
    status, said = dry_run(rows)
    assert status == 0 and "rows with a list of gold answers, any of which is right" in said
    assert re.search(r"correctness 2 0 0 2 0", said)


def test_a_mark_in_a_few_gold_answers_is_warned_of(dry_run):
    rows = of(question=asked, answer=lambda a, b: f"{a} + {b}\n#### {a + b}" if a == 7 else total(a, b))
    status, said = dry_run(rows, reward_funcs="judge_reward_func")
    assert status == 0, said
    assert re.search(r"\d of 27 have ####, too few .* put it in all of them, or in none", said)


@pytest.mark.parametrize(
    ("answers", "conflicts"),
    [
        (("4", "5"), True),
        (("4", "4.0"), False),
        (("1/2", "0.5"), False),
        ((["4", "5"], "5"), False),
        (("a", "b"), True),
        (("a\u00a0b", "a b\u200b"), False),
    ],
)
def test_questions_with_two_gold_answers_are_counted(answers, conflicts, dry_run):
    twice = [{"question": asked, "answer": gold} for asked, gold in zip(["Twice?", "  TWICE?"], answers, strict=True)]
    status, said = dry_run([*of(question=asked, answer=total), *twice, {"question": "One?", "answer": "9"}])
    assert status == 0 and ("1 training question with different gold answers" in said) is conflicts
    assert not conflicts or re.search(rf'"TWICE\?": {answers[0]}, and {answers[1]} ', said)


@pytest.mark.parametrize("content", ['{"question": "\\ud800", "answer": "1"}\n' * 2, "[]", "{}", "1", "null"])
def test_odd_files_are_one_line(content, dry_run):
    Path("odd.json").write_text(content)
    status, said = dry_run("odd.json")
    assert status == 2 and "error: " in said and "Traceback" not in said


def test_a_run_learns_from_lists_and_records_them(tiny_run, write_jsonl):
    rows = of(question=asked, answer=lambda a, b: [total(a, b), f"{a + b}.5"] if a > 2 else total(a, b))
    given = LEARNS | {"dataset_name": write_jsonl(rows), "max_samples": None, "eval_samples": "4"}
    assert train_grpo.main(tiny_run(**given)) == 0
    records = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    wanted = {row["question"]: row["answer"] for row in rows}
    assert all(record["answer"] == wanted[record["question"]] for record in records)
    assert train_grpo.main(tiny_run(**given, resume_from_checkpoint="auto", max_steps="3")) in (0, 2)
