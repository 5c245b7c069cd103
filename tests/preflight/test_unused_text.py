"""Text that reaches neither prompts nor rewards is named, whatever its column is called."""

import json
from pathlib import Path

import pytest

from grpo.core.text import listed
from grpo.data.columns import ALIKE, FACTS, LOOKS
from grpo.preflight import preflight

PAIRS = [(a, b) for a in range(2, 8) for b in range(2, 8)]


def rows_with(**columns):
    """Sums, with columns that are functions of both numbers."""
    return [
        {"question": f"How many in case {a} and {b}?", "answer": str(a * b + 10)}
        | {name: cell(a, b) for name, cell in columns.items()}
        for a, b in PAIRS
    ]


def story(a, b):
    return f"Lea has {a} boxes with {b} pens in each."


LOUD = {  # columns whose text questions may need
    "sentences": {"zzz": story},
    "short": {"zzz": lambda a, b: f"pens {a * b}"},
    "Chinese": {"zzz": lambda a, b: f"小明有{a}盒铅笔，每盒{b}支"},
    "table": {"zzz": lambda a, b: f"name | pens\nLea | {a}\nTom | {b}"},
    "code": {"zzz": lambda a, b: f"def f(x):\n    return x + {a}"},
    "code in a word": {"zzz": lambda a, b: f"print({a}*{b})"},
    "paragraphs": {"zzz": lambda a, b: [story(a, b), "It was late in the day already."]},
    "cells of a table": {"zzz": lambda a, b: [["box", "pens"], [f"no. {a}", f"{b} pens"], ["none", str(a * b)]]},
    "code that ends in a number": {"zzz": lambda a, b: f"x = {a * b + 10}\nprint(x)"},
    "object": {"zzz": lambda a, b: {"title": "Pens", "text": story(a, b)}},
    "list as text": {"zzz": lambda a, b: json.dumps([story(a, b), "She counts."])},
    "messages": {"zzz": lambda a, b: [{"role": "system", "content": story(a, b)}]},
    "choices": {"zzz": lambda a, b: [f"{a}", f"{a * b + 10}"]},
    "numbers to choose from": {"zzz": lambda a, b: [a, a * b + 10, b]},
    "two": {"zzz": story, "yyy": story},
    "in some rows": {"zzz": lambda a, b: story(a, b) if a > 4 else None},
}
QUIET = {  # text that is named, but not warned of, and what is said of it
    "solution": ({"zzz": lambda a, b: f"We multiply {a} and {b}, and add ten. So it is {a * b + 10}."}, LOOKS),
    "marked solution": ({"zzz": lambda a, b: f"We multiply.\n#### {a * b}"}, LOOKS),
    "solution in an object": (
        {"zzz": lambda a, b: {"by": f"It is {a * b + 10}."}},
        LOOKS,
    ),
    "classes of a number": ({"zzz": lambda a, b: f"Level {a % 5}"}, LOOKS),
    "generations": ({"zzz": lambda a, b: [f"Hm. \\boxed{{{a}}}", f"So \\boxed{{{a * b}}}"]}, LOOKS),
    "classes": ({"zzz": lambda a, b: ["Counting & Probability", "Number Theory", "Plane Geometry"][a % 3]}, LOOKS),
    "tags": ({"zzz": lambda a, b: ["algebra", ["sums", "products"][a % 2]]}, LOOKS),
    "license": ({"zzz": lambda a, b: "You may use and share this work as you like."}, ALIKE),
    "words": ({"zzz": lambda a, b: "boxes" * a}, FACTS),
    "numbers": ({"zzz": lambda a, b: [a * 70, b * 90]}, FACTS),
    "in the answer alone": ({"zzz": lambda a, b: a * b + 10}, FACTS),
    "number": ({"zzz": lambda a, b: a * b / 3}, FACTS),
    "id": ({"zzz": lambda a, b: f"c-{a}-{b}"}, FACTS),
    "url": ({"zzz": lambda a, b: f"https://a.b/c?d={a}&e=({b})"}, FACTS),
    "class": ({"zzz": lambda a, b: ["Algebra", "Geometry"][a % 2]}, FACTS),
    "date": ({"zzz": lambda a, b: f"2024-01-0{a} 10:0{b}"}, FACTS),
    "path": ({"zzz": lambda a, b: f"train/algebra/{a}{b}.json"}, FACTS),
}
NONE = {  # columns without text of their own
    "bools": {"zzz": lambda a, b: [True, False]},
    "none": {"zzz": lambda a, b: None},
    "the question again": {"zzz": lambda a, b: f"How many in case {a} and {b}?"},
    "in an object": {"zzz": lambda a, b: {"of": f"How many in case {a} and {b}?"}},
    "part of it": {"zzz": lambda a, b: f"in case {a}"},
}


