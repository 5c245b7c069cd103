"""Every source gives the same rows, and an error about one names the file and the place."""

import bz2
import datetime
import gzip
import itertools
import json
import lzma
import pickle
import re
import subprocess
import zipfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDatasetDict, List, Value
from helpers_runs import ROWS
from helpers_tables import each

from grpo.core.errors import UserError
from grpo.data import files, sources
from grpo.task.gold import gold_answer

LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def rows_of(source, **settings):
    return sources.take_split(sources.load_source(source, **settings), "train")


def write_zst(path, content):
    with pa.output_stream(str(path), compression="zstd") as file:
        file.write(content)


def clone(directory):
    """As `git clone` leaves a data set of the Hub: a card that names a configuration, and its files."""
    (directory / "data").mkdir(parents=True)
    splits = "\n".join(f"  - split: {name}\n    path: data/{name}-*" for name in ("train", "test"))
    (directory / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{splits}\n---\n")
    for name in ("train", "test"):
        pd.DataFrame(ROWS).to_parquet(directory / "data" / f"{name}-00000-of-00001.parquet")


FRAME = pd.DataFrame(ROWS)
WRITERS = {
    "r.jsonl": lambda path: path.write_text(LINES),
    "r.ndjson": lambda path: path.write_text(LINES),
    "r.jsonlines.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "odd [1]*, name.jsonl": lambda path: path.write_text(LINES),
    "windows.jsonl": lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n\r\n").encode()),
    "r.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "r.jsonl.zst": lambda path: write_zst(path, b"\xef\xbb\xbf" + LINES.encode()),
    "r.csv.zst": lambda path: write_zst(path, FRAME.to_csv(index=False).encode()),
    "r.json.xz": lambda path: path.write_bytes(lzma.compress(json.dumps(ROWS).encode())),
    "utf16.jsonl": lambda path: path.write_text(LINES, "utf-16"),
    "array.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "top.json": lambda path: path.write_text(json.dumps({"version": "1", "data": ROWS, "of": ["us"]}, indent=1)),
    "columns.json": lambda path: path.write_text(json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]})),
    "pandas.json": lambda path: FRAME.to_json(path),
    "index.json": lambda path: FRAME.to_json(path, orient="index"),
    "named.json": lambda path: FRAME.rename(lambda index: f"row {index}").to_json(path, orient="index"),
    "table.json": lambda path: FRAME.to_json(path, orient="table", index=False),
    "records.json": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "r.csv": lambda path: FRAME.to_csv(path, index=False),
    "semicolon.csv": lambda path: FRAME.to_csv(path, index=False, sep=";"),
    "tabs.csv": lambda path: FRAME.to_csv(path, index=False, sep="\t"),
    "r.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t"),
    "excel.csv": lambda path: path.write_text("sep=,\n" + FRAME.to_csv(index=False)),
    "sep.csv": lambda path: path.write_bytes(b"\xef\xbb\xbfsep=;\r\n" + FRAME.to_csv(index=False, sep=";").encode()),
    "unicode.csv": lambda path: FRAME.to_csv(path, index=False, sep="\t", encoding="utf-16"),
    "trailing.csv": lambda path: path.write_text(
        FRAME.assign(a="", b="").to_csv(index=False, sep=";").replace("answer;a;b", "answer;;") + ";;;\n\n"
    ),
    "r.parquet": lambda path: pd.DataFrame(ROWS).to_parquet(path),
    "saved": lambda path: Dataset.from_list(ROWS).save_to_disk(path),
    "splits": lambda path: DatasetDict(train=Dataset.from_list(ROWS)).save_to_disk(path),
    "openai/gsm8k": clone,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_source_gives_the_same_rows(name):
    WRITERS[name](Path(name))
    assert rows_of(name, config="main") == ROWS
    assert ("test" in sources.load_source(name, "main")) == ("/" in name)


@pytest.mark.parametrize("orient", ["columns", "index", "table", "records"])
def test_a_single_row_of_pandas_is_a_row(orient):
    FRAME[:1].to_json("one.json", orient=orient)
    assert [{name: row[name] for name in ROWS[0]} for row in rows_of("one.json")] == ROWS[:1]


def test_one_object_may_hold_several_splits():
    Path("r.json").write_text(json.dumps({"train": ROWS, "test": ROWS[:2]}))
    splits = sources.load_source("r.json")
    assert splits["train"] == ROWS and splits["test"] == ROWS[:2]


