"""grpo/core/ending.py: what the status is where nobody reads the output any longer."""

import os
import sys

import pytest

from grpo.core import ending
from grpo.core.errors import UserError


def prints(text):
    print(text, flush=True)
    return 0


def test_a_reader_that_closes_the_pipe_ends_it_quietly(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert ending.status_of(lambda: prints("a line")) == 141
    assert capsys.readouterr().err == ""


def test_other_ways_to_end_keep_their_status(capsys):
    def leave(error):
        raise error

    assert ending.status_of(lambda: prints("a line")) == 0
    assert ending.status_of(lambda: leave(UserError("a mistake"))) == 2
    assert capsys.readouterr().err == "error: a mistake\n"
    with pytest.raises(SystemExit) as left:
        ending.status_of(lambda: leave(SystemExit(1)))
    assert left.value.code == 1
