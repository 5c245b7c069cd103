"""Every source gives the same rows, and an error about one names the file and the place."""

import bz2
import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDatasetDict
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
    "odd [1]* name.jsonl": lambda path: path.write_text(LINES),
    "windows.jsonl": lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n\r\n").encode()),
    "r.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "array.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "r.csv": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False),
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
    frame = pd.DataFrame({"question": ["a", "b", "c"], "answer": [1, "2 cm", None]}, index=[7, 8, 9])
    assert sources.load_source(frame)["train"].to_dict() == {
        "question": ["a", "b", "c"],
        "answer": ["1", "2 cm", None],
    }
    mixed = [{"question": "a", "answer": 1, "size": 2**70}, {"question": "b", "answer": "007"}, {"question": "c"}]
    listed = sources.load_source(mixed)["train"]
    assert listed["answer"][:] == [1, "007", None] and listed["size"][:] == [str(2**70), None, None]


def with_tensors(batch):
    return {**batch, "made": [torch.tensor(3)] * len(batch["n"])}


@pytest.mark.parametrize("name", ["torch", "some columns", "transform"])
def test_a_format_makes_no_arrays_of_what_people_ask(name):
    """A torch tensor is no gold answer, and a numpy text no text."""
    given = [{**row, "n": number, "trace": [1, number]} for number, row in enumerate(ROWS)]
    plain = Dataset.from_list(given)
    formatted = {
        "torch": plain.with_format("torch"),
        "some columns": plain.with_format("numpy", columns=["answer"]),
        "transform": plain.with_transform(with_tensors),
    }[name]
    expected = [{**row, "made": 3} for row in given] if name == "transform" else given
    splits = sources.load_source(DatasetDict(train=formatted, test=formatted))
    assert list(splits) == ["train", "test"]
    for split in (*splits.values(), sources.load_source(formatted)["train"]):
        assert split.to_list() == expected and type(split[0]["n"]) is int


STREAM = Dataset.from_list(ROWS).to_iterable_dataset()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (pd.DataFrame({"question": []}), "holds no rows"),
        ([], "holds no rows"),
        (["What is 1 + 1?"], "pass a DataFrame"),
        ({"question": ["a"]}, "a dict is not a table of rows; pass a DataFrame"),
        (STREAM, r"IterableDataset is not a table of rows; pass a list .* list\(rows.take\(10_000\)\)"),
        (IterableDatasetDict(train=STREAM), r"list\(rows.take"),
        ([{"question": object()}], "object"),
    ],
)
def test_what_is_no_table_of_rows_is_one_line(rows, says):
    with pytest.raises(UserError, match=f"dataset_name: 'rows in memory' .*{says}"):
        sources.load_source(rows)


LONG = "123456789012345678901234567890"
WRITTEN = {  # a cell's JSON, and as what it is read
    **{written: written for written in (LONG, f"-{LONG}", str(2**63), "1e400", "-1E+400", "1e-400")},
    **{written: json.loads(written) for written in (str(-(2**63)), str(2**53 + 1), "0e-400", "1e300", "-0", "1.50")},
    **{f'"{text}"': text for text in ("2024-01-05 10:30", "2024-01-05T10:30:00Z", "007", "true", "null", "1.50")},
    f'["{LONG}", "2024-01-05 10:30"]': [LONG, "2024-01-05 10:30"],
    f'{{"value": {LONG}, "at": "2024-01-05 10:30"}}': {"value": LONG, "at": "2024-01-05 10:30"},
}
FORMS = {
    "r.jsonl": lambda path, rows: path.write_text("\n".join(rows)),
    "r.json": lambda path, rows: path.write_text(f"[{', '.join(rows)}]"),
    "pretty.json": lambda path, rows: path.write_text(json.dumps(list(map(json.loads, rows)), indent=2)),
    "lines.json": lambda path, rows: path.write_text("\ufeff" + "\r\n\r\n".join(rows)),
    "r.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress("\n".join(rows).encode())),
    "r.json.bz2": lambda path, rows: path.write_bytes(bz2.compress(f"[{', '.join(rows)}]".encode())),
}


@pytest.mark.parametrize("beside", ["", "1", "0.5", '"x"'])
@pytest.mark.parametrize("cell", WRITTEN)
def test_cells_of_a_json_file_stay_as_they_are_written(cell, beside):
    """Alone in their column, and beside a cell of another kind."""
    cells = [cell, beside] if beside else [cell]
    Path("r.jsonl").write_text("".join(f'{{"question": "a", "answer": {written}}}\n' for written in cells))
    read = sources.load_source("r.jsonl")["train"]["answer"][0]
    assert read == WRITTEN[cell] and isinstance(read, str) is isinstance(WRITTEN[cell], str)


