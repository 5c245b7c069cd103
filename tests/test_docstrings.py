"""The examples in the docstrings of every module are run."""

import doctest
import importlib
import pkgutil

import pytest

import grpo

MODULES = ["rewards", "train_grpo", *(found.name for found in pkgutil.walk_packages(grpo.__path__, "grpo."))]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_examples_in_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