@pytest.mark.parametrize("name", LOUD)
def test_text_that_questions_may_need_is_warned_of(name, table):
    found = table(rows=rows_with(**LOUD[name]))["unused text"]
    key = "text" if name == "object" else ""
    columns = [f"{column}.{key}".rstrip(".") for column in LOUD[name]]
    assert found.status == "warning" and found.finding.endswith(listed(columns))
    cell = "{(row['zzz'] or {}).get('text') or ''}" if key else "{row['zzz'] or ''}"
    assert "write a `prepare`" in found.remedy and cell in found.remedy and "give the answer away" in found.remedy


@pytest.mark.parametrize("name", QUIET)
def test_solutions_and_classes_are_listed(name, table):
    columns, why = QUIET[name]
    found = table(rows=rows_with(**columns))["unused text"]
    assert found.status == "ok" and found.finding == f"not used: zzz{'.by' * (name.endswith('object'))} ({why})"


def test_the_column_of_kinds_is_used(table):
    columns, _ = QUIET["class"]
    assert "unused text" not in table(rows=rows_with(**columns), eval_by="zzz", eval_samples="2")


@pytest.mark.parametrize("name", NONE)
def test_columns_without_a_text_of_their_own_are_no_noise(name, table):
    assert "unused text" not in table(rows=rows_with(**NONE[name]))


def test_the_remedy_works_as_it_is_written(plan, table):
    rows = [{"Q": row["question"], "A": row["answer"], "Body": row["zzz"]} for row in rows_with(zzz=story)]
    columns = {"question_column": "Q", "answer_column": "A"}
    remedy = table(rows=rows, **columns)["unused text"].remedy
    Path("my_rows.py").write_text(f"def whole(row):\n    return {remedy[remedy.index('{**row') :]}\n")
    prepare = {"prepare": "my_rows.whole", "allow_custom_rewards": "true"}
    made = plan(rows=rows, **prepare)
    after = {check.name for check in preflight.outcomes(made)}
    assert "unused text" not in after and made.data.rows[0]["question"].startswith("Lea has")


READERS = {  # code of a reward or judge that reads the column, and the setting
    "a parameter": "def r(completions, story, **kwargs): return [0.0 for _ in completions]",
    "keywords": "def r(completions, **kwargs): return [float(len(s)) for s in kwargs['story']]",
    "a helper": "def h(all): return all.get('story')\ndef r(completions, **kwargs): return [1.0 for _ in h(kwargs)]",
    "a constant": "KEY = 'story'\ndef r(completions, **kwargs): return [1.0 for _ in kwargs[KEY]]",
    "a judge": "def judge(text, row): return row['story'] in text",
    "keywords that are passed on": "def r(completions, **kwargs): return [float(len(str(kwargs)))] * len(completions)",
    "a judge's whole row": "def judge(text, row): return str(row) in text",
    "nobody": "def r(completions, **kwargs): return [0.0 for _ in completions]",
}


@pytest.mark.parametrize("name", READERS)
def test_what_a_reward_or_judge_reads_is_used(name, plan):
    Path("mine.py").write_text(READERS[name])
    judge = {"judge": "mine.judge", "allow_custom_rewards": "true"} if name.startswith("a judge") else {}
    made = plan(rows=rows_with(story=story), **judge)
    if not judge:
        scope = {}
        exec(READERS[name], scope)
        made.rewards["r"] = scope["r"]
    found = [check for check in preflight.outcomes(made) if check.name == "unused text"]
    assert bool(found) is (name == "nobody")


