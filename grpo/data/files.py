"""Read rows from a file without changing cells: JSON of any shape, CSV of any separator, parquet; also compressed."""

import ast
import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from fsspec.compression import compr
from fsspec.utils import infer_compression

from grpo.core.processes import say
from grpo.core.text import human_bytes, visible
from grpo.task.gold import Written

Row: TypeAlias = dict[str, Any]
Splits: TypeAlias = Mapping[str, Dataset | list[Row]]  # a Dataset until a slice is taken

LINES = (".jsonl", ".ndjson", ".jsonlines")  # JSON with a row on each line
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
PACKED_TIGHTLY = 1000  # times its size, above ALWAYS_READ bytes: no text that anybody wrote
ALWAYS_READ = 100_000_000
# Three letters in a row, which Western words in Latin-1 hardly have; “ ” … « » – and fixed spaces are no letters
BEYOND_LATIN = re.compile(rb"[\x80-\x84\x86-\x90\x98-\x9f\xa1-\xaa\xac-\xba\xbc-\xff]{3}")
NEARLY_JSON: dict[Callable[[str], Any], str] = {  # how a broken row is read, and what to change
    json.loads: "remove the commas at the ends of lines",
    ast.literal_eval: "it is written as Python, not as JSON: write it with json.dumps",
}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}  # of CSV cells


def ending(path: Path) -> str:
    """Return the extension of a file's name, without that of its compression."""
    endings = [ending.lower() for ending in path.suffixes]
    return next((ending for ending in reversed(endings) if ending not in COMPRESSED), "")


def read_file(path: Path) -> Splits:
    """Read the rows of a file, by split; most files have only `train`. Raise ValueError if it cannot be read."""
    if not os.path.exists(path):
        raise ValueError("the file does not exist; correct its path")
    if ending(path) not in READERS:
        raise ValueError(f"it is not a {', '.join(READERS)} file; convert it to one of these")
    return READERS[ending(path)](path)


def _content(path: Path) -> bytes:
    """Read a file, and unpack a compressed one. Raise ValueError if it unpacks to far more than its size."""
    packed, content = path.stat().st_size, io.BytesIO()
    most = min(max(PACKED_TIGHTLY * packed, ALWAYS_READ), psutil.virtual_memory().available)
    with open(path, "rb") as file:
        if path.suffix.lower() == ".zst":  # fsspec would need another package for it
            unpacked: Any = pa.input_stream(file, compression="zstd")
        else:
            unpacked = compr[infer_compression(path.name.lower())](file, mode="rb")
        while part := unpacked.read(2**20):
            content.write(part)
            if content.tell() > most and path.suffix.lower() in COMPRESSED:
                raise ValueError(
                    f"its {human_bytes(packed)} unpack to more than {human_bytes(most)}, which is {PACKED_TIGHTLY:,} "
                    "times its size or all free memory; unpack it, and use the part that you need"
                )
    return content.getvalue()