def test_a_csv_file_in_latin1_is_read_with_a_note(capsys):
    cells = "Gr\u00f6\u00dfe?, \u00ab\u00a0pay\u00e9\u00a0\u00bb\u2026\u201d", "\u20ac 4"
    Path("old.csv").write_bytes(f"question;answer\n{';'.join(cells)}\n".encode("cp1252"))
    assert rows_of("old.csv") == [dict(zip(("question", "answer"), cells, strict=True))]
    note = 'note: old.csv is not UTF-8, and was read as Windows-1252 (Latin-1), such as "Gr\u00f6\u00dfe"; '
    assert note in capsys.readouterr().out


TEXTS = {  # encodings of files, and questions as people write them there
    "gbk": "小明有几个苹果？",
    "gb18030": "小明有3个苹果，吃了2个",
    "big5": "小明有幾個蘋果？",
    "cp932": "太郎はりんごをいくつ持っていますか",
    "euc_jp": "太郎はりんごをいくつ持っていますか",
    "cp949": "철수는 사과를 몇 개 가지고 있습니까",
    "cp1251": "Сколько яблок у Маши?",
    "koi8_r": "Сколько яблок у Маши?",
    "cp1253": "Πόσα μήλα έχει;",
    "cp1252": "Wie groß ist die Säule?",
}


@pytest.mark.parametrize("name", ["old ones.jsonl", "r.json.gz", "r.csv"])
@pytest.mark.parametrize("encoding", TEXTS)
def test_a_file_that_is_not_utf8_is_to_be_saved_as_it(encoding, name, capsys):
    """And no text of another script passes as Western European."""
    row = {"question": f"{TEXTS[encoding]} Dan counted 35.", "answer": "4"}
    text = f"question,answer\n{row['question']},4\n" if "csv" in name else json.dumps(row, ensure_ascii=False)
    content = text.encode(encoding)
    Path(name).write_bytes(gzip.compress(content) if "gz" in name else content)
    if (encoding, name) == ("cp1252", "r.csv"):
        assert rows_of(name) == [row] and "was read as Windows-1252" in capsys.readouterr().out
        return
    with pytest.raises(UserError, match=r"line \d: .*; correct this place, or save the whole file as UTF-8") as caught:
        sources.load_source(name)
    (command,) = re.findall("`(iconv .*?)`", str(caught.value))
    recoded = subprocess.run(
        command.replace("cp1252", encoding.replace("_", "-")).split(), input=content, capture_output=True, check=True
    )
    assert recoded.stdout.decode() == text


