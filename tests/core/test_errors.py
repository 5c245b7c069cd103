"""grpo/core/errors.py: mistakes are one line and an exit status; other errors pass."""

import ast
import os
import sys

import pytest
import torch

import rewards
from grpo.core import errors as core_errors
from grpo.core.errors import UserError, is_of_a_library, one_line, run_main
from lean_grpo import packing


def leave(error):
    raise error


def prints(text):
    print(text, flush=True)
    return 0


def test_how_a_command_ends(capsys):
    assert run_main(lambda: prints("a line")) == 0
    assert run_main(lambda: leave(UserError("a mistake\n  of two lines"))) == 2
    assert capsys.readouterr().err == "error: a mistake of two lines\n"
    assert run_main(lambda: leave(ModuleNotFoundError("No module named 'peft'", name="peft"))) == 2
    assert "error: peft is not installed; activate the virtual environment" in capsys.readouterr().err
    assert run_main(lambda: leave(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "Interrupted\n"
    assert run_main(lambda: leave(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))) == 2
    assert capsys.readouterr().err.startswith("error: another process of this run has ended")
    for error in (SystemExit(1), RuntimeError("a bug"), ModuleNotFoundError("a bug", name="transformers.new")):
        with pytest.raises(type(error)):
            run_main(lambda error=error: leave(error))


def test_a_reader_that_closes_the_pipe_ends_it_quietly(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run_main(lambda: prints("a line")) == 141
    assert capsys.readouterr().err == ""


def test_what_a_library_says_is_quoted_in_one_line():
    line = r"^m does not load \(KeyError: 'x'\); use another$"
    with pytest.raises(UserError, match=line), one_line("m does not load (", "); use another"):
        raise KeyError("x")
    with pytest.raises(ZeroDivisionError), one_line(kinds=(ValueError,)):
        raise ZeroDivisionError("a bug")
    with pytest.raises(RuntimeError, match="out of memory"), one_line("m does not load ("):
        raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize("module", [core_errors, packing, torch, ast], ids=lambda module: module.__name__)
def test_the_line_that_is_named_is_never_one_of_ours(module):
    """Nor a library's: both packages of this repository count, and rewards.py, which people edit, does not."""
    assert is_of_a_library(module.__file__) and not is_of_a_library(rewards.__file__)


def test_what_an_environment_below_this_one_installed_is_a_librarys():
    """As `uv run --with` and Debian's packages have it; found as torch taken for the user's own code."""
    for folder in ("cache/archive-v0/x/lib/python3.13/site-packages", "lib/python3/dist-packages"):
        assert is_of_a_library(f"/{folder}/torch/__init__.py")