def _text(path: Path, may_be_latin: bool = False) -> str:
    """Read a text file in the encoding that its first bytes show: UTF-8, UTF-16 or UTF-32.

    Args:
        may_be_latin: read a file of single letters beyond ASCII as Windows-1252 (as Latin-1), with a note.
    """
    content = _content(path)
    encoding = json.detect_encoding(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f"line {line}: {error}"
    faults = content.decode(errors="replace").count("\ufffd")
    is_mixed = sum(not sign.isascii() for sign in content.decode(errors="ignore")) >= faults  # most letters are UTF-8
    if may_be_latin and encoding == "utf-8" and not is_mixed and not BEYOND_LATIN.search(content):
        text = content.decode("cp1252", errors="replace")
        word = re.search(r"\w*[^\W\x00-\x7f]\w*", text)
        shown = f', such as "{word[0][:12]}"' if word else ""
        remedy = "if letters are wrong, save it as UTF-8"
        say(f"note: {path.name} is not UTF-8, and was read as Windows-1252 (Latin-1){shown}; {remedy}")
        return text
    raise ValueError(
        f"{where}; correct this place, or save the whole file as UTF-8, such as with `iconv -f cp1252 -t utf-8` (for "
        "Chinese text -f gb18030 or big5, Japanese cp932, Korean cp949, Cyrillic cp1251)"
    )


def _read_parquet(path: Path) -> Splits:
    table = pq.read_table(pa.BufferReader(_content(path)))
    table.validate(full=True)  # otherwise text that is not UTF-8 would fail later
    return {"train": Dataset(table)}


# --- JSON ---------------------------------------------------------------------------------------------------------

_NEXT = re.compile(r"\S")


def _read_json(path: Path) -> Splits:
    """Read objects that follow one another, an array of objects, or the rows of a single object."""
    decoder = json.JSONDecoder(parse_int=_integer, parse_float=decimal, strict=False)
    text, values, position = _text(path), list[Any](), 0
    try:
        while begin := _NEXT.search(text, position):
            value, position = decoder.raw_decode(text, begin.start())
            values.append(value)
    except RecursionError:
        raise ValueError("it is nested too deeply; use one object for each question") from None
    except json.JSONDecodeError as error:
        broken = _broken_line(text) if ending(path) in LINES else None
        line, reason, column = broken or (error.lineno, error.msg, error.colno)
        where = f"line {line} is broken JSON ({reason}: character {column})"
        raise ValueError(where + _remedy(text.split("\n")[line - 1])) from None
    if len(values) == 1 and isinstance(values[0], dict):
        return _splits_of(values[0])
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            shape = '{"question": "2 + 2?", "answer": "4"}'
            raise ValueError(f"row {number} is {json.dumps(row)[:40]}; write an object such as {shape}")
    return {"train": rows}


def _splits_of(whole: dict[str, Any]) -> Splits:
    """Read the rows of one object: lists of rows by name, columns, or a single row."""
    cells = list(whole.values())
    if cells and all(isinstance(column, dict) for column in cells):
        keys = list(cells[0])  # of a column's cells, if these are numbers, as pandas writes them; else of a row's
        if keys and all(map(str.isdecimal, keys)):
            return {"train": [{name: column[key] for name, column in whole.items()} for key in keys]}
        return {"train": cells}
    tables = {
        name: rows
        for name, rows in whole.items()
        if rows and isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    }
    if len(cells) > len(tables) and all(isinstance(column, list) for column in cells):
        if len(lengths := sorted({len(column) for column in cells})) > 1:
            uneven = f"its columns have {' and '.join(map(str, lengths))} cells"
            raise ValueError(f'{uneven}; write a list of objects (in pandas orient="records")')
        return {"train": [dict(zip(whole, row, strict=True)) for row in zip(*cells, strict=True)]}
    if len(tables) == 1:
        return {"train": next(iter(tables.values()))}
    return tables or {"train": [whole]}


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= 4000 else text  # Python refuses longer ones


def decimal(text: str) -> float:
    """Parse a number; keep its text if Python would write it differently."""
    return float(text) if text == repr(float(text)) else Written(text)


def parsed(text: str) -> Any:
    """Parse a cell of a CSV file that is a list or an object: JSON, or what Python writes for it.

    Raises:
        ValueError: it is neither, such as what NumPy writes for an array.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        value = None
    if str(value) != text.strip():  # ['a' 'b'] would be ['ab']
        raise ValueError(f"{text[:60]!r} is not a list or an object in JSON")
    return value


def _broken_line(text: str) -> tuple[int, str, int] | None:
    """Describe the first line of a .jsonl file that is not JSON: its number, the reason and the character."""
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            json.loads(line.strip() or "{}", strict=False)
        except json.JSONDecodeError as error:
            return number, error.msg, error.pos + 1
    return None


def _remedy(line: str) -> str:
    """Return what to change in a line that ends in a comma or is Python's; "" for other faults."""
    for read, remedy in NEARLY_JSON.items():
        try:
            if isinstance(read(line.strip().removesuffix(",")), dict | list):
                return f"; {remedy}"
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            pass
    return ""


# --- CSV ----------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Splits:
    """Read every cell as text. The separator is in Excel's first line `sep=;`, or else in the header."""
    csv.field_size_limit(2**31 - 1)
    lines = list(io.StringIO(_text(path, may_be_latin=True).lstrip("\r\n"), newline=""))
    stated = re.fullmatch(r'"?sep=(.)"?\s*', lines[0], re.IGNORECASE) if lines else None
    bare = re.sub('"[^"]*"', "", lines[0]) if lines else ""
    separator = stated[1] if stated else max(SEPARATORS, key=bare.count)
    skipped = 1 if stated else 0
    reader, rows = csv.reader(lines[skipped:], delimiter=separator, strict=True), []
    try:
        names = next(reader, [])
        while names and not names[-1].strip():
            names.pop()
        names = distinct([visible(name).strip() or f"Unnamed: {index}" for index, name in enumerate(names)])
        for cells in reader:
            if any(cells[len(names) :]):
                raise csv.Error(
                    f"{len(cells)} fields below {len(names)} of the header; quote texts that contain "
                    f"{SEPARATORS.get(separator, repr(separator))}"
                )
            if any(cells):
                rows.append(dict(zip(names, cells, strict=False)))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num + skipped}: {error}") from None
    return {"train": rows}


def distinct(names: list[str]) -> list[str]:
    """Return the names of columns; raise ValueError if two are the same."""
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"two columns are called {twice[0]!r}; rename one of them")
    return names


READERS: dict[str, Callable[[Path], Splits]] = {  # by ending
    **dict.fromkeys(LINES, _read_json),
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
