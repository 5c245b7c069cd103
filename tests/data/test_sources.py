"""grpo/data/sources.py: every source gives the same rows, and what cannot be read is one line with its place."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from helpers_runs import ROWS

from grpo.core.errors import UserError
from grpo.data import sources

LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def clone(directory):
    """As `git clone` leaves a data set of the Hub: a card that names a configuration, and its files."""
    (directory / "data").mkdir(parents=True)
    splits = "\n".join(f"  - split: {name}\n    path: data/{name}-*" for name in ("train", "test"))
    (directory / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{splits}\n---\n")
    for name in ("train", "test"):
        pd.DataFrame(ROWS).to_parquet(directory / "data" / f"{name}-00000-of-00001.parquet")


WRITERS = {
    "r.jsonl": lambda path: path.write_text(LINES),
    "UPPER.JSONL": lambda path: path.write_text(LINES),
    "odd [1]* name.jsonl": lambda path: path.write_text(LINES),
    "windows.jsonl": lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n\r\n").encode()),
    "r.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "array.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "lines.json": lambda path: path.write_text(LINES),
    "r.csv": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False),
    "r.csv.gz": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False),
    "r.parquet": lambda path: pd.DataFrame(ROWS).to_parquet(path),
    "saved": lambda path: Dataset.from_list(ROWS).save_to_disk(path),
    "splits": lambda path: DatasetDict(train=Dataset.from_list(ROWS)).save_to_disk(path),
    "openai/gsm8k": clone,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_source_gives_the_same_rows(name):
    WRITERS[name](Path(name))
    splits = sources.load_source(name, "main")
    assert splits["train"].to_list() == ROWS and ("test" in splits) == ("/" in name)


def test_rows_in_memory_are_a_source():
    rows = Dataset.from_list(ROWS)
    assert sources.load_source(rows)["train"] is rows
    frame = pd.DataFrame({"question": ["a", "b"], "answer": [1, None]}, index=[7, 8])
    assert sources.load_source(frame)["train"].to_list() == [
        {"question": "a", "answer": 1.0},
        {"question": "b", "answer": None},
    ]


def test_a_file_may_mix_numbers_and_texts_and_lack_some(write_jsonl):
    path = write_jsonl([{"question": "a", "answer": 1}, {"question": "b", "answer": "2 apples"}, {"question": "c"}])
    assert sources.load_source(path)["train"]["answer"][:] == [1, "2 apples", None]


def test_cells_of_a_csv_file_stay_as_they_are_written():
    text = 'question,answer\n"What, ""then""\nis 1?",18\nNA,\nnull,007\n'
    Path("r.csv").write_text(text)
    rows = sources.load_source("r.csv")["train"]
    assert rows["question"][:] == ['What, "then"\nis 1?', "NA", "null"] and rows["answer"][:] == ["18", "", "007"]


BROKEN = {
    "broken.jsonl": (b'{"question": "a"}\n\n{"question', "line 3 is broken JSON"),
    "middle.jsonl": (b'{"q": "a"}\n{"q":\n{"q": "b"}\n', "line 2 is broken JSON"),
    "broken.json": (b'[{"question": "a"}, {"question', "position"),
    "latin.jsonl": (b'{"question": "caf\xe9 1", "answer": 1}\n', "UTF8"),
    "latin.csv": (b"question,answer\ncaf\xe9,1\n", "utf-8"),
    "ragged.csv": (b"question,answer\na,1\nb,2,3\n", "Expected 2 fields in line 3, saw 3"),
    "commas.csv": (b"question,answer\nWhat is 1, 2?,3\n", "quote texts that contain commas"),
    "broken.parquet": (b"PAR1", "Parquet"),
    "empty.jsonl": (b"", "holds no rows"),
    "empty.json": (b"[]", "holds no rows"),
    "empty.csv": (b"", "holds no rows"),
    "header.csv": (b"question,answer\n", "holds no rows"),
    "notes.txt": (b"a", "is not a .jsonl"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_one_line_with_the_place(name):
    content, expected = BROKEN[name]
    Path(name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        sources.load_source(name)
    assert repr(name) in str(caught.value) and expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "/missing/dir", "a/b/c", "missing.jsonl.gz"])
def test_missing_paths_are_not_looked_for_on_the_hub(name):
    with pytest.raises(UserError, match=f"eval_dataset_name: '{name}' cannot be read: .*does not exist"):
        sources.load_source(name, setting="eval_dataset_name")


def test_a_column_in_memory_may_mix_numbers_and_texts():
    frame = pd.DataFrame({"question": ["a", "b", "c"], "answer": [1, "2 cm", None]})
    assert sources.load_source(frame)["train"]["answer"][:] == ["1", "2 cm", None]


def test_a_clone_has_configurations_as_the_hub_has(monkeypatch):
    asked = []
    monkeypatch.setattr(sources.datasets, "load_dataset", lambda *args: asked.append(args) or {"train": [1]})
    Path("clone").mkdir()
    sources.load_source("clone:main")
    assert asked == [("clone", "main")]


@pytest.mark.parametrize("table", [pd.DataFrame({"question": []}), [{"question": "a"}]])
def test_what_is_no_table_in_memory_is_one_line(table):
    with pytest.raises(UserError, match=r"'rows in memory' (holds no rows|cannot be read: a list is not a table)"):
        sources.load_source(table)


def test_the_hub_is_asked_for_a_configuration(monkeypatch):
    asked = []

    def load(name, config=None):
        asked.append((name, config))
        if config is None:
            raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['main', 'x']")
        return DatasetDict(train=Dataset.from_list(ROWS))

    monkeypatch.setattr(sources.datasets, "load_dataset", load)
    sources.load_source("openai/gsm8k:socratic", "main"), sources.load_source("openai/other", "main")
    assert asked == [("openai/gsm8k", "socratic"), ("openai/other", "main")]
    with pytest.raises(UserError, match=r"'main', 'x'.*write it after the id: openai/gsm8k:NAME"):
        sources.load_source("openai/gsm8k")


def test_without_a_network_a_set_of_the_hub_is_one_line():
    with pytest.raises(UserError, match=r"'openai/gsm8k' cannot be read: .*Hub.*use a local file"):
        sources.load_source("openai/gsm8k", "main")


@pytest.mark.parametrize(
    ("spec", "count"),
    [("train", 40), ("train[:7]", 7), ("train[-5:]", 5), ("train[10%:20%]", 4), ("train[30:99]", 10)],
)
def test_slices(spec, count):
    assert len(sources.take_split({"train": Dataset.from_list(ROWS)}, spec)) == count


@pytest.mark.parametrize("spec", ["validation", "train[40:]", "train[a]"])
def test_a_split_that_is_not_there_is_one_line_with_those_that_are(spec):
    with pytest.raises(UserError, match=r"^dataset_split: .*train \(40 rows\)"):
        sources.take_split({"train": Dataset.from_list(ROWS)}, spec)


def test_joined_rows_have_all_columns_their_source_and_text_if_types_differ():
    one = Dataset.from_dict({"question": ["a"], "level": [3], "only": [True], "empty": [None]})
    other = Dataset.from_dict({"level": ["hard"], "question": ["b"], "empty": [["x"]], "source": ["mine"]})
    assert sources.join({"data/one.csv": one, "other": other}).to_list() == [
        {"question": "a", "level": "3", "only": True, "empty": None, "source": "one"},
        {"question": "b", "level": "hard", "only": None, "empty": ["x"], "source": "mine"},
    ]
    assert sources.join({"one": one}) is one
    with pytest.raises(UserError, match="the column 'level' differs in type"):
        sources.join({"one": one, "other": Dataset.from_dict({"level": [["hard"]]})})