COMMAS = "".join(json.dumps(row) + ",\n" for row in ROWS)
PYTHON = "".join(f"{row | {'level': None}}\n" for row in ROWS)
NOT_JSON = {  # what people take for JSON, and the remedy
    "commas.jsonl": (COMMAS, "remove the commas at the ends of lines"),
    "commas.ndjson": (COMMAS.replace("\n", "  \r\n"), "remove the commas"),
    "python.jsonl": (PYTHON, "it is written as Python, not as JSON: write it with json.dumps"),
    "both.jsonl": (PYTHON.replace("}\n", "},\n\n"), "it is written as Python"),
    "python.json": (str(ROWS), "it is written as Python"),
    "trailing.json": (json.dumps(ROWS, indent=1).replace("}\n]", "},\n]"), "remove the comma before this ]"),
    "inner.json": (json.dumps(ROWS, indent=1).replace('"\n }', '",\n }'), "remove the comma before this }"),
    "inner.jsonl": (LINES.replace("}", ",}", 1), "remove the comma before this }"),
    "comments.json": (json.dumps(ROWS, indent=1).replace("{\n", "{ // a row\n", 1), "remove the comments"),
    "comments.jsonl": ("# made-up rows\n" + LINES, "remove the comments"),
    "block.json": ("/* rows */\n" + json.dumps(ROWS), "remove the comments"),
    "half.json": (json.dumps(ROWS)[:-30], "the file ends here"),
    "half.jsonl": (LINES[:-30], "the file ends here"),
    "odd.json": ('[{"question": 2 3}]', "correct it, or write the file with json.dumps"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_rows_that_are_nearly_json_name_the_remedy(name):
    text, remedy = NOT_JSON[name]
    Path(name).write_text(text)
    with pytest.raises(UserError, match=rf"line \d+ is broken JSON \(.*; {re.escape(remedy)}"):
        sources.load_source(name)


def test_rows_in_memory_are_a_source():
    frame = pd.DataFrame({"question": ["a", "b", "c"], "answer": [1, "2 cm", None]}, index=[7, 8, 9])
    assert [row["answer"] for row in rows_of(frame)] == [1, "2 cm", None]
    mixed = [{"question": "a", "answer": 1, "size": 2**70}, {"question": "b", "answer": "007"}, {"question": "c"}]
    assert rows_of(mixed) == mixed


# --- Cells as they are written


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
    for rows in (sources.take_split(splits, "train"), sources.take_split(splits, "test"), rows_of(formatted)):
        assert rows == expected and type(rows[0]["n"]) is int


STREAM = Dataset.from_list(ROWS).to_iterable_dataset()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (pd.DataFrame({"question": []}), "holds no rows"),
        ([], "holds no rows"),
        ([1, 2], "pass a DataFrame"),
        (["a.jsonl", Path("b.jsonl")], "pass the name of one file, or of a directory, of which all files are read"),
        ({"question": ["a"]}, "a dict is not a table of rows; pass a DataFrame"),
        (STREAM, r"IterableDataset is not a table of rows; pass a list .* list\(rows.take\(10_000\)\)"),
        (IterableDatasetDict(train=STREAM), r"list\(rows.take"),
        ([{"question": "a"}, {"question": object()}], "row 2: a object"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns are called 'a'"),
    ],
)
def test_what_is_no_table_of_rows_is_one_line(rows, says):
    with pytest.raises(UserError, match=f"dataset_name: 'rows in memory' .*{says}"):
        sources.load_source(rows)


LONG = "123456789012345678901234567890"
GOLDS = {  # a cell's JSON, and its gold answer
    **{cell: cell for cell in (LONG, f"-{LONG}", str(2**63), str(-(2**63)), str(2**53 + 1), "9" * 5000, "72")},
    **{
        cell: cell for cell in ("0.10", "1.50", "1e-7", "1E+400", "1e-400", "1e300", "33.333333333333336", f"0.{LONG}")
    },
    **{cell: cell for cell in ("true", "false")},
    **{f'"{text}"': text for text in ("2024-01-05 10:30", "2024-01-05T10:30:00+02:00", "00:00:00", "007", "true")},
    **{"100.0": "100", "-0": "0", "-0.0": "0", "null": None, "NaN": None, "[]": None, '{"value": 4}': None},
    '["2024-01-05 10:30"]': "2024-01-05 10:30",
    f'[4, "four", {LONG}, 0.10, null]': ["4", "four", LONG, "0.10"],
}
FORMS = {
    "r.jsonl": lambda path, rows: path.write_text("\n".join(rows)),
    "r.json": lambda path, rows: path.write_text(f"[{', '.join(rows)}]"),
    "lines.json": lambda path, rows: path.write_text("\ufeff" + "\r\n\r\n".join(rows)),
    "r.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress("\n".join(rows).encode())),
    "r.json.bz2": lambda path, rows: path.write_bytes(bz2.compress(f"[{', '.join(rows)}]".encode())),
}


@each(itertools.product(GOLDS, ["", "1", "0.5", '"x"', "null", "[1]", "true", '{"value": 4}']))
def test_gold_answers_of_json_are_as_written_whatever_is_beside_them(cell, beside):
    cells = [cell, beside] if beside else [cell]
    Path("r.jsonl").write_text("".join(f'{{"question": "a", "answer": {written}}}\n' for written in cells))
    assert gold_answer(rows_of("r.jsonl")[0]["answer"]) == GOLDS[cell]


@pytest.mark.parametrize("name", FORMS)
def test_cells_stay_as_written_in_any_form_of_json(name):
    rows = [f'{{"question": "2024-01-05 10:3{n}", "answer": {LONG}}}' for n in range(2)]
    FORMS[name](Path(name), rows)
    assert rows_of(name) == [{"question": f"2024-01-05 10:3{n}", "answer": int(LONG)} for n in range(2)]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_cells_stay_as_written_in_a_directory(ending):
    for split, cell in (("train", LONG), ("test", "2024-01-05"), ("validation", "007")):
        Path("data").mkdir(exist_ok=True)
        text = f"question,answer\na,{cell}\n" if ending == "csv" else json.dumps({"question": "a", "answer": cell})
        Path(f"data/{split}.{ending}").write_text(text)
    splits = sources.load_source("data")
    assert [splits[name][0]["answer"] for name in ("train", "test", "validation")] == [LONG, "2024-01-05", "007"]


def test_cells_of_a_csv_file_stay_as_they_are_written():
    text = 'question,answer, note \n"What, ""then""\nis 1?",18,a\nNA,,b\nnull,007\n'
    Path("r.csv").write_text(text)
    assert rows_of("r.csv") == [
        {"question": 'What, "then"\nis 1?', "answer": "18", "note": "a"},
        {"question": "NA", "answer": "", "note": "b"},
        {"question": "null", "answer": "007"},
    ]


NUMBERS = [0.1, 1e-7, 16777216.0, 2.5]
TYPED = Features(
    question=Value("string"), f=Value("float32"), c=ClassLabel(names=["no", "yes"]), l=List(Value("float32"))
)


def typed(make):
    """Numbers of 32 bits and classes, alone and in lists, as a source has them."""
    rows = [{"question": str(n), "f": n, "c": int(n < 1), "l": [n, n]} for n in NUMBERS]
    return make(Dataset.from_list(rows, features=TYPED))


def parquet(rows):
    rows.to_parquet("r.parquet")
    return "r.parquet"


@pytest.mark.parametrize("make", [lambda rows: rows, parquet, lambda rows: rows.with_format("numpy")])
def test_golds_of_typed_columns_are_shortest_decimals_and_names(make):
    rows = rows_of(typed(make))
    assert [gold_answer(row["f"]) for row in rows] == ["0.1", "0.0000001", "16777216", "2.5"]
    assert [gold_answer(row["c"]) for row in rows] == ["yes", "yes", "no", "no"] and "AB"[rows[0]["c"]] == "B"
    assert gold_answer(rows[0]["l"]) == "0.1" and rows[0]["f"] * 10 == 1


def test_golds_of_a_dataframe_are_those_of_its_cells():
    cells = {
        "f": (np.array(NUMBERS, dtype="float32"), ["0.1", "0.0000001", "16777216", "2.5"]),
        "mixed": ([72, "2 cm", None, [np.int64(4)]], ["72", "2 cm", None, "4"]),
        "gap": ([72, None, 0.5, 1e22], ["72", None, "0.5", "1" + "0" * 22]),
        "big": ([2**70, 1, None, True], [str(2**70), "1", None, "true"]),
        "array": ([np.array([1, 2]), np.array(["a"]), (3,), {4}], [["1", "2"], "a", "3", "4"]),
        "kind": (pd.Categorical(["a", "b", None, "a"]), ["a", "b", None, "a"]),
        "when": ([datetime.time(10, 30), datetime.date(2024, 1, 5), pd.NaT, Decimal("0.10")],
                 ["10:30:00", "2024-01-05", None, "0.10"]),
        "count": (pd.array([1, None, 3, 4], dtype="Int64"), ["1", None, "3", "4"]),
    }  # fmt: skip
    frame = pd.DataFrame({name: pd.Series(column) for name, (column, _) in cells.items()})
    rows = rows_of(frame)
    for name, (_, golds) in cells.items():
        assert [gold_answer(row[name]) for row in rows] == golds, name
    frame[["kind", "f", "count"]].to_parquet("r.parquet")
    assert [gold_answer(row["kind"]) for row in rows_of("r.parquet")] == cells["kind"][1]


def test_written_numbers_are_numbers_that_keep_their_text():
    Path("r.jsonl").write_text('{"level": 0.10}\n{"level": 2}\n')
    level = rows_of("r.jsonl")[0]["level"]
    assert level == 0.1 and f"{level}" == "0.10" == str(pickle.loads(pickle.dumps(level))) and f"{level:.1f}" == "0.1"
    assert sources.as_dataset({"level": [level, 2]})["level"][:] == [0.1, 2]


BROKEN = {  # the file, and where or why it cannot be read
    "last.jsonl": (b'{"question": "a"}\n\n{"question', "line 3"),
    "middle.jsonl": (b'{"q": "a"}\n{"q":\n{"q": "b"}\n', "line 2"),
    "latin.jsonl": (b'{"a": 1}\n{"question": "caf\xe9 1", "answer": 1}\n', "line 2: 'utf-8' codec"),
    "both.jsonl": ('{"a": "\u00e9"}\n'.encode() + b'{"a": "\xe9 1"}\n', "correct this place"),
    "half.csv": (b"\xff\xfeq\x00\n", "line 1: 'utf-16"),
    "both.csv": ("question,answer\n\u00e9,1\n".encode() + b"\xe9,1\n", "line 3: 'utf-8' codec"),
    "texts.json": (b'["a", "b"]', 'row 1 is "a"; write an object such as'),
    "uneven.json": (
        b'{"question": ["a", "b"], "answer": ["1"]}',
        "its columns have 1 and 2 cells; write a list",
    ),
    "deep.json": (b"[" * 100_000, "nested too deeply"),
    "quotes.csv": (b'question,answer\n"say "hi"",1\n', "line 2"),
    "open.csv": (b'question,answer\n"say,1\na,2\n', "unexpected end"),
    "twice.csv": (b"question,answer,answer\na,1,2\n", "two columns are called 'answer'"),
    "broken.jsonl.zst": (b"zst", "zst"),
    "broken.csv.gz": (b"question", "gzip"),
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


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv", "r.parquet", "r.json"])
@pytest.mark.parametrize("packer", [*PACK, "zst", "zip"])
def test_a_compressed_file_needs_no_ending_that_says_so(name, packer):
    WRITERS.get(name, lambda path: path.write_text(json.dumps(ROWS)))(Path(name))
    content = Path(name).read_bytes()
    if packer == "zst":
        write_zst(name, content)
    elif packer == "zip":
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("data", content)
    else:
        Path(name).write_bytes(PACK[packer](content))
    assert rows_of(name) == ROWS


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12345\n"
NO_ROWS = {  # the content of a file that is none of rows, and what to do
    "lfs": (LFS, "run `git lfs pull`"),
    "annex": (b"/annex/objects/MD5E-s1--a.csv\n", "run `git annex get`"),
    "page": (b"<!DOCTYPE html>\n<html><head></head></html>", "download the file itself"),
    "page with a mark": (b"\xef\xbb\xbf\n <HTML lang='en'>", "download the file itself"),
    "xml": (b"<?xml version='1.0'?>\n<rows></rows>", "convert it"),
    "excel": (b"PK\x03\x04" + b"\0" * 26 + b"[Content_Types].xml", "save it as CSV"),
    "old excel": (b"\xd0\xcf\x11\xe0\xa1\xb1", "save it as CSV"),
    "tar": (b"a" * 257 + b"ustar\0" + b"0" * 200, "unpack it"),
    "pdf": (b"%PDF-1.7\n", "convert it"),
    "arrow": (b"ARROW1\0\0", "write it as parquet"),
    "sqlite": (b"SQLite format 3\0", "write its rows"),
}


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "parquet", "csv.gz", "txt"])
@pytest.mark.parametrize("name", NO_ROWS)
def test_a_file_of_another_kind_is_said_to_be_one(name, ending):
    content, remedy = NO_ROWS[name]
    Path(f"r.{ending}").write_bytes(gzip.compress(content) if "gz" in ending else content)
    with pytest.raises(UserError, match=rf"'r.{ending}' cannot be read: it is .*{remedy}"):
        sources.load_source(f"r.{ending}")


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_pointer_in_a_directory_is_named(ending, folder):
    directory = folder([f"data/train-00000-of-00002.{ending}"])
    (directory / f"data/train-00001-of-00002.{ending}").write_bytes(LFS)
    with pytest.raises(UserError, match=rf"train-00001-of-00002.{ending}: it is a Git LFS pointer"):
        sources.load_source(str(directory))


