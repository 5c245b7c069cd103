"""Lines of a JSONL file come back, whatever was half written between them."""

import json
import tempfile
from pathlib import Path

import pytest
from helpers_runs import examples
from helpers_texts import JSON
from hypothesis import given
from hypothesis import strategies as st

from grpo.runs import record as records


@pytest.mark.slow
@examples(50)
@given(st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=3), max_size=5), st.binary(max_size=20))
def test_lines_come_back_whatever_is_half_written_between(written, torn):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        for record in written:
            records.append_line(path, record)
            with path.open("ab") as file:  # the process was killed in the middle of the next line
                file.write(torn.replace(b"\n", b""))
        records.append_line(path, {"last": 1})
        lines = path.read_bytes().decode().split("\n")
    assert lines.pop() == "" and len(lines) == len(written) + 1
    for line, record in zip(lines, written, strict=False):
        expected = json.dumps(records.without_nan(record), ensure_ascii=False)
        assert line.encode() == expected.encode("utf-8", errors="replace")
        assert json.loads(line, parse_constant=pytest.fail) is not None
