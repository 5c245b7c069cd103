"""Read rows from a file without changing cells: JSON of any shape, CSV of any separator, parquet; also compressed."""

import ast
import csv
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from fsspec.compression import compr
from fsspec.utils import infer_compression

from grpo.core.processes import say
from grpo.core.text import human_bytes, listed, visible
from grpo.task.gold import Written

Row: TypeAlias = dict[str, Any]
Splits: TypeAlias = Mapping[str, Dataset | list[Row]]  # a Dataset until a slice is taken

HIDDEN = re.compile(r"(?:^|/)(?:\.|__)")  # files that no program of rows reads, such as __MACOSX/
LINES = (".jsonl", ".ndjson", ".jsonlines")  # JSON with a row on each line
COMPRESSED = {
    ".gz": b"\x1f\x8b",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\0",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".zip": b"PK\x03\x04",
}
NO_ROWS = {  # how files begin that hold no rows, whatever they are called: what they are, and what to do
    rb"version https://git-lfs\.github\.com/spec/": "a Git LFS pointer, not the file: run `git lfs pull` in its clone",
    rb"\S*/annex/objects/": "a git-annex pointer, not the file: run `git annex get` in its clone",
    rb"(?i)\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|head|body)\b": (
        "a web page, not the file: download the file itself (Raw on GitHub, Download on the Hub)"
    ),
    rb"\s*<(?:\?xml|!DOCTYPE|[a-z]+>)": "XML: convert it to JSON Lines or CSV",
    rb"PK\x03\x04.{,200}(?:\[Content_Types\]|_rels/|xl/|docProps/|mimetype)|\xd0\xcf\x11\xe0": (
        "a workbook or document of an office program: save it as CSV (UTF-8)"
    ),
    rb".{257}ustar": "a tar archive: unpack it, and use the files in it",
    rb"%PDF": "a PDF: convert it to JSON Lines or CSV",
    rb"ARROW1|FEA1": "an Arrow file: write it as parquet",
    rb"SQLite format 3": "a database: write its rows as JSON Lines or CSV",
    rb"\x80[\x02-\x05].{,8}\x8c|\x93NUMPY": "a file of Python objects: write its rows as JSON Lines",
}
BEGINNING = 400  # bytes that show what a file is
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
        with open(path, "rb") as file:
            check_content(file.read(BEGINNING))
        raise ValueError(f"it is not a {', '.join(READERS)} file; convert it to one of these")
    return READERS[ending(path)](path)


def check_content(content: bytes) -> None:
    """Raise ValueError if a file that begins like this holds no rows, such as a web page that was saved by mistake."""
    begin = content[:BEGINNING].removeprefix(b"\xef\xbb\xbf")
    if what := next((what for start, what in NO_ROWS.items() if re.match(start, begin, re.DOTALL)), ""):
        raise ValueError(f"it is {what}")


def _content(path: Path) -> bytes:
    """Read a file, and unpack a compressed one, whatever it is called.

    Raises:
        ValueError: it unpacks to far more than its size, or holds no rows.
    """
    packed, content = path.stat().st_size, io.BytesIO()
    most = min(max(PACKED_TIGHTLY * packed, ALWAYS_READ), psutil.virtual_memory().available)
    with open(path, "rb") as file:
        begin = file.read(BEGINNING)
        check_content(begin)
        file.seek(0)
        by_name = path.suffix.lower() if path.suffix.lower() in COMPRESSED else ""
        kind = next((kind for kind, magic in COMPRESSED.items() if begin.startswith(magic)), by_name)
        if kind == ".zst":  # fsspec would need another package for it
            unpacked: Any = pa.input_stream(file, compression="zstd")
        elif kind == ".zip":
            unpacked = _only_file_of(zipfile.ZipFile(file))
        else:
            unpacked = compr[infer_compression(f"file{kind}")](file, mode="rb")
        while part := unpacked.read(2**20):
            content.write(part)
            if content.tell() > most and kind:
                raise ValueError(
                    f"its {human_bytes(packed)} unpack to more than {human_bytes(most)}, which is {PACKED_TIGHTLY:,} "
                    "times its size or all free memory; unpack it, and use the part that you need"
                )
    check_content(content.getvalue()[:BEGINNING])
    return content.getvalue()


def _only_file_of(archive: zipfile.ZipFile) -> IO[bytes]:
    """Open the file of an archive. Raise ValueError if it holds several with rows."""
    names = [
        member.filename for member in archive.infolist() if not (member.is_dir() or HIDDEN.search(member.filename))
    ]
    with_rows = [name for name in names if ending(Path(name)) in READERS]
    if len(with_rows or names) != 1:
        raise ValueError(f"it holds {listed(names, 3) or 'no file'}; unpack it, and name one file, or their directory")
    return archive.open((with_rows or names)[0])


def _text(path: Path, may_be_latin: bool = False) -> str:
    """Read a text file in the encoding that its first bytes show: UTF-8, UTF-16 or UTF-32.

    Args:
        may_be_latin: read a file of single letters beyond ASCII as Windows-1252 (as Latin-1), with a note.
    """
    content = _content(path)
    if content.startswith(b"PAR1"):
        raise ValueError(f"it is a parquet file: rename it to {path.name.partition('.')[0]}.parquet")
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
    try:
        return {"train": Dataset(table)}
    except ValueError:  # `datasets` knows no maps
        return {"train": table.to_pylist(maps_as_pydicts="lossy")}


# --- JSON ---------------------------------------------------------------------------------------------------------