def test_a_parquet_file_of_another_name_is_to_be_renamed():
    pd.DataFrame(ROWS).to_parquet("r.jsonl")
    with pytest.raises(UserError, match=r"it is a parquet file: rename it to r\.parquet"):
        sources.load_source("r.jsonl")


def test_maps_of_parquet_files_are_dictionaries():
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    Path("d").mkdir()
    pa.parquet.write_table(pa.table({"question": ["x", "y"], "m": maps}), "d/r.parquet")
    for source in ("d/r.parquet", "d"):
        assert rows_of(source) == [{"question": "x", "m": {"a": 1}}, {"question": "y", "m": None}]


READ = {  # CSV as programs write it, and its rows
    "spaces.csv": ('question, answer\n"What, then?", "6, 7"\nA, "8"\n', [("What, then?", "6, 7"), ("A", "8")]),
    "one space.csv": ('question, answer\nA, "6"\nB, "7"\n', [("A", "6"), ("B", "7")]),
    "both spaces.csv": ('question,answer\n"A, a" , "6" \n"B ""b"" ." ,"7"\n', [("A, a", "6"), ('B "b" .', "7")]),
    "spaces.tsv": ('question\tanswer\nA\t "6"\n', [("A", "6")]),
    "quotes.tsv": ('question\tanswer\n"Hi" she said\t6\n"No\t7\n', [('"Hi" she said', "6"), ('"No', "7")]),
    "plain space.csv": ("question,answer\n A, b\n", [(" A", " b")]),
    "header.csv": ('"question\n","answer "\nA,b\n', [("A", "b")]),
}


