"""grpo/core/errors.py: mistakes are one line and an exit status; other errors pass."""

import ast
import io
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch
from helpers_runs import ROOT

import exact_answers
import rewards
from grpo.core import errors as core_errors
from grpo.core.errors import UserError, is_of_a_library, one_line, run_main
from grpo.core.processes import show
from lean_grpo import packing


def leave(error):
    raise error


def prints(text):
    print(text, flush=True)
    return 0


def test_how_a_command_ends(capsys, monkeypatch):
    assert run_main(lambda: prints("a line")) == 0
    assert run_main(lambda: leave(UserError("a mistake\n  of two lines"))) == 2
    assert capsys.readouterr().err == "error: a mistake of two lines\n"
    assert run_main(lambda: leave(ModuleNotFoundError("No module named 'peft'", name="peft"))) == 2
    assert "error: peft is not installed; activate the virtual environment" in capsys.readouterr().err
    assert run_main(lambda: leave(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "Interrupted\n"
    with monkeypatch.context() as launched:
        for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
            launched.setenv(name, value)
        assert run_main(lambda: leave(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))) == 2
    assert capsys.readouterr().err.startswith("error: another process of this run has ended")
    for error in (SystemExit(1), RuntimeError("a bug"), ModuleNotFoundError("a bug", name="transformers.new")):
        with pytest.raises(type(error)):
            run_main(raising_in(OURS, error))


OURS, INSTALLED = str(ROOT / "grpo" / "core" / "text.py"), "/x/lib/python3.11/site-packages/torch/_ops.py"


def raising_in(file, error, call=None, name="f"):
    """A function of this name and file that raises an error, or calls another function."""
    names = {"error": error, "call": call}
    exec(compile(f"def {name}():\n    {'call()' if call else 'raise error'}", file, "exec"), names)
    return names[name]


# Who raises, the innermost call first, and whether that is the user's mistake
RAISED = {
    "a line of the user's": ([("/home/me/mine.py", "reward")], True),
    "the script's own line": ([("/home/me/train_grpo.py", "experiment")], True),
    "a library that the user's function calls": ([(INSTALLED, "f"), ("/home/me/mine.py", "reward")], True),
    "a library that the script's experiment calls": ([(INSTALLED, "f"), ("/home/me/mine.py", "experiment")], False),
    "ours": ([(OURS, "f"), ("/home/me/mine.py", "reward")], False),
    "a library that ours calls": ([(INSTALLED, "f"), (OURS, "f"), ("/home/me/mine.py", "main")], False),
}


@pytest.mark.parametrize("case", RAISED)
def test_a_mistake_in_the_users_code_is_one_line(case, capsys):
    frames, users = RAISED[case]
    error, run = NameError("name 'lerning_rate'\n  is not defined"), None
    for file, name in frames:
        run = raising_in(file, error, run, name)
    script = raising_in("/home/me/train_grpo.py", error, run, "main")
    if not users:
        with pytest.raises(NameError):
            run_main(script)
        return
    assert run_main(script) == 2
    name = Path(frames[-1][0]).name
    assert capsys.readouterr().err == f"error: NameError: name 'lerning_rate' is not defined ({name}:2)\n"


def test_a_users_file_with_a_syntax_error_is_named(capsys):
    Path("mine.py").write_text("x = 1\ndef f(:\n")
    assert run_main(lambda: runpy.run_path("mine.py")) == 2
    assert capsys.readouterr().err == "error: SyntaxError: invalid syntax (mine.py:2)\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_a_terminal_cannot_show_is_escaped(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert run_main(lambda: prints("a → b")) == 0
    assert written.getvalue() == b"a \\u2192 b\n"


def test_a_reader_that_closes_the_pipe_ends_it_quietly(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run_main(lambda: prints("a line")) == 141
    assert capsys.readouterr().err == ""


def test_a_table_for_a_reader_that_has_gone_ends_it_the_same_way(monkeypatch):
    """rich would end the program itself, with status 1."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run_main(lambda: show("a line") or 0) == 141


def test_what_a_library_says_is_quoted_in_one_line():
    line = r"^m does not load \(KeyError: 'x'\); use another$"
    with pytest.raises(UserError, match=line), one_line("m does not load (", "); use another"):
        raise KeyError("x")
    with pytest.raises(ZeroDivisionError), one_line(kinds=(ValueError,)):
        raise ZeroDivisionError("a bug")
    with pytest.raises(BrokenPipeError), one_line(kinds=(OSError,)):  # as in `| head`
        raise BrokenPipeError
    with pytest.raises(RuntimeError, match="out of memory"), one_line("m does not load ("):
        raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize(
    "module", [core_errors, packing, exact_answers, torch, ast], ids=lambda module: module.__name__
)
def test_the_line_that_is_named_is_never_one_of_ours(module):
    """Nor a library's: both packages of this repository count, and rewards.py, which people edit, does not."""
    assert is_of_a_library(module.__file__) and not is_of_a_library(rewards.__file__)


def test_what_an_environment_below_this_one_installed_is_a_librarys():
    """As `uv run --with` and Debian's packages have it; found as torch taken for the user's own code."""
    for folder in ("cache/archive-v0/x/lib/python3.13/site-packages", "lib/python3/dist-packages"):
        assert is_of_a_library(f"/{folder}/torch/__init__.py")
