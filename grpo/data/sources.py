"""Rows from a file, a directory, the Hub or memory, and slices of their splits."""

import datetime
import glob
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import pandas as pd
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, Json, ReadInstruction
from datasets.exceptions import DatasetGenerationError
from fsspec.compression import compr
from fsspec.utils import infer_compression

from grpo.core.errors import UserError
from grpo.core.settings import IN_MEMORY

Splits = Mapping[str, Dataset]
Rows: TypeAlias = pd.DataFrame | Dataset | DatasetDict | list[dict[str, Any]]  # in memory

BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}  # of `datasets`, by ending
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
NOT_ARROW = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def load_source(source: str | Rows, config: str | None = None, setting: str = "dataset_name") -> Splits:
    """All splits of a file, a directory, a data set on the Hub, or rows in memory.

    Args:
        config: the configuration of a data set on the Hub or of its clone, unless its name has one, as in
            `openai/gsm8k:main`.
        setting: what errors call it.

    Returns:
        The rows by split; files have the split `train` alone, and so have rows in memory that are no DatasetDict.

    Raises:
        UserError: it cannot be read, or holds no rows.
    """
    name = source if isinstance(source, str) else IN_MEMORY
    try:
        splits = _read(source, config) if isinstance(source, str) else _from_memory(source)
    except Exception as error:  # libraries raise anything where a file contains anything
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None  # datasets hides it
        raise UserError(f"{setting}: {name!r} cannot be read: {cause or error}") from error
    if not any(map(len, splits.values())):
        raise UserError(f"{setting}: {name!r} holds no rows; use one row for each question")
    return splits


def _from_memory(rows: Rows) -> Splits:
    if isinstance(rows, DatasetDict):
        return {str(name): _plain(split) for name, split in rows.items()}
    if isinstance(rows, pd.DataFrame):
        return {"train": Dataset.from_pandas(_as_arrow_takes_it(rows), preserve_index=False)}
    if isinstance(rows, Dataset):
        return {"train": _plain(rows)}
    if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
        return {"train": from_rows(rows)}
    remedy = "pass a DataFrame, a Dataset, a DatasetDict or a list of dictionaries"
    if isinstance(rows, IterableDataset | IterableDatasetDict):
        remedy = "pass a list of the rows that you want, such as list(rows.take(10_000))"
    raise TypeError(f"a {type(rows).__name__} is not a table of rows; {remedy}")


def _plain(rows: Dataset) -> Dataset:
    """The rows without their format, which would make arrays of numbers; a transform of the user's is applied."""
    return from_rows(list(rows)) if rows.format["type"] == "custom" else rows.with_format(None)