@pytest.mark.parametrize("name", READ)
def test_other_ways_of_quoting_are_read(name):
    text, rows = READ[name]
    Path(name).write_text(text)
    assert rows_of(name) == [{"question": asked, "answer": gold} for asked, gold in rows]


TABLES = {  # CSV that cannot be read, and what to change
    "title.csv": ("My questions,,\n,,\nquestion,answer,note\na,1,x\n", "delete lines 1 to 2 if that is a title"),
    "comment.csv": ("# made by hand\nquestion,answer\na,1\n", "delete line 1 if that is a title"),
    "ragged.csv": ("question,answer\na,1\nb,2,3\n", "quote texts that contain commas"),
    "backslash.csv": ('question,answer\n"say \\"hi\\", ok",6\n', r"""sed -i 's/\\\\"/""/g'"""),
    "open.csv": ('question,answer\n"say "hi", ok",6\n', "double the quotes inside of them"),
    "caret.csv": ("question^answer\na^1\nb^2\n", r"add a first line sep=\^"),
    "tilde.csv": ("question~answer\nWhat, then?~1\nb~2\n", "add a first line sep=~"),
    "hive.csv": ("question\x01answer\na\x011\nb\x012\n", "write tabs instead"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_read_names_the_remedy(name):
    text, remedy = TABLES[name]
    Path(name).write_text(text)
    with pytest.raises(UserError, match=remedy):
        sources.load_source(name)


def test_the_remedy_for_another_separator_works():
    Path("r.csv").write_text("sep=^\n" + TABLES["caret.csv"][0])
    assert rows_of("r.csv") == [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]


def test_the_remedy_for_quotes_behind_backslashes_works():
    Path("r.csv").write_text(TABLES["backslash.csv"][0])
    with pytest.raises(UserError) as caught:
        sources.load_source("r.csv")
    (command,) = re.findall("sed -i '.*?'", str(caught.value))
    subprocess.run(f"{command} r.csv", shell=True, check=True)
    assert rows_of("r.csv") == [{"question": 'say "hi", ok', "answer": "6"}]


@pytest.mark.parametrize(("names", "said"), [(["a.xlsx"], "it holds a.xlsx; save"), ([], "it is empty; save")])
def test_a_directory_without_rows_says_what_it_holds(names, said):
    Path("folder").mkdir()
    for name in names:
        Path("folder", name).write_text("")
    with pytest.raises(UserError, match=said):
        sources.load_source("folder")


BESIDE = [  # files of a directory, and what is said of them
    (["a.jsonl", "b.xlsx"], "b.xlsx in folder is not read"),
    (["a.csv", "more/b.feather", "c.zip"], "c.zip, more/b.feather in folder are not read"),
    (["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"], "train-00001-of-00003.parquet is missing"),
    (["data/train_1_of_3.csv", "data/train_3_of_3.csv"], "train_2_of_3.csv is missing"),
    (["part_0.jsonl", "part_1.jsonl", "part_3.jsonl"], "part_2.jsonl is missing"),
    (["Train-Shard1.csv", "Train-Shard2.csv", "Train-Shard4.csv"], "Train-Shard3.csv is missing"),
    (["v1.jsonl", "v2.jsonl", "v4.jsonl"], ""),
    (["2024-01-01.jsonl", "2024-01-03.jsonl", "2024-01-04.jsonl"], ""),
    (["level0.jsonl", "level1.jsonl", "level2.jsonl", "level5.jsonl"], ""),
    (["train_2019.jsonl", "train_2021.jsonl", "train_2022.jsonl"], ""),
    (["a.jsonl", "a.jsonl.md5", "SHA.sha256", "a.jsonl.dvc"], ""),
    (["a.jsonl", "README.md", "LICENSE", "make.py", "plot.png", ".git/x.bin"], ""),
    (["2019.csv", "2021.csv"], ""),
    (["train-00000-of-00001.parquet"], ""),
]


@pytest.mark.parametrize(("names", "said"), BESIDE)
def test_what_is_missing_or_not_read_in_a_directory_is_named(names, said):
    for name in names:
        Path("folder", name).parent.mkdir(parents=True, exist_ok=True)
        Path("folder", name).write_text("")
    found = [check.finding for check in sources.about_files("folder", "dataset_name")]
    assert len(found) == bool(said) and said in "".join(found)


def test_one_part_of_several_is_said_to_be_one():
    Path("r-00000-of-00002.jsonl").write_text(LINES)
    (found,) = sources.about_files("r-00000-of-00002.jsonl", "dataset_name")
    assert found.finding == "r-00000-of-00002.jsonl is one of 2 files" and "name their directory" in found.remedy


@pytest.mark.parametrize("beside", ["train.jsonl.md5", "train.jsonl.sha256", "train.jsonl~", "train.jsonl.dvc"])
def test_a_file_beside_the_rows_that_is_named_like_them_is_not_read(beside):
    Path("folder").mkdir()
    Path("folder", "train.jsonl").write_text(LINES)
    Path("folder", beside).write_text("d41d8cd98f00b204e9800998ecf8427e  train.jsonl")
    assert len(sources.load_source("folder")["train"]) == LINES.count("question")


ARCHIVES = [  # files of a zip archive, and what is said
    (["rows.csv"], ""),
    (["LICENSE", "data/", "data/rows.csv", "__MACOSX/._rows.csv", ".DS_Store"], ""),
    (["train.csv", "test.csv"], "it holds train.csv, test.csv; unpack it, and name one file, or their directory"),
    (["a.txt", "b.txt"], "it holds a.txt, b.txt; unpack it"),
    ([], "it holds no file; unpack it"),
]


@pytest.mark.parametrize(("names", "said"), ARCHIVES)
def test_an_archive_is_read_if_it_holds_one_file_of_rows(names, said):
    with zipfile.ZipFile("rows.csv.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "question,answer\n2 + 2?,4\n" if name.endswith("s.csv") else "")
    if said:
        with pytest.raises(UserError, match=said):
            sources.load_source("rows.csv.zip")
    else:
        assert sources.load_source("rows.csv.zip")["train"] == [{"question": "2 + 2?", "answer": "4"}]


PAIRS = [  # files of a directory, of which `datasets` would read some
    ("a.jsonl", "b.csv"),
    ("train.jsonl", "more.jsonl"),
    ("data/a.csv", "data/b.json.gz"),
    ("a.jsonl", "b.jsonl", "c.parquet"),
]
TOGETHER = [("a.jsonl", "b.json", "c.ndjson.gz"), ("a.csv", "b.tsv"), ("train.csv", "test.csv"),
            ("a.jsonl", "dataset_info.json", ".hidden/b.csv", "notes.txt")]  # fmt: skip


@pytest.fixture
def folder():
    """A directory with these files, of two rows each."""

    def make(names):
        for path in (Path("folder", name) for name in names):
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = next((kind for kind in ("json", "parquet") if kind in path.name), "csv")
            frame, rest = FRAME[:2], {"index": False} if kind != "json" else {"orient": "records", "lines": True}
            if path.suffix == ".tsv":
                rest["sep"] = "\t"
            getattr(frame, f"to_{kind}")(path, **rest)
        return Path("folder")

    return make


@pytest.mark.parametrize("names", PAIRS)
def test_a_file_that_would_be_skipped_is_named(names, folder):
    with pytest.raises(UserError, match=r"'folder' .* would be read, but .* would not; name one file") as caught:
        sources.load_source(str(folder(names)))
    assert Path(names[0]).name in str(caught.value) and Path(names[-1]).name in str(caught.value)


def test_splits_of_several_kinds_are_refused(folder):
    with pytest.raises(UserError, match="its splits are files of several kinds; write all of them as one"):
        sources.load_source(str(folder(["train.parquet", "test.csv"])))


@pytest.mark.parametrize("names", TOGETHER)
def test_files_of_one_kind_are_all_read(names, folder):
    counted = sum(len(rows) for rows in sources.load_source(str(folder(names))).values())
    assert counted == 2 * sum("hidden" not in name and "info" not in name and "notes" not in name for name in names)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder/*.jsonl", "it is a pattern, which fits 2 files; name one file, or a directory"),
        ("none/**.csv", "it is a pattern, which fits 0 files"),
        ("folder/a.jsonl,folder/b.jsonl", "it names 2 files; name one, or put them in a directory"),
        ("folder/a.jsonl folder/b.jsonl", "it names 2 files"),
        ("folder/a.jsonl, missing.csv", "it names 2 files"),
    ],
)
def test_several_files_in_one_name_are_refused_as_such(name, says, folder):
    folder(["a.jsonl", "b.jsonl"])
    with pytest.raises(UserError, match=re.escape(says)):
        sources.load_source(name)


def test_long_reasons_and_many_splits_are_cut(monkeypatch):
    monkeypatch.setattr(sources, "_read", lambda *given: (_ for _ in ()).throw(ValueError("why " * 2000)))
    with pytest.raises(UserError) as caught:
        sources.load_source("r.jsonl")
    assert len(str(caught.value)) < 1600
    with pytest.raises(UserError, match="and 80 more") as caught:
        sources.take_split({f"split{number}": ROWS for number in range(100)}, "train")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["missing.jsonl.gz", "./missing", "a/b/c", "my rows", "-rows"])
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
    clone(Path("clone"))  # the Hub's configurations are its own, too
    for name, setting in (("openai/gsm8k:socratic", "main"), ("openai/other", "main"), ("clone:main", None)):
        sources.load_source(name, setting)
    assert asked == [("openai/gsm8k", "socratic"), ("openai/other", "main"), ("clone", "main")]
    with pytest.raises(UserError, match=r"'main', 'x'.*openai/gsm8k:NAME"):
        sources.load_source("openai/gsm8k")


def test_json_of_the_hub_is_read_as_it_is_written(monkeypatch):
    """Not as datasets' own reader has it, which makes times of texts."""
    Path("clone").mkdir()
    Path("clone/train.jsonl").write_text('{"question": "a", "answer": "2024-01-05 10:30"}\n')
    builder = sources.datasets.load_dataset_builder
    inferred = sources.datasets.load_dataset("clone")
    monkeypatch.setattr(sources.datasets, "load_dataset", lambda name, config: inferred)
    monkeypatch.setattr(sources.datasets, "load_dataset_builder", lambda name, config: builder("clone"))
    assert rows_of("somebody/dates") == [{"question": "a", "answer": "2024-01-05 10:30"}]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch):
    def load(name, config=None):
        raise PermissionError(13, "Permission denied", "/nowhere/datasets/x")

    monkeypatch.setattr(sources.datasets, "load_dataset", load)
    monkeypatch.setattr(sources.datasets.config, "HF_CACHE_HOME", Path("/nowhere"))
    with pytest.raises(UserError, match=r"the cache '/nowhere', which cannot be written .*; set HF_HOME"):
        sources.load_source("openai/other")


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


def write_zip(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("r.jsonl", content)


PACKERS = {
    ".gz": lambda path, content: path.write_bytes(gzip.compress(content)),
    ".bz2": lambda path, content: path.write_bytes(bz2.compress(content)),
    ".xz": lambda path, content: path.write_bytes(lzma.compress(content)),
    ".zst": write_zst,
    ".zip": write_zip,
}


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_refused(ending, monkeypatch):
    row = b'{"question": "2 + 2?", "answer": "4"}\n'
    content = row + b" " * 3_000_000 + b"\n"
    path = Path(f"r.jsonl{ending}")
    PACKERS[ending](path, content)
    assert len(files.read_file(path)["train"]) == 1  # below 100 MB it is read
    monkeypatch.setattr(files, "ALWAYS_READ", 1_000_000)
    monkeypatch.setattr(files, "PACKED_TIGHTLY", 100)
    with pytest.raises(ValueError, match=r"unpack to more than 1.0 MB, .* unpack it"):
        files.read_file(path)
    monkeypatch.setattr(files, "ALWAYS_READ", 4_000_000)
    monkeypatch.setattr(files.psutil, "virtual_memory", lambda: SimpleNamespace(available=2_000_000))
    with pytest.raises(ValueError, match=r"unpack to more than 2.0 MB"):
        files.read_file(path)