_NEXT = re.compile(r"\S")
_OPENED = re.compile(r'"(?:[^"\\]|\\.)*\\?', re.DOTALL)  # a text without its end


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
        lines = text.split("\n")
        position = sum(len(above) + 1 for above in lines[: line - 1]) + column - 1
        where = f"line {line} is broken JSON ({reason}: character {column})"
        raise ValueError(f"{where}; {_remedy(lines[line - 1], text, position)}") from None
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


def _remedy(line: str, text: str, position: int) -> str:
    """Return what to change in a broken line of JSON; its fault is at this position of the text."""
    before, after = text[:position].rstrip(), text[position:].lstrip()
    if before.endswith(","):
        before, after = before[:-1], f",{after}"  # newer versions of Python point to the comma, others behind it
    if closing := re.match(r",\s*([]}])", after):
        return f"remove the comma before this {closing[1]}"
    if re.match(r",?\s*(?://|/\*|#)", after):
        return "remove the comments: JSON has none"
    for read, remedy in NEARLY_JSON.items():
        try:
            if isinstance(read(line.strip().removesuffix(",")), dict | list):
                return remedy
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            pass
    if not after.strip(",") or _OPENED.fullmatch(after):
        return "the file ends here, in the middle of a row: download or write it again"
    return "correct it, or write the file with json.dumps"


# --- CSV ----------------------------------------------------------------------------------------------------------

Cells: TypeAlias = list[list[str]]  # of a table, with its header


def _read_csv(path: Path) -> Splits:
    """Read every cell as text. The separator is in Excel's first line `sep=;`, or else in the header."""
    csv.field_size_limit(2**31 - 1)
    lines = list(io.StringIO(_text(path, may_be_latin=True).lstrip("\r\n"), newline=""))
    stated = re.fullmatch(r'"?sep=(.)"?\s*', lines[0], re.IGNORECASE) if lines else None
    bare = re.sub('"[^"]*"', "", lines[0]) if lines else ""
    separator = stated[1] if stated else max(SEPARATORS, key=bare.count)
    skipped = 1 if stated else 0
    if not (stated or separator in bare) and (other := _other_separator(lines)):
        raise ValueError(
            f"its cells are separated by {other!r}, as it seems; "
            + (f"add a first line sep={other}" if other.isprintable() else "write tabs instead")
        )
    names, *rows = _cells_of(lines[skipped:], separator, skipped) or [[]]
    return {"train": [dict(zip(names, cells, strict=False)) for cells in rows]}


def _cells_of(lines: list[str], separator: str, skipped: int) -> Cells:
    """Return the names and the rows that are not empty. The header decides how many cells a row may have.

    Strict CSV first; then spaces around quotes (`"a" , "b"`), or tabs between texts whose quotes are plain signs.
    """
    tables, fault = list[Cells](), ""
    before = re.compile(f'"[ \\t]+(?={re.escape(separator)}|[\\r\\n]|$)')
    for options in ({}, {"skipinitialspace": True}, {"quoting": csv.QUOTE_NONE, "quotechar": None}):
        if "quoting" in options and separator != "\t":
            continue
        written = [before.sub('"', line) for line in lines] if "skipinitialspace" in options else lines
        reader, table = csv.reader(written, delimiter=separator, strict=True, **options), list[list[str]]()
        try:
            for cells in reader:
                if not table:
                    while cells and not cells[-1].strip():
                        cells.pop()
                    cells = distinct(
                        [" ".join(visible(name).split()) or f"Unnamed: {index}" for index, name in enumerate(cells)]
                    )
                elif any(cells[len(table[0]) :]):
                    raise csv.Error(_too_many(cells, table[0], lines, separator))
                if any(cells) or not table:
                    table.append(cells)
        except csv.Error as error:
            fault = fault or f"line {reader.line_num + skipped}: {error}{_csv_remedy(str(error), lines, reader)}"
            continue
        if not any(re.fullmatch(r'\s+".*"\s*', cell, re.DOTALL) for cells in table[1:] for cell in cells):
            return table
        tables.append(table)
    if tables:
        return tables[0]
    raise ValueError(fault)


def _too_many(cells: list[str], names: list[str], lines: list[str], separator: str) -> str:
    """Describe a row with more cells than the header. A title above the header has fewer cells than that."""
    said = f"{len(cells)} fields below {len(names)} of the header; quote texts that contain "
    said += SEPARATORS.get(separator, repr(separator))
    for number, line in enumerate(lines[1:10], 1):
        others = [cell.strip() for cell in line.split(separator)]
        if len(others) > len(names) and all(re.fullmatch(r"[^\W\d][^.?!\d]{,40}\d?", cell) for cell in others):
            return f"{said}, or delete {f'lines 1 to {number}' if number > 1 else 'line 1'} if that is a title"
    return said


def _csv_remedy(fault: str, lines: list[str], reader: Any) -> str:
    """Return what to change where the quotes of a line are at fault; "" for other faults."""
    if "expected after" not in fault and "unexpected end" not in fault:
        return ""
    if any(re.search(r'\\"', line) for line in lines[: reader.line_num]):
        return '; inside of a text CSV doubles quotes: write "" for \\", such as with sed -i \'s/\\\\"/""/g\''
    return '; quote whole texts, and double the quotes inside of them: "say ""hi"""'


def _other_separator(lines: list[str]) -> str:
    """Return the sign that all lines of a table with one column have equally often, as separators are; or ""."""
    shown = [line.strip("\r\n") for line in lines[:50] if line.strip()] or [""]
    signs = [sign for sign in dict.fromkeys(shown[0]) if not (sign.isalnum() or sign in " _\"'-.?()")]
    return next(
        (sign for sign in signs if len(shown) > 1 and {line.count(sign) for line in shown} == {shown[0].count(sign)}),
        "",
    )


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