def from_rows(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """Rows as Python has them; a column of cells of several kinds is one of JSON, which keeps them apart."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    try:
        return Dataset.from_dict(columns)
    except NOT_ARROW:
        features = {}
    for name, cells in columns.items():
        try:
            features[name] = Dataset.from_dict({name: cells}).features[name]
        except NOT_ARROW:
            features[name] = Json()
            columns[name] = [None if cell is None else json.dumps(cell, default=_as_text) for cell in cells]
    return Dataset.from_dict(columns, features=Features(features))


def _as_text(value: Any) -> str:
    """A date, a time or a decimal number within a cell that becomes JSON; TypeError for any other value."""
    if isinstance(value, datetime.date | datetime.time | Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _as_arrow_takes_it(table: pd.DataFrame) -> pd.DataFrame:
    """Turn the numbers of a column that also has texts into text; Arrow refuses mixed columns."""
    table = table.copy()
    for column in [name for name in table.columns if table[name].dtype == object]:
        known = table[column].dropna()
        if known.map(lambda cell: isinstance(cell, str)).any():
            table[column] = known.astype(str).reindex(table.index)
    return table


def _read(name: str, config: str | None) -> Splits:
    clone, _, named_config = name.partition(":")
    if named_config and os.path.isdir(Path(clone).expanduser()):
        name, config = clone, named_config
    path = Path(name).expanduser()
    endings = [ending.lower() for ending in path.suffixes]
    ending = next((ending for ending in reversed(endings) if ending not in COMPRESSED), "")
    if os.path.exists(path):  # Path's own raises in a directory that may not be read
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the UserError says what is wrong
    if os.path.isdir(path):
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():  # save_to_disk wrote it
            saved = datasets.load_from_disk(path)
            return saved if isinstance(saved, DatasetDict) else {"train": saved}
        return _read_directory(path, config)
    if ending in BUILDERS or os.path.exists(path):
        return _read_file(path, ending)
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError("it does not exist; use a file, a directory or a Hub id")
    hub_id, _, named_config = name.partition(":")
    try:
        return datasets.load_dataset(hub_id, named_config or config)
    except (OSError, ValueError) as error:
        remedy = f"write it after the id: {hub_id}:NAME" if "Config" in str(error) else "use a local file instead"
        raise ValueError(f"{error}; {remedy}") from error


def _read_directory(path: Path, config: str | None) -> Splits:
    if any(path.rglob("*.json*")):  # the card of a clone may name others
        builder = datasets.load_dataset_builder(str(path), config)
        if builder.info.builder_name == "json":
            files = builder.config.data_files or {}
            tables = {str(name): [_rows_as_written(Path(file)) for file in files[name]] for name in files}
            if not any(None in parts for parts in tables.values()):
                return {
                    name: from_rows([row for rows in parts for row in rows or ()]) for name, parts in tables.items()
                }
    return datasets.load_dataset(str(path), config)


def _read_file(path: Path, ending: str) -> Splits:
    if not os.path.exists(path):
        raise ValueError("the file does not exist; correct its path")
    if ending not in BUILDERS:
        raise ValueError(f"it is not a {', '.join(BUILDERS)} file; convert it to one of these")
    if ending == ".csv":
        return {"train": _read_csv(path)}
    if ending != ".parquet" and (rows := _rows_as_written(path)):
        return {"train": from_rows(rows)}
    try:
        with tempfile.TemporaryDirectory() as cache:  # no copy of the file stays behind
            files = glob.escape(str(path))
            splits = datasets.load_dataset(BUILDERS[ending], data_files=files, cache_dir=cache, keep_in_memory=True)
    except StopIteration:  # the file is empty
        return {}
    except (DatasetGenerationError, ValueError) as error:
        if "corresponds to no data" in str(error):  # an empty array
            return {}
        if path.suffix.lower() == ".jsonl" and (broken := _broken_line(path)):
            raise ValueError(broken) from None
        raise
    for table in splits.values():
        table.data.validate(full=True)  # otherwise text that is not UTF-8 fails later, where it is used
    return splits


def _rows_as_written(path: Path) -> list[dict[str, Any]] | None:
    """The objects of a JSON file, one after the other or in an array; numbers that Arrow cannot hold are texts.

    Datasets' own reader makes times of texts that look like some, floats of long integers, and 7 of "007" in a column
    with numbers. None for anything but objects, of which that reader says what is wrong.
    """
    decoder = json.JSONDecoder(parse_int=_integer, parse_float=_decimal, strict=False)
    values: list[Any] = []
    try:
        with open(path, "rb") as file:
            text = compr[infer_compression(str(path))](file, mode="rb").read().decode("utf-8-sig").strip()
        position = 0
        while position < len(text):
            value, position = decoder.raw_decode(text, position)
            values.append(value)
            while position < len(text) and text[position].isspace():
                position += 1
    except ValueError:
        return None
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    return rows if all(isinstance(row, dict) for row in rows) else None


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= 20 and -(2**63) <= int(text) < 2**63 else text


def _decimal(text: str) -> float | str:
    number = float(text)
    lost = not math.isfinite(number) or (number == 0 and re.search("[1-9]", re.split("[eE]", text)[0]))
    return text if lost else number


def _read_csv(path: Path) -> Dataset:
    """Every cell as text, an empty one too, so that a column of answers with a gap does not turn 18 into 18.0."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame()
    if len(frame) and not isinstance(frame.index, pd.RangeIndex):  # pandas shifts such rows by a column
        raise ValueError("its rows have more fields than its header; quote texts that contain commas")
    return Dataset.from_pandas(frame, preserve_index=False)


def _broken_line(path: Path) -> str | None:
    """The position of the first line of a .jsonl file that is not JSON, and what is wrong with it."""
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        try:
            json.loads(line.strip() or "{}")
        except json.JSONDecodeError as error:
            return f"line {number} is broken JSON ({error.msg}: character {error.pos + 1})"
    return None


def take_split(splits: Splits, spec: str, setting: str = "dataset_split") -> Dataset:
    """One split, or a slice of one in datasets' notation: `train`, `train[:1000]`, `train[10%:20%]`."""
    sizes = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in splits.items())
    try:
        parts = ReadInstruction.from_spec(spec).to_absolute({name: len(rows) for name, rows in splits.items()})
    except (ValueError, AssertionError) as error:
        raise UserError(
            f"{setting}: {spec!r} cannot be used ({error}); available: {sizes}; a slice is written train[:1000]"
        ) from None
    slices = [splits[part.splitname].select(list(range(part.from_, part.to))) for part in parts]
    rows = datasets.concatenate_datasets(slices)
    if len(rows) == 0:
        raise UserError(f"{setting}: {spec!r} holds no rows; use some of {sizes}")
    return rows
