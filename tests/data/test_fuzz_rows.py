"""Rows of any kind: each is trained on, held out or counted; the cells of a CSV file come back as they are."""

import csv
import dataclasses
import json
import re
import tempfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

from helpers_runs import examples
from hypothesis import given
from hypothesis import strategies as st

from grpo.core.errors import UserError
from grpo.data import dataset, sources
from grpo.data.prompts import THINK

WRITTEN = ["a #### 7", "#### $1,234 ", "####", "1 #### 2 #### 3", "x", " 72.0 ", "$1,000", "", "  ", "-$5", "Paris, F"]
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), FLOATS, st.sampled_from(WRITTEN), st.text()
)
# What a table's answers are, and one that is fit: few tables of any answers can be trained on
KINDS = [
    (st.sampled_from(WRITTEN), "#### 7"),
    (st.sampled_from(WRITTEN[4:]), "7"),
    (st.none() | st.integers(0, 99) | FLOATS, 7),
    (st.text(), "seven"),
    (SCALARS, "7"),
]
SAID = st.builds("{} {}".format, st.sampled_from(["What is", "what  IS", " What is", "Q {x}", "#"]), st.integers(0, 9))
QUESTIONS = st.sampled_from([SAID, SAID, SAID, SAID | st.text(max_size=8), SCALARS])
LIMITS, SAMPLES = st.sampled_from([None, None, 30, 40]), st.sampled_from([1, 3, None])


@st.composite
def tables(draw):
    question, (answer, fit) = draw(QUESTIONS), draw(st.sampled_from(KINDS))
    columns = {"question": question, "answer": answer}
    row, lacking = st.fixed_dictionaries(columns), st.fixed_dictionaries({}, optional=columns | {"more": SCALARS})
    good = [
        {"question": f"Good {number}", "answer": fit} for number in draw(st.sampled_from([(), (1, 2), range(3, 9)]))
    ]
    return draw(st.permutations([*good, *draw(st.lists(st.one_of(row, row, row, lacking), min_size=1, max_size=14))]))


def prepare(rows, held_out, limit, samples, seed):
    """What becomes of rows, read from files; None where they are a mistake of the user's."""
    script = SimpleNamespace(
        question_column="question", answer_column="answer", dataset_split="train", eval_split="test",
        eval_samples=samples, max_samples=None, eval_only=False, max_prompt_length=limit,
        dataset_name="train.jsonl", eval_dataset_name="test.jsonl",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        read = []
        for name, some in (("train", rows), ("test", held_out)):
            path = Path(directory) / f"{name}.jsonl"
            some = [{**row, "id": f"{name} {number}"} for number, row in enumerate(some)]
            path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
            try:
                read.append(sources.load_source(str(path)) if some else None)
            except UserError as error:
                assert "cannot be stored" in str(error)
                return None
        try:
            style = dataclasses.replace(THINK, chat=False)
            held = {"test": read[1]} if read[1] else {}
            return dataset.prepare({"train": read[0]}, held, script, style, [], lambda t: [list(x) for x in t], seed)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            return None


def is_gold_of(gold, value):
    """Whether a gold answer is what a cell says, without formatting."""
    bare = re.sub(r"[,$\s+]", "", str(value)).replace("\u2212", "-")
    if re.sub(r"[,$\s+]", "", gold).replace("\u2212", "-") in bare:
        return True
    try:
        return Decimal(gold) == Decimal(bare)
    except ArithmeticError:
        return False


@examples(25)
@given(tables(), st.just([]) | tables(), LIMITS, SAMPLES, st.integers(0, 3))
def test_every_row_is_trained_on_held_out_or_counted(rows, held_out, limit, samples, seed):
    found = prepare(rows, held_out, limit, samples, seed)
    if found is None:
        return
    train, held = found.train.to_list(), found.held_out.to_list()
    counted = len(train) + found.unusable + found.overlap + found.too_long
    if not held_out:
        assert counted + len(held) == len(rows)
        assert len(held) == max(1, min(samples or len(rows), (len(rows) - found.unusable) // 10))
    elif samples is None:
        assert counted + len(held) == len(rows) + len(held_out)
    else:
        assert len(held) <= samples and counted <= len(rows) + len(held_out)
    given_rows = {
        f"{name} {number}": row
        for name, some in (("train", rows), ("test", held_out))
        for number, row in enumerate(some)
    }
    for row in [*train, *held]:
        asked = given_rows[row["id"]]
        assert row["question"] == str(asked["question"]) and row["question"].strip()
        assert row["answer"] and is_gold_of(row["answer"], asked["answer"])
        assert row["question"] in row["prompt"] and (limit is None or row in held or len(row["prompt"]) <= limit)
    questions = [{dataset.canonical(row["question"]) for row in some} for some in (train, held)]
    assert not questions[0] & questions[1] and train and held
    assert len({row["id"] for row in [*train, *held]}) == len(train) + len(held)
    again = prepare(rows, held_out, limit, samples, seed)
    assert again.train.to_list() == train and again.held_out.to_list() == held


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=10)


@examples(50)
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6))
def test_cells_of_a_csv_file_come_back_as_they_are(rows):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("question", "answer"), *rows])
        read = sources.load_source(str(path))["train"].to_list()
    assert [(row["question"], row["answer"]) for row in read] == rows
