"""Read and write files of JSON: one object a file, or one a line.

A process may be killed at any moment: a file is replaced as a whole, and half a line at the end of a file does not
count.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError
from grpo.core.kinds import require
from grpo.core.writing import appending, replacing

# --- Writing ------------------------------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: it contains either all of the text or its old content."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", errors="replace"))  # a lone surrogate cannot be encoded


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; NaN and infinities become null, and other types text."""
    write_text(path, json.dumps(without_nan(value), indent=2, default=str) + "\n")


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    write_text(path, "".join(map(_line, records)))


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one JSON object, after removing half a line that a killed process may have left."""
    with appending(path) as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(_line(record).encode("utf-8", errors="replace"))


def _line(record: dict[str, Any]) -> str:
    # a cell of the data may have no JSON form, such as a date
    return json.dumps(without_nan(record), ensure_ascii=False, default=str) + "\n"


def without_nan(value: Any) -> Any:
    """Replace NaN and infinities by None at any depth, since JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- Reading ------------------------------------------------------------------------------------------------------


def read_object(path: Path, kind: Any = Any) -> dict[str, Any]:
    """Read a file's JSON object; {} without a file. Raise UserError for anything else, or values of other kinds."""
    return _object(_read(path), str(path), kind) if path.is_file() else {}


def read_lines(path: Path, kind: Any = Any) -> list[dict[str, Any]]:
    """Read a file with one JSON object a line; [] without a file. Raise UserError for a broken line."""
    # not splitlines(): completions may contain U+2028. A killed run may leave half a line after the last newline
    lines = _read(path).split("\n")[:-1] if path.is_file() else []
    return [_object(line, f"{path}, line {number}", kind) for number, line in enumerate(lines, 1)]


def valid_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file that are JSON objects; [] without a file."""
    records = []
    for line in _read(path).split("\n") if path.is_file() else []:
        with contextlib.suppress(UserError):
            records.append(_object(line, ""))
    return records


def read_value(path: Path, *keys: str) -> Any:
    """Return the value under these keys in a file's JSON object; None without it, or if the file is broken."""
    try:
        value: Any = read_object(path)
        for key in keys:
            value = value[key]
    except (OSError, UserError, LookupError, TypeError):
        return None
    return value


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _object(text: str, where: str, kind: Any = Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object; restore it, or remove it")
    require(value, kind, where)
    return value