@pytest.mark.parametrize("column", ["text", "content", "part", "order", "row"])
def test_names_in_the_code_of_rewards_and_judges_are_no_columns(column, table):
    Path("mine.py").write_text("def judge(text, row): return row['answer'] in text")
    for judge in ({}, {"judge": "mine.judge", "allow_custom_rewards": "true"}):
        assert table(rows=rows_with(**{column: story}), **judge)["unused text"].status == "warning"


PREPARES = {  # code of `prepare`, and the status of the line about the column
    "shown": ("{**row, 'question': row['story'] + ' ' + row['question']}", None),
    "shown with other spaces": ("{**row, 'question': row['question'] + '\\n ' + row['story'].upper()}", None),
    "kept": ("{**row}", "warning"),
    "dropped": ("{'question': row['question'], 'answer': row['answer']}", "warning"),
    "looked at": ("{**row, 'question': row['question']} if row['story'] else None", "ok"),
}


@pytest.mark.parametrize("name", PREPARES)
def test_what_prepare_shows_is_used(name, table):
    code, status = PREPARES[name]
    Path("my_rows.py").write_text(f"def whole(row): return {code}\n")
    found = table(rows=rows_with(story=story), prepare="my_rows.whole", allow_custom_rewards="true").get("unused text")
    assert (found and found.status) == status
    assert status != "warning" or "let `prepare` add it" in found.remedy


def test_a_text_that_becomes_question_and_answer_is_used(table):
    parts = "dict(zip(('question', 'answer'), row['talk'].split('? ')))"
    Path("my_rows.py").write_text(f"def whole(row): return {parts}\n")
    rows = [{"talk": f"What is {n} + {n}? {2 * n}"} for n in range(40)]
    assert "unused text" not in table(rows=rows, prepare="my_rows.whole", allow_custom_rewards="true")


def test_series_of_options_are_named_as_columns_of_their_own(table):
    rows = [row | {"answer": "ABCD"[n % 4]} for n, row in enumerate(rows_with())]
    for n, row in enumerate(rows):
        row |= {f"{stem}{sign}": str(n) for stem in ("", "pick ") for sign in "ABCD"}
    found = table(rows=rows)["unused text"]
    assert found.status == "warning" and "A, B, C, D, pick A, pick B" in found.finding.replace("pick A, A", "")
    numbers = [row | {"answer": str(n + 100)} for n, row in enumerate(rows)]
    assert table(rows=numbers)["unused text"].status == "ok"


@pytest.mark.parametrize("name", ["system", "system_prompt", "history", "the same system"])
def test_what_stands_before_a_conversation_is_added_as_its_messages(name, plan, table):
    same, name = name.startswith("the same"), name.removeprefix("the same ")
    cell = (
        (lambda a, b: "Lea asks you to add up.")
        if same
        else (lambda a, b: [[f"Has Lea {a} boxes?", f"Yes, with {b} pens."]])
        if name == "history"
        else story
    )
    rows = [{"Q": row["question"], **row} for row in rows_with(**{name: cell})]
    remedy = table(rows=rows, question_column="Q")["unused text"].remedy
    code = remedy[remedy.index("{**row") : remedy.index("}") + 1]
    Path("my_rows.py").write_text(f"from examples.rows import with_history\ndef whole(row):\n    return {code}\n")
    made = plan(rows=rows, prepare="my_rows.whole", allow_custom_rewards="true")
    assert [message["role"] for message in made.data.rows[0]["prompt"]][-1] == "user"
    assert "Lea" in str(made.data.rows[0]["prompt"]) and "unused text" not in {
        check.name for check in preflight.outcomes(made)
    }


def test_a_conversation_that_a_reader_reads_is_used(table):
    talks = [
        [
            {"from": "system", "value": "Add."},
            {"from": "human", "value": row["question"]},
            {"from": "gpt", "value": "7"},
        ]
        for row in rows_with()
    ]
    given = {"prepare": "examples.rows.from_sharegpt", "allow_custom_rewards": "true"}
    assert "unused text" not in table(rows=[{"conversations": talk} for talk in talks], **given)
