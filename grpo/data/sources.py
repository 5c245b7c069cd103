"""Where rows come from: a file, a saved dataset or the Hub, and slices of their splits."""

import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
from datasets import Dataset, DatasetDict, ReadInstruction, Value

from grpo.core.errors import UserError
from grpo.core.settings import IN_MEMORY, as_list, data_label

Splits = dict[str, Dataset]


def labels(names: Sequence[str]) -> list[str]:
    """Short names for data sets, all different.

    >>> labels(["openai/gsm8k", "sums.csv"]), labels(["a/train.csv", "b/train.csv", "c.json", "c.csv"])
    (['gsm8k', 'sums'], ['a/train', 'b/train', 'c', 'c-2'])
    """
    short, found = list(map(data_label, names)), []
    for name, label in zip(names, short, strict=True):
        if short.count(label) > 1 and (above := Path(name).parent.name):
            label = f"{above}/{label}"
        number = next(number for number in itertools.count(1) if f"{label}-{number}" not in found)
        found.append(f"{label}-{number}")
    return [label.removesuffix("-1") for label in found]


def load_sources(
    names: str | list[str] | None, config: str | None, setting: str = "dataset_name"
) -> dict[str, Splits]:
    """The splits of one or more data sets, by their `labels`.

    Args:
        config: the configuration of those of the Hub whose name has none of its own (`openai/gsm8k:main`).
    """
    listed = as_list(names)
    return {label: load_source(name, config, setting) for label, name in zip(labels(listed), listed, strict=True)}


def on_hub(name: str) -> bool:
    """Whether a data set's name is not that of a file or a directory."""
    path = Path(name).expanduser()
    return name != IN_MEMORY and path.suffix not in READERS and not os.path.exists(path)


def load_source(
    name: str | pd.DataFrame | Dataset, config: str | None = None, setting: str = "dataset_name"
) -> Splits:
    """All splits of a data source: a file, a directory written by `save_to_disk`, a Hub id, or rows in memory.

    Files, rows and a saved Dataset have one split, `train`. UserError where there is nothing to be read.
    """
    if isinstance(name, pd.DataFrame):
        if not name.columns.is_unique:
            raise UserError("dataset: two columns of the DataFrame have the same name; rename one")
        name = _from_rows(name.astype(object).where(name.notna(), None).to_dict("records"), "DataFrame")
    if not isinstance(name, str):
        if not isinstance(name, Dataset):
            raise UserError(f"dataset: {type(name).__name__} is not a table of rows; pass a DataFrame or a Dataset")
        if not len(name):
            raise UserError("dataset: the rows in memory are empty; pass at least one")
        return {"train": name}
    path = Path(name).expanduser()
    types = ", ".join(READERS)
    if os.path.isdir(path):  # Path's own raises in a directory that may not be read
        try:
            saved = datasets.load_from_disk(str(path))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # its JSON may hold anything
            raise UserError(
                f"dataset {name!r} is a directory, but not a saved dataset ({_first_line(error)}); use one that "
                f"save_to_disk wrote, or a {types} file"
            ) from None
        return dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}
    if path.suffix in READERS:
        try:
            rows = READERS[path.suffix](path)
        except FileNotFoundError:
            raise UserError(f"{setting}: the file {name!r} does not exist; correct its path") from None
        except UnicodeDecodeError as error:
            raise UserError(f"dataset {name!r} is not UTF-8 ({error.reason}); save it as UTF-8") from None
        except (OSError, ValueError) as error:  # of all readers
            raise UserError(f"dataset {name!r} cannot be read as {path.suffix}: {_first_line(error)}") from None
        if not rows:
            raise UserError(f"dataset {name!r} holds no rows; use a file with one row for each question")
        return {"train": rows if isinstance(rows, Dataset) else _from_rows(rows, name)}
    if os.path.exists(path):
        raise UserError(f"dataset {name!r} is not a {types} file; convert it to one of these")
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise UserError(f"dataset {name!r} does not exist; use a file, a saved dataset's directory or a Hub id")
    hub_id, _, own = name.partition(":")
    try:
        return dict(datasets.load_dataset(hub_id, own or config))
    except (OSError, ValueError) as error:
        reason, remedy = _first_line(error), f"use a local {types} file with --dataset_name to work without it"
        if configs := re.search(r"(?:available configs: |Available: )(\[.*\])", str(error)):
            reason = f"it has the configurations {configs[1]}"
            remedy = f"write one of them after its id, as {hub_id}:NAME, or use --dataset_config"
        raise UserError(
            f"{setting}: {hub_id!r} (configuration {own or config}) cannot be loaded from the Hub: {reason}; {remedy}"
        ) from None


