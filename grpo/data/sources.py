"""Where rows come from: a file, a saved dataset or the Hub, and slices of their splits."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
from datasets import Dataset, DatasetDict, ReadInstruction

from grpo.core import parsing
from grpo.core.errors import UserError

FILE_TYPES = (".jsonl", ".csv", ".parquet")


def load_source(name: str | pd.DataFrame | Dataset, config: str | None = None) -> dict[str, Dataset]:
    """All splits of a data source: a file, a directory written by `save_to_disk`, a Hub id, or rows in memory.

    Files, rows and a saved Dataset have one split, `train`. UserError where there is nothing to be read.
    """
    if isinstance(name, pd.DataFrame):
        if not name.columns.is_unique:
            raise UserError("dataset: two columns of the DataFrame have the same name; rename one")
        name = _from_rows(name.astype(object).where(name.notna(), None).to_dict("records"), "DataFrame")
    if not isinstance(name, str):
        if not isinstance(name, Dataset):
            raise UserError(f"dataset: {type(name).__name__} is no table of rows; give a DataFrame or a Dataset")
        if not len(name):
            raise UserError("dataset: there are no rows in memory; give some")
        return {"train": name}
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_saved(path)
    if path.suffix in FILE_TYPES:
        rows = _READERS[path.suffix](path)
        if not rows:
            raise UserError(f"dataset {name!r} holds no rows; give a file with one row for each question")
        return {"train": rows if isinstance(rows, Dataset) else _from_rows(rows, name)}
    if path.exists():
        raise UserError(f"dataset {name!r} is no {', '.join(FILE_TYPES)} file; convert it to one of these")
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise UserError(f"dataset {name!r} does not exist; give a file, a saved dataset's directory or a Hub id")
    try:
        return dict(datasets.load_dataset(name, config))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"dataset {name!r} (configuration {config}) cannot be loaded from the Hub: {reason}; give a local .jsonl, "
            ".csv or .parquet file with --dataset_name to work without it"
        ) from None


def _load_saved(path: Path) -> dict[str, Dataset]:
    try:
        saved = datasets.load_from_disk(str(path))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # its JSON files may hold anything
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"dataset {str(path)!r} is a directory, but no saved dataset ({reason}); give one that save_to_disk "
            f"wrote, or a {', '.join(FILE_TYPES)} file"
        ) from None
    return dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"dataset {str(path)!r} cannot be read: {error.strerror}; use another path, or make this one readable"
        ) from None


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8-sig")  # not read_text(), which would turn \r into \n
    except UnicodeDecodeError as error:
        raise UserError(f"dataset {str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    # split("\n"), not splitlines(): JSON strings may hold U+2028 and its like
    for number, line in enumerate(_read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"dataset {str(path)!r}, line {number}"
        try:
            row = parsing.from_json(line)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise UserError(f"{where}: broken JSON ({reason}); each line must be one JSON object") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: each line must be one JSON object, {{…}}, not {line[:40]!r}")
        rows.append(row)
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """Everything as text, so that a column of answers does not turn 18 into 18.0."""
    try:
        # The header is read as a row: pandas would rename a column that is there twice, and shift ragged rows
        rows = pd.read_csv(io.StringIO(_read_text(path)), header=None, dtype=str, keep_default_na=False).to_numpy()
    except pd.errors.EmptyDataError:
        return []
    except pd.errors.ParserError as error:
        reason = str(error).rpartition("C error: ")[2].strip()
        raise UserError(
            f'dataset {str(path)!r} is not valid CSV: {reason}; put a field that contains a comma into "…", and close '
            "every quote"
        ) from None
    header = [str(name) for name in rows[0]]
    if twice := [name for name in header if header.count(name) > 1]:
        raise UserError(f"dataset {str(path)!r}: two columns are called {twice[0]!r}; rename one")
    return [dict(zip(header, row, strict=True)) for row in rows[1:].tolist()]


def _read_parquet(path: Path) -> Dataset:
    try:
        return Dataset.from_pandas(pd.read_parquet(io.BytesIO(_read_bytes(path))), preserve_index=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"dataset {str(path)!r} is not a valid Parquet file ({error}); write it again, or use .jsonl or .csv"
        ) from None


def _from_rows(rows: list[dict[str, Any]], name: str) -> Dataset:
    names = {key: None for row in rows for key in row}  # rows may lack keys
    columns = {key: [row.get(key) for row in rows] for key in names}
    for key, values in columns.items():
        kinds = {type(value) for value in values} - {type(None)}
        if bool in kinds and kinds & {int, float}:  # which pyarrow reads as 1
            raise UserError(f"dataset {name!r} mixes types within a column: {key} holds true or false among numbers")
        large = any(type(value) is int and abs(value) >= 2**63 for value in values)  # than a column of numbers holds
        if large or (str in kinds and kinds <= {str, int, float}):  # answers that are numbers in some rows
            columns[key] = [value if value is None else str(value) for value in values]
    for key, values in columns.items():  # one after the other: pyarrow's errors do not name the column
        try:
            Dataset.from_dict({key: values})
        except UnicodeEncodeError as error:
            broken = error.object[error.start]
            raise UserError(f"dataset {name!r}: column {key!r} holds half a character ({broken!r})") from None
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(
                f"dataset {name!r} mixes types within a column: {key} ({error}); use text alone, or numbers alone"
            ) from None
    return Dataset.from_dict(columns)


_READERS: dict[str, Callable[[Path], Any]] = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}


def take_split(source: dict[str, Dataset], spec: str, setting: str = "dataset_split") -> Dataset:
    """One split, or a slice of one in datasets' notation: `train`, `train[:1000]`, `train[10%:20%]`."""
    sizes = ", ".join(f"{name} ({len(split)} rows)" for name, split in source.items())
    try:
        parts = ReadInstruction.from_spec(spec).to_absolute({name: len(rows) for name, rows in source.items()})
    except (ValueError, AssertionError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise UserError(
            f"{setting}: {spec!r} cannot be taken ({reason}); there is {sizes}; a slice is written train[:1000]"
        ) from None
    slices = [(source[part.splitname], slice(part.from_, part.to)) for part in parts]
    rows = datasets.concatenate_datasets([split.select(list(range(len(split))[cut])) for split, cut in slices])
    if len(rows) == 0:
        raise UserError(f"{setting}: {spec!r} holds no rows; give some of {sizes}")
    return rows