@pytest.mark.parametrize("name", FORMS)
def test_cells_stay_as_written_in_any_form_of_json(name):
    rows = [f'{{"question": "2024-01-05 10:3{n}", "answer": {LONG}}}' for n in range(2)]
    if name == "pretty.json":
        rows = [row.replace(LONG, f'"{LONG}"') for row in rows]  # Python itself writes no other number
    FORMS[name](Path(name), rows)
    read = sources.load_source(name)["train"].to_list()
    assert read == [{"question": f"2024-01-05 10:3{n}", "answer": LONG} for n in range(2)]


def test_cells_stay_as_written_in_a_directory():
    for split, cell in (("train", LONG), ("test", '"2024-01-05"')):
        Path("data").mkdir(exist_ok=True)
        Path(f"data/{split}.jsonl").write_text(f'{{"question": "a", "answer": {cell}}}\n')
    splits = sources.load_source("data")
    assert splits["train"]["answer"][:] == [LONG] and splits["test"]["answer"][:] == ["2024-01-05"]


def test_cells_of_a_csv_file_stay_as_they_are_written():
    text = 'question,answer\n"What, ""then""\nis 1?",18\nNA,\nnull,007\n'
    Path("r.csv").write_text(text)
    rows = sources.load_source("r.csv")["train"]
    assert rows["question"][:] == ['What, "then"\nis 1?', "NA", "null"] and rows["answer"][:] == ["18", "", "007"]


BROKEN = {  # the file, and where or why it cannot be read
    "last.jsonl": (b'{"question": "a"}\n\n{"question', "line 3"),
    "middle.jsonl": (b'{"q": "a"}\n{"q":\n{"q": "b"}\n', "line 2"),
    "latin.jsonl": (b'{"question": "caf\xe9 1", "answer": 1}\n', "UTF8"),
    "ragged.csv": (b"question,answer\na,1\nb,2,3\n", "line 3"),
    "commas.csv": (b"question,answer\nWhat is 1, 2?,3\n", "quote texts that contain commas"),
    "long.jsonl": (b'{"q": 12345678901234567890, "a": "2024-01-05"}\n{"q":\n', "line 2"),
    "broken.parquet": (b"PAR1", "Parquet"),
    "empty.jsonl": (b"", "no rows"),
    "header.csv": (b"question,answer\n", "no rows"),
    "notes.txt": (b"a", ".jsonl"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_the_place(name):
    content, where = BROKEN[name]
    Path(name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        sources.load_source(name)
    assert repr(name) in str(caught.value) and where in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl.gz", "./missing", "a/b/c"])
def test_missing_paths_are_not_looked_for_on_the_hub(name):
    with pytest.raises(UserError, match=f"eval_dataset_name: '{name}' .*does not exist"):
        sources.load_source(name, setting="eval_dataset_name")


def test_the_hub_is_asked_for_a_configuration(monkeypatch):
    asked = []

    def load(name, config=None):
        asked.append((name, config))
        if config is None:
            raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['main', 'x']")
        return DatasetDict(train=Dataset.from_list(ROWS))

    monkeypatch.setattr(sources.datasets, "load_dataset", load)
    Path("clone").mkdir()  # as `git clone` leaves it: the Hub's configurations are its own, too
    for name, setting in (("openai/gsm8k:socratic", "main"), ("openai/other", "main"), ("clone:main", None)):
        sources.load_source(name, setting)
    assert asked == [("openai/gsm8k", "socratic"), ("openai/other", "main"), ("clone", "main")]
    with pytest.raises(UserError, match=r"'main', 'x'.*openai/gsm8k:NAME"):
        sources.load_source("openai/gsm8k")


def test_without_a_network_a_set_of_the_hub_is_an_error():
    with pytest.raises(UserError, match=r"'openai/gsm8k' .*Hub"):
        sources.load_source("openai/gsm8k", "main")


@pytest.mark.parametrize(
    ("spec", "count"),
    [("train", 40), ("train[:7]", 7), ("train[-5:]", 5), ("train[10%:20%]", 4), ("train[30:99]", 10)],
)
def test_slices(spec, count):
    assert len(sources.take_split({"train": Dataset.from_list(ROWS)}, spec)) == count


@pytest.mark.parametrize("spec", ["validation", "train[40:]", "train[a]"])
def test_an_error_about_a_split_lists_those_that_there_are(spec):
    with pytest.raises(UserError, match=r"dataset_split: .*train .40 rows"):
        sources.take_split({"train": Dataset.from_list(ROWS)}, spec)