def _first_line(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).strip().split("\n")[0]


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    # split, not splitlines: JSON strings may hold U+2028 and its like
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: broken JSON ({_first_line(error)})") from None
        if not isinstance(rows[-1], dict):
            raise ValueError(f"line {number}: each line must be one JSON object, {{…}}, not {line[:40]!r}")
    return rows


def _read_json(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        lines = re.match(r"\s*\{.*\}[ \t\r]*\n\s*\{", text)  # the first line is an object, the next one begins
        reason = "it holds one object a line; rename it to .jsonl" if lines else f"broken JSON ({_first_line(error)})"
        raise ValueError(reason) from None
    if isinstance(rows, dict):
        key = next((f" ({key!r} holds it: keep that alone)" for key in rows if isinstance(rows[key], list)), "")
        raise ValueError(f"it must be an array of objects, [{{…}}, …], not one object{key}")
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
        if not isinstance(row, dict):
            raise ValueError(f"item {number}: each must be one JSON object, {{…}}, not {json.dumps(row)[:40]!r}")
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """Everything as text, so that a column of answers does not turn 18 into 18.0."""
    try:
        # The header is read as a row: pandas would rename a column that is there twice, and shift ragged rows
        frame = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError:
        return []
    header, *rows = frame.to_numpy().tolist()
    if len(set(header)) < len(header):
        raise ValueError(f"two of the columns {', '.join(header)} have the same name; rename one")
    if len(header) == 1 and ";" in header[0]:
        raise ValueError(f"its only column is {header[0]!r}; separate columns by commas")
    return [dict(zip(header, row, strict=True)) for row in rows]


def _read_parquet(path: Path) -> Dataset:
    return Dataset.from_pandas(pd.read_parquet(path), preserve_index=False)


READERS: dict[str, Callable[[Path], Any]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _from_rows(rows: list[dict[str, Any]], name: str) -> Dataset:
    columns: dict[str, Any] = {
        key: [row.get(key) for row in rows] for key in dict.fromkeys(k for r in rows for k in r)
    }
    for key, values in columns.items():
        kinds = {type(value) for value in values} - {type(None)}
        large = any(type(value) is int and abs(value) >= 2**63 for value in values)  # than a column of numbers holds
        if large or (len(kinds) > 1 and kinds <= {str, int, float, bool}):  # answers that are numbers in some rows
            columns[key] = [value if value is None else str(value) for value in values]
        try:  # one column after the other: pyarrow's errors do not name it
            Dataset.from_dict({key: columns[key]})
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(
                f"dataset {name!r}: the column {key!r} cannot be stored ({_first_line(error)}); use text alone, or "
                "numbers alone"
            ) from None
    return Dataset.from_dict(columns)


def take_split(source: dict[str, Dataset], spec: str, setting: str = "dataset_split") -> Dataset:
    """One split, or a slice of one in datasets' notation: `train`, `train[:1000]`, `train[10%:20%]`."""
    sizes = ", ".join(f"{name} ({len(split)} rows)" for name, split in source.items())
    try:
        parts = ReadInstruction.from_spec(spec).to_absolute({name: len(rows) for name, rows in source.items()})
    except (ValueError, AssertionError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise UserError(
            f"{setting}: {spec!r} cannot be used ({reason}); available: {sizes}; a slice is written train[:1000]"
        ) from None
    slices = [(source[part.splitname], slice(part.from_, part.to)) for part in parts]
    rows = datasets.concatenate_datasets([split.select(list(range(len(split))[cut])) for split, cut in slices])
    if len(rows) == 0:
        raise UserError(f"{setting}: {spec!r} holds no rows; use some of {sizes}")
    return rows


def join(parts: Mapping[str, Dataset]) -> Dataset:
    """The rows of several data sets, by label, below each other: one table of all their columns.

    A column that only some of them have is None elsewhere. Where its types differ, numbers become text.

    Raises:
        UserError: a column is text or numbers in one data set, and lists or objects in another.
    """
    tables = dict(parts)
    for name in dict.fromkeys(name for table in parts.values() for name in table.column_names):
        kinds = {label: table.features[name] for label, table in parts.items() if name in table.column_names}
        known = [kind for kind in kinds.values() if kind != Value("null")]
        if all(kind == known[0] for kind in known):
            continue
        if not all(isinstance(kind, Value) for kind in known):
            found = ", ".join(f"{type(kind).__name__} in {label}" for label, kind in kinds.items())
            raise UserError(f"dataset_name: the column {name!r} differs ({found}); make them alike, or remove it")
        tables |= {label: tables[label].cast_column(name, Value("string")) for label in kinds}
    return datasets.concatenate_datasets(list(tables.values()))
