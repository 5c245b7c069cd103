"""Where rows come from: a file, a saved dataset or the Hub, and slices of their splits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
from datasets import Dataset, DatasetDict, ReadInstruction

from . import UserError

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
            raise UserError(f"dataset {name!r} holds no rows")
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
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"dataset {str(path)!r} is a directory, but no saved dataset ({reason})") from None
    return dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}


def _open_text(path: Path) -> list[str]:
    try:
        # split("\n"), not splitlines(): JSON strings may hold U+2028 and its like
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"dataset {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"dataset {str(path)!r} is not UTF-8 text (byte {error.start})") from None


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_open_text(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"dataset {str(path)!r}, line {number}: broken JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise UserError(f"dataset {str(path)!r}, line {number}: a JSON object is needed, not {line[:40]!r}")
        rows.append(row)
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    _open_text(path)
    try:
        # as text: a column of answers must not turn 18 into 18.0
        return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"dataset {str(path)!r} is no valid CSV: {error}") from None


def _read_parquet(path: Path) -> Dataset:
    try:
        return Dataset.from_pandas(pd.read_parquet(path), preserve_index=False)
    except (OSError, ValueError) as error:
        raise UserError(f"dataset {str(path)!r} is no valid Parquet file: {error}") from None


def _from_rows(rows: list[dict[str, Any]], name: str) -> Dataset:
    names = {key: None for row in rows for key in row}  # rows may lack keys
    columns = {key: [row.get(key) for row in rows] for key in names}
    for key, values in columns.items():
        kinds = {type(value) for value in values} - {type(None)}
        if str in kinds and kinds <= {str, int, float}:  # answers that are numbers in some rows
            columns[key] = [value if value is None else str(value) for value in values]
    try:
        return Dataset.from_dict(columns)
    except (ValueError, TypeError, OverflowError) as error:  # pyarrow's errors are among these
        raise UserError(f"dataset {name!r} mixes types within a column: {error}") from None


_READERS: dict[str, Callable[[Path], Any]] = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}


def take_split(source: dict[str, Dataset], spec: str) -> Dataset:
    """One split, or a slice of one in datasets' notation: `train`, `train[:1000]`, `train[10%:20%]`."""
    try:
        parts = ReadInstruction.from_spec(spec).to_absolute({name: len(rows) for name, rows in source.items()})
    except (ValueError, AssertionError) as error:
        raise UserError(
            f"split {spec!r} cannot be taken: {error}; there is {', '.join(source)}; slice it as train[:1000]"
        ) from None
    slices = [(source[part.splitname], slice(part.from_, part.to)) for part in parts]
    rows = datasets.concatenate_datasets([split.select(list(range(len(split))[cut])) for split, cut in slices])
    if len(rows) == 0:
        sizes = ", ".join(f"{name} has {len(split)} rows" for name, split in source.items())
        raise UserError(f"split {spec!r} holds no rows; {sizes}")
    return rows
