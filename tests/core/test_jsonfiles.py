"""A file of JSON is whole whenever a process is killed, and half a line is neither read nor kept."""

import json
import tempfile
from pathlib import Path

import pytest
from helpers_runs import examples
from helpers_texts import JSON
from hypothesis import given
from hypothesis import strategies as st

from grpo.core import jsonfiles
from grpo.core.errors import UserError


@examples(50)
@given(st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=3), max_size=5), st.binary(max_size=20))
def test_lines_come_back_whatever_is_half_written_between(written, torn):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        for record in written:
            jsonfiles.append_line(path, record)
            with path.open("ab") as file:  # the process was killed in the middle of the next line
                file.write(torn.replace(b"\n", b""))
        jsonfiles.append_line(path, {"last": 1})
        lines = path.read_bytes().decode().split("\n")
    assert lines.pop() == "" and len(lines) == len(written) + 1
    for line, record in zip(lines, written, strict=False):
        expected = json.dumps(jsonfiles.without_nan(record), ensure_ascii=False)
        assert line.encode() == expected.encode("utf-8", errors="replace")
        assert json.loads(line, parse_constant=pytest.fail) is not None


def test_write_whole_never_leaves_half_a_file(monkeypatch):
    path = Path("value.json")
    jsonfiles.write_json(path, {"a": 1})
    monkeypatch.setattr("os.fsync", lambda descriptor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jsonfiles.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and list(Path.cwd().iterdir()) == [path.absolute()]


@pytest.mark.parametrize("tail", [b'{"step": 26, "rew', b'{"step": 26, "t": "\xe2\x80'])
def test_a_half_written_last_line_is_ignored(tail):
    path = Path("lines.jsonl")
    jsonfiles.append_line(path, {"step": 24, "text": "\u2028"})
    before = jsonfiles.read_lines(path)
    with path.open("ab") as file:
        file.write(tail)
    assert jsonfiles.read_lines(path) == jsonfiles.valid_lines(path) == before == [{"step": 24, "text": "\u2028"}]
    with path.open("ab") as file:
        file.write(b"\n{}\n")
    assert jsonfiles.valid_lines(path) == [*before, {}]
    with pytest.raises(UserError, match=r"lines\.jsonl, line 2"):
        jsonfiles.read_lines(path)
