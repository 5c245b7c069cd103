"""Load rows from a file, a directory, the Hub or memory, and take slices of their splits.

Rows are dictionaries with the cells of the source. No type is inferred from a column, so no cell changes another.
"""

import contextlib
import datetime
import glob
import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, Json, Value
from datasets.data_files import FILES_TO_IGNORE
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.utils import validate_repo_id

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.out_of_memory import origins
from grpo.core.settings import IN_MEMORY
from grpo.core.text import counted, listed, shorten
from grpo.data.files import (
    BEGINNING,
    COMPRESSED,
    HIDDEN,
    READERS,
    Row,
    Splits,
    check_content,
    distinct,
    ending,
    read_file,
)
from grpo.task.gold import Label, Written

Rows: TypeAlias = pd.DataFrame | Dataset | DatasetDict | list[Row]  # in memory

PLAIN = (str, bool, int, float, Decimal, datetime.date, datetime.time, datetime.timedelta, bytes, type(None))
WHOLE = "a directory, of which all files are read"  # in errors
DOCUMENTS = (  # endings of files beside the data that hold no rows
    *("", ".md", ".rst", ".txt", ".pdf", ".tex", ".bib", ".cff", ".html", ".log", ".lock", ".toml", ".yaml", ".yml"),
    *(".md5", ".sha1", ".sha256", ".sha512", ".asc", ".sig", ".dvc"),
    *(".py", ".ipynb", ".sh", ".r", ".js", ".css", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp"),
)
PART = re.compile(r"(.*?)([0-9]+)([-_ ]?of[-_ ]?)([0-9]+)(?![0-9])(.*)", re.IGNORECASE)  # train-00001-of-00003.parquet
# part_1.jsonl, but not v1.jsonl: other numbers may have gaps
NUMBERED = re.compile(
    r"(.*(?:part|shard|chunk|train|test|valid|validation)[-_. ]?)([0-9]+)()()([^0-9]*)", re.IGNORECASE
)
INFERRED = ("json", "csv")  # builders of `datasets` that convert cells that look like times or floats
NOT_ARROW = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def load_source(source: str | Rows, config: str | None = None, setting: str = "dataset_name") -> Splits:
    """Load all splits of a file, a directory, a data set on the Hub, or rows in memory.

    Args:
        config: the configuration of a data set on the Hub or of its clone, unless its name has one, as in
            `openai/gsm8k:main`.
        setting: the setting to name in errors.

    Returns:
        Rows by split. Most files, and rows in memory (except a DatasetDict), have only the split `train`.

    Raises:
        UserError: the source cannot be read, or has no rows.
    """
    name = source if isinstance(source, str) else IN_MEMORY
    try:
        splits = _read(source, config) if isinstance(source, str) else _from_memory(source)
    except Exception as error:  # libraries may raise anything for a broken file
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None  # datasets hides it
        home = str(datasets.config.HF_CACHE_HOME)
        blocked = [
            cause for cause in origins(error) if isinstance(cause, OSError) and str(cause.filename).startswith(home)
        ]
        if blocked:
            reason = f"cannot be written ({blocked[0].strerror}); set HF_HOME to a directory that can be"
            raise UserError(f"{setting}: {name!r} needs the cache {home!r}, which {reason}") from error
        reason = str(cause or error)
        raise UserError(f"{setting}: {name!r} cannot be read: {reason[:1500]}{'…' * (len(reason) > 1500)}") from error
    if not any(map(len, splits.values())):
        raise UserError(f"{setting}: {name!r} holds no rows; use one row for each question")
    return splits


def take_split(splits: Splits, spec: str, setting: str = "dataset_split", limit: int | None = None) -> list[Row]:
    """Take the rows of a split or slice in the notation of `datasets`: `train`, `train[:1000]`, `train[10%:20%]`.

    Args:
        limit: take at most this many, from the start.
    """
    sizes = listed([f"{name} ({len(rows)} rows)" for name, rows in splits.items()])
    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute(
            {name: len(rows) for name, rows in splits.items()}
        )
    except (ValueError, AssertionError) as error:
        reason = f"{spec!r} cannot be used ({shorten(str(error), 200)})"
        raise UserError(f"{setting}: {reason}; available: {sizes}; a slice is written train[:1000]") from None
    rows = [row for part in parts for row in _slice(splits[part.splitname], range(part.from_, part.to)[:limit])]
    if not rows:
        raise UserError(f"{setting}: {spec!r} holds no rows; use some of {sizes}")
    return rows[:limit]


def _slice(table: Dataset | list[Row], indices: range) -> list[Row]:
    if isinstance(table, list) or not indices:
        return [table[index] for index in indices]
    rows = table.select(indices).to_list()
    for name, feature in table.features.items():
        if re.search("ClassLabel|float(16|32)", repr(feature)):
            for row in rows:
                row[name] = _typed(row[name], feature)
    return rows


def _typed(value: Any, feature: Any) -> Any:
    """Convert ClassLabels of a cell to labels with names, and 32-bit numbers to their shortest decimals."""
    if isinstance(value, dict) and isinstance(feature, dict):
        return {key: _typed(item, feature[key]) for key, item in value.items()}
    if isinstance(value, list):
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        return [_typed(item, inner) for item in value]
    if isinstance(value, int) and isinstance(feature, ClassLabel):
        return Label(value, feature.int2str(value)) if value >= 0 else None  # -1: without a label
    if isinstance(value, float) and isinstance(feature, Value) and feature.dtype in ("float16", "float32"):
        return native(np.dtype(feature.dtype).type(value))
    return value


# --- In memory ----------------------------------------------------------------------------------------------------


def _from_memory(rows: Rows) -> Splits:
    if isinstance(rows, DatasetDict):
        return {str(name): _without_format(split) for name, split in rows.items()}
    if isinstance(rows, Dataset):
        return {"train": _without_format(rows)}
    if isinstance(rows, pd.DataFrame):
        names = distinct(list(map(str, rows.columns)))
        columns = (rows.iloc[:, index] for index in range(len(names)))
        # iterating would convert 32-bit numbers to 64 bits
        cells = [column.to_numpy() if column.dtype.kind == "f" else column for column in columns]
        return {"train": native_rows(dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True))}
    if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
        return {"train": native_rows(rows)}
    remedy = "pass a DataFrame (of pandas), a Dataset, a DatasetDict or a list of dictionaries"
    if isinstance(rows, list) and all(isinstance(name, str | Path) for name in rows):
        remedy = f"pass the name of one file, or of {WHOLE}, or a list of dictionaries"
    if isinstance(rows, IterableDataset | IterableDatasetDict):
        remedy = "pass a list of the rows that you want, such as list(rows.take(10_000))"
    raise TypeError(f"a {type(rows).__name__} is not a table of rows; {remedy}")


