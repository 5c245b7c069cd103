"""A hash of code changes with what the code does, and not with how it is laid out or where it stands."""

import functools
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

from grpo.core import fingerprint
from rewards import correctness_reward_func, xmlcount_reward_func

BODY = """
import re
import math
HALF, PATTERN, WORDS = 0.5, re.compile("<a>"), ["yes", "no"]

def helper(text):
    return len(text)

class Scale:
    factor = 2
    def __call__(self, completions, **kwargs):
        return [self.factor * helper(text) for text in completions]

def reward(completions, answer, *, weight=1.0, **kwargs):
    def inner(text):
        return helper(text) * HALF
    return [inner(text) if PATTERN.match(text) or text in WORDS else math.sqrt(weight) for text in completions]

scaled = Scale()
half = lambda completions, **kwargs: [HALF for _ in completions]
"""
NUMBERS = itertools.count()


def load(text, directory="."):
    """The text as a module of a file of its own."""
    path = Path(directory) / f"task_{next(NUMBERS)}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_layout_comments_place_and_unused_code_do_not_count():
    laid_out = BODY.replace("    return len(text)", "    # a comment\n\n    return len( text )") + "\nUNUSED = 3\n"
    for name in ("reward", "scaled", "half"):
        codes = {fingerprint.of_code(getattr(load(*where), name)) for where in ((BODY,), (laid_out, "elsewhere"))}
        assert len(codes) == 1


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("math.sqrt(weight)", "math.sqrt(weight + 1)", {"reward"}),
        ("return len(text)", "return len(text) + 1", {"reward", "scaled"}),  # a helper
        ("HALF, PATTERN, WORDS = 0.5", "HALF, PATTERN, WORDS = 0.25", {"reward", "half"}),  # a constant
        ('"<a>"', '"<b>"', {"reward"}),
        ('["yes", "no"]', '["yes"]', {"reward"}),
        ("weight=1.0", "weight=2.0", {"reward"}),  # a default
        ("factor = 2", "factor = 3", {"scaled"}),
    ],
)
def test_what_a_function_does_counts_with_all_that_it_uses(old, new, changed):
    before, after = load(BODY), load(BODY.replace(old, new))
    names = {"reward", "scaled", "half"}
    codes = {name: [fingerprint.of_code(getattr(module, name)) for module in (before, after)] for name in names}
    assert {name for name in names if codes[name][0] != codes[name][1]} == changed


CONSTANTS = [
    ("from datetime import date as A", "A(2001, 1, 1)", "A(2003, 1, 1)"),
    ("from pathlib import Path as A", "A('a')", "A('b')"),
    ("import numpy as A", "A.array([1, 2])", "A.array([1, 3])"),
    ("import torch as A", "A.tensor([1.0, 2.0])", "A.tensor([1.0, 3.0])"),
    ("A = set", "A({('a', 1), ('b', 2)})", "A({('a', 1), ('b', 3)})"),
    ("from dataclasses import make_dataclass\nA = make_dataclass('B', ['x'])", "A(1)", "A(2)"),
    ("class A:\n    def __init__(self, x):\n        self.x = x", "A(1)", "A(2)"),
]


@pytest.mark.parametrize(("imported", "value", "other"), CONSTANTS)
def test_constants_of_any_kind_count(imported, value, other):
    def of(constant):
        text = f"{imported}\nLIMIT = {constant}\ndef reward(completions, **kwargs):\n    return [LIMIT]\n"
        return fingerprint.of_code(load(text).reward)

    assert of(value) == of(value) != of(other)


def test_a_hash_is_the_same_in_another_process():
    """Whose objects have other addresses, and whose sets another order."""
    text = "import threading\nLOCK, SET = threading.Lock(), {0, 8}\n"
    text += "def reward(completions, **kwargs):\n    return [LOCK, SET]\n"
    other = text.replace("{0, 8}", "{8, 0}")
    assert fingerprint.of_code(load(text).reward) == fingerprint.of_code(load(other).reward)


def test_parameters_of_a_partial_count():
    reward = load(BODY).reward
    codes = {fingerprint.of_code(functools.partial(reward, weight=weight)) for weight in (1.0, 2.0)}
    assert len({*codes, fingerprint.of_code(reward)}) == 3
    assert fingerprint.of_code(correctness_reward_func) != fingerprint.of_code(xmlcount_reward_func)


def test_code_without_a_file_has_a_hash():
    functions = {}
    exec("def one(completions, **kwargs): return [1]\ndef two(completions, **kwargs): return [2.5]", functions)
    assert fingerprint.of_code(functions["one"]) != fingerprint.of_code(functions["two"])


def test_a_script_is_compared_without_what_is_compared_by_itself():
    script = (
        '"""Doc."""\nHYPERPARAMETERS: dict = dict(a=1)\ndef reward(x): return 1\nSHOTS = [1]\ndef main(): return 0\n'
    )
    names = {"HYPERPARAMETERS", "reward"}

    def of(text):
        Path("script.py").write_text(text)
        return fingerprint.of_script(Path("script.py"), names)

    for old, new in (("Doc", "Other"), ("a=1", "a=2"), ("return 1", "return 2"), ("\ndef main", "\n\n# so\ndef main")):
        assert of(script) == of(script.replace(old, new))
    for old, new in (("return 0", "return 1"), ("[1]", "[2]")):
        assert of(script) != of(script.replace(old, new))
