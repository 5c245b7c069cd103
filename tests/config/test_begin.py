"""grpo/config/begin.py: the help is the script's own text."""

import pytest
from helpers_runs import ROOT

import train_grpo
from grpo.config import begin as module
from grpo.config.begin import begin, help_of

SCRIPT = ROOT / "train_grpo.py"


def test_the_help_is_the_docstring_and_every_default():
    text = help_of(SCRIPT)
    assert text.startswith("Teach a small language model") and text.endswith("--help_all lists every other setting.")
    assert all(f"\n{key}=" in text for key in train_grpo.HYPERPARAMETERS)
    assert "learning_rate=5e-6,  # of all weights" in text


@pytest.mark.parametrize(("flag", "shown"), [("--help", "Teach"), ("-h", "Teach"), ("--version", "train_grpo.py ")])
def test_help_and_version_are_answered_and_end_the_command(flag, shown, capsys):
    with pytest.raises(SystemExit) as left:
        begin(["--config", "demo", flag], str(SCRIPT))
    assert left.value.code == 0 and capsys.readouterr().out.startswith(shown)


def test_libraries_that_cannot_write_their_cache_end_in_one_line(monkeypatch, capsys):
    """Found as a traceback: importing torch makes TORCHINDUCTOR_CACHE_DIR."""

    def blocked(name):
        raise PermissionError(13, "Permission denied", "/cache")

    monkeypatch.setattr(module.importlib, "import_module", blocked)
    with pytest.raises(SystemExit) as left:
        begin([], str(SCRIPT))
    assert left.value.code == 2 and capsys.readouterr().err == "error: [Errno 13] Permission denied: '/cache'\n"