def _without_format(rows: Dataset) -> Dataset | list[Row]:
    """Return the rows without a format that would turn numbers into arrays; apply the user's transform, if any."""
    return native_rows(rows) if rows.format["type"] == "custom" else rows.with_format(None)


def native_rows(rows: Iterable[Any]) -> list[Row]:
    """Convert rows to plain Python values. Raise TypeError with the number of the first row that has another type."""
    made = []
    for number, row in enumerate(rows, 1):
        try:
            made.append(native(row))
        except TypeError as error:
            raise TypeError(f"row {number}: {error}") from None
    return made


def native(value: Any) -> Any:
    """Convert numbers and arrays of NumPy, pandas and torch to Python's numbers and lists.

    >>> native({"a": np.array([1, 2]), "b": np.float32(0.1), "c": (None, pd.NaT)})
    {'a': [1, 2], 'b': 0.1, 'c': [None, None]}
    """
    if value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, np.floating) and value.itemsize < 8 and np.isfinite(value):
        return float(str(value))
    if isinstance(value, np.generic):
        return str(value) if value.dtype.kind in "mM" else native(value.item())
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Mapping):
        return {str(key): native(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)  # in every process alike
    if isinstance(value, list | tuple):
        return [native(item) for item in value]
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return [native(item) for item in value] if value.ndim else native(value[()])
    raise TypeError(f"a {type(value).__name__} is not a text, number, date, list or dictionary")


def as_dataset(columns: Mapping[str, Sequence[Any]]) -> Dataset:
    """Build a Dataset from columns. JSON stores columns with several types, since Arrow would convert them."""
    return datasets.concatenate_datasets([_column(name, cells) for name, cells in columns.items()], axis=1)


def _column(name: str, cells: Sequence[Any]) -> Dataset:
    kinds = {float if kind is Written else kind for kind in set(map(type, cells)) - {type(None)}}
    try:
        if len(kinds) <= 1:  # in a column with 0.5, Arrow would turn 72 into 72.0
            return Dataset.from_dict({name: cells})
    except NOT_ARROW:
        pass
    texts = [None if cell is None else json.dumps(cell, default=str) for cell in cells]
    return Dataset.from_dict({name: texts}, features=Features({name: Json()}))


# --- Directories and the Hub --------------------------------------------------------------------------------------


def _read(name: str, config: str | None) -> Splits:
    """Read a path or a data set of the Hub; for a path, `datasets` is told to be silent, from then on."""
    clone, _, named_config = name.partition(":")
    if named_config and os.path.isdir(Path(clone).expanduser()):
        name, config = clone, named_config
    path = Path(name).expanduser()
    if os.path.exists(path):  # Path's own raises in a directory that may not be read
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the UserError has the reason
    if os.path.isdir(path):
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():  # save_to_disk wrote it
            saved = datasets.load_from_disk(path)
            return saved if isinstance(saved, DatasetDict) else {"train": saved}
        files = _files_in(path)
        if not any(ending(file) in (*READERS, ".arrow") for file in files):
            held = f"it holds {listed([file.name for file in files], 3)}" if files else "it is empty"
            raise ValueError(f"{held}; save the rows as {', '.join(READERS)}")
        return _as_written(str(path), config)
    if not os.path.exists(path):
        _check_single(name)
    if os.path.exists(path) or ending(path) in READERS:
        return read_file(path)
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError("it does not exist; use a file, a directory or a Hub id")
    hub_id, _, named_config = name.partition(":")
    try:
        validate_repo_id(hub_id)
    except ValueError:
        raise ValueError("it does not exist, and is not a Hub id; use a file, a directory or a Hub id") from None
    try:
        splits = datasets.load_dataset(hub_id, named_config or config)
        typed = next(iter(splits.values())).info.builder_name in INFERRED
        return _as_written(hub_id, named_config or config) if typed else splits
    except (OSError, ValueError) as error:
        remedy = f"write it after the id: {hub_id}:NAME" if "Config" in str(error) else "use a local file instead"
        raise ValueError(f"{error}; {remedy}") from error


def _check_single(name: str) -> None:
    """Raise ValueError if a name that does not exist means several files."""
    if glob.has_magic(name):
        fits = counted(len(glob.glob(os.path.expanduser(name), recursive=True)), "file")
        raise ValueError(f"it is a pattern, which fits {fits}; name one file, or {WHOLE}")
    parts = re.split(r"[,\s]+", name)
    if len(parts) > 1 and any(os.path.exists(os.path.expanduser(part)) for part in parts):
        raise ValueError(f"it names {len(parts)} files; name one, or put them in {WHOLE}")


def _as_written(name: str, config: str | None) -> Splits:
    """Load a directory or a data set on the Hub; read JSON and CSV with `read_file`, which keeps cells."""
    try:
        builder = datasets.load_dataset_builder(name, config)  # the card may list files that do not exist
    except ValueError as error:
        if "same data file format" not in str(error):
            raise
        raise ValueError("its splits are files of several kinds; write all of them as one kind") from error
    if os.path.isdir(name):
        _check_all_read(Path(name), builder.config.data_files or {})
        for file in itertools.chain.from_iterable((builder.config.data_files or {}).values()):
            with open(file, "rb") as opened, in_file(file):
                check_content(opened.read(BEGINNING))
    if builder.info.builder_name not in INFERRED:
        try:
            return datasets.load_dataset(name, config)
        except ValueError:
            if builder.info.builder_name != "parquet":
                raise  # of parquet files, those with maps are read
    files = datasets.DownloadManager().download(builder.config.data_files)
    tables = dict[str, list[Row]]()
    for split, of_split in files.items():
        tables[str(split)] = []
        for file in of_split:
            if os.path.isdir(name) and ending(Path(file)) not in READERS:
                continue  # such as train.jsonl.md5
            with in_file(file):
                tables[str(split)] += [row for rows in read_file(Path(file)).values() for row in rows]
    return tables


@contextlib.contextmanager
def in_file(file: str) -> Iterator[None]:
    """Name the file of a directory in what a reader raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{Path(file).name}: {error}") from error


def _check_all_read(directory: Path, files: Mapping[Any, Iterable[str]]) -> None:
    """Raise ValueError if `datasets` would skip files with rows: of another kind, or without a split's name."""
    card = directory / "README.md"
    if card.exists() and re.search("^configs:", card.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
        return  # it chooses the files
    read = {Path(file).resolve() for split in files.values() for file in split}
    skipped = [
        str(file.relative_to(directory))
        for file in _files_in(directory)
        if ending(file) in (*READERS, ".arrow") and file.resolve() not in read
    ]
    if skipped:
        first = next(iter(sorted(read)), directory).name
        raise ValueError(
            f"{first} would be read, but {listed(skipped, 3)} would not; name one file, or keep files of one kind, "
            "named by their splits (train, test) or all without"
        )


def _files_in(directory: Path) -> list[Path]:
    """Return the files in a directory, in all its folders, that `datasets` would consider."""
    files = [file for file in sorted(directory.rglob("*")) if file.name not in FILES_TO_IGNORE and file.is_file()]
    return [file for file in files if not HIDDEN.search(str(file.relative_to(directory)))]


def about_files(source: str | Rows, setting: str) -> Iterator[Check]:
    """Name parts that are missing of a numbered set of files, and files of a directory that are not read."""
    path = Path(source.partition(":")[0] if isinstance(source, str) else os.devnull).expanduser()
    if os.path.isfile(path) and (part := PART.fullmatch(path.name)) and int(part[4]) > 1:
        finding = f"{path.name} is one of {int(part[4])} files"
        yield Check("warning", setting, finding, f"name their directory, of which all files are read: {path.parent}")
    if not os.path.isdir(path) or (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return
    files = _files_in(path)
    if missing := _missing_parts(files):
        finding = (
            f"{listed(missing, 3)} {'is' if len(missing) == 1 else 'are'} missing in {path.name}, by the numbers of "
        )
        yield Check("warning", setting, f"{finding}the other files", "add the missing part, or rename the others")
    rows = [file for file in files if ending(file) not in (*DOCUMENTS, *READERS, ".arrow") or _is_archive(file)]
    if names := [str(file.relative_to(path)) for file in rows]:
        finding = f"{listed(names, 3)} in {path.name} {'is' if len(names) == 1 else 'are'} not read"
        remedy = f"save its rows as {', '.join(READERS)}, all files as one kind; or move it elsewhere"
        yield Check("warning", setting, finding, remedy)


def _is_archive(file: Path) -> bool:
    return file.suffix.lower() in COMPRESSED and ending(file) in DOCUMENTS


def _missing_parts(files: Iterable[Path]) -> list[str]:
    """Return the names of files that a set numbered `1 of 3`, or without gaps from 0 or 1 on, lacks."""
    sets = defaultdict[tuple[Path, ...], dict[int, re.Match[str]]](dict)
    for file in files:
        if part := PART.fullmatch(file.name) or NUMBERED.fullmatch(file.name):
            before, number, of, count, after = part.groups()
            sets[file.parent, Path(before), Path(of), Path(count), Path(after)][int(number)] = part
    missing = []
    for parts in sets.values():
        before, number, of, count, after = next(iter(parts.values())).groups()
        first = min(parts) if min(parts) in (0, 1) else None
        if of:
            first = 1 if int(count) in parts else 0
            numbers = range(first, first + int(count)) if int(count) < 100_000 else range(0)
        elif first is not None and len(parts) > 2:
            numbers = range(first, max(parts)) if max(parts) < 2 * len(parts) else range(0)
        else:
            continue
        width = len(number) if number.startswith("0") or of else 0
        missing += [f"{before}{lacks:0{width}d}{of}{count}{after}" for lacks in numbers if lacks not in parts]
    return missing
