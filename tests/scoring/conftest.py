"""What tests of the user's rewards share."""

import shutil
import sys
from pathlib import Path

import pytest
from helpers_runs import ROOT


@pytest.fixture
def own_files(monkeypatch):
    """The user's files in the working directory, with names of libraries among them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copy(ROOT / "tests/programs/my_rewards.py", ".")
    Path("my_helper.py").touch()
    yield
    sys.modules.pop("my_helper", None)
